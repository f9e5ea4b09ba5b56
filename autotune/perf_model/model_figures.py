"""What a table stores on the speed of a kernel: the figures of the time model (time_model.py); and the
numbers that choices go by, here and in the core.

Separate from the models, which a program that picks in C need not import. Copied into exported tables.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from ..facts.fitted import MAX_ERROR, MOST_DRAWN, number, numbers
from ..facts.frozen import frozen
from ..files.strict import Within
from ..kernel.config import PARAMETER, threads_along_k
from ..kernel.mma_config import MmaConfig
from ..kernel.scaled_config import AnyConfig, HalvesConfig, OnTensorCores
from ..kernel.tensor_config import BF16X6, TF32X3

Floats = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]  # arrays of such numbers

# ---- times of kernels (time_model.py)
PROLOGUE_STEPS = number("PROLOGUE_STEPS")  # filling the pipeline and storing C, as steps of k
BANDWIDTH_SMS = number("BANDWIDTH_SMS")  # share of the SMs that must load to reach the full bandwidth
# In addition to the bytes moved (docs/decisions/0022): a launch after another of the
# same call, by whether it may begin before that one has ended (LaunchSpec.overlaps); and the splits of a
# cluster.
LAUNCH_US, LAUNCH_APART_US = numbers("LAUNCH_US LAUNCH_APART_US")
CLUSTER_US = number("CLUSTER_US")
# A last block adds the partial sums of a tile, one split after another: time for a split, and for each float
# of it (docs/decisions/0059).
LAST_BLOCK_US, LAST_BLOCK_FLOAT_US = numbers("LAST_BLOCK_US LAST_BLOCK_FLOAT_US")
# Tiles cut the rows of A and B into pieces. A piece shorter than a cache line costs one additional byte for
# each float that it lacks (docs/decisions/0053).
LINE_FLOATS = 32
# Reading a float from L2 takes a GPU as long as this many FMAs: 6.7 TB/s on an H200, where anything from 5 to
# 8 predicts alike. Without it tiny tiles of a large product would look fast (docs/decisions/0037).
FMAS_PER_L2_FLOAT = number("FMAS_PER_L2_FLOAT")

# ---- their errors by launch (launch_errors.py)
# A number of a launch is taken less its centre, over its scale, and at most TERM_MOST of these; the first
# PAIRED of them are multiplied in pairs
TERM_MOST, PAIRED = number("TERM_MOST"), 8
# Blocks in the queue of an SM, and k-steps of a block, from which on more do not matter
LONG_QUEUE, DEEP = numbers("LONG_QUEUE DEEP")
TERM_CENTRES = numbers("QUEUE_MEAN RESIDENT_MEAN WAVE_MEAN SPLIT_MEAN DEPTH_MEAN")
TERM_CENTRES += numbers("MEMORY_MEAN OVERHEAD_MEAN FIXED_MEAN L2_MEAN ROUND_MEAN")
TERM_SCALES = numbers("QUEUE_SCALE RESIDENT_SCALE WAVE_SCALE SPLIT_SCALE DEPTH_SCALE")
TERM_SCALES += numbers("MEMORY_SCALE OVERHEAD_SCALE FIXED_SCALE L2_SCALE ROUND_SCALE")
NUM_TERMS = 2 + len(TERM_CENTRES) + PAIRED * (PAIRED + 1) // 2

# ---- what these and cuBLAS's have in common on shapes (residual.py)
LENGTH = number("LENGTH")  # doublings of an extent

# ---- numbers of splits (prediction.py)
PARTS_OF_LAST = number("PARTS_OF_LAST")  # of a tile of the last wave, times as many
VALUES = np.array([v for v in PARAMETER["split_k"].values if isinstance(v, int) and v > 1], float)

# ---- cuBLAS (cublas_model.py)
# Deviations by which the expected time of a kernel must be below cuBLAS's for the kernel to serve. Most
# shapes that kernels would serve more slowly then go to cuBLAS, and so do those with hardly any gain (0117).
MARGIN = number("MARGIN")
# Deviation to add if the loaded version of cuBLAS is not the timed one. Versions are assumed to
# choose other kernels: not knowing the kernel adds this much (0.17 with 0.13 taken out; 0042).
OTHER_VERSION = number("OTHER_VERSION")
# The deviation of cuBLAS's expected time falls as this power of the shorter side of C; that of a side of
# DEVIATION_SIDE is what a table stores: about that over all drawn shapes (0117).
DEVIATION_POWER, DEVIATION_SIDE = numbers("DEVIATION_POWER DEVIATION_SIDE")
# Doublings that one row or column of C is further from two: cuBLAS has other kernels for it (0057).
VECTOR_APART = number("VECTOR_APART")
# cuBLAS fills C with tiles, whose sides are mostly multiples of 64: sides of 64 and of 65 take very different
# times. They are apart by so many doublings, times the logarithm of how much longer whole tiles are (0061).
TILE, TILE_APART = numbers("TILE TILE_APART")
CUBLAS_MOST = MOST_DRAWN  # rows or columns: a longer side has the factor of so many (0061)
# In a batch it takes k one step after another, for about so long each; and times of kernels that are modelled
# there have an error of their own (0120).
BATCH_STEP_US, BATCH_ERROR = numbers("BATCH_STEP_US BATCH_ERROR")
CUBLAS_FIXED_US = number("CUBLAS_FIXED_US")  # of a launch and the end of its last wave, on top of the limit

# ---- the depth of sums (sum_depths.py)
# Of a depth of 1: for data of zero mean, and for positive data
ERRORS = numbers("ERROR_OF_ZERO_MEAN ERROR_OF_POSITIVE")
# Times cuBLAS's, on data of zero mean, and on positive data (0066)
DEFAULT_ERRORS = MAX_ERROR, number("GUESSED_OF_POSITIVE")
# What a promise is kept by, in cuBLAS's depths: also where exponents are wide, for which its sums are as good
# as of a fifth of their depth (0092)
PROMISED = numbers("PROMISED_OF_ZERO_MEAN PROMISED_OF_POSITIVE")
# Where a promise is at stake, C counts as large from so many times more elements on: with few waves of tiles
# cuBLAS may split any k (1.1 and 1.5 waves did)
PROMISED_LARGE = number("PROMISED_LARGE")
# Of products of parts, by scheme and the k after which their sums leave the tensor cores
PARTS = {
    (TF32X3, 16): numbers("PARTS_ZERO_MEAN_16 PARTS_POSITIVE_16"),
    (TF32X3, 32): numbers("PARTS_ZERO_MEAN_32 PARTS_POSITIVE_32"),
    (TF32X3, 64): numbers("PARTS_ZERO_MEAN_64 PARTS_POSITIVE_64"),
    (BF16X6, 16): numbers("BF16_PARTS_ZERO_MEAN_16 BF16_PARTS_POSITIVE_16"),
    (BF16X6, 32): numbers("BF16_PARTS_ZERO_MEAN_32 BF16_PARTS_POSITIVE_32"),
}
CHAIN_SHARE = number("CHAIN_SHARE")  # of the depth that is allowed: the rest is for adding up the splits
# Of the tree that adds up lanes: depth for data of zero mean, and for positive data (0065)
LEVEL = numbers("LEVEL_OF_ZERO_MEAN LEVEL_OF_POSITIVE")
# Of cuBLAS (0043). Its splits of k: this factor times the square root of k over the cube root of the elements
# of C for each SM, none shorter than a chain. It splits from the first k on if C is small, from the second if
# each SM has a tile of 128 x 128 or more.
SPLITS, SHORTEST_CHAIN = numbers("SPLITS SHORTEST_CHAIN")
LEAST_K, LEAST_K_OF_LARGE, LARGE = numbers("LEAST_K LEAST_K_OF_LARGE LARGE")
# A short side of C is at most NARROW. There k is divided among up to NARROW_PARTS threads, if each adds up
# NARROW_DEPTH products. For positive data, adding up s of their sums adds NARROW_ADDING * s to the depth. Up
# to FEW_ROWS rows have at least PARTS_OF_FEW_ROWS threads if rows of A lie along k. Where both operands lie
# along k, a vector is dot products, and so are up to DOT_ROWS rows if A has at most DOT_ELEMENTS elements:
# DOT_THREADS threads share k, DOT_ADDED sums are added in one chain, and no more than DOT_DEPTH is assumed.
# DOT_POSITIVE is the depth for positive data, from LEAST_K on (0065).
NARROW, NARROW_PARTS, NARROW_DEPTH, NARROW_ADDING = numbers("NARROW NARROW_PARTS NARROW_DEPTH NARROW_ADDING")
FEW_ROWS, PARTS_OF_FEW_ROWS = numbers("FEW_ROWS PARTS_OF_FEW_ROWS")
DOT_ROWS, DOT_ELEMENTS, DOT_THREADS, DOT_ADDED = numbers("DOT_ROWS DOT_ELEMENTS DOT_THREADS DOT_ADDED")
DOT_DEPTH, DOT_POSITIVE = numbers("DOT_DEPTH DOT_POSITIVE")


FigureUs = Annotated[float, Within(0, 1e12)]


@frozen()
class ModelFigures:
    """What is known of the speed of one kernel. Fitted when a table is exported."""

    fixed_us: FigureUs  # what any launch costs
    round_us: FigureUs  # per k-step of a wave of resident blocks, however few
    step_us: FigureUs  # per k-step of each block that an SM works through
    memory_efficiency: Annotated[float, Within(1e-9, 1)]  # share of the bandwidth limit that it reaches
    # measured times in the fit; 0: only those of relatives, or rule-of-thumb figures
    num_samples: Annotated[int, Within(0, 1 << 31)]
    # deviation of a modelled time, as far as known; 0 without a fit
    relative_error: Annotated[float, Within(0, 1e12)]


class Depths(NamedTuple):
    """Depths of sums, numbers or arrays: squares of relative errors are in proportion to them."""

    zero_mean: Any  # of data of zero mean
    positive: Any

    @classmethod
    def of_errors(cls, zero_mean: float, positive: float) -> Depths:
        """Those that sums have by their relative (Frobenius) errors."""
        return cls((zero_mean / ERRORS[0]) ** 2, (positive / ERRORS[1]) ** 2)

    def within(self, zero_mean: float, positive: float) -> Depths:
        """Those of sums with so many times the errors."""
        return Depths(zero_mean**2 * self.zero_mean, positive**2 * self.positive)


def excess_depth(depths: Depths, allowed: Depths) -> Floats:
    """The depth of kernels' sums over the allowed one, for either kind of data; at least 1."""
    times = np.maximum(depths.zero_mean / allowed.zero_mean, depths.positive / allowed.positive)
    excess: Floats = np.maximum(1.0, times)
    return excess


def slower_by(excess: Any) -> Any:
    """The factor by which a launch counts as slower whose sums are so many times too deep: steep, so that a
    more accurate one serves, or cuBLAS, unless it is far slower (decision 0062)."""
    squares = excess * excess
    return squares * squares


class Summed(NamedTuple):
    """How one kernel sums; as the columns of `Sums`."""

    slices: float
    threads: float
    added: float
    parts_zero_mean: float
    parts_positive: float


def summed(config: AnyConfig) -> Summed:
    if isinstance(config, OnTensorCores):
        is_known = not isinstance(config, MmaConfig | HalvesConfig)
        summed_as = config.scheme if is_known else "", config.promote_k
        parts = PARTS.get(summed_as, (1e9, 1e9))  # of others no promise is kept
        return Summed(1, 1, config.promote_k, *parts)
    return Summed(config.slice_k, float(threads_along_k(config)), 1, 0, 0)
