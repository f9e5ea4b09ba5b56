"""Whether this process is one of several that compute together. Copied into exported tables."""

from __future__ import annotations

import os
import sys
from typing import Any

_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def torch_distributed() -> Any:
    """torch.distributed, while ranks are at work."""
    found = getattr(sys.modules.get("torch"), "distributed", None)
    is_there = found is not None and found.is_available() and found.is_initialized()
    return found if is_there else None


def is_one_of_several() -> bool:
    """By torch.distributed, or else by what started this process."""
    distributed = torch_distributed()
    if distributed is not None:
        return bool(distributed.get_world_size() > 1)
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in _SIZES)
