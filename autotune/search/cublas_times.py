"""Times cuBLAS on drawn shapes and strided batches, also as torch has it add a bias, which is another kernel
that often takes longer. A thousand of them cost seconds, as nothing is compiled or verified.

An export learns from these times where cuBLAS is expected to be faster than kernels that nobody tuned
(perf_model/cublas_model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from statistics import median

from ..facts.cublas_calls import adds_bias_within
from ..facts.gemm import Gemm
from ..store import Store
from ..target import Cell, CellTarget

BIAS_LAYOUTS = "NT", "NN"  # in which programs add a bias: the weights of `linear`, and those stored by inputs


def with_bias(gemms: Iterable[Gemm]) -> list[Gemm]:
    """Those of these that cuBLAS is timed on as it adds a bias."""
    return [gemm for gemm in gemms if adds_bias_within(gemm) and gemm.layout in BIAS_LAYOUTS]


def time_cublas(
    target: CellTarget,
    store: Store,
    gemms: Sequence[Gemm],
    until_s: float,
    at_once: int = 100,
    *,
    first: Sequence[Gemm] = (),
    has_bias: bool = False,
    is_batched: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Time cuBLAS on products, or on batches, until this time of the target's clock, or until it should stop:
    on each of `first`, then on `gemms`, until it was timed on this many, these or others. Times are stored
    `at_once`. Returns their number; none without a cuBLAS. Raises DeviceLost and StoreError."""
    known = store.cublas_times(target.environment, target.policy, has_bias=has_bias, is_batched=is_batched)
    num_new = 0
    wanted = max(0, len(gemms) - len(known))
    new = islice((gemm for gemm in gemms if gemm not in known), wanted)
    left = iter(dict.fromkeys(chain((gemm for gemm in first if gemm not in known), new)))
    while not should_stop() and target.now() < until_s and (some := list(islice(left, at_once))):
        timed = target.fill([Cell(gemm, None, has_bias=has_bias) for gemm in some]).result()
        times_us = {
            gemm: median(cell.samples_us) for gemm, cell in zip(some, timed, strict=True) if cell.samples_us
        }
        if not times_us:
            break
        store.add_cublas_times(target.environment, target.policy, times_us, has_bias=has_bias)
        num_new += len(times_us)
    return num_new
