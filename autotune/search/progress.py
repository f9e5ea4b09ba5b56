"""The events of a running search: plain data, passed to one callback. Only the CLI draws them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from ..facts.gemm import Gemm
from ..facts.measurement import Measurement
from ..store import StudyRef
from ..target import Point
from .same_code_trials import TakenOver


@dataclass
class Ledger:
    """Where the seconds went.

    Those of the GPU's process, until the final begins: it works for `problems_s`, `verify_s`, `measure_s` and
    `refine_s`, and is idle for the rest of `search_s`. The coordinator's are `prepare_s`, `ask_s`, `wait_s`
    and `final_s`. Besides, `compile_s` is summed over candidates that compile in parallel, and `store_s` is
    the time of commits, while the GPU measures the next trial.
    """

    compile_s: float = 0.0
    problems_s: float = 0.0  # filling operands, computing references, timing cuBLAS
    verify_s: float = 0.0
    measure_s: float = 0.0
    refine_s: float = 0.0  # timing the best against each other while no candidate waits
    store_s: float = 0.0
    prepare_s: float = 0.0  # waiting for a shape: its space, its earlier trials, cuBLAS's time
    ask_s: float = 0.0
    wait_s: float = 0.0  # nothing to do until a candidate is done
    final_s: float = 0.0
    search_s: float = 0.0  # everything until the final begins, on the target's clock

    @property
    def gpu_busy_s(self) -> float:
        """Seconds that the GPU's process worked on candidates, and on what these are compared with."""
        return self.problems_s + self.verify_s + self.measure_s + self.refine_s

    @property
    def gpu_share(self) -> float | None:
        """The share of the search without the final in which the GPU's process worked; None before."""
        return self.gpu_busy_s / self.search_s if self.search_s > 0 else None

    def to_dict(self) -> dict[str, float | None]:
        """Every entry, and derived values."""
        idle_s = max(0.0, self.search_s - self.gpu_busy_s)
        return {**asdict(self), "gpu_idle_s": idle_s, "gpu_share": self.gpu_share}

    def add(self, measurement: Measurement) -> None:
        self.compile_s += measurement.compile_s
        self.verify_s += measurement.verify_s
        self.measure_s += measurement.measure_s

    @contextmanager
    def timing(self, entry: str) -> Iterator[None]:
        """Adds the time of its block to an entry: `with ledger.timing("ask_s")`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, entry, getattr(self, entry) + time.perf_counter() - started)


@dataclass(frozen=True)
class Best:
    """The fastest trial of a shape so far, and what to compare it with; times in us."""

    point: Point = field(repr=False)
    time_us: float
    cublas_us: float | None
    limit_us: float | None  # where the GPU and the problem have one

    @property
    def speedup(self) -> float | None:
        """Over cuBLAS; None where that is absent."""
        return self.cublas_us / self.time_us if self.cublas_us else None

    @property
    def description(self) -> str:
        """In a few words."""
        comparison = f", {self.speedup:.3f} times as fast as cuBLAS" if self.speedup else ""
        return f"{self.time_us:.4g} us{comparison}"

    @property
    def share_of_limit(self) -> float | None:
        """Share of the hardware's limit; None where that is unknown."""
        return self.limit_us / self.time_us if self.limit_us else None


@dataclass(frozen=True)
class ShapeStarted:
    """A shape is ready to be searched: `num_points` may be proposed, `num_known` were tried earlier, among
    them those that were `taken_over` from another compiler or kernel. `num_unfit` were lined up in Optuna's
    way, and are no feasible point here that is untried."""

    gemm: Gemm
    study: StudyRef
    num_points: int
    num_known: int
    cublas_us: float | None
    limit_us: float | None
    taken_over: TakenOver | None = None
    num_unfit: int = 0


@dataclass(frozen=True)
class TrialDone:
    """A trial of this run was stored."""

    gemm: Gemm
    key: str
    point: Point
    origin: str
    measurement: Measurement
    is_best: bool  # the fastest of its shape so far
    best: Best | None  # of its shape; None while all have failed
    num_done: int  # trials of this run, all shapes
    num_failed: int  # of those
    num_total: int  # trials of this shape, earlier runs included
    elapsed_s: float  # on the target's clock
    left_s: float | None  # estimate; None if no limit was set
    trials_per_s: float


class StopReason(StrEnum):
    """Why a search proposed no more points."""

    TRIALS = "trials"  # as many as were asked for
    SECONDS = "seconds"
    PATIENCE = "patience"  # nothing better is likely
    EXHAUSTED = "exhausted"  # every feasible point was tried
    STOPPED = "stopped"  # by a callback
    INTERRUPTED = "interrupted"

    @property
    def is_at_once(self) -> bool:
        """Whether the search does not wait for points under way."""
        return self in (StopReason.INTERRUPTED, StopReason.SECONDS, StopReason.STOPPED)


@dataclass(frozen=True)
class Stopping:
    """No more points are proposed; those under way are finished or dropped."""

    reason: StopReason
    num_waiting: int


@dataclass(frozen=True)
class FinalStarted:
    """The best of a shape are about to be timed again, interleaved with cuBLAS."""

    gemm: Gemm
    num_finalists: int


@dataclass(frozen=True)
class FinalDone:
    """The final of a shape is stored; `num_tied` are tied, the winner included."""

    gemm: Gemm
    best: Best
    num_tied: int


Event = ShapeStarted | TrialDone | Stopping | FinalStarted | FinalDone
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A callback for nobody."""
