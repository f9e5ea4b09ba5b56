"""Times cuBLAS on drawn shapes. A thousand of them cost seconds, as nothing is compiled or verified.

An export learns from these times where cuBLAS is expected to be faster than kernels that nobody tuned
(perf_model/cublas_model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from statistics import median

from ..facts.gemm import Gemm
from ..store import Store
from ..target import Cell, CellTarget


def time_cublas(
    target: CellTarget,
    store: Store,
    gemms: Sequence[Gemm],
    until_s: float,
    at_once: int = 100,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Time cuBLAS on these products until this time of the target's clock, until it should stop, or until it
    was timed on this many, these or others. Times are stored `at_once`. Returns their number; none without a
    cuBLAS. Raises DeviceLost and StoreError."""
    known = store.cublas_times(target.environment, target.policy)
    num_new = 0
    wanted = max(0, len(gemms) - len(known))
    left = islice((gemm for gemm in gemms if gemm not in known), wanted)
    while not should_stop() and target.now() < until_s and (some := list(islice(left, at_once))):
        timed = target.fill([Cell(gemm, None) for gemm in some]).result()
        times_us = {
            gemm: median(cell.samples_us) for gemm, cell in zip(some, timed, strict=True) if cell.samples_us
        }
        if not times_us:
            break
        store.add_cublas_times(target.environment, target.policy, times_us)
        num_new += len(times_us)
    return num_new
