"""How long a kernel would take on a shape it was never timed on: a few figures per kernel, no search.

    time = fixed + max(compute, memory) + launches + reduction
    compute = steps * (round_us * rounds + step_us * queue)
    memory = bytes / (bandwidth * memory_efficiency), the less bandwidth the fewer SMs ask for it

A block works through `steps` tiles of k. The busiest SM has a `queue` of blocks, of which some are
resident at a time: it needs that many `rounds`. What blocks wait for together is paid per round
(latency), what they compete for is paid per block (issue slots, shared memory): so a last round that
is nearly empty costs less than a full one, but never nothing. Split-K writes its partial sums and
reads them back: the last block of a tile after all others, one split after another; or a second launch
after the first, with all SMs; or a cluster, from the shared memory of its blocks.

fit.py finds the figures. Copied into exported tables: standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

from ..device import DeviceLimits
from ..gemm import Gemm
from ..kernel.launch import Grid, LaunchSpec, plan
from .table import Kernel, ModelFigures

PROLOGUE_STEPS = 2  # filling the pipeline and storing C, counted as steps of k (unmeasured)
BANDWIDTH_SMS = 0.5  # share of the SMs that has to ask for the full bandwidth (unmeasured)
# Beyond the bytes moved, measured on an H200 (docs/decisions/0022): a launch behind another of the same call,
# by whether it may begin before that one has ended (LaunchSpec.overlaps); the splits of a cluster; and a last
# block, which waits for each split that it adds.
LAUNCH_US = {True: 1.0, False: 1.6}
CLUSTER_US = 0.4
LAST_BLOCK_US = 0.4  # per split


class Work(NamedTuple):
    """What a kernel has to do for one shape on one GPU."""

    round_steps: int  # rounds of resident blocks, each of this many k-steps, on the busiest SM
    queue_steps: int  # k-steps of all blocks on the busiest SM, one after another
    memory_us: float  # all bytes at the bandwidth that this many blocks can ask for
    overhead_us: float  # further launches, and waiting for others before adding their partial sums


def work(spec: LaunchSpec, blocks_per_sm: int, gemm: Gemm, limits: DeviceLimits) -> Work:
    """Count the work of a launch. m and n at least 1."""
    grid = plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
    k_tiles = -(-gemm.k // spec.bk)
    whole_steps = k_tiles + PROLOGUE_STEPS
    split_steps = -(-k_tiles // spec.split_k) + PROLOGUE_STEPS
    whole_queue = -(-(grid.tiles - grid.split_tiles) // limits.num_sms)
    split_queue = -(-grid.split_tiles * spec.split_k // limits.num_sms)
    whole_rounds, split_rounds = (-(-queue // blocks_per_sm) for queue in (whole_queue, split_queue))
    num_bytes = gemm.num_bytes + 2 * grid.scratch_bytes
    num_blocks = grid.size[0] * grid.size[1]
    reach = min(1.0, num_blocks / (BANDWIDTH_SMS * limits.num_sms))
    return Work(
        round_steps=whole_rounds * whole_steps + split_rounds * split_steps,
        queue_steps=whole_queue * whole_steps + split_queue * split_steps,
        memory_us=num_bytes / (limits.bandwidth_gbs * 1e3 * reach),
        overhead_us=_overhead_us(spec, grid),
    )


def has_work(spec: LaunchSpec, k: int) -> bool:
    """Whether every split of k has some."""
    return spec.split_k == 1 or spec.split_k * spec.bk <= k


def _overhead_us(spec: LaunchSpec, grid: Grid) -> float:
    num_launches = len(grid.packs) + (spec.reduction == "two_pass")
    reduction_us = CLUSTER_US if spec.reduction == "cluster" else 0.0
    if spec.reduction in ("last_block", "last_wave") and grid.split_tiles:
        reduction_us = LAST_BLOCK_US * spec.split_k
    return LAUNCH_US[spec.overlaps] * num_launches + reduction_us


def modelled_us(figures: ModelFigures, todo: Work) -> float:
    """Time in us of a kernel of these figures."""
    compute_us = figures.round_us * todo.round_steps + figures.step_us * todo.queue_steps
    return figures.fixed_us + max(compute_us, todo.memory_us / figures.memory_efficiency) + todo.overhead_us


def expected_us(kernel: Kernel, gemm: Gemm, limits: DeviceLimits) -> float | None:
    """Modelled time in us of one launch, or None if the table holds no figures for this kernel."""
    if kernel.model is None:
        return None
    return modelled_us(kernel.model, work(kernel.spec, kernel.blocks_per_sm, gemm, limits))
