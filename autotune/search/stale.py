"""Shapes whose times no longer hold: measured under another driver, cuBLAS, compiler or kernel than what is
here. Their finalists are timed again; those of the same machine code keep their times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..facts.device import Environment
from ..facts.gemm import Gemm
from ..facts.other_problem import a_type_of, is_external
from ..files.words import counted, few
from ..kernel import same_code, templates
from ..kernel.scaled_config import AnyConfig
from ..kernel.templates import accuracy_of, is_alike, is_autotune
from ..store import Final, Store, StudyRef
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
            f"{describe(change)}{same}"
            for some, same in ((self.harmless, " with the same machine code"), (self.changes, ""))
            for change in some
        ]
        kept = "" if self.changes else ": the final stays"
        return f"{', '.join(changes)}; {counted(len(self.finalists), 'finalist')}{kept}"


def stale_shapes(store: Store, target: Target) -> dict[Gemm, Stale]:
    """Those with a final on GPUs of this model, under this policy, but none under what is here, in order."""
    here, finals = target.environment, dict[StudyRef, Final]()
    for summary in sorted(store.studies(), key=lambda summary: summary.updated_at)[::-1]:
        study, final = summary.study, store.final(summary.study, target.max_error)
        alike = (study.environment.gpu_name, study.environment.recorded_on, study.policy)
        is_of_model = alike == (here.gpu_name, here.recorded_on, target.policy)
        if final is not None and is_of_model and is_alike(study.source_hash, target.source_hash):
            finals[study] = final
    found: dict[Gemm, Stale] = {}
    for study, changes in outdated(finals, lambda *_: (here, target.source_hash)).items():
        points = [entry.point for entry in finals[study].entries if is_autotune(entry.point)]
        if points:  # of several the newest stays
            found.setdefault(study.gemm, Stale(study, changes, tuple(map(templates.read, points))))
    return {gemm: found[gemm] for gemm in sorted(found)}


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


def _installed(environment: Environment, source_hash: str, compiler: str = "") -> tuple[str, ...]:
    """What times depend on, besides the GPU; sources with the same code are one."""
    versions = environment.driver_version, environment.cublas_version
    return (*versions, compiler or compiler_of(environment), same_code.kept_as(source_hash))


# For what was measured in an environment with a kernel source: both as a GPU of that model has them on this
# machine; None without one
Here = Callable[[Environment, str], tuple[Environment, str] | None]


def outdated(studies: Iterable[StudyRef], here: Here) -> dict[StudyRef, tuple[Change, ...]]:
    """Of studies, the newest first, those whose times may no longer hold, and what has changed since. They
    are held against what is here or, without such a GPU, against the newest on its model. A problem that has
    been measured under that too is not outdated."""
    now: dict[object, tuple[str, ...]] = {}
    found: dict[StudyRef, tuple[object, tuple[Change, ...]]] = {}
    fresh: set[object] = set()
    for study in studies:
        if is_external(study.source_hash):
            continue
        of, source = study.environment, study.source_hash
        model = of.gpu_name, of.recorded_on, study.policy, accuracy_of(source), a_type_of(source)
        its = _installed(of, source, study.compiler)
        if model not in now:
            own = here(of, source)
            now[model] = _installed(*own) if own else its
        pairs = zip(("driver", "cuBLAS", *_OF_CODE), its, now[model], strict=True)
        if changes := tuple(one for one in pairs if one[1] != one[2]):
            found[study] = (model, study.gemm), changes
        else:
            fresh.add((model, study.gemm))
    return {study: changes for study, (problem, changes) in found.items() if problem not in fresh}


def describe_outdated(found: Mapping[StudyRef, Sequence[Change]]) -> str:
    """In a sentence; "" where there is none."""
    if not found:
        return ""
    shapes = sorted({study.gemm for study in found})
    causes = dict.fromkeys(change for changes in found.values() for change in changes)
    return (
        f"times of {counted(len(shapes), 'shape')} may no longer hold: {', '.join(map(describe, causes))} "
        f"({few(shapes)}). `autotune search --stale` compares machine code and times their finalists again"
    )


def describe(change: Change) -> str:
    """`driver 580.1 is now 590.2`; of sources as much as tells them apart."""
    what, then, now = change
    return f"{what} {then or 'unknown':.40} is now {now or 'unknown':.40}"
