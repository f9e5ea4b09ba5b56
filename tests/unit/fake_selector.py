"""What the core chooses (core/choice.c) and Chooser says of it, said again in Python: the oracle of
test_core.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from autotune.facts.device import DeviceLimits
from autotune.facts.fitted import number
from autotune.facts.gemm import LAYOUTS, MAX_EXTENT, Gemm
from autotune.files.errors import DispatchError
from autotune.files.words import counted, time_text
from autotune.kernel.launch import has_work
from autotune.kernel.scaled_config import AnyConfig
from autotune.kernel.tensor_config import LEAST_RESULTS
from autotune.perf_model import cublas_model, residual
from autotune.perf_model.launch_errors import LaunchErrors
from autotune.perf_model.launches import Floats, Launches, Shapes, Whole
from autotune.perf_model.model_figures import (
    DEFAULT_ERRORS,
    LARGE,
    NARROW,
    NUM_TERMS,
    PROMISED,
    PROMISED_LARGE,
    Depths,
    excess_depth,
    slower_by,
)
from autotune.perf_model.prediction import Prediction
from autotune.perf_model.residual import Residuals
from autotune.perf_model.sum_depths import Sums, allowed_depths
from autotune.perf_model.time_model import Speeds
from autotune.runtime.choose.chooser import Call, How, Pick, Provider, in_splits
from autotune.runtime.table.table import CublasFigures, Entry, Kernel, RankedKernel, Table

NUM_NEAREST = 8  # tuned shapes that are looked through for a legal kernel
# Deviations of a modelled time by which it is taken to be longer: what is surely good wins
CAUTION = number("CAUTION")
NEAR = number("NEAR")  # times as large or small in m, n and k: sums that were accurate enough there are here
ALIKE = number("ALIKE")  # times as many splits: one of two such launches of a kernel is tried (0057)
MOST_TIMES_APART = number("MOST_TIMES_APART")  # as many products in a batch as in the one that was tuned
# Logarithm of the factor by which its kernel must have been faster than cuBLAS there: the change, by the
# model, of the ratio of two kernels' times with the number of products (0056; unmeasured)
ADDING = "cuBLAS, which adds the bias,"
BATCH_MARGIN = cublas_model.MARGIN * number("BATCH_SHARE")

_ONES = np.ones(3)


class Considered(NamedTuple):
    """Launches that may serve a call; arrays. Times are infinite where one may not."""

    kernel: Whole
    split_k: Floats
    time_us: Floats
    careful_us: Floats  # will hardly be exceeded
    excess: Floats  # depth of their sums over the allowed one; 1 where they are not deeper
    handicapped_us: Floats  # with caution, and slower by far where sums are too deep


class InBatch(NamedTuple):
    """A batch, and the kernels for batches, by config."""

    call: Call
    kernels: dict[tuple[str, AnyConfig], Kernel]

    @property
    def gemm(self) -> Gemm:
        return self.call.gemm

    @property
    def whole(self) -> Call:
        """One product of all its rows."""
        gemm = replace(self.gemm, m=self.gemm.m * self.gemm.batch, batch=1, shares_a=False, shares_b=False)
        return Call(gemm, self.call.lds, self.call.single.addresses)

    def of(self, kernel: Kernel) -> Kernel | None:
        return self.kernels.get((kernel.layout, kernel.config))

    def may_serve(self, kernel: Kernel, split_k: int) -> bool:
        found, own = self.of(kernel), in_splits(kernel, split_k)
        return (
            found is not None and has_work(own, self.gemm.k) and self.call.rejection(found, split_k) is None
        )


class Modelled:
    """The kernels of one layout that have a model, by id."""

    def __init__(self, kernels: Sequence[Kernel], level: Residuals, limits: DeviceLimits) -> None:
        self.kernels = sorted((k for k in kernels if k.model), key=lambda k: k.id)
        figures = [k.model for k in self.kernels if k.model]
        launches = Launches.of([k.spec for k in self.kernels], [k.blocks_per_sm for k in self.kernels])
        rows = [weights(kernel.missed) if kernel.missed else np.zeros(NUM_TERMS) for kernel in self.kernels]
        missed = LaunchErrors(np.array(rows).reshape(-1, NUM_TERMS), level)
        self._prediction = Prediction(launches, Speeds.of(figures), missed, limits)
        self._sums = Sums.of([k.config for k in self.kernels])
        self._sums_of_launches = self._sums.take(self._prediction.kernel)
        self._caution = (
            1 + CAUTION * np.array([one.relative_error for one in figures])[self._prediction.kernel]
        )

    def candidates(
        self,
        call: Call,
        allowed: Depths,
        of_sgemm: Depths,
        batch: InBatch | None = None,
        guessed: Depths | None = None,
    ) -> Considered:
        """All launches that may serve a call. `allowed`: how deep their sums may be; `of_sgemm`: whatever
        was measured nearby. `batch`: of which the call is all rows. `guessed`: what would be allowed by the
        shape: its accurate number of splits counts where it is faster."""
        found = self._candidates(call, allowed, of_sgemm, batch, allowed)
        if guessed is None:
            return found
        other = self._candidates(call, allowed, of_sgemm, batch, guessed)
        is_faster = other.handicapped_us < found.handicapped_us
        return Considered(*(np.where(is_faster, *both) for both in zip(other, found, strict=True)))

    def _candidates(
        self, call: Call, allowed: Depths, of_sgemm: Depths, batch: InBatch | None, deep: Depths
    ) -> Considered:
        accurate = self._sums.accurate_splits(max(call.gemm.k, 1), deep)
        if batch is None:
            kernel, split_k, time_us = self._prediction.expected(Shapes.of(*call[:3]), accurate)
        else:
            (kernel, split_k, time_us), _ = self._prediction.modelled(Shapes.in_batch(batch.gemm), accurate)
            launches = zip(kernel, split_k, strict=True)
            may = [batch.may_serve(self.kernels[at], int(splits)) for at, splits in launches]
            time_us = np.where(may, time_us, np.inf)
        depths = self._sums_of_launches.depths(split_k, call.gemm)
        time_us = np.where(may_break(self._sums_of_launches, depths, call.gemm, of_sgemm), np.inf, time_us)
        careful_us = time_us * self._caution
        excess = excess_depth(depths, allowed)
        return Considered(kernel, split_k, time_us, careful_us, excess, careful_us * slower_by(excess))


class Selector:
    """Picks kernels of one table. Asks no GPU; threads may share it. `loaded_cublas`: the version of the
    cuBLAS that would serve, as far as that is known."""

    def __init__(self, table: Table, loaded_cublas: Callable[[], str | None] | None = None) -> None:
        self._table, self._loaded_cublas = table, loaded_cublas
        self.kernels = {kernel.id: kernel for kernel in table.kernels}
        self._models: dict[str, Modelled] = {}  # of layouts that were asked for
        self._entries = {entry.gemm: entry for entry in table.entries}
        single = [entry for entry in table.entries if not entry.gemm.is_batched]
        self._entries_of = {x: [e for e in single if e.gemm.layout == x] for x in LAYOUTS}
        self._places = {
            x: np.array([_place(e.gemm) for e in found]).reshape(-1, 3)
            for x, found in self._entries_of.items()
        }
        at = {kernel.id: i for i, kernel in enumerate(table.kernels)}
        self._ranked = {e.gemm: np.array([at[r.kernel] for r in e.ranked], np.int64) for e in table.entries}
        self._sums = Sums.of([kernel.config for kernel in table.kernels])
        self._own_splits = np.array([kernel.config.split_k for kernel in table.kernels], float)
        self._cublas = [  # alone, as it adds a bias, and on batches
            {layout: (model_of(figures), figures.version) for layout, figures in known.items()}
            for known in (table.cublas, table.cublas | table.cublas_adding, table.cublas_batched)
        ]
        self._for_batches = table.for_batches()

    def _model(self, layout: str) -> Modelled:
        found = self._models.get(layout)
        if found is None:
            table = self._table
            kernels = [kernel for kernel in table.kernels if kernel.layout == layout]
            level = residual.none(1)
            if layout in table.places:
                places = residual.place(*np.array(table.places[layout]).T)
                level = Residuals(places, weights(table.levels[layout])[None])
            found = self._models[layout] = Modelled(kernels, level, table.limits)
        return found

    def pick(self, call: Call, allowed: Depths | None = None) -> Pick:
        """The kernel for a call with m and n at least 1, and who serves it; `allowed` as of `ranked`. Raises
        DispatchError if even the default kernel is not legal, which needs more tiles than a grid holds."""
        if call.gemm.is_batched:
            return self._of_batch(call)
        pick = self._by_kernels(call, allowed)
        if pick.how == "exact":
            entry = self._entries[call.gemm]
            adding_us = entry.adding_us if call.adds_bias else None
            who = "cuBLAS" if adding_us is None else ADDING
            return _provided(pick, entry.cublas_us if adding_us is None else adding_us, who=who)
        return self._compare_to_cublas(pick, call) if pick.how == "modelled" else pick

    def ranked(self, call: Call, num: int, allowed: Depths | None = None) -> tuple[Pick, ...]:
        """Up to `num` launches of kernels for a call, the one that is picked first. More than one only where
        the model picks; none behind the first is less accurate than is allowed, or than the first, and none
        is of a kernel with nearly as many splits as before it: their times hardly differ. `allowed`: how deep
        sums may be, where that is known better than by the shape."""
        first = self._by_kernels(call, allowed, takes_guess=False)
        if first.how != "modelled":
            return (first,)
        known = self._model(call.gemm.layout)
        guessed = allowed_depths(call.gemm, self._table.limits.num_sms, PROMISED_LARGE * LARGE)
        deep = allowed or self._allowed_depths(call.gemm, self._near(call.gemm))
        found = known.candidates(call, deep, allowed or guessed)
        index = known.kernels.index(self.kernels[first.kernel_id])
        is_first = (found.kernel == index) & (found.split_k == first.split_k)
        most = max(1.0, float(found.excess[is_first].min()))
        order_us = np.where(found.excess <= most, found.handicapped_us, np.inf)
        picks = {(first.kernel_id, first.split_k): first}
        for at in np.argsort(order_us, kind="stable"):
            kernel, split_k = known.kernels[found.kernel[at]], int(found.split_k[at])
            if len(picks) == num or order_us[at] == np.inf:
                break
            if not any(
                kernel.id == other and _times_apart(split_k, splits) < ALIKE for other, splits in picks
            ):
                tell, time_us = partial(_why_not_first, first, len(picks)), float(found.time_us[at])
                picks[kernel.id, split_k] = Pick(kernel.id, "modelled", tell, split_k, time_us, first.entry)
        return tuple(picks.values())

    def _of_batch(self, call: Call) -> Pick:
        pick = self._exact(call)
        if pick is not None:
            return _provided(pick, self._entries[call.gemm].cublas_us)
        return self._near_batch(call) or self._in_batch(call) or self._looped(call)

    def _in_batch(self, call: Call) -> Pick | None:
        is_timed = call.gemm.layout in self._cublas[2]
        is_large = call.gemm.m * call.gemm.batch > MAX_EXTENT
        if call.has_epilogue or not is_timed or is_large or 1 in (call.gemm.m, call.gemm.n):
            return None
        batch = InBatch(call, self._for_batches)
        pick = self._modelled(batch.whole, None, batch)
        return pick and self._compare_to_cublas(pick, call)

    def _near_batch(self, call: Call) -> Pick | None:
        products = call.gemm.batch
        similar = [e for e in self._table.entries if replace(e.gemm, batch=products) == call.gemm]
        for entry in sorted(similar, key=lambda e: _times_apart(e.gemm.batch, products)):
            for ranked in entry.ranked:
                if call.rejection(self.kernels[ranked.kernel]) is None:
                    return self._as_near_batch(call, entry, ranked)
        return None

    def _as_near_batch(self, call: Call, entry: Entry, ranked: RankedKernel) -> Pick:
        """Times of both are assumed to be in proportion to the number of products."""
        tuned_us, cublas_us, by = ranked.time_us, entry.cublas_us, call.gemm.batch / entry.gemm.batch
        is_surely_faster = (
            cublas_us is not None
            and _times_apart(entry.gemm.batch, call.gemm.batch) <= MOST_TIMES_APART
            and cublas_us >= tuned_us * math.exp(BATCH_MARGIN)
        )
        pick = self._picked(
            ranked.kernel,
            "nearest",
            partial(self._why_near_batch, call, entry, is_surely_faster),
            by * tuned_us,
            entry.gemm,
        )
        cublas_us = None if cublas_us is None else by * cublas_us
        provider: Provider = "autotune" if is_surely_faster else "cublas"
        return replace(pick, provider=provider, cublas_us=cublas_us, margin=BATCH_MARGIN)

    def _why_near_batch(self, call: Call, entry: Entry, is_surely_faster: bool) -> str:
        text = f"the nearest batch that was tuned is {entry.gemm}"
        least = f"{math.expm1(BATCH_MARGIN):.0%} faster than cuBLAS"
        why = "" if is_surely_faster else f", which is too far, or its kernel was not {least}"
        return f"{self._not_exact(call)}: {text}{why}"

    def _looped(self, call: Call) -> Pick:
        single = self._by_kernels(call.single)
        text = partial(str, f"{call.gemm} was not tuned: cuBLAS, or else a launch for each product")
        expected_us = None if single.expected_us is None else call.gemm.batch * single.expected_us
        return replace(single, tell=text, expected_us=expected_us, provider="cublas", is_looped=True)

    def _by_kernels(self, call: Call, allowed: Depths | None = None, *, takes_guess: bool = True) -> Pick:
        """The pick without cuBLAS. `takes_guess`: its splits may be those that are accurate by the guess."""
        modelled = partial(self._modelled, call, allowed, takes_guess=takes_guess)
        return self._exact(call) or modelled() or self._nearest(call) or self._default(call)

    def _picked(
        self,
        kernel_id: str,
        how: How,
        tell: Callable[[], str],
        expected_us: float | None = None,
        entry: Gemm | None = None,
    ) -> Pick:
        """A kernel in its own number of splits."""
        return Pick(kernel_id, how, tell, self.kernels[kernel_id].spec.split_k, expected_us, entry)

    def _exact(self, call: Call) -> Pick | None:
        entry = self._entries.get(call.gemm)
        if entry is None or not call.is_as_tuned:
            return None
        for rank, ranked in enumerate(entry.ranked):
            if call.rejection(self.kernels[ranked.kernel]) is None:
                tell = partial(self._why_exact, call, entry, rank)
                return self._picked(ranked.kernel, "exact", tell, ranked.time_us, call.gemm)
        return None

    def _why_exact(self, call: Call, entry: Entry, rank: int) -> str:
        reason = f"{call.gemm} was tuned"
        if rank:
            fault = call.rejection(self.kernels[entry.ranked[0].kernel])
            reason += f"; number {rank + 1} for it, because {fault}"
        return reason

    def _modelled(
        self,
        call: Call,
        allowed: Depths | None,
        batch: InBatch | None = None,
        *,
        takes_guess: bool = True,
    ) -> Pick | None:
        known = self._model(call.gemm.layout)
        if not known.kernels:
            return None
        near = self._near(call.gemm)
        of_sgemm = allowed or allowed_depths(call.gemm, self._table.limits.num_sms, PROMISED_LARGE * LARGE)
        by_shape = self._allowed_depths(call.gemm, near)
        allowed = allowed or by_shape
        if batch is not None and min(batch.gemm.m, batch.gemm.n) <= NARROW:
            one, num_sms = batch.call.single.gemm, self._table.limits.num_sms
            allowed = by_shape = allowed_depths(one, num_sms)
            of_sgemm = allowed_depths(one, num_sms, PROMISED_LARGE * LARGE)
        guessed = by_shape if takes_guess else None
        found = known.candidates(call, allowed, of_sgemm, batch, guessed)
        at = int(found.handicapped_us.argmin())
        time_us = float(found.time_us[at])
        if time_us == math.inf:
            return None
        kernel, split_k = known.kernels[found.kernel[at]], int(found.split_k[at])
        served = kernel if batch is None else batch.of(kernel)
        assert served is not None and kernel.model is not None
        self._error = kernel.model.relative_error
        tell = partial(self._why_modelled, call, (allowed, of_sgemm, batch, guessed), at)
        return Pick(served.id, "modelled", tell, split_k, time_us, near.gemm if near else None)

    def _compare_to_cublas(self, pick: Pick, call: Call) -> Pick:
        """A modelled pick with its provider. Times of another version of cuBLAS than the loaded one are less
        certain."""
        layout, way = call.gemm.layout, 2 if call.gemm.is_batched else int(call.adds_bias)
        known, timed = self._cublas[way].get(layout, (None, ""))
        if known is None:
            return pick
        loaded = self._loaded_cublas and self._loaded_cublas()
        is_other = loaded is not None and loaded != timed
        margin = known.margin(call.gemm, self._error, is_other_version=is_other)
        uncertainty = f"; cuBLAS {timed} was timed, and {loaded} is loaded" if is_other else ""
        who = ADDING if call.adds_bias and layout in self._table.cublas_adding else "cuBLAS"
        return _provided(pick, known.expected_us(call.gemm, self._table.limits), margin, uncertainty, who)

    def _why_modelled(
        self, call: Call, by: tuple[Depths, Depths, InBatch | None, Depths | None], at: int
    ) -> str:
        known = self._model(call.gemm.layout)
        batch = by[2]
        found = known.candidates(call, *by)
        num_legal = np.unique(found.kernel[found.time_us < np.inf]).size
        asked = call if batch is None else batch.call
        reason = f"{self._not_exact(asked)}: the least modelled time of {counted(num_legal, 'legal kernel')}"
        if found.excess[at] > 1:
            reason += ", although its sums are deeper than is accurate"
        elif found.careful_us[at] > found.careful_us.min():
            reason += " that are accurate enough"
        model = known.kernels[found.kernel[at]].model
        if model is not None and not model.num_samples and batch is None:
            is_default = not model.relative_error
            reason += "; it was never timed" if is_default else "; it was timed on other GPUs only"
        return reason

    def _allowed_depths(self, gemm: Gemm, near: Entry | None) -> Depths:
        """How deep sums may be: as deep as those of kernels measured to be accurate enough on nearby
        shapes."""
        allowed = allowed_depths(gemm, self._table.limits.num_sms)
        if near is None or not _is_near(near.gemm, gemm):
            return allowed
        ranked = self._ranked[near.gemm]
        measured = self._sums.take(ranked).depths(self._own_splits[ranked], gemm)
        return Depths(*(max(one, float(others.max())) for one, others in zip(allowed, measured, strict=True)))

    def _nearest(self, call: Call) -> Pick | None:
        entries = self._entries_of[call.gemm.layout]
        for at in np.argsort(self._apart(call.gemm), kind="stable")[:NUM_NEAREST]:
            entry = entries[at]
            for ranked in entry.ranked:
                kernel = self.kernels[ranked.kernel]
                if has_work(kernel.spec, call.gemm.k) and call.rejection(kernel) is None:
                    tell = partial(self._why, call, f"nearest tuned shape {entry.gemm}")
                    return self._picked(ranked.kernel, "nearest", tell, None, entry.gemm)
        return None

    def _near(self, gemm: Gemm) -> Entry | None:
        """The nearest tuned shape of the same layout."""
        entries = self._entries_of[gemm.layout]
        return entries[int(self._apart(gemm).argmin())] if entries else None

    def _apart(self, gemm: Gemm) -> Floats:
        """Distances of tuned shapes of the same layout: squares of the logarithms of the ratios of m, n,
        k."""
        apart = self._places[gemm.layout] - _place(gemm)
        squares: Floats = (apart * apart) @ _ONES
        return squares

    def _default(self, call: Call) -> Pick:
        name = self._table.defaults[call.gemm.layout]
        fault = call.rejection(self.kernels[name])
        if fault is not None:
            raise DispatchError(
                f"no kernel serves {call.gemm} ({fault}); split the product into smaller ones"
            )
        return self._picked(
            name, "default", partial(self._why, call, "no tuned kernel is legal for this call")
        )

    def _why(self, call: Call, what: str) -> str:
        return f"{self._not_exact(call)}: {what}"

    def _not_exact(self, call: Call) -> str:
        entry = self._entries.get(call.gemm)
        if entry is None:
            return f"{call.gemm} was not tuned"
        if not call.is_as_tuned:
            return f"{call.gemm} was tuned, but packed and aligned"
        return f"{call.gemm} was tuned, but {call.rejection(self.kernels[entry.ranked[0].kernel])}"


def _provided(
    pick: Pick, cublas_us: float | None, margin: float = 0.0, uncertainty: str = "", who: str = "cuBLAS"
) -> Pick:
    """The pick with its provider: cuBLAS, unless the kernel is expected to be faster by more than `margin`, a
    logarithm. `doubt`: what widened the margin."""
    if cublas_us is None or pick.expected_us is None:
        return pick
    if cublas_us >= pick.expected_us * math.exp(margin):
        return replace(pick, cublas_us=cublas_us, margin=margin)
    tell = partial(_why_cublas, pick, cublas_us, margin, uncertainty, who)
    return replace(pick, tell=tell, provider="cublas", cublas_us=cublas_us, margin=margin)


def _why_cublas(pick: Pick, cublas_us: float, margin: float, uncertainty: str, who: str) -> str:
    if not margin:
        return f"{pick.reason}; {who} was faster, with {time_text(cublas_us)}"
    least = f"what is so little known has to be faster by {math.expm1(margin):.0%}{uncertainty}"
    return f"{pick.reason}; {who} is expected to take {time_text(cublas_us)}, and {least}"


def _times_apart(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


def _why_not_first(first: Pick, num: int) -> str:
    return f"{first.reason}; behind {num} others"


def _place(gemm: Gemm) -> Floats:
    """(3,) logarithms of m, n and k."""
    place: Floats = np.log1p(np.array((gemm.m, gemm.n, gemm.k), float))
    return place


def _is_near(a: Gemm, b: Gemm) -> bool:
    pairs = ((a.m, b.m), (a.n, b.n), (a.k, b.k))
    return all(x <= NEAR * y and y <= NEAR * x for x, y in pairs)


def weights(text: str) -> Floats:
    return np.frombuffer(bytes.fromhex(text), "<f4").astype(float)


def model_of(figures: CublasFigures) -> cublas_model.CublasModel:
    num = len(figures.weights) // 8
    m, n, k, *products = np.frombuffer(bytes.fromhex(figures.places), "<u4").reshape(num, -1).T
    places = cublas_model.place(m, n, k, figures.tile_apart, *products)
    known = Residuals(places, weights(figures.weights)[None])
    return cublas_model.CublasModel(known, figures.level, figures.deviation, figures.tile_apart)


def may_break(sums: Sums, depths: Depths, gemm: Gemm, allowed: Depths) -> Any:
    """Whether kernels with a promise may break it, their sums being so deep, where so much is allowed."""
    kept = allowed.within(1 / DEFAULT_ERRORS[0], 1 / DEFAULT_ERRORS[1])
    is_too_deep = (depths.zero_mean > PROMISED[0] * kept.zero_mean) | (
        depths.positive > PROMISED[1] * kept.positive
    )
    return (sums.parts_zero_mean > 0) & (is_too_deep | (gemm.num_results < LEAST_RESULTS))
