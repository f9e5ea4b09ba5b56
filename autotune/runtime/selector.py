"""Which kernel of a table serves a call, and why: exact, modelled, nearest or default.

A kernel is legal for a call if `launch.refusal` has nothing against it. In this order:
    exact     the shape was tuned, and a kernel ranked for it is legal
    modelled  the legal kernel with the least modelled time (models/forecast.py), in its best number of
              splits, the default competing. The less is known of a kernel, the slower it is taken to be
              (CAUTION). One whose sums are deeper than they may be (summation.py) is taken to be slower by as
              much as they are deeper: it wins where nothing else is nearly as fast
    nearest   no legal kernel has a model: the best legal kernel of the nearest tuned shape
    default   nothing else is legal
Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from ..device import DeviceLimits
from ..errors import DispatchError
from ..gemm import LAYOUTS, Gemm
from ..kernel.launch import LaunchSpec, has_work, refusal
from ..models import residual
from ..models.forecast import Forecast
from ..models.launches import Floats, Launches, Shapes, Whole
from ..models.residual import Residuals
from ..models.time_model import Speeds
from .summation import Sums, allowed_depth, depth, excess_error
from .table import Entry, Kernel, Table, weights

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
    split_k: int  # parts that k is split into
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

    @property
    def shapes(self) -> Shapes:
        g = self.gemm
        return Shapes(g.m, g.n, g.k, g.trans_a, g.trans_b, self.lds, self.addresses)

    def refusal(self, kernel: Kernel, split_k: int | None = None) -> str | None:
        """Why this kernel must not serve this call, in so many splits or its own, or None if it may."""
        g = self.gemm
        if kernel.layout != g.layout:
            return f"it is for {kernel.layout}, not {g.layout}"
        return refusal(in_splits(kernel, split_k), g.m, g.n, g.k, self.lds, self.addresses)


def in_splits(kernel: Kernel, split_k: int | None) -> LaunchSpec:
    """How a kernel is launched in so many splits of k; None: its own."""
    spec = kernel.spec
    return spec if split_k is None or split_k == spec.split_k else replace(spec, split_k=split_k)


class Considered(NamedTuple):
    """Launches that may serve a call; arrays. Times are infinite where one may not."""

    kernel: Whole
    split_k: Whole
    time_us: Floats
    careful_us: Floats  # will hardly be exceeded
    excess: Floats  # how many times the error that is allowed they have; 1 where no more
    handicapped_us: Floats  # careful, and slower by as much as sums are too deep


class Modelled:
    """The kernels of one layout that have a model, by id."""

    def __init__(self, kernels: Sequence[Kernel], places: Sequence[Triple], limits: DeviceLimits) -> None:
        self.kernels = sorted((k for k in kernels if k.model), key=lambda k: k.id)
        figures = [k.model for k in self.kernels if k.model]
        launches = Launches.of([k.spec for k in self.kernels], [k.blocks_per_sm for k in self.kernels])
        missed = residual.none(len(figures))
        if places:
            rows = [weights(kernel, len(places)) for kernel in self.kernels]
            missed = Residuals(residual.place(*np.array(places).T), np.array(rows))
        self._forecast = Forecast(launches, Speeds.of(figures), missed, limits)
        self._sums = Sums.of([k.config for k in self.kernels])
        self._caution = 1 + CAUTION * np.array([one.relative_error for one in figures])

    def candidates(self, call: Call, allowed: float) -> Considered:
        """All launches that may serve a call. `allowed`: how deep their sums may be."""
        accurate = self._sums.accurate_splits(call.gemm.k, allowed)
        kernel, split_k, time_us = self._forecast.expected(call.shapes, accurate)
        careful_us = time_us * self._caution[kernel]
        excess = excess_error(self._sums.take(kernel).depth(split_k, call.gemm.k), allowed)
        return Considered(kernel, split_k, time_us, careful_us, excess, careful_us * excess**2)


class Selector:
    """Picks kernels of one table. Pure: asks no GPU, keeps no state."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.kernels = {kernel.id: kernel for kernel in table.kernels}
        self._models = {
            x: Modelled([k for k in table.kernels if k.layout == x], table.places.get(x, ()), table.limits)
            for x in LAYOUTS
        }
        self._entries = {entry.gemm: entry for entry in table.entries}
        self._entries_of = {x: [e for e in table.entries if e.gemm.layout == x] for x in LAYOUTS}
        self._places = {x: _places([e.gemm for e in found]) for x, found in self._entries_of.items()}

    def pick(self, call: Call) -> Pick:
        """The kernel for a call with m and n at least 1. Raises DispatchError if even the default
        kernel is not legal, which needs more tiles than a grid holds."""
        return self._exact(call) or self._modelled(call) or self._nearest(call) or self._default(call)

    def ranked(self, call: Call, num: int) -> tuple[Pick, ...]:
        """Up to `num` launches for a call, the one that is picked first. More than one only where the model
        picks; none behind the first is less accurate than is allowed, or than the first."""
        first = self.pick(call)
        if first.how != "modelled":
            return (first,)
        known = self._models[call.gemm.layout]
        near = next(iter(self._near(call.gemm, 1)), None)
        found = known.candidates(call, self._allowed_depth(call.gemm, near))
        index = known.kernels.index(self.kernels[first.kernel_id])
        is_first = (found.kernel == index) & (found.split_k == first.split_k)
        most = max(1.0, float(found.excess[is_first].min()))
        time_us = np.where(found.excess <= most, found.handicapped_us, np.inf)
        picks = {(first.kernel_id, first.split_k): first}
        for at in np.argsort(time_us, kind="stable"):
            kernel, split_k = known.kernels[found.kernel[at]], int(found.split_k[at])
            if len(picks) == num or time_us[at] == np.inf:
                break
            if (kernel.id, split_k) not in picks and call.refusal(kernel, split_k) is None:
                reason = f"{first.reason}; behind {len(picks)} others"
                pick = Pick(kernel.id, "modelled", reason, split_k, float(found.time_us[at]), first.entry)
                picks[kernel.id, split_k] = pick
        return tuple(picks.values())

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
                return self._picked(ranked.kernel, "exact", reason, ranked.time_us, call.gemm)
        return None

    def _picked(
        self,
        kernel_id: str,
        how: How,
        reason: str,
        expected_us: float | None = None,
        entry: Gemm | None = None,
    ) -> Pick:
        """A kernel in its own number of splits."""
        return Pick(kernel_id, how, reason, self.kernels[kernel_id].spec.split_k, expected_us, entry)

    def _modelled(self, call: Call) -> Pick | None:
        near = next(iter(self._near(call.gemm, 1)), None)
        known = self._models[call.gemm.layout]
        if not known.kernels:
            return None
        found = known.candidates(call, self._allowed_depth(call.gemm, near))
        while found.handicapped_us[at := int(found.handicapped_us.argmin())] < np.inf:
            kernel, split_k = known.kernels[found.kernel[at]], int(found.split_k[at])
            if call.refusal(kernel, split_k) is None:
                num_legal = np.count_nonzero(np.bincount(found.kernel[found.time_us < np.inf]))
                reason = f"{self._not_exact(call)}: the least modelled time of {num_legal} legal kernels"
                if found.excess[at] > 1:
                    reason += ", although its sums are deeper than is accurate"
                elif found.careful_us[at] > found.careful_us.min():
                    reason += " that are accurate enough"
                if kernel.model is not None and not kernel.model.num_samples:
                    is_thumb = not kernel.model.relative_error
                    reason += "; it was never timed" if is_thumb else "; it was timed on other GPUs only"
                entry = near.gemm if near else None
                return Pick(kernel.id, "modelled", reason, split_k, float(found.time_us[at]), entry)
            found.handicapped_us[at] = np.inf
        return None

    def _allowed_depth(self, gemm: Gemm, near: Entry | None) -> float:
        """How deep sums may be: as those of kernels that were measured to be accurate enough close by."""
        allowed = allowed_depth(gemm)
        if near is None or not _is_near(near.gemm, gemm):
            return allowed
        return max(allowed, *(depth(self.kernels[ranked.kernel].config, gemm.k) for ranked in near.ranked))

    def _nearest(self, call: Call) -> Pick | None:
        for entry in self._near(call.gemm, NUM_NEAREST):
            for ranked in entry.ranked:
                kernel = self.kernels[ranked.kernel]
                if has_work(kernel.spec, call.gemm.k) and call.refusal(kernel) is None:
                    reason = f"{self._not_exact(call)}: nearest tuned shape {entry.gemm}"
                    return self._picked(ranked.kernel, "nearest", reason, None, entry.gemm)
        return None

    def _near(self, gemm: Gemm, num: int) -> list[Entry]:
        """Tuned shapes of the same layout, the nearest first: by squares of the logarithms of the ratios of
        m, n and k."""
        apart = np.square(self._places[gemm.layout] - _places([gemm])).sum(axis=1)
        found = self._entries_of[gemm.layout]
        return [found[at] for at in np.argsort(apart, kind="stable")[:num]]

    def _default(self, call: Call) -> Pick:
        name = self._table.defaults[call.gemm.layout]
        fault = call.refusal(self.kernels[name])
        if fault is not None:
            raise DispatchError(
                f"no kernel serves {call.gemm} ({fault}); split the product into smaller ones"
            )
        return self._picked(
            name, "default", f"{self._not_exact(call)}: no tuned kernel is legal for this call"
        )

    def _not_exact(self, call: Call) -> str:
        entry = self._entries.get(call.gemm)
        if entry is None:
            return f"{call.gemm} was not tuned"
        return f"{call.gemm} was tuned, but {call.refusal(self.kernels[entry.ranked[0].kernel])}"


def _places(gemms: Sequence[Gemm]) -> Floats:
    """(gemms, 3) logarithms of m, n and k."""
    extents = np.array([(gemm.m, gemm.n, gemm.k) for gemm in gemms], float).reshape(-1, 3)
    places: Floats = np.log(extents + 1)
    return places


def _is_near(a: Gemm, b: Gemm) -> bool:
    pairs = ((a.m, b.m), (a.n, b.n), (a.k, b.k))
    return all(x <= NEAR * y and y <= NEAR * x for x, y in pairs)
