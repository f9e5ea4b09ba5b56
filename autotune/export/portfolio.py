"""Which kernels serve the shapes that nobody tuned: those with the least expected regret over a distribution.

Candidates come from matrices of kernels and shapes: those of this GPU's searches, and those that ship with
autotune (studies/matrices), converted to this GPU. Their times on many drawn shapes, and where they were not
timed, follow from the model. If calls of a program were counted, their shapes have half of the weight,
each by its count, and the others have the rest. Sums that are too deep count as slower. Kernels are then
taken one after another, each the one that lowers the weighted mean logarithm of (best of the taken / best of
all) the most (the greedy method, for a submodular sum: G. Nemhauser, L. Wolsey, M. Fisher, Math. Programming
14 (1978) 265).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..facts import distribution
from ..facts.device import DeviceLimits
from ..facts.fitted import number
from ..facts.gemm import Gemm
from ..kernel.config import Config
from ..kernel.launch import LaunchSpec, plan
from ..kernel.relatives import base_config, example, fitted
from ..kernel.resources import launch_spec, residency
from ..perf_model.fit import KnownSamples, Sample, fma_step_us, modelled
from ..perf_model.fit import learned as learned_of
from ..perf_model.launches import Flags, Launches, Shapes, Whole
from ..perf_model.model_figures import Floats, ModelFigures, excess_depth, slower_by
from ..perf_model.prediction import Prediction
from ..perf_model.sum_depths import Sums, allowed_depths
from ..perf_model.time_model import Speeds
from ..recording.matrix import MatrixRow, TimeMatrix
from ..runtime.choose.chooser import Call
from .tuned import TunedShape

LEAST_GAIN = 2e-4  # of the mean regret: a kernel that lowers it by less is left out
LEAST_SHAPES = (
    12  # that a kernel must have been timed on to serve others: with fewer, the fastest are mostly misjudged
)
NUM_DRAWN, SEED = 150, 14
_AT_ONCE, _ROUNDED = 64, 1e-12  # rows that are looked at; what rounding may add to a gain
PER_BATCHED = 2  # kernels for shapes that nobody tuned, one of which is for batches, too
CALLED = 0.5  # of the weight, for shapes whose calls were counted: a program meets others, too
FAR = math.log(4.0)  # the regret of a kernel that may not serve a shape, and the most that counts
CARRIED = number("CARRIED")  # deviation of a time that was measured on another GPU model
_DOUBT = number("_DOUBT")  # deviations by which a candidate's expected times are taken to be longer
OTHER_LAYOUT = number("OTHER_LAYOUT")  # and of one that was measured in another layout
_NOT_TIMED = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
_SIMILAR = {"TN": ("NN", "NT"), "TT": ("NT", "NN"), "NT": ("NN",), "NN": ("NT",)}  # whose times stand in


@dataclass(frozen=True)
class TimedKernel:
    """A kernel of one layout and its times. Its number of splits is arbitrary if it is an argument.
    `origins`: shapes whose searches found it, or a relative of it; none: it was known before."""

    config: Config
    samples: tuple[Sample, ...]
    origins: frozenset[Gemm] = frozenset()
    max_workspace: int | None = None  # bytes that a launch may take

    @property
    def allowed(self) -> Iterator[bool]:
        """Whether the launch of each time takes no more workspace than that."""
        most = self.max_workspace
        for one in self.samples:
            g = one.gemm
            yield most is None or plan(one.spec, g.m, g.n, g.k, g.strides).workspace_bytes <= most

    def without(self, apart: Collection[Gemm]) -> TimedKernel | None:
        """What would be known of it if these shapes had not been searched or timed; None: nothing."""
        left = tuple(sample for sample in self.samples if sample.gemm not in apart)
        is_from_fold = bool(self.origins) and all(gemm in apart for gemm in self.origins)
        return None if is_from_fold or not left else replace(self, samples=left)


# ------------------------------------------------------------------------------------------------
# Candidates


def candidates(
    layout: str,
    shapes: Iterable[TunedShape],
    matrices: Sequence[TimeMatrix],
    limits: DeviceLimits,
    only: Collection[Config] | None = None,
) -> list[TimedKernel]:
    """Kernels that were timed, here or elsewhere, or `only` some of these, in any splits. Times of this GPU
    have priority."""
    found = {kernel.config: kernel for kernel in _own(layout, shapes, limits, only)}
    for shipped in _carried(layout, matrices, limits, only):
        own = found.get(shipped.config)
        found[shipped.config] = shipped if own is None else _merged(own, shipped)
    return list(found.values())


def _merged(own: TimedKernel, shipped: TimedKernel) -> TimedKernel:
    """One kernel with the times of both, on each shape our own if there are any. A kernel that no search of
    ours found is here because it ships."""
    known = {sample.gemm for sample in own.samples}
    samples = (*own.samples, *(sample for sample in shipped.samples if sample.gemm not in known))
    origins = shipped.origins and own.origins | shipped.origins
    return TimedKernel(own.config, samples, origins)


def _own(
    layout: str, shapes: Iterable[TunedShape], limits: DeviceLimits, only: Collection[Config] | None
) -> list[TimedKernel]:
    searched = [shape for shape in shapes if shape.gemm.layout == layout]
    specs: dict[Config, LaunchSpec] = {}  # of the layout: computing them takes most of the time
    samples: dict[Config, list[Sample]] = {}
    for shape in searched:
        for config, time_us in shape.all_times.items():
            if only is not None and config.in_any_splits not in only:
                continue
            if config not in specs:
                specs[config] = launch_spec(config, shape.gemm, limits)
            samples.setdefault(config.in_any_splits, []).append(Sample(specs[config], shape.gemm, time_us))
    finders = _finders(searched)
    return [
        TimedKernel(
            config, tuple(found), frozenset(finders.get(config) or finders.get(base_config(config)) or ())
        )
        for config, found in samples.items()
    ]


def _finders(shapes: Iterable[TunedShape]) -> dict[Config, set[Gemm]]:
    """By kernel, and by what it shares with its relatives, the shapes whose own searches tried it. If it led
    in some of them, only those: the other searches would have dropped it."""
    tried: dict[Config, set[Gemm]] = {}
    won_by: dict[Config, set[Gemm]] = {}
    for shape in shapes:
        times = {config: time_us for config, time_us in shape.all_times.items() if config in shape.own}
        best_us = min(times.values(), default=0.0)
        for config, time_us in times.items():
            tried.setdefault(config.in_any_splits, set()).add(shape.gemm)
            if time_us <= distribution.LEADING * best_us:
                for known in (config.in_any_splits, base_config(config)):
                    won_by.setdefault(known, set()).add(shape.gemm)
    return tried | won_by


def _finders_of(origins: Collection[Gemm | None]) -> frozenset[Gemm]:
    """None for kernels that some matrix knew before its searches."""
    found = frozenset(gemm for gemm in origins if gemm is not None)
    return found if len(found) == len(origins) else frozenset()


def _carried(
    layout: str, matrices: Sequence[TimeMatrix], limits: DeviceLimits, only: Collection[Config] | None
) -> list[TimedKernel]:
    """Times of shipped matrices as they would be here, of this layout or else of a similar one."""
    for source in (layout, *_SIMILAR[layout]):
        samples: dict[Config, list[Sample]] = {}
        origins: dict[Config, set[Gemm | None]] = {}
        for matrix in matrices:
            for one in _as_here(matrix, source, layout, limits, only):
                origin = matrix.known[one.row].origin
                samples.setdefault(one.config, []).extend(one.moved)
                origins.setdefault(one.config, set()).add(Gemm.parse(origin) if origin else None)
        if samples:
            return [
                TimedKernel(config, tuple(found), _finders_of(origins[config]))
                for config, found in samples.items()
                if only is None or config in only
            ]
    return []


class _Moved(NamedTuple):
    """A kernel of a matrix, what it is here, and its times, launched as there and as here."""

    row: MatrixRow
    config: Config  # in any splits
    timed: list[Sample]
    moved: list[Sample]


def _as_here(
    matrix: TimeMatrix, source: str, layout: str, limits: DeviceLimits, only: Collection[Config] | None
) -> list[_Moved]:
    """The rows of one layout that spill nothing, with their times converted by the model to this layout on
    this GPU."""
    there = matrix.limits
    rows = list(_rows_here(matrix, source, layout, limits, only))
    others = [one for one in rows if not one.moved]
    rows = [one for one in rows if one.moved]
    if there.name == limits.name or not rows:
        return rows + others
    timed, moved = [one.timed for one in rows], [one.moved for one in rows]
    resident = [residency(r.config, there, example(source), matrix.known[r].registers) for r, *_ in rows]
    known = KnownSamples.of(timed, resident, there)
    figures = known.fit()
    before = known.modelled(figures)
    slower = [
        replace(own, step_us=own.step_us * (fma_step_us(b[0].spec, limits) / fma_step_us(a[0].spec, there)))
        for own, a, b in zip(figures, timed, moved, strict=True)
    ]
    resident = [residency(one.config, limits, example(layout)) for one in rows]
    after = modelled(slower, moved, resident, limits)
    return [
        one._replace(moved=_slower(one.moved, (late / early).tolist()))
        for one, early, late in zip(rows, before, after, strict=True)
    ] + others


def _slower(samples: Iterable[Sample], factors: Iterable[float]) -> list[Sample]:
    return [
        Sample(one.spec, one.gemm, one.time_us * by, one.deviation)  # `replace` takes three times as long
        for one, by in zip(samples, factors, strict=True)
    ]


def _rows_here(
    matrix: TimeMatrix, source: str, layout: str, limits: DeviceLimits, only: Collection[Config] | None
) -> Iterator[_Moved]:
    """As `_as_here`, with the times of there, but none of those that are not asked for."""
    if all(row.layout != source for row in matrix.known):
        return
    is_same = matrix.limits.name == limits.name
    deviation = math.hypot(0 if is_same else CARRIED, 0 if source == layout else OTHER_LAYOUT)
    trans_a, trans_b = (letter == "T" for letter in layout)
    in_layout = cache(lambda gemm: replace(gemm, trans_a=trans_a, trans_b=trans_b))  # of many cells
    for row, cells in matrix.by_row().items():
        if row.layout != source or matrix.known[row].spill_bytes:
            continue
        here = fitted(row.config, layout, limits)
        if here is None or not cells:
            continue
        if only is not None and here.in_any_splits not in only:
            yield _Moved(row, here.in_any_splits, [], [])
            continue
        measured = [(gemm, split_k, cell.time_us) for (gemm, split_k), cell in cells.items()]
        placed = [(in_layout(gemm), split_k, time_us) for gemm, split_k, time_us in measured]
        timed = [] if is_same else _samples(row.config, matrix.limits, measured)
        yield _Moved(row, here.in_any_splits, timed, _samples(here, limits, placed, deviation))


def _samples(
    config: Config, limits: DeviceLimits, cells: Iterable[tuple[Gemm, int, float]], deviation: float = 0.0
) -> list[Sample]:
    """Times of a kernel on shapes of one layout, each in so many splits. Equal launches share their data:
    computing it for one number of splits takes most of the time."""
    plain: dict[bool, LaunchSpec] = {}
    specs: dict[tuple[int, bool], LaunchSpec] = {}
    found = []
    for gemm, split_k, time_us in cells:
        key = split_k, gemm.is_batched
        if key not in specs:
            if key[1] not in plain:
                plain[key[1]] = launch_spec(config, gemm, limits)
            specs[key] = _in_splits(plain[key[1]], split_k)
        found.append(Sample(specs[key], gemm, time_us, deviation))
    return found


def _in_splits(spec: LaunchSpec, split_k: int) -> LaunchSpec:
    """As `replace` has it, in a tenth of the time: there are tens of thousands."""
    made = object.__new__(LaunchSpec)
    vars(made).update(vars(spec), split_k=split_k)
    return made


# ------------------------------------------------------------------------------------------------
# The choice


class TimedCandidates(NamedTuple):
    """Candidates of a layout, their times and the work of these as arrays: computed once, whatever shapes are
    left out then."""

    layout: str
    found: list[TimedKernel]
    launches: Launches
    sums: Sums
    known: KnownSamples
    is_allowed: Flags  # of each sample, by its workspace
    splits: Floats  # of each sample
    limits: DeviceLimits

    @classmethod
    def of(cls, layout: str, found: Sequence[TimedKernel], limits: DeviceLimits) -> TimedCandidates:
        """At least one."""
        blocks = [residency(c.config, limits, example(layout)) for c in found]
        specs = [
            replace(launch_spec(c.config, example(layout), limits), max_workspace=c.max_workspace)
            for c in found
        ]
        samples = [sample for one in found for sample in one.samples]
        return cls(
            layout,
            list(found),
            Launches.of(specs, blocks),
            Sums.of([one.config for one in found]),
            KnownSamples.of([one.samples for one in found], blocks, limits),
            np.array([is_allowed for one in found for is_allowed in one.allowed]),
            np.array([sample.spec.split_k for sample in samples], float),
            limits,
        )

    def without(self, apart: Collection[Gemm]) -> TimedCandidates | None:
        """What would be known of them without these shapes, as far as it would be enough; None: nothing."""
        is_found = [not one.origins or any(gemm not in apart for gemm in one.origins) for one in self.found]
        is_left = np.array([gemm not in apart for gemm in self.known.gemms])
        which = is_left[self.known.gemm] & np.array(is_found)[self.known.kernel]
        pairs = np.unique(self.known.kernel[which] * len(is_left) + self.known.gemm[which])
        nums = np.bincount(pairs // len(is_left), minlength=len(self.found))
        which &= (nums >= LEAST_SHAPES)[self.known.kernel]
        if not which.any():
            return None
        known, left = self.known.only(which)
        return self._replace(
            found=[self.found[at] for at in left],
            launches=self.launches.take(left),
            sums=self.sums.take(left),
            known=known,
            is_allowed=self.is_allowed[which],
            splits=self.splits[which],
        )

    def learned(self, *, are_many: bool = False) -> tuple[list[ModelFigures], Prediction]:
        """The figures of candidates, and derived values. Where these are many, the least of the expected
        times would be those that are most wrong: what is little known counts as slower."""
        figures, missed, _ = learned_of(self.known)
        if are_many:
            missed.weights[:, 0] += np.log1p(_DOUBT * np.array([one.relative_error for one in figures]))
        return figures, Prediction(self.launches, Speeds.of(figures), missed, self.limits)


class Costs:
    """The costs of candidates of a layout on shapes: the least time, in us, measured or else expected. A
    launch whose sums are too deep counts as slower by far (sum_depths.py), as when a table picks."""

    def __init__(self, its: TimedCandidates) -> None:
        self._limits, self._num, self._sums = its.limits, len(its.found), its.sums
        self.figures, self._prediction = its.learned(are_many=True)
        self.configs = [candidate.config for candidate in its.found]
        allowed = np.flatnonzero(its.is_allowed)
        order = allowed[np.argsort(its.known.gemm[allowed], kind="stable")]
        begins = np.flatnonzero(np.diff(its.known.gemm[order]))
        groups = [] if not len(order) else np.split(order, begins + 1)
        columns = its.known.kernel, its.splits, its.known.times_us
        self._timed: dict[Gemm, list[Any]] = {  # kernel, splits and time of each launch
            its.known.gemms[its.known.gemm[group[0]]]: [column[group] for column in columns]
            for group in sorted(groups, key=lambda group: int(group[0]))
        }

    @property
    def timed(self) -> list[Gemm]:
        """The shapes that some candidate was timed on."""
        return list(self._timed)

    def on(self, gemm: Gemm) -> Floats:
        """(candidates,); infinite if one may not serve the shape."""
        kernels, _, costs = self._launches(gemm, Shapes.of(gemm))
        return self._least(kernels, costs)

    def on_batch(self, gemm: Gemm) -> Floats:
        """The same of a packed strided batch."""
        whole = replace(gemm, m=gemm.m * gemm.batch, batch=1)
        kernels, _, costs = self._launches(whole, Shapes.in_batch(gemm, Call.packed(gemm).single.addresses))
        return self._least(kernels, costs)

    def _least(self, kernels: Whole, costs: Floats) -> Floats:
        least = np.full(self._num, np.inf)
        np.minimum.at(least, kernels, costs)
        return least

    def ranked(self, gemm: Gemm) -> list[Config]:
        """The candidates that may serve a shape, each with its best number of splits; the cheapest come
        first."""
        kernels, splits, costs = self._launches(gemm, Shapes.of(gemm))
        best: dict[int, int] = {}
        for at in np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()].tolist():
            best.setdefault(int(kernels[at]), int(splits[at]))
        return [replace(self.configs[kernel], split_k=split_k) for kernel, split_k in best.items()]

    def _launches(self, gemm: Gemm, shapes: Shapes) -> tuple[Whole, Floats, Floats]:
        """Kernels, numbers of splits and costs of launches: for a kernel that was timed on this shape the
        timed launches, for another all promising ones; (launches,) each."""
        allowed, k = allowed_depths(gemm, self._limits.num_sms), max(gemm.k, 1)
        expected = self._prediction.expected(shapes, self._sums.accurate_splits(k, allowed))
        timed, known_splits, known_us = self._timed.get(gemm, _NOT_TIMED)
        is_timed = np.zeros(self._num, bool)
        is_timed[timed] = True
        is_new = ~is_timed[expected.kernel]
        kernels = np.concatenate([timed, expected.kernel[is_new]])
        splits = np.concatenate([known_splits, expected.split_k[is_new]])
        times_us = np.concatenate([known_us, expected.time_us[is_new]])
        depths = self._sums.take(kernels).depths(splits, gemm)
        return kernels, splits, times_us * slower_by(excess_depth(depths, allowed))


def regrets(known: TimedCandidates, calls: Mapping[Gemm, int]) -> tuple[Floats, Floats]:
    """(candidates, shapes) logarithms of each candidate's cost over the least of all, at most FAR; and the
    weight of each shape, 1 in all. `calls`: how often a program asks for a shape."""
    costs, roofline = Costs(known), (known.limits.fma_tflops, known.limits.bandwidth_gbs)
    source = distribution.drawn(SEED, *roofline, layouts=(known.layout,), is_mixed=True)
    drawn, timed = islice(source, NUM_DRAWN), costs.timed
    called = [gemm for gemm in calls if gemm.layout == known.layout and gemm not in set(timed)]
    shapes = [*drawn, *called, *timed]
    found_costs = np.stack([costs.on(gemm) for gemm in shapes], axis=1)
    return _regrets(
        found_costs, _weights(len(shapes) - len(called) - len(timed), [*called, *timed], set(timed), calls)
    )


def _regrets(costs: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The same of costs, (candidates, shapes), and weights of these shapes."""
    is_served = np.isfinite(costs).any(axis=0)
    regret: Floats = np.log(costs[:, is_served])
    regret -= regret.min(axis=0)
    return np.minimum(regret, FAR, out=regret), weights[is_served] / weights[is_served].sum()


