"""Every error that autotune raises, in one tree.

    AutotuneError
    ├─ UsageError           bad flag, shape, config or suite file           exit 2
    ├─ EnvironmentProblem   no GPU, driver too old, NVRTC missing           exit 3
    ├─ TrialFailure         one candidate failed; recorded, search goes on  (never reaches the shell)
    ├─ DeviceLost           the GPU worker died more often than allowed     exit 4
    ├─ StoreError           database locked, newer than this code, not ours exit 5
    │  ├─ DuplicateTrial    another search stored that config first: skip it
    │  └─ ServerAway        the database's server does not answer
    ├─ DispatchError        table missing, damaged, for another GPU         exit 6
    └─ SlowGpu              a GPU takes longer than a table recorded        exit 7

A message says what happened, where, and the next step. Only the CLI prints.
This file is copied into exported tables, so it imports nothing of autotune.
"""

from __future__ import annotations

from typing import ClassVar


class AutotuneError(Exception):
    """Base of all errors that autotune raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(AutotuneError):
    """The request itself is wrong: a flag, a shape, a config or a suite file."""

    exit_code: ClassVar[int] = 2


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


class DispatchError(AutotuneError):
    """An exported table cannot serve this call: missing, damaged, or for another GPU."""

    exit_code: ClassVar[int] = 6


class SlowGpu(AutotuneError):
    """A kernel is right, and takes longer than was recorded: a power cap, another program, other clocks."""

    exit_code: ClassVar[int] = 7


class DispatchWarning(UserWarning):
    """An exported table serves this GPU, but was measured under other conditions: no error."""
