"""What a search measures on: a GPU or a recording of one. The search knows no more than this."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .facts.device import DeviceLimits, Environment
from .facts.gemm import Gemm
from .facts.measurement import CachePolicy, Discarded, Failure, Measurement
from .kernel import templates
from .kernel.config import Value
from .kernel.feasible_set import FeasibleSet
from .kernel.summation_order import SummationOrder

Point = Mapping[str, Value]


def point_key(point: Point) -> str:
    """The identity of a point in the store: `Config.key` for our kernels, name=value,... for others."""
    if templates.is_autotune(point):
        return templates.read(point).key
    return ",".join(f"{name}={value}" for name, value in point.items())


def read_key(key: str) -> dict[str, Value]:
    """The point that a key names; anything for an invalid key."""
    pairs = (item.partition("=") for item in key.split(","))
    return {name: int(text) if re.fullmatch("-?[0-9]{1,18}", text) else text for name, _, text in pairs}


@dataclass(frozen=True)
class Baseline:
    """cuBLAS (`cublasSgemm`, pedantic FP32) on one problem; `time_us` is None where it is absent."""

    time_us: float | None
    samples_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A point, or cuBLAS (None), on a problem: it is timed, not verified, and timing stops early once it is
    clearly slower than `cutoff_us`. `has_bias`: cuBLAS as torch calls it to add a vector to each row."""

    gemm: Gemm
    point: Point | None
    cutoff_us: float | None = None
    has_bias: bool = False


@dataclass(frozen=True)
class CellTime:
    """Samples in us of one cell; none if it failed, for the given reason. `is_cut_short`: too slow to go
    on."""

    samples_us: tuple[float, ...]
    is_cut_short: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Rounds:
    """Points and cuBLAS, timed interleaved: `samples_us[i][r]` is point i in round r. A point that fails
    verification now has no samples. `marks` name what disturbed the rounds (`disturbance`), `discarded` are
    earlier disturbed ones: for each point its samples and their marks."""

    samples_us: tuple[tuple[float, ...], ...]
    baseline: Baseline
    marks: tuple[str, ...] = ()
    discarded: tuple[tuple[Discarded, ...], ...] = ()
    failures: Mapping[int, Failure] = field(default_factory=dict)  # of points without samples
    seconds: float = 0.0  # that the GPU's process took


class Target(Protocol):
    """A source of measurements. `close` frees it; using it as a context manager does so too."""

    limits: DeviceLimits
    environment: Environment
    policy: CachePolicy
    source_hash: str  # of the kernel: trials of different sources never mix
    max_error: float | None  # times cuBLAS's: less accurate points cannot win; None: no limit

    def space(self, gemm: Gemm, order: SummationOrder | None = None) -> FeasibleSet:
        """The points that may be proposed for this problem; where kernels can be made, those whose sums have
        this order."""

    def baseline(self, gemm: Gemm) -> Baseline:
        """cuBLAS on this problem, timed under the same policy."""

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """Compile, verify and time one point. The future never raises for a failing candidate: that
        is a Measurement too. Timing may stop early once the point is clearly slower than cutoff."""

    def compare(self, gemm: Gemm, points: Sequence[Point], rounds: int) -> Rounds:
        """Time points and cuBLAS interleaved."""

    def joules(self, gemm: Gemm, points: Sequence[Point]) -> tuple[float | None, ...]:
        """Energy of one launch of each point, while it runs repeatedly; None if unknown."""

    def renew(self) -> None:
        """Continue in a fresh process, so that earlier work does not affect later measurements. Without a
        process, nothing happens."""

    def now(self) -> float:
        """Seconds on the clock that this target runs on (simulated for a recording)."""

    @property
    def capacity(self) -> int:
        """How many submitted points keep it busy."""

    def close(self) -> None: ...


@runtime_checkable
class Refining(Protocol):
    """A target whose idle seconds can decide between candidates. A recording cannot: it has no further
    data."""

    def compare_pair(
        self, gemm: Gemm, points: tuple[Point, Point], rounds: int, shuffle: int
    ) -> Future[Rounds]:
        """Time two points that are known to run, interleaved and without cuBLAS, once no submitted work waits
        for the GPU. `shuffle` varies the order within rounds. Both have no samples if they, or one of them,
        killed the GPU's process."""


@runtime_checkable
class Preparing(Protocol):
    """A target that has to prepare problems before it measures."""

    @property
    def prepared_s(self) -> float:
        """Seconds that this took so far, cuBLAS's time on them included."""


@runtime_checkable
class Building(Target, Protocol):
    """A target that compiles what it measures."""

    def code_hash(self, gemm: Gemm, point: Point) -> Future[str | None]:
        """Compile a point; equal for equal machine code. None where it is illegal or does not compile."""


@runtime_checkable
class CellTarget(Target, Protocol):
    """A target that times many kernels in a row which were verified elsewhere."""

    def fill(self, cells: Sequence[Cell]) -> Future[tuple[CellTime, ...]]:
        """Compile what the cells need, then time them one after another; nothing is verified. One whose point
        is illegal, does not compile, spills or does not fit has no samples, but a reason."""


@runtime_checkable
class Reusing(Protocol):
    """A target whose idle seconds can try kernels that are compiled already on other problems."""

    def kernel_family(self, gemm: Gemm) -> Hashable:
        """Equal for problems that the same compiled kernels serve."""

    def submit_compiled(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """As `Target.submit`, for a point whose kernel was compiled before, once no submitted work waits for
        the GPU. `compile_s` tells whether it had to be compiled again after all."""