def _weights(
    num_drawn: int, rest: Sequence[Gemm], timed: Collection[Gemm], calls: Mapping[Gemm, int]
) -> Floats:
    """The weights of this many drawn shapes, then of the rest. Drawn and timed shapes have the same weight
    each."""
    general = np.array([1.0] * num_drawn + [float(gemm in timed) for gemm in rest])
    counted = np.array([0.0] * num_drawn + [float(calls.get(gemm, 0)) for gemm in rest])
    if not counted.any():
        return general
    weights: Floats = (1 - CALLED) * general / general.sum() + CALLED * counted / counted.sum()
    return weights


def choose(regret: Floats, weights: Floats, most: int, least_gain: float = LEAST_GAIN) -> list[int]:
    """At most this many rows, each the one that lowers the weighted mean regret the most."""
    chosen: list[int] = []
    reached = np.full(regret.shape[1], FAR)
    most_gains = np.full(len(regret), np.inf)  # a row gains the less, the more are taken
    while len(chosen) < min(most, len(regret)):
        now, means = reached @ weights, np.full(len(regret), np.inf)
        order = np.argsort(-most_gains, kind="stable")
        for some in np.split(order, range(_AT_ONCE, len(order), _AT_ONCE)):
            if most_gains[some[0]] < now - means.min() - _ROUNDED:
                break
            means[some] = np.minimum(reached, regret[some]) @ weights
            most_gains[some] = now - means[some]
        best = int(np.argmin(means))
        if means[best] > now - least_gain:
            break
        chosen.append(best)
        reached = np.minimum(reached, regret[best])
    return chosen


