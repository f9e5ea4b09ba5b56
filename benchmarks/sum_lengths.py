"""The order of the sums of one problem, also where a config's splits are single chunks."""

from __future__ import annotations

from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config, threads_along_k
from autotune.kernel.launch import reduce_groups
from autotune.kernel.summation_order import SummationOrder


def lengths_of(config: Config, gemm: Gemm) -> tuple[int, ...] | None:
    """As `SummationOrder.lengths`, of one problem's sums: also of splits that are single chunks, which are
    added in their order. None if they are summed in any other way."""
    splits, steps = config.split_k, -(-gemm.k // config.bk)
    if threads_along_k(config) > 1 or config.reduction == "last_wave":
        return None
    if splits == 1 or config.reduction == "chunks":
        return SummationOrder(config.flush_k).lengths(gemm.k)
    most = -(-steps // splits)  # steps of each split, but for the last ones; the first step is the short one
    ends = [gemm.k - max(steps - most * split, 0) * config.bk for split in range(1, splits + 1)]
    lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    is_chunked = 0 < config.flush_k < max(lengths)
    elements = gemm.m * gemm.n * gemm.batch
    if is_chunked or (config.reduction == "two_pass" and reduce_groups(elements, splits) > 1):
        return None
    return tuple(filter(None, lengths))
