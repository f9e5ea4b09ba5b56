"""How long kernels would take on shapes that they were never timed on: a few figures per kernel, no search.

    time = (fixed + max(compute and memory together, l2) + launches + reduction) * error
    together = (compute^4 + memory^4)^(1/4)
    compute = steps * (round_us * waves + step_us * queue)
    memory = bytes / (bandwidth * memory_efficiency), the less bandwidth the fewer SMs ask for it
    l2 = bytes that tiles read, each its own / the bandwidth of L2
    bytes = those of A, B and C, twice those of the workspace, and those lost where tiles cut rows

A block works through `steps` tiles of k. The busiest SM has a `queue` of blocks, of which some are
resident at a time: it needs that many `waves`. Blocks wait together for latency, which counts per wave; they
compete for issue slots and shared memory, which count per block. So a nearly empty last wave costs less than
a full one, but never nothing. Split-K writes its partial sums and reads them back: the last block of a tile
after all others, one split after another; or a second launch after the first, with all SMs; or a cluster,
from the shared memory of its blocks.

fit.py finds the figures, launch_errors.py their errors. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from . import model_figures as figures
from .launches import Flags, Grids, Launches, Shapes, ceil_div
from .model_figures import Floats, ModelFigures


class Speeds(NamedTuple):
    """The first four of these figures of several kernels, as arrays."""

    fixed_us: Floats
    round_us: Floats
    step_us: Floats
    memory_efficiency: Floats

    @classmethod
    def of(cls, known: Sequence[ModelFigures]) -> Speeds:
        return cls(*(np.array([getattr(one, name) for one in known], float) for name in cls._fields))

    def take(self, index: Any) -> Speeds:
        """Those selected, or rearranged, by an index of NumPy."""
        return Speeds(*(column[index] for column in self))


class Work(NamedTuple):
    """The work of kernels for shapes on one GPU; arrays."""

    wave_steps: Floats  # waves of resident blocks, each of this many k-steps, on the busiest SM
    queue_steps: Floats  # k-steps of all blocks on the busiest SM, one after another
    memory_us: Floats  # all bytes at the bandwidth that this many blocks can use
    l2_us: Floats  # what all tiles read
    overhead_us: Floats  # further launches, and waiting for others before adding their partial sums
    form: Floats  # (5, launches): of the blocks that are launched, see `TimeModel._form`


class _Lost(NamedTuple):
    """Bytes at each cut of a row of A or B, with rows along m or n, or along k."""

    along: Floats
    along_k: Floats

    @classmethod
    def of(cls, extent: Floats, bk: Floats, is_read: Flags) -> _Lost:
        """For tiles of this extent along m or n, and along k. Packed operands have no such rows."""
        return cls(*(np.maximum(figures.LINE_FLOATS - piece, 0.0) * is_read for piece in (extent, bk)))


def fmas_per_us(limits: DeviceLimits) -> float:
    """Of the whole GPU."""
    return limits.fma_tflops * 1e6 / 2


class TimeModel:
    """Counts the work of launches on one GPU model; what does not depend on the shape, once."""

    def __init__(self, launches: Launches, limits: DeviceLimits) -> None:
        self._launches, self._num_sms = launches, float(limits.num_sms)
        self._full_bandwidth_blocks = figures.BANDWIDTH_SMS * limits.num_sms  # for the full bandwidth
        self._bytes_per_us = limits.bandwidth_gbs * 1e3
        self._l2_us = (launches.bm + launches.bn) * (figures.FMAS_PER_L2_FLOAT / fmas_per_us(limits))
        further_us = (
            np.where(launches.overlaps, figures.LAUNCH_US, figures.LAUNCH_APART_US) * launches.num_further
        )
        self._overhead_us = further_us + figures.CLUSTER_US * launches.is_cluster
        of_split_us = figures.LAST_BLOCK_US + figures.LAST_BLOCK_FLOAT_US * launches.bm * launches.bn
        self._wait_us = of_split_us * (launches.is_last_block | launches.is_last_wave)
        self._lost_a = _Lost.of(launches.bm, launches.bk, ~launches.packs_a)
        self._lost_b = _Lost.of(launches.bn, launches.bk, ~launches.packs_b)
        self._are_all_split = np.where(launches.is_last_wave, 0.0, 1.0)

    def work(self, shapes: Shapes, grid: Grids) -> Work:
        """For shapes whose grids are these. m and n at least 1."""
        launches = self._launches
        k_tiles = ceil_div(shapes.k, launches.bk)
        num_blocks = grid.split_tiles * grid.split_k
        waits_us = self._wait_us * grid.split_k
        depth = ceil_div(k_tiles, grid.split_k)
        if launches.has_chunks:  # each but the first is as deep as a chunk
            depth = np.where(launches.chunk > 0, np.minimum(k_tiles, launches.chunk / launches.bk), depth)
            depth, num_blocks = self._shared(grid, k_tiles, depth, num_blocks)
        wave_steps, queue_steps = self._steps(num_blocks, depth)
        num_bytes = shapes.num_bytes + 2.0 * (grid.sum_bytes + grid.pack_bytes) + self._lost(shapes, k_tiles)
        if launches.has_last_wave:
            waves, queue = self._steps(grid.tiles - grid.split_tiles, k_tiles)
            wave_steps += waves
            queue_steps += queue
            num_blocks = np.maximum(num_blocks * self._are_all_split, grid.tiles)
            waits_us *= np.minimum(grid.split_tiles, 1.0)
        reach = np.minimum(
            self._bytes_per_us, num_blocks * (self._bytes_per_us / self._full_bandwidth_blocks)
        )
        return Work(
            wave_steps=wave_steps,
            queue_steps=queue_steps,
            memory_us=num_bytes / reach,
            l2_us=grid.tiles * self._l2_us * shapes.k,
            overhead_us=self._overhead_us + waits_us,
            form=self._form(grid, k_tiles),
        )

    def _form(self, grid: Grids, k_tiles: Floats) -> Floats:
        """Logarithms to base 2: of the blocks in an SM's queue; of the shares that these are of what could be
        resident, and that all are of whole waves; of the splits; and of the k-steps of a block."""
        blocks = np.asarray(grid.tiles * grid.split_k, float)
        resident = self._launches.blocks_per_sm
        queue = ceil_div(blocks, self._num_sms)
        in_waves = self._num_sms * resident * ceil_div(queue, resident)
        depth = np.maximum(ceil_div(k_tiles, grid.split_k), 1.0)
        found = (
            np.minimum(queue, figures.LONG_QUEUE), np.minimum(queue / resident, 1.0), blocks / in_waves,
            grid.split_k, np.minimum(depth, figures.DEEP),
        )  # fmt: skip
        form: Floats = np.log2(np.array(np.broadcast_arrays(*found), float))
        return form

    def _shared(
        self, grid: Grids, k_tiles: Floats, depth: Floats, num_blocks: Floats
    ) -> tuple[Floats, Floats]:
        """Steps and blocks where these share out chunks: each begins anew with each part of one."""
        assert grid.shares is not None
        are_shared, num_shares = grid.shares > 0, np.maximum(grid.shares, 1.0)
        of_share = grid.tiles * k_tiles / num_shares
        parts = of_share * self._launches.bk / np.maximum(self._launches.chunk, 1.0)
        shared = of_share + figures.PROLOGUE_STEPS * parts
        return np.where(are_shared, shared, depth), np.where(are_shared, grid.shares, num_blocks)

    def _lost(self, shapes: Shapes, k_tiles: Floats) -> Floats:
        """Bytes, of the rows of A and B that tiles cut."""
        m, n, k, launches = shapes.m, shapes.n, shapes.k, self._launches
        cuts_k = np.maximum(k_tiles - 1.0, 0.0)

        def of(lost: _Lost, extent: Any, tiles: Floats, *, is_k_major: bool) -> Any:
            if is_k_major:
                return cuts_k * (lost.along_k * extent)
            return (tiles - 1.0) * (lost.along * k)

        of_a = of(self._lost_a, m, shapes.tiles_m(launches.bm), is_k_major=not shapes.trans_a)
        of_b = of(self._lost_b, n, ceil_div(n, launches.bn), is_k_major=shapes.trans_b)
        lost: Floats = of_a * shapes.own_a + of_b * shapes.own_b
        return lost

    def _steps(self, num_blocks: Floats, k_steps: Floats) -> tuple[Floats, Floats]:
        """Steps of waves, and of the queue, for blocks of this many steps each."""
        queue = ceil_div(num_blocks, self._num_sms)
        steps = k_steps + figures.PROLOGUE_STEPS
        return ceil_div(queue, self._launches.blocks_per_sm) * steps, queue * steps


def combined_us(compute_us: Floats, memory_us: Floats) -> Floats:
    """The time of both together: their 4-norm. Powers from 3 to 6 predict alike (docs/decisions/0053)."""
    of_compute, of_memory = compute_us * compute_us, memory_us * memory_us
    times_us: Floats = np.sqrt(np.sqrt(of_compute * of_compute + of_memory * of_memory))
    return times_us


def modelled_us(speeds: Speeds, todo: Work) -> Floats:
    """Times in us of kernels with these speeds, without their errors."""
    return parts_us(speeds, todo).time_us


class Parts(NamedTuple):
    """A modelled time, and some of what it consists of."""

    time_us: Floats
    memory_us: Floats
    round_us: Floats


def parts_us(speeds: Speeds, todo: Work) -> Parts:
    """The same times with their parts."""
    round_us, memory_us = speeds.round_us * todo.wave_steps, todo.memory_us / speeds.memory_efficiency
    compute_us = round_us + speeds.step_us * todo.queue_steps
    bound_us = np.maximum(combined_us(compute_us, memory_us), todo.l2_us)
    return Parts(speeds.fixed_us + bound_us + todo.overhead_us, memory_us, round_us)
