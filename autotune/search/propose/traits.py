"""What is known of a config of our kernel before it is compiled: how it fills the GPU, what it moves per FMA.

A model with these inputs need not learn them from trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...facts.device import DeviceLimits
from ...facts.gemm import Gemm
from ...kernel import resources
from ...kernel.config import lanes_k, threads_along_k
from ...kernel.feasible_set import FeasibleSet


@dataclass(frozen=True)
class Traits:
    """Of the points of one space on one problem, from their codes; (q, parameters)."""

    gemm: Gemm
    limits: DeviceLimits
    values: dict[str, np.ndarray]  # by parameter, in the order of the codes

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        """Logarithms of the quantities that decide times; (q, traits)."""
        quantities = _quantities(_EncodedColumns(self.values, codes), self.gemm, self.limits)
        return np.asarray(np.log2(np.stack(quantities, axis=1)))

    def longest_sums(self, codes: np.ndarray) -> np.ndarray:
        """The largest number of products that a thread adds up one by one; (q,)."""
        return _longest_sums(_EncodedColumns(self.values, codes), self.gemm, self.limits)


class _EncodedColumns:
    """Columns of configs, each read from the codes at its first use: most rules use few."""

    def __init__(self, values: Mapping[str, np.ndarray], codes: np.ndarray) -> None:
        self._values, self._codes, self._places = values, codes, list(values)

    def __getattr__(self, name: str) -> np.ndarray:
        column: np.ndarray = self._values[name][self._codes[:, self._places.index(name)]]
        setattr(self, name, column)
        return column


def traits_of(space: FeasibleSet, gemm: Gemm, limits: DeviceLimits) -> Traits | None:
    """Traits of the points of this space; None for a space that is not of our kernel."""
    if not space.is_autotune:
        return None
    named = zip(space.names, space.values, strict=True)
    return Traits(gemm, limits, {name: np.array(choices) for name, choices in named})


def _quantities(c: Any, gemm: Gemm, limits: DeviceLimits) -> list[np.ndarray]:
    """Of columns of configs; each positive, shape (q,). Times are products, so models see logarithms."""
    num_threads, smem = resources.threads(c), resources.smem_bytes(c, gemm)
    registers = resources.expected_registers(c, limits)
    blocks = np.maximum(1, resources.blocks_per_sm(c, limits, gemm, registers))
    tiles = resources.tiles(c, gemm)
    waves, fill = _waves(c, gemm, blocks * limits.num_sms)
    per_sm = _blocks(c, gemm) / limits.num_sms
    at_once = np.minimum(blocks, np.ceil(per_sm))  # a small grid leaves room
    step = c.bk * lanes_k(c)
    stages_ahead = np.maximum(c.stages - 1, 0.5)  # a single stage is half the time in flight
    return [
        num_threads,
        smem,
        registers,
        blocks,
        blocks * num_threads,  # that fit an SM
        at_once * num_threads,
        per_sm * num_threads,
        waves,
        fill,
        tiles * c.bm * c.bn / gemm.num_results,  # computed over needed
        (c.bm + c.bn) / (c.bm * c.bn),  # elements from global memory per FMA
        c.tm * c.tn,  # sums per thread
        c.tm * c.tn / (c.tm + c.tn),  # FMAs per element from shared memory
        step * (c.bm / c.vec_a + c.bn / c.vec_b) / num_threads,  # copies per thread and tile
        c.tm * c.tn * c.unroll_k,  # FMAs in the loop's body
        gemm.k / resources.splits(c, gemm) / step,  # steps of the loop
        stages_ahead * step * (c.bm + c.bn) * at_once,  # elements on their way to an SM
    ]


def _blocks(c: Any, gemm: Gemm) -> np.ndarray:
    """Thread blocks of all splits; `last_wave` adds only few."""
    splits = np.where(c.reduction == "last_wave", 1, resources.splits(c, gemm))
    return np.asarray(resources.tiles(c, gemm) * splits)


def _waves(c: Any, gemm: Gemm, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Waves of blocks, and the busy share of their slots. `last_wave` splits only the tiles of the last wave,
    so that it ends sooner."""
    splits_last = c.reduction == "last_wave"
    waves = _blocks(c, gemm) / slots
    whole, rest = np.floor(waves), np.ceil(waves % 1.0)
    return waves, waves / (whole + rest / np.where(splits_last & (whole > 0), c.split_k, 1))


def _longest_sums(c: Any, gemm: Gemm, limits: DeviceLimits) -> np.ndarray:
    """`last_wave` leaves the tiles of whole waves unsplit, if there are any; a flush begins a sum anew."""
    has_whole_waves = (c.reduction == "last_wave") & (
        resources.tiles(c, gemm) >= limits.num_sms * c.min_blocks
    )
    steps = gemm.k / (threads_along_k(c) * np.where(has_whole_waves, 1, c.split_k))
    return np.asarray(np.where(c.flush_k > 0, np.minimum(steps, c.flush_k), steps))
