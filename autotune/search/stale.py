"""Shapes whose times no longer hold: measured under another driver, cuBLAS, compiler or kernel than what is
here. Their finalists are still the best that is known, and are timed again in seconds; those that another
compiler or kernel makes the same machine code of keep their times."""

from __future__ import annotations

from typing import NamedTuple

from ..facts.gemm import Gemm
from ..files.words import counted
from ..kernel import same_code, templates
from ..kernel.scaled_config import AnyConfig
from ..kernel.templates import is_alike, is_autotune
from ..store import Store, StudyRef
from ..target import Target
from .same_code_trials import take_over
from .shape import compiler_of, study_of

_OF_CODE = ("compiler", "kernel source")
Change = tuple[str, str, str]


class Stale(NamedTuple):
    """A shape's newest final, and what has changed since: its name, what it was, what it is here. `harmless`
    left the machine code of all finalists as it was."""

    study: StudyRef
    changes: tuple[Change, ...]
    finalists: tuple[AnyConfig, ...]
    harmless: tuple[Change, ...] = ()

    @property
    def description(self) -> str:
        """In a sentence."""
        changes = [
            f"{what} {then or 'unknown'} is now {now or 'unknown'}{same}"
            for some, same in ((self.harmless, " with the same machine code"), (self.changes, ""))
            for what, then, now in some
        ]
        kept = "" if self.changes else ": the final stays"
        return f"{', '.join(changes)}; {counted(len(self.finalists), 'finalist')}{kept}"


def stale_shapes(store: Store, target: Target) -> dict[Gemm, Stale]:
    """The shapes that had a final on GPUs of this model, under this policy, but none under what is here, in
    order."""
    found: dict[Gemm, Stale] = {}
    fresh: set[Gemm] = set()
    for summary in sorted(store.studies(target.max_error), key=lambda summary: summary.updated_at):
        study, here = summary.study, target.environment
        alike = (study.environment.gpu_name, study.environment.recorded_on, study.policy)
        if not is_alike(study.source_hash, target.source_hash):
            continue
        final = store.final(study, target.max_error)
        if final is None or alike != (here.gpu_name, here.recorded_on, target.policy):
            continue
        changes = changes_since(study, target)
        if not changes:
            fresh.add(study.gemm)
        points = [entry.point for entry in final.entries if is_autotune(entry.point)]
        if changes and points:  # of several the newest stays
            found[study.gemm] = Stale(study, changes, tuple(map(templates.read, points)))
    return {gemm: found[gemm] for gemm in sorted(found) if gemm not in fresh}


def compared(store: Store, target: Target, stale: Stale) -> Stale:
    """The same, once it is known whether its finalists compile to the code that was measured. Then their
    trials are taken over, and the final with them if nothing else has changed."""
    keys, gemm = [config.key for config in stale.finalists], stale.study.gemm
    study = study_of(store, target, gemm)
    taken = take_over(target, store, study, target.space(gemm), within=keys)
    if taken is None or taken.num_same < len(keys):
        return stale
    harmless = tuple(change for change in stale.changes if change[0] in _OF_CODE)
    changes = tuple(change for change in stale.changes if change not in harmless)
    final = store.final(stale.study, target.max_error)
    if final is not None and not changes:
        store.set_final(study, final.entries, final.baseline, final.marks)
    return stale._replace(changes=changes, harmless=harmless)


def changes_since(study: StudyRef, target: Target) -> tuple[Change, ...]:
    """What of a study's conditions is otherwise here; sources with the same code are one."""
    then, now = study.environment, target.environment
    pairs = (
        ("driver", then.driver_version, now.driver_version),
        ("cuBLAS", then.cublas_version, now.cublas_version),
        ("compiler", study.compiler, compiler_of(now)),
        ("kernel source", same_code.kept_as(study.source_hash), same_code.kept_as(target.source_hash)),
    )
    return tuple(pair for pair in pairs if pair[1] != pair[2])
