"""The problem on which a kernel is verified that is to be timed on many."""

from __future__ import annotations

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from .config import Config
from .rules import broken_rules

SIDE = 768  # of C: whole tiles of most sizes, where it must be
DEPTH = 512  # k, at least


def small_problem(layout: str, config: Config, limits: DeviceLimits) -> Gemm | None:
    """The problem on which a kernel is verified: as ragged as the kernel allows, and the same for most
    kernels, so that its operands are prepared once. None where the kernel serves no such problem."""
    depth, trans_a, trans_b = max(DEPTH, 8 * config.bk * config.split_k), layout[0] == "T", layout[1] == "T"
    # where rows are read by fours
    along_m, along_k = (4 if trans_a else 1), (4 if trans_b or not trans_a else 1)
    for m, n, k in (
        (SIDE + 1, SIDE + 1, depth + 1),
        (SIDE + along_m, SIDE + 4, depth + along_k),
        (SIDE, SIDE, depth),
        (2 * config.bm, 2 * config.bn, depth),
    ):
        gemm = Gemm(m, n, k, trans_a, trans_b)
        if not broken_rules(config, limits, gemm):
            return gemm
    return None
