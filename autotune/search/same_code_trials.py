"""After an upgrade of the compiler or the kernel: trials whose kernels compile to the same machine code as
before keep their results, and are taken over into the study of what is here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..facts.gemm import Gemm
from ..files.words import counted
from ..kernel.feasible_set import FeasibleSet
from ..store import Store, StudyRef
from ..target import Building, Point, Target

_SAME, _OTHER, _UNKNOWN, _LEFT = "same", "other", "unknown", "left"


@dataclass(frozen=True)
class TakenOver:
    """How many trials of an earlier compiler or kernel, `since`, were taken over, and why others were not."""

    since: str = ""
    num_same: int = 0
    num_other: int = 0
    num_unknown: int = 0
    num_left: int = 0

    @property
    def description(self) -> str:
        """In a sentence."""
        kept = counted(self.num_same, "trial keeps its result", "trials keep their results")
        why_not = (
            (self.num_other, "compile to other code"),
            (self.num_unknown, "were stored when code was not compared"),
            (self.num_left, "were not compiled for want of time"),
        )
        others = [f"{num:,} {why}" for num, why in why_not if num]
        return "; ".join([f"{kept} of {self.since}, by equal machine code", *others])


def take_over(
    target: Target,
    store: Store,
    study: StudyRef,
    space: FeasibleSet,
    *,
    within: Collection[str] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> TakenOver | None:
    """Take over into a study, the fastest first, until `is_over`: points of the space, or those with some
    keys. None if nothing else compiled for its problem. Raises StoreError, and what the target does."""
    if not isinstance(target, Building):
        return None
    found: dict[str, str] = {}
    now: dict[str, str | None] = {}  # hashes of code, compiled once for all earlier studies
    others = store.compiled_otherwise(study)
    for other in others:
        known = store.keys(study)
        codes = {key: code for key, code in store.codes(other).items() if key not in known}
        codes = codes if within is None else {key: codes[key] for key in within if key in codes}
        places = space.find_all([point for point, _ in codes.values()])
        tried = [one for one, place in zip(codes.items(), places, strict=True) if place is not None]
        hashed = [(key, point, code_hash) for key, (point, code_hash) in tried if code_hash is not None]
        found |= {key: _UNKNOWN for key, (_, code_hash) in tried if code_hash is None}
        found |= {key: _LEFT for key, _, _ in hashed}
        found |= dict(_compared(target, study.gemm, hashed, now, is_over))
        store.copy_trials(other, [key for key, _, _ in hashed if found[key] == _SAME], study)
    counts = Counter(found.values())
    since = ", ".join(dict.fromkeys(_named(other, study) for other in others))
    return TakenOver(since, *(counts[one] for one in (_SAME, _OTHER, _UNKNOWN, _LEFT))) if found else None


def _compared(
    target: Building,
    gemm: Gemm,
    hashed: Sequence[tuple[str, Point, str]],
    now: dict[str, str | None],
    is_over: Callable[[], bool],
) -> Iterator[tuple[str, str]]:
    """Whether points compile to the code with these hashes, by key; few at once, as others compile too."""
    for begin in range(0, len(hashed), target.capacity):
        if is_over():
            return
        some = hashed[begin : begin + target.capacity]
        compiled = {key: target.code_hash(gemm, point) for key, point, _ in some if key not in now}
        now.update((key, one.result()) for key, one in compiled.items())
        for key, _, before in some:
            yield key, _SAME if now[key] == before else _OTHER


def _named(other: StudyRef, study: StudyRef) -> str:
    """What made the kernels of another study."""
    source = "" if other.source_hash == study.source_hash else f" and source {other.source_hash[:8]}"
    return f"{other.compiler}{source}"
