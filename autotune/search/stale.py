"""Shapes whose times no longer hold: measured under another driver, cuBLAS, compiler or kernel than what is
here. Their finalists are still the best that is known, and are timed again in seconds."""

from __future__ import annotations

from typing import NamedTuple

from ..facts.gemm import Gemm
from ..kernel import same_code
from ..kernel.config import PARAMETER, Config
from ..store import Store, StudyRef
from ..target import Target
from .shape import compiler_of


class Stale(NamedTuple):
    """A shape's newest final, and what has changed since: its name, what it was, what it is here."""

    study: StudyRef
    changes: tuple[tuple[str, str, str], ...]
    finalists: tuple[Config, ...]


def stale_shapes(store: Store, target: Target) -> dict[Gemm, Stale]:
    """The shapes that had a final on GPUs of this kind, under this policy, but none under what is here, in
    order."""
    found: dict[Gemm, Stale] = {}
    fresh: set[Gemm] = set()
    for summary in sorted(store.studies(target.max_error), key=lambda summary: summary.updated_at):
        study, here = summary.study, target.environment
        alike = (study.environment.gpu_name, study.environment.recorded_on, study.policy)
        final = store.final(study, target.max_error)
        if final is None or alike != (here.gpu_name, here.recorded_on, target.policy):
            continue
        changes = changes_since(study, target)
        if not changes:
            fresh.add(study.gemm)
        points = [entry.point for entry in final.entries if set(entry.point) == set(PARAMETER)]
        if changes and points:  # of several the newest stays
            found[study.gemm] = Stale(study, changes, tuple(map(Config.from_dict, points)))
    return {gemm: found[gemm] for gemm in sorted(found) if gemm not in fresh}


def changes_since(study: StudyRef, target: Target) -> tuple[tuple[str, str, str], ...]:
    """What of a study's conditions is otherwise here; sources with the same code are one."""
    then, now = study.environment, target.environment
    pairs = (
        ("driver", then.driver_version, now.driver_version),
        ("cuBLAS", then.cublas_version, now.cublas_version),
        ("compiler", study.compiler, compiler_of(now)),
        ("kernel source", same_code.kept_as(study.source_hash), same_code.kept_as(target.source_hash)),
    )
    return tuple(pair for pair in pairs if pair[1] != pair[2])
