"""Which kernel of a table serves a call, and why: exact, modelled, nearest or default.

A kernel is legal for a call if `launch.refusal` has nothing against it. In this order:
    exact     the shape was tuned, and a kernel ranked for it is legal
    modelled  the legal kernel with the least modelled time, the default competing. The less is known of a
              kernel, the slower it is taken to be (CAUTION). One whose sums are deeper than they may be
              (depth.py) is taken to be slower by as much as its error is too large: it wins where nothing
              else is nearly as fast
    nearest   no legal kernel has a model: the best legal kernel of the nearest tuned shape
    default   nothing else is legal
Copied into exported tables: standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import DispatchError
from ..gemm import LAYOUTS, Gemm
from ..kernel.launch import refusal
from .summation import Summing, allowed_depth, excess_error
from .table import Entry, Kernel, Table
from .time_model import expected_us, has_work

NUM_NEAREST = 8  # tuned shapes that are looked through for a legal kernel
CAUTION = 0.5  # deviations of a modelled time by which it is taken to be longer: what is surely good wins
NEAR = 1.25  # times as large or small in m, n and k: sums that were accurate enough there are here

How = Literal["exact", "modelled", "nearest", "default"]
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Pick:
    """The kernel for a call. `entry` is the tuned shape it rests on, if any; `expected_us` the
    measured (exact) or modelled time of a launch, if any."""

    kernel_id: str
    how: How
    reason: str
    expected_us: float | None = None
    entry: Gemm | None = None


@dataclass(frozen=True)
class Call:
    """One product as it would be launched: leading dimensions in elements, base addresses of A, B, C."""

    gemm: Gemm
    lds: Triple
    addresses: Triple = (0, 0, 0)

    @classmethod
    def packed(cls, gemm: Gemm) -> Call:
        """Packed leading dimensions (at least 1) and addresses as aligned as they can be."""
        return cls(gemm, (max(gemm.lda, 1), max(gemm.ldb, 1), max(gemm.ldc, 1)))

    @property
    def is_packed(self) -> bool:
        return self.lds == Call.packed(self.gemm).lds

    def refusal(self, kernel: Kernel) -> str | None:
        """Why this kernel must not serve this call, or None if it may."""
        g = self.gemm
        if kernel.layout != g.layout:
            return f"it is for {kernel.layout}, not {g.layout}"
        return refusal(kernel.spec, g.m, g.n, g.k, self.lds, self.addresses)


class Selector:
    """Picks kernels of one table. Pure: asks no GPU, keeps no state."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.kernels = {kernel.id: kernel for kernel in table.kernels}
        self._by_layout = {x: [k for k in table.kernels if k.layout == x] for x in LAYOUTS}
        self._entries = {entry.gemm: entry for entry in table.entries}
        self._summing = {kernel.id: Summing(kernel) for kernel in table.kernels}

    def pick(self, call: Call) -> Pick:
        """The kernel for a call with m and n at least 1. Raises DispatchError if even the default
        kernel is not legal, which needs more tiles than a grid holds."""
        return self._exact(call) or self._modelled(call) or self._nearest(call) or self._default(call)

    def _exact(self, call: Call) -> Pick | None:
        entry = self._entries.get(call.gemm)
        if entry is None:
            return None
        for rank, ranked in enumerate(entry.ranked):
            if call.refusal(self.kernels[ranked.kernel]) is None:
                reason = f"{call.gemm} was tuned" + ("" if rank == 0 else f"; number {rank + 1} for it")
                if rank:
                    reason += f", because {call.refusal(self.kernels[entry.ranked[0].kernel])}"
                if not call.is_packed:
                    reason += "; timed with packed leading dimensions"
                return Pick(ranked.kernel, "exact", reason, ranked.time_us, call.gemm)
        return None

    def _modelled(self, call: Call) -> Pick | None:
        near = next(iter(self._near(call.gemm)), None)
        allowed = self._allowed_depth(call.gemm, near)
        times = []
        for kernel, time_us in self._modelled_times(call):
            careful_us = _careful_us(kernel, time_us)
            excess = excess_error(self._summing[kernel.id].depth(call.gemm.k), allowed)
            times.append((careful_us * excess, kernel.id, careful_us, time_us))
        if not times:
            return None
        handicapped_us, best, careful_us, time_us = min(times)
        reason = f"{self._not_exact(call)}: the least modelled time of {len(times)} legal kernels"
        if handicapped_us > careful_us:
            reason += ", although its sums are deeper than is accurate"
        elif careful_us > min(other_us for _, _, other_us, _ in times):
            reason += " that are accurate enough"
        figures = self.kernels[best].model
        if figures is not None and not figures.num_samples:
            reason += "; it was never timed itself"
        return Pick(best, "modelled", reason, time_us, near.gemm if near else None)

    def _allowed_depth(self, gemm: Gemm, near: Entry | None) -> float:
        """How deep sums may be: as those of kernels that were measured to be accurate enough close by."""
        allowed = allowed_depth(gemm)
        if near is None or not _is_near(near.gemm, gemm):
            return allowed
        return max(allowed, *(self._summing[ranked.kernel].depth(gemm.k) for ranked in near.ranked))

    def _modelled_times(self, call: Call) -> Iterator[tuple[Kernel, float]]:
        for kernel in self._by_layout[call.gemm.layout]:
            if call.refusal(kernel) is None and has_work(kernel.spec, call.gemm.k):
                time_us = expected_us(kernel, call.gemm, self._table.limits)
                if time_us is not None:
                    yield kernel, time_us

    def _nearest(self, call: Call) -> Pick | None:
        for entry in self._near(call.gemm)[:NUM_NEAREST]:
            for ranked in entry.ranked:
                kernel = self.kernels[ranked.kernel]
                if call.refusal(kernel) is None and has_work(kernel.spec, call.gemm.k):
                    reason = f"{self._not_exact(call)}: nearest tuned shape {entry.gemm}"
                    return Pick(ranked.kernel, "nearest", reason, None, entry.gemm)
        return None

    def _near(self, gemm: Gemm) -> list[Entry]:
        """Tuned shapes of the same layout, the nearest first."""
        same = [entry for entry in self._table.entries if entry.gemm.layout == gemm.layout]
        return sorted(same, key=lambda entry: _distance(entry.gemm, gemm))

    def _default(self, call: Call) -> Pick:
        name = self._table.defaults[call.gemm.layout]
        fault = call.refusal(self.kernels[name])
        if fault is not None:
            raise DispatchError(
                f"no kernel serves {call.gemm} ({fault}); split the product into smaller ones"
            )
        return Pick(name, "default", f"{self._not_exact(call)}: no tuned kernel is legal for this call")

    def _not_exact(self, call: Call) -> str:
        entry = self._entries.get(call.gemm)
        if entry is None:
            return f"{call.gemm} was not tuned"
        return f"{call.gemm} was tuned, but {call.refusal(self.kernels[entry.ranked[0].kernel])}"


def _careful_us(kernel: Kernel, time_us: float) -> float:
    """A modelled time that will hardly be exceeded."""
    return time_us * (1 + CAUTION * kernel.model.relative_error) if kernel.model else time_us


def _is_near(a: Gemm, b: Gemm) -> bool:
    pairs = ((a.m, b.m), (a.n, b.n), (a.k, b.k))
    return all(x <= NEAR * y and y <= NEAR * x for x, y in pairs)


def _distance(a: Gemm, b: Gemm) -> float:
    """Between shapes, in factors: squares of the logarithms of the ratios of m, n and k."""
    pairs = ((a.m, b.m), (a.n, b.n), (a.k, b.k))
    return sum(math.log((x + 1) / (y + 1)) ** 2 for x, y in pairs)
