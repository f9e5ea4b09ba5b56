"""What a search measures on: a GPU or a recording of one. The search knows no more than this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from .config import Value
from .device import DeviceLimits, Environment
from .gemm import Gemm
from .measurement import CachePolicy, Measurement
from .space import FeasibleSet

Point = Mapping[str, Value]


@dataclass(frozen=True)
class Baseline:
    """cuBLAS (`cublasSgemm`, pedantic FP32) on one problem; `time_us` is None where it is absent."""

    time_us: float | None
    samples_us: tuple[float, ...] = ()


class Target(Protocol):
    """A source of measurements. `close` frees it; using it as a context manager does so too."""

    limits: DeviceLimits
    environment: Environment
    policy: CachePolicy
    source_hash: str  # of the kernel: trials of different sources never mix

    def space(self, gemm: Gemm) -> FeasibleSet:
        """The points that may be asked for on this problem."""
        ...

    def baseline(self, gemm: Gemm) -> Baseline:
        """cuBLAS on this problem, timed under the same policy."""
        ...

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """Compile, verify and time one point. The future never raises for a failing candidate: that
        is a Measurement too. Timing may stop early once the point is clearly slower than cutoff."""
        ...

    def compare(
        self, gemm: Gemm, points: Sequence[Point], rounds: int
    ) -> tuple[list[tuple[float, ...]], Baseline]:
        """Time points and cuBLAS interleaved: sample r of every point was taken in round r."""
        ...

    def now(self) -> float:
        """Seconds on the clock that this target runs on (simulated for a recording)."""
        ...

    @property
    def capacity(self) -> int:
        """How many submitted points keep it busy."""
        ...

    def close(self) -> None: ...
