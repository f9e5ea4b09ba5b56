"""Everything that touches CUDA while tuning. A worker process owns the context; the rest only talks to it.

gpu_target.GpuTarget ┬ builder ── compiler (threads)
                     └ gpu_worker ── gpu_queue ── client.WorkerClient ──pipe── worker.Session
                                                  turns (one at a time)         ├ candidate, races, guard
                                                                                ├ problem, memory
                                                                                ├ verification, timing
                                                                                ├ timer, cublas
                                                                                └ sgemm, module, nvml, driver
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "GpuTarget": "gpu_target",
    **dict.fromkeys(("GpuInfo", "list_gpus", "find_gpu", "is_usable"), "driver"),
}


def __getattr__(name: str) -> Any:
    """Loads a public name on first use: the worker, which imports this too, starts without a compiler."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
