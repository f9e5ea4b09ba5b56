"""The result of one candidate: its outcome, its times, and the state of the GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from ..files.words import one_of, option
from .disturbance import is_passing

LATENT_US = 200.0  # a launch that took less, its latency included, says too little about the kernel
ENERGY_S = 0.4  # to measure the energy of a finalist: several readings of the energy counter
POLICY_VERSION = 1  # raise when the way of timing changes: older times are then not comparable


class Outcome(StrEnum):
    """How a trial ended. Only `OK` has a time; the others are never tried again or scored."""

    OK = "ok"
    ILLEGAL = "illegal"
    COMPILE_FAILED = "compile_failed"
    COMPILE_TIMEOUT = "compile_timeout"
    COMPILE_CRASHED = "compile_crashed"
    SPILLED = "spilled"
    DOES_NOT_FIT = "does_not_fit"
    WRONG_RESULT = "wrong_result"
    INACCURATE = "inaccurate"
    TOO_FAST = "too_fast"
    FAULTED = "faulted"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"  # as somebody told who measured it


class CachePolicy(StrEnum):
    """`cold`: operands rotate among buffers larger than twice L2. `warm`: one set, left in L2."""

    COLD = "cold"
    WARM = "warm"


def read_policy(text: str) -> CachePolicy:
    """Raises UsageError."""
    return CachePolicy(one_of(option("cache"), text, [*map(str, CachePolicy)]))


def is_accurate(error_over_cublas: float | None, max_error: float | None) -> bool:
    """Whether an error is within a limit, both in times cuBLAS's. None: unknown, or no limit."""
    return max_error is None or error_over_cublas is None or error_over_cublas <= max_error


@dataclass(frozen=True)
class GpuState:
    """Clocks, power and throttling while samples were taken; None if NVML does not report it."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Discarded:
    """Samples that were repeated because of the disturbances that `marks` name."""

    samples_us: tuple[float, ...]
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """The later failure of a candidate that was ok before."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Measurement:
    """The result of one trial.

    `samples_us` are times of one launch each, in the order taken (each the mean of a short batch).
    `error_ratio` is max |C - C64| / bound: above 1 the result is wrong. `error_over_cublas` is
    ||C - C64|| over that of cuBLAS's C, None if unknown. `marks` name what disturbed these samples
    (`disturbance`), `discarded` are disturbed ones that were taken before them."""

    outcome: Outcome
    reason: str = ""  # why it failed; "" when ok
    time_us: float | None = None  # median of samples_us
    samples_us: tuple[float, ...] = ()
    is_cut_short: bool = False  # hopelessly slow: timing stopped after the first samples
    error_ratio: float | None = None
    error_over_cublas: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    code_hash: str | None = None  # equal where the machine code is (kernel/machine_code.py)
    compile_s: float = 0.0  # 0 when it came from the cache
    verify_s: float = 0.0
    measure_s: float = 0.0
    state: GpuState = field(default_factory=GpuState)
    marks: tuple[str, ...] = ()
    discarded: tuple[Discarded, ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def is_disturbed(self) -> bool:
        """Whether repeats did not help, or there were too many: the time may be wrong."""
        return is_passing(self.marks)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        """Read what `to_dict` wrote, without fields that a newer version added."""
        kept = _known(cls, data)
        state = _known(GpuState, kept.pop("state", {}))
        state["throttle_reasons"] = tuple(state.get("throttle_reasons", ()))
        kept["outcome"] = Outcome(kept["outcome"])
        kept["samples_us"] = tuple(kept.get("samples_us", ()))
        kept["marks"] = tuple(kept.get("marks", ()))
        kept["discarded"] = tuple(map(discarded_from, kept.get("discarded", ())))
        return cls(**kept, state=GpuState(**state))


def discarded_from(data: Mapping[str, Any]) -> Discarded:
    """Read discarded samples that `asdict` wrote."""
    return Discarded(tuple(data["samples_us"]), tuple(data["marks"]))


def _known(record: type, data: dict[str, Any]) -> dict[str, Any]:
    """The entries of `data` that are fields of this dataclass."""
    names = {f.name for f in fields(record)}
    return {name: value for name, value in data.items() if name in names}


def is_time(value: Any) -> bool:
    """Whether a value may be a time: a positive number."""
    return type(value) in (int, float) and 0 < value < math.inf
