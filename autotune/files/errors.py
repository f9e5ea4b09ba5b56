"""Every error that autotune raises, in one tree.

    AutotuneError
    ├─ UsageError           bad flag, shape, config or suite file           exit 2
    │  └─ NothingStale      no time has to be measured anew; the command line says so, and ends with 0
    ├─ EnvironmentProblem   no GPU, driver too old, NVRTC missing           exit 3
    ├─ TrialFailure         one candidate failed; recorded, search goes on  (never reaches the shell)
    ├─ DeviceLost           the GPU worker died more often than allowed     exit 4
    ├─ StoreError           database locked, newer than this code, not ours exit 5
    │  ├─ DuplicateTrial    another search stored that config first: skip it
    │  └─ ServerAway        the database's server does not answer
    ├─ DispatchError        table missing, damaged, for another GPU         exit 6
    └─ SlowGpu              a GPU takes longer than a table recorded        exit 7

CUDA errors after which a process can compute nothing more on its GPU are STICKY: the context is lost.
A message says what happened, where, and the next step. Only the CLI prints.
This file is copied into exported tables, so it imports nothing of autotune.
"""

from __future__ import annotations

import warnings
from typing import ClassVar


class AutotuneError(Exception):
    """Base of all errors that autotune raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(AutotuneError):
    """The request itself is wrong: a flag, a shape, a config or a suite file."""

    exit_code: ClassVar[int] = 2


class NothingStale(UsageError):
    """No time has to be measured anew."""


class EnvironmentProblem(AutotuneError):
    """The machine lacks something: a GPU, a new enough driver, NVRTC, cuBLAS."""

    exit_code: ClassVar[int] = 3


class TrialFailure(AutotuneError):
    """One candidate failed. `outcome` is the value of the `Outcome` it is recorded under."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(outcome, reason)  # both: an exception is pickled by its arguments
        self.outcome = outcome
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}"


class DeviceLost(AutotuneError):
    """The GPU worker died more often than a search tolerates."""

    exit_code: ClassVar[int] = 4


class StoreError(AutotuneError):
    """The database is locked, damaged, newer than this code, or not autotune's."""

    exit_code: ClassVar[int] = 5


class DuplicateTrial(StoreError):
    """The study already holds a trial of this config: a second search on the database was faster."""


class ServerAway(StoreError):
    """The server of the database does not answer, or broke off. The same may succeed later."""

    is_final = False  # whether it was waited for


class DispatchError(AutotuneError):
    """An exported table cannot serve this call: missing, damaged, or for another GPU."""

    exit_code: ClassVar[int] = 6


class SlowGpu(AutotuneError):
    """A kernel is right, and takes longer than was recorded: a power cap, another program, other clocks."""

    exit_code: ClassVar[int] = 7


class DispatchWarning(UserWarning):
    """An exported table serves this GPU, but was measured under other conditions: no error."""


def warn_served(text: str) -> None:
    """Warn of what befell a product that is served all the same. It raises nothing: where warnings are errors
    (`python -W error`) the text is shown."""
    try:
        warnings.warn(text, DispatchWarning, stacklevel=3)
    except DispatchWarning as warning:
        warnings.showwarning(warning, DispatchWarning, __file__, 0)


_STICKY_DESCRIPTION = "leaves the process in an inconsistent state, by its description"
_HARDWARE = "memory or a link of the GPU failed while a kernel ran: what was computed cannot be trusted"

# CUresult: its name, and why nothing can follow it, by the CUDA driver API's description of CUresult
# (docs.nvidia.com/cuda/cuda-driver-api, "Data types used by CUDA driver"), of CUDA 13. Of the errors that
# leave the process in an inconsistent state none is missing: a test compares this with the bindings.
STICKY: dict[int, tuple[str, str]] = {
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", _HARDWARE),
    220: ("CUDA_ERROR_NVLINK_UNCORRECTABLE", _HARDWARE),
    226: ("CUDA_ERROR_CONTAINED", _STICKY_DESCRIPTION),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", _STICKY_DESCRIPTION),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", _STICKY_DESCRIPTION),
    709: ("CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context is gone"),
    710: ("CUDA_ERROR_ASSERT", "the context cannot be used anymore, by its description"),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", _STICKY_DESCRIPTION),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", _STICKY_DESCRIPTION),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", _STICKY_DESCRIPTION),
    717: ("CUDA_ERROR_INVALID_ADDRESS_SPACE", _STICKY_DESCRIPTION),
    718: ("CUDA_ERROR_INVALID_PC", _STICKY_DESCRIPTION),
    719: ("CUDA_ERROR_LAUNCH_FAILED", _STICKY_DESCRIPTION),
    # By its description the launch is refused and the context intact. But nothing here launches
    # cooperatively: a process with this error has gone wrong.
    720: ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "answers a kind of launch that is never made here"),
    721: ("CUDA_ERROR_TENSOR_MEMORY_LEAK", _STICKY_DESCRIPTION),
    810: ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "the server of MPS has ended this client"),
    911: ("CUDA_ERROR_EXTERNAL_DEVICE", _STICKY_DESCRIPTION),
    999: ("CUDA_ERROR_UNKNOWN", "the driver failed in a way that it does not know itself"),
}


def is_sticky(code: int) -> bool:
    """Whether after this CUresult only a new process helps."""
    return code in STICKY
