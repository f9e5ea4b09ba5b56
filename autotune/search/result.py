"""What a search came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..store import Final, StudyRef, TrialRecord
from .progress import Best, Ledger, StopReason
from .same_code_trials import TakenOver
from .shape import ShapeSearch


@dataclass(frozen=True)
class ShapeResult:
    """What is known of a shape at the end, earlier runs included: all that obeys this run's conditions."""

    gemm: Gemm
    study: StudyRef
    best: TrialRecord | None = field(repr=False)  # fastest trial; None if every one failed
    excluded: TrialRecord | None = field(repr=False)  # the fastest trial that does not obey, if it is faster
    final: Final | None = field(repr=False)  # the newest: its winner is the kernel to use
    verdict: Best | None  # the report on the best kernel: its time, and cuBLAS's
    cublas_us: float | None
    limit_us: float | None
    num_trials: int
    num_new: int
    num_failed: int
    taken_over: TakenOver | None = None  # at the beginning, from another compiler or kernel

    @classmethod
    def of(cls, shape: ShapeSearch) -> ShapeResult:
        found = shape.findings
        return cls(
            **picked(shape, "gemm study taken_over"),
            **picked(found, "excluded final verdict limit_us num_failed"),
            best=found.fastest,
            cublas_us=found.baseline.time_us,
            num_trials=found.num_total,
            num_new=shape.time_usage.num_new,
        )


@dataclass(frozen=True)
class SearchResult:
    """The result of a run. The same command continues, and begins the shapes `not_started`."""

    shapes: tuple[ShapeResult, ...]
    not_started: tuple[Gemm, ...]  # shapes whose spaces were not enumerated in time
    reason: StopReason
    num_new: int
    elapsed_s: float  # on the target's clock
    ledger: Ledger
    signal: int | None = None  # that ended it, where one did
    without_final: tuple[Gemm, ...] = ()  # shapes for whose there was no time: trials tell the best
