"""What serves a call signature is settled on the program's own calls: the core lets a few launches, and
torch's own kernel, serve in turn (core/live.h). Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import secrets
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...kernel.config import threads_along_k
from ...kernel.tensor_config import TensorConfig
from ..choose.chooser import Pick
from ..launch.planner import CorePlan
from ..native.core import Core, tell
from ..table.table import Kernel

# What limited the program while it was sampled, as core/live.h numbers it
REGIMES = ("the GPU", "the host")
# What became of the last sample, likewise
OUTCOMES = (
    "no call was due for a sample yet",
    "the calls so far have not paid for the next sample",
    "the GPU has not passed the last sample",
    "the stream was busy first and idle then",
    "the stream was captured",
    "the product failed",
    "the driver refused the sample",
    "samples spread",
)


class LiveState(NamedTuple):
    """What is known of a call signature. `times_us`: median times of the GPU and of the host, by each of
    `LivePlan.rivals`; 0 without a sample. `is_dropped`: samples spread too far, or too few were alike.
    `reason`: why it is not settled or was dropped, of which `fault` is the CUresult; "": it is settled.
    `calls_left`: until the next sample."""

    is_settled: bool
    is_dropped: bool
    winner: int
    limited_by: str
    num_samples: int
    times_us: tuple[tuple[float, float], ...]
    reason: str = ""
    fault: int = 0
    calls_left: int = 0


class LivePlan:
    """A plan of the core whose calls are served in turn by `rivals`, the first of which serves where no turns
    are taken. `kept`: the number of the one that has won in an earlier process, what limited that, and the
    number of samples."""

    def __init__(
        self,
        core: Core,
        rivals: Sequence[CorePlan],
        expected_us: float,
        kept: tuple[int, str, int] | None = None,
    ) -> None:
        self._library, self.rivals, self.kept = core.library, tuple(rivals), kept
        addresses = (ctypes.c_void_p * len(rivals))(*(plan.address for plan in rivals))
        made, seed = ctypes.c_void_p(), secrets.randbits(63)  # Python's own generator is the program's
        winner = kept[0] if kept else -1
        status = self._library.autotune_make_live(
            core.handle, addresses, len(rivals), expected_us, seed, winner, ctypes.byref(made)
        )
        if status:
            tell(status, None, None)
        self.address = made.value

    def state(self) -> LiveState:
        found = self._library.structs.live_state()
        self._library.autotune_tell_live(self.address, ctypes.byref(found))
        times_us = zip(found.gpu_us, found.host_us, strict=True)
        reason = "" if found.is_settled and not found.is_dropped else OUTCOMES[found.outcome]
        if reason and found.outcome == self._library.numbers.AT_REFUSED:
            reason += f" (CUresult {found.fault})"
        _, limited_by, num_samples = self.kept or (0, REGIMES[found.regime], found.num_samples)
        return LiveState(
            bool(found.is_settled), bool(found.is_dropped), found.winner, limited_by,
            num_samples, tuple(times_us)[: found.num_rivals], reason, found.fault, found.calls_left,
        )  # fmt: skip

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address and not sys.is_finalizing():  # threads may be in the middle of a call
            self._library.autotune_release_plan(address)


def sums_as(kernel: Kernel, pick: Pick) -> tuple[Any, ...]:
    """Equal for launches that sum in the same order."""
    config = kernel.config
    if isinstance(config, TensorConfig):
        return kernel.spec.reduction, pick.split_k, "tensor", config.promote_k, config.flush_k
    lanes = threads_along_k(config)
    return kernel.spec.reduction, pick.split_k, config.slice_k, config.flush_k, lanes, config.bk