def portfolio(
    layout: str,
    found: Sequence[TimedKernel],
    limits: DeviceLimits,
    most: int,
    calls: Mapping[Gemm, int] = MappingProxyType({}),
) -> list[Config]:
    """At most this many candidates of a layout that were timed on enough shapes; the one that serves the most
    shapes comes first. `calls`: how often a program asks for a shape, where that is known."""
    known = general(found)
    return chosen(TimedCandidates.of(layout, known, limits), most, calls) if known and most else []


def general(found: Iterable[TimedKernel]) -> list[TimedKernel]:
    """Those that were timed on enough shapes to serve others."""
    return [c for c in found if len({sample.gemm for sample in c.samples}) >= LEAST_SHAPES]


def chosen(known: TimedCandidates, most: int, calls: Mapping[Gemm, int]) -> list[Config]:
    """As `portfolio`, of these."""
    return [known.found[at].config for at in choose(*regrets(known, calls), most)]


def for_batches(
    layout: str, found: Sequence[TimedKernel], chosen: Collection[Config], limits: DeviceLimits
) -> list[Config]:
    """Of the candidates that were chosen for a layout those that serve the most strided batches, the first
    the most: at most one of PER_BATCHED."""
    known = [candidate for candidate in found if candidate.config in chosen]
    if not known:
        return []
    costs = Costs(TimedCandidates.of(layout, known, limits))
    roofline = limits.fma_tflops, limits.bandwidth_gbs
    source = distribution.drawn(
        SEED + 1, *roofline, layouts=(layout,), is_mixed=True, more=distribution.products
    )
    of_drawn = np.stack([costs.on_batch(gemm) for gemm in islice(source, NUM_DRAWN)], axis=1)
    regret, weights = _regrets(of_drawn, np.ones(NUM_DRAWN))
    return [known[at].config for at in choose(regret, weights, len(known) // PER_BATCHED)]
