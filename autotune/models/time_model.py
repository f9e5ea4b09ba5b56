"""How long kernels would take on shapes that they were never timed on: a few figures per kernel, no search.

    time = (fixed + max(compute, memory, l2) + launches + reduction) * residual
    compute = steps * (round_us * waves + step_us * queue)
    memory = bytes / (bandwidth * memory_efficiency), the less bandwidth the fewer SMs ask for it
    l2 = bytes that tiles read, each its own / the bandwidth of L2

A block works through `steps` tiles of k. The busiest SM has a `queue` of blocks, of which some are
resident at a time: it needs that many `waves`. What blocks wait for together is paid per wave
(latency), what they compete for is paid per block (issue slots, shared memory): so a last wave that
is nearly empty costs less than a full one, but never nothing. Split-K writes its partial sums and
reads them back: the last block of a tile after all others, one split after another; or a second launch
after the first, with all SMs; or a cluster, from the shared memory of its blocks.

fit.py finds the figures, residual.py what they miss. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..bounds import Within
from ..device import DeviceLimits
from .launches import Floats, Grids, Launches, Shapes, Whole, ceil_div

FigureUs = Annotated[float, Within(0, 1e12)]

PROLOGUE_STEPS = 2  # filling the pipeline and storing C, counted as steps of k (unmeasured)
BANDWIDTH_SMS = 0.5  # share of the SMs that has to ask for the full bandwidth (unmeasured)
# Beyond the bytes moved, measured on an H200 (docs/decisions/0022): a launch behind another of the same call,
# by whether it may begin before that one has ended (LaunchSpec.overlaps); the splits of a cluster; and a last
# block, which waits for each split that it adds.
LAUNCH_US, LAUNCH_APART_US = 1.0, 1.6
CLUSTER_US = 0.4
LAST_BLOCK_US = 0.4  # per split
# Reading a float from L2 takes a GPU as long as so many FMAs: 6.7 TB/s on an H200, where anything from 5 to 8
# predicts alike. Without it tiny tiles of a large product are taken to be fast (docs/decisions/0037).
FMAS_PER_L2_FLOAT = 20


@dataclass(frozen=True)
class ModelFigures:
    """What is known of the speed of one kernel. Fitted when a table is exported."""

    fixed_us: FigureUs  # what any launch costs
    round_us: FigureUs  # per k-step of a wave of resident blocks, however few
    step_us: FigureUs  # per k-step of each block that an SM works through
    memory_efficiency: Annotated[float, Within(1e-9, 1)]  # share of the bandwidth limit that it reaches
    # measured times behind the fit; 0: those of relatives alone, or figures of thumb
    num_samples: Annotated[int, Within(0, 1 << 31)]
    # deviation of a modelled time, as far as is known; 0 without a fit
    relative_error: Annotated[float, Within(0, 1e12)]


class Speeds(NamedTuple):
    """The first four of these figures of several kernels, as arrays."""

    fixed_us: Floats
    round_us: Floats
    step_us: Floats
    memory_efficiency: Floats

    @classmethod
    def of(cls, figures: Sequence[ModelFigures]) -> Speeds:
        return cls(*(np.array([getattr(one, name) for one in figures], float) for name in cls._fields))

    def take(self, index: Any) -> Speeds:
        """Those at these places, or in another arrangement: what an index of NumPy says."""
        return Speeds(*(column[index] for column in self))


class Work(NamedTuple):
    """What kernels have to do for shapes on one GPU; arrays."""

    wave_steps: Whole  # waves of resident blocks, each of this many k-steps, on the busiest SM
    queue_steps: Whole  # k-steps of all blocks on the busiest SM, one after another
    memory_us: Floats  # all bytes at the bandwidth that this many blocks can ask for
    l2_us: Floats  # what all tiles read
    overhead_us: Floats  # further launches, and waiting for others before adding their partial sums


def fmas_per_us(limits: DeviceLimits) -> float:
    """Of the whole GPU."""
    return limits.fma_tflops * 1e6 / 2


def work(launches: Launches, shapes: Shapes, grid: Grids, limits: DeviceLimits) -> Work:
    """Count the work of launches whose grids are these. m and n at least 1."""
    num_sms, resident, split_k = limits.num_sms, launches.blocks_per_sm, launches.split_k
    k_tiles = ceil_div(shapes.k, launches.bk)
    split_steps = ceil_div(k_tiles, split_k) + PROLOGUE_STEPS
    split_queue = ceil_div(grid.split_tiles * split_k, num_sms)
    whole_queue = ceil_div(grid.tiles - grid.split_tiles, num_sms)
    whole_steps = k_tiles + PROLOGUE_STEPS
    num_blocks = grid.tiles * np.where(launches.is_last_wave, 1, split_k)
    reach = np.minimum(1.0, num_blocks / (BANDWIDTH_SMS * num_sms))
    num_bytes = shapes.num_bytes + 2 * (grid.sum_bytes + grid.pack_bytes)
    copied = grid.tiles * ((launches.bm + launches.bn) * 1.0) * shapes.k
    waits = np.where(launches.is_last_wave, grid.split_tiles > 0, launches.is_last_block) * split_k
    return Work(
        wave_steps=ceil_div(whole_queue, resident) * whole_steps
        + ceil_div(split_queue, resident) * split_steps,
        queue_steps=whole_queue * whole_steps + split_queue * split_steps,
        memory_us=num_bytes / (limits.bandwidth_gbs * 1e3 * reach),
        l2_us=copied * (FMAS_PER_L2_FLOAT / fmas_per_us(limits)),
        overhead_us=np.where(launches.overlaps, LAUNCH_US, LAUNCH_APART_US) * grid.num_launches
        + CLUSTER_US * launches.is_cluster
        + LAST_BLOCK_US * waits,
    )


def modelled_us(speeds: Speeds, todo: Work) -> Floats:
    """Times in us of kernels so fast, without what the residual adds."""
    compute_us = speeds.round_us * todo.wave_steps + speeds.step_us * todo.queue_steps
    bound_us = np.maximum(np.maximum(compute_us, todo.memory_us / speeds.memory_efficiency), todo.l2_us)
    times_us: Floats = speeds.fixed_us + bound_us + todo.overhead_us
    return times_us
