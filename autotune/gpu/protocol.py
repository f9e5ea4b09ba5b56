"""The messages between the coordinator and the GPU worker: records over a pipe, one answer per request, in
their order.

Both ends run the same code and trust each other, so records travel pickled (multiprocessing.connection
frames them). A worker answers every request or dies; its answer after a sticky CUDA error is `is_last`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

from ..facts.accuracy_class import STRICT
from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy, Discarded, Failure, GpuState, Outcome
from ..kernel.launch import LaunchSpec
from ..kernel.template import ENTRY
from ..target import CellTime


@dataclass(frozen=True)
class Problem:
    """What is computed and how it is timed; `seed` decides the operands. A candidate whose error is more than
    `max_error` times cuBLAS's is not timed; None: any correct one is; nor is one that does not keep what its
    class of `accuracy` promises."""

    gemm: Gemm
    policy: CachePolicy
    seed: int = 0
    max_error: float | None = None
    accuracy: str = STRICT


@dataclass(frozen=True)
class KernelCode:
    """A compiled candidate: its cubin (with the entries of launch.Grid), identity and launch. `entry` is the
    kernel that takes the arguments of `sgemm`: another one for a reference kernel. `accuracy` tells by which
    units it multiplies, and so how fast it may be."""

    code: bytes
    sha256: str
    spec: LaunchSpec
    entry: str = ENTRY
    accuracy: str = STRICT


# ---------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Start:
    """Open the GPU. `checks` is the cubin of kernels/checks.cu. Answered by Ready."""

    gpu_uuid: str
    limits: DeviceLimits
    checks: bytes


@dataclass(frozen=True)
class Prepare:
    """Allocate and fill operands, compute the reference. Answered by Prepared."""

    problem: Problem


@dataclass(frozen=True)
class RunTrial:
    """Verify and time a candidate. Answered by TrialResult. `peers`: processes, as NVML numbers them,
    that compute in turns of their own, and so disturb nothing."""

    problem: Problem
    kernel: KernelCode
    cutoff_us: float | None
    peers: frozenset[int] = frozenset()

    @property
    def kernels(self) -> tuple[KernelCode]:
        return (self.kernel,)


@dataclass(frozen=True)
class RunRace:
    """Time candidates, verified, and cuBLAS, interleaved; then, if asked, run each candidate for
    `energy_s` and measure its energy. Answered by RaceResult. `peers` as of RunTrial."""

    problem: Problem
    kernels: tuple[KernelCode, ...]
    rounds: int
    energy_s: float = 0.0
    peers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RunComparison:
    """Time two candidates, verified, interleaved. Nothing is repeated: what disturbs a round disturbs both.
    `shuffle` varies the order within rounds from one comparison to the next. Answered by ComparisonResult."""

    problem: Problem
    kernels: tuple[KernelCode, KernelCode]
    rounds: int
    shuffle: int = 0


@dataclass(frozen=True)
class RunCells:
    """Time kernels, or cuBLAS (None), each on a problem whose numbers do not matter: nothing is verified, and
    nothing prepared. Answered by CellsResult. `peers` as of RunTrial."""

    cells: tuple[tuple[Gemm, KernelCode | None, float | None, bool], ...]  # the last: cutoff in us, has_bias
    policy: CachePolicy
    peers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Shutdown:
    """End. Not answered."""


Request = Start | Prepare | RunTrial | RunRace | RunComparison | RunCells | Shutdown


# ---------------------------------------------------------------------------------------- answers


@dataclass(frozen=True)
class Ready:
    """The GPU is open. `nvml_pid` is the worker's process id as NVML numbers it, None if unknown."""

    cublas_version: str
    driver_version: str
    nvml_pid: int | None


@dataclass(frozen=True)
class Prepared:
    """`baseline_us`: samples of cuBLAS, empty where it is absent. `held`: all problems prepared now.
    `seconds`: that this took."""

    baseline_us: tuple[float, ...] = ()
    num_sets: int = 1
    reference_share: float = 1.0  # of C that is checked against float64
    held: tuple[Problem, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class TrialResult:
    """The result of a candidate; the fields are those of Measurement."""

    outcome: Outcome
    reason: str = ""
    samples_us: tuple[float, ...] = ()
    is_cut_short: bool = False
    error_ratio: float | None = None
    error_over_cublas: float | None = None
    verify_s: float = 0.0
    measure_s: float = 0.0
    state: GpuState = field(default_factory=GpuState)
    marks: tuple[str, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    is_last: bool = False  # the context is lost: the worker ends after this


@dataclass(frozen=True)
class RaceResult:
    """`samples_us[i][r]` is candidate i in round r; empty for one that failed verification. `discarded[i]`
    are its samples of rounds that were repeated. `joules[i]` is its energy per launch, None if unknown.
    `failures[i]` describes those without samples."""

    samples_us: tuple[tuple[float, ...], ...]
    baseline_us: tuple[float, ...] = ()
    state: GpuState = field(default_factory=GpuState)
    marks: tuple[str, ...] = ()
    discarded: tuple[tuple[Discarded, ...], ...] = ()
    joules: tuple[float | None, ...] = ()
    failures: Mapping[int, Failure] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparisonResult:
    """`samples_us[i][r]` is candidate i in round r; both are empty if either failed verification."""

    samples_us: tuple[tuple[float, ...], tuple[float, ...]]
    seconds: float  # in all, verifying included


@dataclass(frozen=True)
class CellsResult:
    """One per cell, in order; fewer if the context was lost at the next one."""

    times: tuple[CellTime, ...]
    reason: str = ""
    is_last: bool = False


@dataclass(frozen=True)
class Failed:
    """A request other than a trial failed. `kind` environment: the machine lacks something."""

    kind: Literal["environment", "internal"]
    message: str
    is_last: bool = False


Answer = Ready | Prepared | TrialResult | RaceResult | ComparisonResult | CellsResult | Failed


def serve(
    connection: Connection, handle: Callable[[Any], Answer], tidy: Callable[[], None] = lambda: None
) -> None:
    """Answer requests until told to stop, until the other end is gone, or until an answer is the last. What
    is to be tidied up after each waits until it is sent: meanwhile the other end makes the next request."""
    while True:
        try:
            request = connection.recv()
        except EOFError:  # the coordinator is gone
            return
        if isinstance(request, Shutdown):
            return
        answer = handle(request)
        connection.send(answer)
        if getattr(answer, "is_last", False):
            return
        tidy()
