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
from ..choose.pick import Pick
from ..launch.planner import CorePlan
from ..native.core import Core, tell
from ..table.table import Kernel

# What limited the program while it was sampled, as core/live.h numbers it
REGIMES = ("the GPU", "the host")


class LiveState(NamedTuple):
    """What is known of a call signature. `times_us`: median times of the GPU and of the host, by each of
    `LivePlan.rivals`; 0 without a sample. `is_dropped`: samples spread too far, or too few were alike."""

    is_settled: bool
    is_dropped: bool
    winner: int
    limited_by: str
    num_samples: int
    times_us: tuple[tuple[float, float], ...]


class LivePlan:
    """A plan of the core whose calls are served in turn by `rivals`, the first of which serves where no turns
    are taken."""

    def __init__(self, core: Core, rivals: Sequence[CorePlan], expected_us: float) -> None:
        self._library, self.rivals = core.library, tuple(rivals)
        addresses = (ctypes.c_void_p * len(rivals))(*(plan.address for plan in rivals))
        made, seed = ctypes.c_void_p(), secrets.randbits(63)  # Python's own generator is the program's
        status = self._library.autotune_make_live(
            core.handle, addresses, len(rivals), expected_us, seed, ctypes.byref(made)
        )
        if status:
            tell(status, None, None)
        self.address = made.value

    def state(self) -> LiveState:
        found = self._library.structs.live_state()
        self._library.autotune_tell_live(self.address, ctypes.byref(found))
        times_us = zip(found.gpu_us, found.host_us, strict=True)
        return LiveState(
            bool(found.is_settled), bool(found.is_dropped), found.winner, REGIMES[found.regime],
            found.num_samples, tuple(times_us)[: found.num_rivals],
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
