"""Accesses of warps to memory, and what a GPU makes of them: sectors, lines, wavefronts, conflicts of banks.

An address is a number of floats from the begin of an operand, which lies at a multiple of a line, or of
shared memory. Whoever asks for nothing has NO_LANE in its place.

Sources: the CUDA C++ Programming Guide (32 banks of 4 bytes; sectors of 32 bytes, four to a line); for 64-
and 128-bit accesses, which are served by halves and quarters of a warp, and for loads whose neighbours share
addresses, which take half as many, G. Smith on NVIDIA's developer forum ("Unexpected shared memory bank
conflict", 2019). Of asynchronous copies, wavefronts are those that write shared memory: to read L1 may take
more. `tests/gpu/test_gpu_counts.py` holds all this against Nsight Compute.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..facts.gemm import FLOAT_BYTES
from ..kernel.config import WARP

Kind = Literal["load", "store", "copy"]
Space = Literal["global", "shared"]
Addresses = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_LANE = -1
KINDS: tuple[Kind, ...] = ("load", "store", "copy")  # by their numbers in recorder/primitives_host.hpp
SECTOR = 8  # floats
LINE = 32  # floats
BANKS = 32  # of one float each


@dataclass(frozen=True)
class WarpAccess:
    """One instruction of a warp in each row of `at`, (rows, 32): where each lane's `vec` floats begin.

    `kernel` is the function that has it, `where` the file of the template, `what` the operand. A copy
    (cp.async) is there twice: as it reads global memory, and as it writes shared memory. Of each row: how
    many `times` it occurs, the `warp`, and how many barriers that has passed."""

    kernel: str
    where: str
    what: str
    space: Space
    kind: Kind
    vec: int
    at: Addresses
    times: Addresses
    warp: Addresses
    barrier: Addresses

    def counts(self) -> AccessCounts:
        """What these rows count."""
        at, times = self.at, self.times
        requested = FLOAT_BYTES * self.vec * int(times @ np.count_nonzero(at != NO_LANE, axis=1))
        number = int(times.sum())
        if self.space == "global":
            return AccessCounts(number, requested, int(times @ sectors(at)), int(times @ lines(at)))
        is_load = self.kind == "load"
        waves, met = (int(times @ f(at, self.vec, is_load=is_load)) for f in (wavefronts, conflicts))
        return AccessCounts(number, requested, wavefronts=waves, conflicts=met)


@dataclass(frozen=True)
class AccessCounts:
    """What accesses of warps come to. `num_bytes`: what lanes ask for. Global memory moves `sectors` of 32
    bytes, which lie in `lines` of 128; shared memory takes `wavefronts`, `conflicts` more than if no banks
    had met."""

    accesses: int = 0
    num_bytes: int = 0
    sectors: int = 0
    lines: int = 0
    wavefronts: int = 0
    conflicts: int = 0

    def __add__(self, other: AccessCounts) -> AccessCounts:
        return AccessCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: int) -> AccessCounts:
        return AccessCounts(*(getattr(self, f.name) * times for f in fields(self)))


def sectors(at: Addresses) -> Addresses:
    """Sectors that each row touches: (rows, lanes) -> (rows,). An aligned vector lies in one."""
    return _distinct(np.where(at == NO_LANE, NO_LANE, at // SECTOR))


def lines(at: Addresses) -> Addresses:
    """Lines that each row touches: (rows, lanes) -> (rows,)."""
    return _distinct(np.where(at == NO_LANE, NO_LANE, at // LINE))


def _distinct(values: Addresses) -> Addresses:
    """How many different values, NO_LANE apart, are in each row."""
    ordered = np.sort(values, axis=-1)
    is_new = np.ones_like(ordered, dtype=bool)
    is_new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    different: Addresses = np.sum(is_new & (ordered != NO_LANE), axis=-1)
    return different


def serving(at: Addresses, vec: int, *, is_load: bool) -> Addresses:
    """Which wavefront of its instruction serves each lane: (rows, 32) -> (rows, 32), from 0, or NO_LANE.

    A wavefront brings one float of every bank. Vectors of 2 (4) are served by halves (quarters) of a warp one
    after the other; of loads twice as many lanes at a time, if in all pairs of neighbours, or of next but
    one, both ask for the same, and no banks meet then. Lanes of a group that ask for different floats of a
    bank wait for one another."""
    waves = np.full_like(at, NO_LANE)
    for rows, lanes in _groups(at, vec, is_load=is_load):
        before = np.zeros((len(rows), 1), dtype=at.dtype)
        for first in range(0, WARP, lanes):
            part = np.ix_(rows, np.arange(first, first + lanes))
            conflict_order = _conflict_order(at[part], vec)
            waves[part] = np.where(conflict_order == NO_LANE, NO_LANE, before + conflict_order)
            before = before + conflict_order.max(axis=1, keepdims=True) + 1
    return waves


def wavefronts(at: Addresses, vec: int, *, is_load: bool) -> Addresses:
    """Wavefronts of each row: (rows, 32) -> (rows,)."""
    last: Addresses = serving(at, vec, is_load=is_load).max(axis=1, initial=NO_LANE)
    return last + 1


def conflicts(at: Addresses, vec: int, *, is_load: bool) -> Addresses:
    """Wavefronts of each row beyond one for every group of lanes: (rows, 32) -> (rows,)."""
    return wavefronts(at, vec, is_load=is_load) - _least_wavefronts(at, vec, is_load=is_load)


def _least_wavefronts(at: Addresses, vec: int, *, is_load: bool) -> Addresses:
    """Groups of lanes of each row of which any asks: (rows, 32) -> (rows,)."""
    least = np.zeros(len(at), dtype=at.dtype)
    for rows, lanes in _groups(at, vec, is_load=is_load):
        groups = at[rows].reshape(len(rows), WARP // lanes, lanes)
        least[rows] = np.sum(np.any(groups != NO_LANE, axis=2), axis=1)
    return least


def _groups(at: Addresses, vec: int, *, is_load: bool) -> list[tuple[Addresses, int]]:
    """Rows, and how many neighbouring lanes are served together in them."""
    lanes = WARP // vec
    if not is_load or vec == 1:
        return [(np.arange(len(at)), lanes)]
    are_similar = np.any([_shares(at, apart) for apart in (1, 2)], axis=0)
    shared = are_similar & _are_disjoint(at, vec, 2 * lanes)
    return [(np.flatnonzero(~shared), lanes), (np.flatnonzero(shared), 2 * lanes)]


def _are_disjoint(at: Addresses, vec: int, lanes: int) -> Flags:
    """Rows in which no lanes of a group of so many ask for different floats of a bank."""
    groups = [_conflict_order(at[:, first : first + lanes], vec) for first in range(0, WARP, lanes)]
    apart: Flags = np.all([group.max(axis=1) <= 0 for group in groups], axis=0)
    return apart


def _shares(at: Addresses, apart: int) -> Flags:
    """Rows in which each lane that asks does so for what the lane so many across asks for, if that does."""
    other = at[:, np.arange(WARP) ^ apart]
    same: Flags = np.all((at == other) | (at == NO_LANE) | (other == NO_LANE), axis=1)
    return same


def _conflict_order(at: Addresses, vec: int) -> Addresses:
    """For lanes served together, (rows, lanes): how many other vectors of its banks precede each one's."""
    vectors = np.ascontiguousarray(np.where(at == NO_LANE, NO_LANE, at // vec).T)  # lane by lane
    banks = np.where(vectors == NO_LANE, NO_LANE, vectors % (BANKS // vec)).astype(np.int8)
    conflict_order = np.zeros(vectors.shape, np.int8)
    for lane in range(1, len(vectors)):
        same = np.where(vectors[:lane] == vectors[lane], conflict_order[:lane], NO_LANE).max(axis=0)
        last = np.where(banks[:lane] == banks[lane], conflict_order[:lane], NO_LANE).max(axis=0)
        conflict_order[lane] = np.where(same != NO_LANE, same, last + 1)
    return np.where(at == NO_LANE, NO_LANE, conflict_order.T)
