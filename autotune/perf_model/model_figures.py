"""What a table stores on the speed of a kernel: the figures of the time model (time_model.py).

Separate from the model, which a program that picks in C need not import. Copied into exported tables.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..facts.fitted import number, numbers
from ..facts.frozen import frozen
from ..files.strict import Within
from ..kernel.config import PARAMETER

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

# ---- their errors, learned on shapes (residual.py)
LENGTH = number("LENGTH")  # doublings of an extent

# ---- numbers of splits (splits.py)
PARTS_OF_LAST = number("PARTS_OF_LAST")  # of a tile of the last wave, times as many
VALUES = np.array([v for v in PARAMETER["split_k"].values if isinstance(v, int) and v > 1], float)

# ---- cuBLAS (cublas_model.py)
# Deviations by which the expected time of a kernel must be below cuBLAS's for the kernel to serve. Most
# shapes that kernels would serve more slowly then go to cuBLAS, and so do those with hardly any gain (0061).
MARGIN = number("MARGIN")
# Deviation to add if the loaded version of cuBLAS is not the timed one. Versions are assumed to
# choose other kernels: not knowing the kernel adds this much (0.17 with 0.13 taken out; 0042).
OTHER_VERSION = number("OTHER_VERSION")
# Doublings that one row or column of C is further from two: cuBLAS has other kernels for it (0057).
VECTOR_APART = number("VECTOR_APART")
# cuBLAS fills C with tiles, whose sides are mostly multiples of 64: sides of 64 and of 65 take very different
# times. They are apart by so many doublings, times the logarithm of how much longer whole tiles are (0061).
TILE, TILE_APART = numbers("TILE TILE_APART")
CUBLAS_FIXED_US = number("CUBLAS_FIXED_US")  # of a launch and the end of its last wave, on top of the limit


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
