"""Finds the figures of the time model (time_model.py) from the times that a search took.

Least squares on relative errors, no figure below what the hardware allows, drawn weakly towards rule-of-thumb
figures: one sample moves them, a few decide them. Single outliers have less weight, and so have times from
another GPU or layout (export/portfolio.py), and shapes that other kernels serve much faster: nobody chooses
by them. All kernels are fitted at once: there are hundreds of them, with three unknowns each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.fitted import number
from ..facts.gemm import FLOAT_BYTES, Gemm
from ..kernel.launch import LaunchSpec
from . import launch_errors, residual
from .launch_errors import LaunchErrors, TimedLaunches
from .launches import Flags, Launches, Shapes, Whole, grids
from .model_figures import FMAS_PER_L2_FLOAT, Floats, ModelFigures
from .time_model import Speeds, TimeModel, Work, fmas_per_us, modelled_us

# Rule-of-thumb figures for a kernel without a sample, and how strongly they draw one with samples. They were
# chosen so that the modelled times of tiles timed cold on an H200 are within 1.4 of the measured ones:
# 16x11008x4096 46.9 us, 1x4096x4096 17.6, 64x64x100000 29.3, 65536x64x64 15.6, 256^3 4.15, 1024^3 45.7,
# 2048^3 325, 4096^3 2561 (tests/unit/test_export_portfolio.py checks this). So they are figures of a kernel
# that suits its shape. The contribution of single terms was not measured.
_FIXED_US = number("_FIXED_US")
# Of the fixed: no kernel is launched, reads and writes in less (docs/decisions/0053)
_LEAST_FIXED_US = number("_LEAST_FIXED_US")
_LATENCY_US = number("_LATENCY_US")  # of a k-step, shared by those that are read ahead (docs/decisions/0057)
_WASTE = number("_WASTE")  # time per step beyond pure FMAs
# Of the bandwidth: where it was seen to bound kernels, they reach 0.77 (0058)
_EFFICIENCY = number("_EFFICIENCY")
_LEAST_EFFICIENCY = number("_LEAST_EFFICIENCY")
# Copying one float to shared memory takes the time of this many FMAs:
_FMAS_PER_FLOAT = number("_FMAS_PER_FLOAT")  # of issue and shared memory, whatever carries it
_FMAS_PER_ACCESS = number("_FMAS_PER_ACCESS")  # and of issue per access to global memory, of 1, 2 or 4 floats
_DRAW = number("_DRAW")  # weight of a rule-of-thumb figure against one sample

# Share of its time at full bandwidth, of memory or of L2, from which a sample informs on that
_BOUND = number("_BOUND")
_OUTLIER = number("_OUTLIER")  # relative residual from which a sample loses weight
_NUM_REWEIGHTINGS = 4
_MOST_MISSED = number("_MOST_MISSED")  # by which a single outlier counts
# Power of the ratio of a shape's best time to another time, which is the weight of that time
_LEADING = number("_LEADING")
_UNSEEN = number("_UNSEEN")  # samples: as if as many more were off by _MISFIT, where launches are explained
_AT_ONCE = 8192  # launches whose work is counted: it takes some hundred bytes for each
_MISFIT = number("_MISFIT")  # relative, of the model itself: a more accurate sample counts in full


@dataclass(frozen=True, slots=True)  # a hundred thousand of them are held
class Sample:
    """One time of a kernel, launched by `spec`, on a shape: measured, or inferred with a `deviation`."""

    spec: LaunchSpec
    gemm: Gemm
    time_us: float
    deviation: float = 0.0


def fma_step_us(spec: LaunchSpec, limits: DeviceLimits) -> float:
    """Least time of one k-step of one block: its FMAs at the full rate of an SM."""
    return spec.bm * spec.bn * spec.bk * limits.num_sms / fmas_per_us(limits)


def _read_ahead(spec: LaunchSpec) -> int:
    """The number of k-steps under way while one is computed: one less than the stages that shared memory
    holds, at least one. Kept sums and padding count as stages if they are as large."""
    return max(spec.smem_bytes // (FLOAT_BYTES * spec.bk * (spec.bm + spec.bn)) - 1, 1)


def guess(spec: LaunchSpec, limits: DeviceLimits) -> ModelFigures:
    """Rule-of-thumb figures for a kernel that was never timed. The less a tile reuses what it copies, and
    the narrower its copies, the longer a step takes."""
    per_fma = {spec.vec_a: 0.0, spec.vec_b: 0.0}  # floats copied by vectors of this width
    per_fma[spec.vec_a] += 1 / spec.bn
    per_fma[spec.vec_b] += 1 / spec.bm
    copies = sum(floats * (_FMAS_PER_FLOAT + _FMAS_PER_ACCESS / vec) for vec, floats in per_fma.items())
    share = max(1 + _WASTE + copies, FMAS_PER_L2_FLOAT * sum(per_fma.values()))
    return ModelFigures(
        fixed_us=_FIXED_US,
        round_us=_LATENCY_US / _read_ahead(spec),
        step_us=fma_step_us(spec, limits) * share,
        memory_efficiency=_EFFICIENCY,
        num_samples=0,
        relative_error=0.0,
    )


def fit(
    kernels: Sequence[Sequence[Sample]], blocks_per_sm: Sequence[int], limits: DeviceLimits
) -> list[ModelFigures]:
    """Figures of each kernel from all its times. At least one sample of each; all of one share tiles and
    cubin, all kernels a layout. `num_samples` counts the measured ones. `relative_error` is the error of one
    of its modelled times, as far as samples show: the root mean square of the model's errors and of inferred
    times' deviations."""
    return KnownSamples.of(kernels, blocks_per_sm, limits).fit()


def _distinct(known: Sequence[Any]) -> tuple[list[Any], Whole]:
    """The objects that occur, the first first, and the number of each."""
    _, first, at = np.unique(
        np.fromiter(map(id, known), np.int64, len(known)), return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    return [known[i] for i in first[order]], np.argsort(order)[at]


def _numbered(gemms: Sequence[Gemm]) -> tuple[list[Gemm], Whole]:
    """The same of equal shapes, of which there are some objects each."""
    objects, at = _distinct(gemms)
    columns: dict[Gemm, int] = {}
    numbers = np.array([columns.setdefault(gemm, len(columns)) for gemm in objects], np.int64)
    return list(columns), numbers[at]


def modelled(
    figures: Sequence[ModelFigures],
    kernels: Sequence[Sequence[Sample]],
    blocks_per_sm: Sequence[int],
    limits: DeviceLimits,
) -> list[Floats]:
    """The modelled us of kernels of one layout with these figures on their samples: an array for each."""
    return KnownSamples.of(kernels, blocks_per_sm, limits).modelled(figures)


class KnownSamples(NamedTuple):
    """Samples of several kernels of one layout, those of the first before those of the next; arrays."""

    kernel: Whole  # of each sample
    begin: Whole  # the first sample of each kernel
    gemms: list[Gemm]  # in the order in which the samples first name them
    gemm: Whole  # of each sample, its place among these
    times_us: Floats
    deviations: Floats
    launches: Launches  # each once, as a kernel has few numbers of splits
    launched: Whole  # of each sample, its place among these
    limits: DeviceLimits
    specs: list[LaunchSpec]  # of each kernel, in some number of splits
    blocks_per_sm: Whole  # of each kernel
    default_speeds: Speeds  # figures of thumb of each kernel
    least_step_us: Floats  # of each kernel

    @classmethod
    def of(
        cls, kernels: Sequence[Sequence[Sample]], blocks_per_sm: Sequence[int], limits: DeviceLimits
    ) -> KnownSamples:
        """At least one sample of each kernel."""
        samples = list(chain.from_iterable(kernels))
        nums = np.array([len(own) for own in kernels])
        blocks = np.array(blocks_per_sm)
        times_us, deviations = (
            np.fromiter(map(attrgetter(name), samples), float, len(samples))
            for name in ("time_us", "deviation")
        )
        gemms, gemm = _numbered([sample.gemm for sample in samples])
        resident = np.repeat(blocks, nums)
        _, spec = _distinct([sample.spec for sample in samples])
        _, first, launched = np.unique(
            spec * (resident.max() + 1) + resident, return_index=True, return_inverse=True
        )
        specs = [own[0].spec for own in kernels]
        return cls(
            np.repeat(np.arange(len(kernels)), nums),
            np.cumsum(nums) - nums,
            gemms,
            gemm,
            times_us,
            deviations,
            Launches.of([samples[at].spec for at in first], resident[first].tolist()),
            launched,
            limits,
            specs,
            blocks,
            Speeds.of([guess(spec, limits) for spec in specs]),
            np.array([fma_step_us(spec, limits) for spec in specs]),
        )

    def only(self, which: Flags) -> tuple[KnownSamples, Whole]:
        """What is known by some of the samples, and the places of the kernels that are left."""
        left, kernel = np.unique(self.kernel[which], return_inverse=True)
        places, first, gemm = np.unique(self.gemm[which], return_index=True, return_inverse=True)
        order = np.argsort(first)
        some = KnownSamples(
            kernel,
            np.searchsorted(kernel, np.arange(len(left))),
            [self.gemms[at] for at in places[order]],
            np.argsort(order)[gemm],
            self.times_us[which],
            self.deviations[which],
            self.launches,
            self.launched[which],
            self.limits,
            [self.specs[at] for at in left],
            self.blocks_per_sm[left],
            self.default_speeds.take(left),
            self.least_step_us[left],
        )
        return some, left

    def sums(self, values: Floats) -> Floats:
        """(samples, ...) -> (kernels, ...)."""
        added: Floats = np.add.reduceat(values, self.begin)
        return added

    def work(self) -> Work:
        """Of each sample."""
        extents = np.array([(gemm.m, gemm.n, gemm.k) for gemm in self.gemms], np.int64).T

        def part(begin: int) -> Work:
            some = slice(begin, begin + _AT_ONCE)
            launches, (m, n, k) = self.launches.take(self.launched[some]), extents[:, self.gemm[some]]
            shapes = Shapes(m, n, k, self.gemms[0].trans_a, self.gemms[0].trans_b)
            return TimeModel(launches, self.limits).work(shapes, grids(launches, shapes))

        parts = zip(*map(part, range(0, len(self.gemm), _AT_ONCE)), strict=True)
        return Work(*(np.concatenate(some, axis=-1) for some in parts))

    def fit(self) -> list[ModelFigures]:
        """As the function of this name."""
        return _fit(self, self.work(), np.ones(self.times_us.size))[0]

    def modelled(self, figures: Sequence[ModelFigures]) -> list[Floats]:
        """As the function of this name."""
        times_us = modelled_us(Speeds.of(figures).take(self.kernel), self.work())
        return np.split(times_us, self.begin[1:])


def _fit(known: KnownSamples, todo: Work, lead_weights: Floats) -> tuple[list[ModelFigures], Floats]:
    """The figures of each kernel; and the logarithm of each time over the modelled one. `leads`: of each
    sample, the best time of any kernel on its shape over its own."""
    sample_weights = lead_weights**_LEADING / np.hypot(1, known.deviations / _MISFIT)
    shares = todo.memory_us / known.times_us
    is_memory = shares >= _BOUND
    is_compute = ~is_memory & (todo.l2_us / known.times_us < _BOUND)
    efficiencies = _efficiencies(known, shares, sample_weights**2, is_memory)
    speeds = Speeds(*_fit_compute(known, todo, sample_weights, is_compute), efficiencies)
    missed: Floats = np.log(known.times_us / modelled_us(speeds.take(known.kernel), todo))
    squares = np.minimum(missed**2, _MOST_MISSED**2) + known.deviations**2
    errors = np.sqrt(known.sums(squares * sample_weights**2) / known.sums(sample_weights**2))
    nums = known.sums((known.deviations == 0).astype(int))
    rows = zip(*(column.tolist() for column in (*speeds, nums, errors)), strict=True)
    return [ModelFigures(*row) for row in rows], missed


def _efficiencies(known: KnownSamples, shares: Floats, weights: Floats, is_memory: Flags) -> Floats:
    """(kernels,) shares of the bandwidth, from samples that inform on them."""
    found: Floats = np.full(known.begin.size, _EFFICIENCY)
    for kernel in np.unique(known.kernel[is_memory]):
        own = is_memory & (known.kernel == kernel)
        found[kernel] = min(max(_weighted_median(shares[own], weights[own]), _LEAST_EFFICIENCY), 1.0)
    return found


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    middle = np.searchsorted(below, below[-1] / 2)
    return float(values[order][middle])


def _fit_compute(
    known: KnownSamples, todo: Work, sample_weights: Floats, is_compute: Flags
) -> tuple[Floats, Floats, Floats]:
    """(kernels,) fixed, wave and step times, no less than the least, from samples that inform on them."""
    default_speeds, least = known.default_speeds, known.least_step_us
    prior = np.stack(
        [default_speeds.fixed_us - _LEAST_FIXED_US, default_speeds.round_us, default_speeds.step_us - least],
        axis=1,
    )
    # Figures are in units of the rule-of-thumb figures, to which each is drawn: so rounding is harmless
    # although the equations are squared.
    counts = np.stack([np.ones(sample_weights.size), todo.wave_steps, todo.queue_steps], axis=1)
    unknown = counts * prior[known.kernel]  # (samples, 3)
    rest = known.times_us - _LEAST_FIXED_US - least[known.kernel] * todo.queue_steps - todo.overhead_us
    weights = is_compute.astype(float)
    for _ in range(_NUM_REWEIGHTINGS):
        scale = sample_weights * weights / known.times_us
        rows, target = unknown * scale[:, None], rest * scale
        squares = known.sums(rows[:, :, None] * rows[:, None, :]) + _DRAW**2 * np.eye(3)
        found = _nonnegative(squares, known.sums(rows * target[:, None]) + _DRAW**2)
        residuals = np.abs((unknown * found[known.kernel]).sum(axis=1) - rest) / known.times_us
        weights = is_compute * np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(residuals, 1e-12)))
    overhead, round_us, step_overhead = (found * prior).T
    return _LEAST_FIXED_US + overhead, round_us, least + step_overhead


def _nonnegative(squares: Floats, products: Floats) -> Floats:
    """(kernels, unknowns) least squares with no negative unknown: the best of all choices of unknowns held at
    zero. If none has to be held, nothing is better. Takes normal equations: (kernels, unknowns, unknowns)
    and (kernels, unknowns)."""
    best = np.asarray(np.linalg.solve(squares, products[..., None])[..., 0], float)
    held = np.flatnonzero((best < 0).any(axis=1))
    squares, products = squares[held], products[held]
    most = np.zeros(held.size)
    found: Floats = np.zeros(products.shape)
    size = products.shape[1]
    for free in chain.from_iterable(map(list, combinations(range(size), count)) for count in range(1, size)):
        of_free = products[:, free]
        part = np.linalg.solve(squares[:, free][:, :, free], of_free[..., None])[..., 0]
        gain = (part * of_free).sum(axis=1)  # by which it lowers the sum of squares
        is_better = np.flatnonzero((part >= 0).all(axis=1) & (gain > most))
        found[is_better], most[is_better] = 0.0, gain[is_better]
        found[is_better[:, None], free] = part[is_better]
    best[held] = found
    return best


class Learned(NamedTuple):
    """Figures of several kernels of one layout, and their errors, learned from timed launches."""

    figures: list[ModelFigures]
    missed: LaunchErrors
    extents: tuple[tuple[int, int, int], ...]  # m, n, k of the places of `missed.level`


def learn(kernels: Sequence[Sequence[Sample]], blocks_per_sm: Sequence[int], limits: DeviceLimits) -> Learned:
    """From at least one sample of each kernel, and at least one kernel."""
    return learned(KnownSamples.of(kernels, blocks_per_sm, limits))


def learned(known: KnownSamples) -> Learned:
    """The same of what is known."""
    extents = tuple(dict.fromkeys((gemm.m, gemm.n, gemm.k) for gemm in known.gemms))
    best_us = np.full(len(known.gemms), np.inf)
    np.minimum.at(best_us, known.gemm, known.times_us)
    leads = best_us[known.gemm] / known.times_us
    todo = known.work()
    figures, logs = _fit(known, todo, leads)
    at = {shape: i for i, shape in enumerate(extents)}
    places = np.array([at[gemm.m, gemm.n, gemm.k] for gemm in known.gemms])
    weights = leads**2 / (1 + (known.deviations / _MISFIT) ** 2)
    terms = launch_errors.terms(Speeds.of(figures).take(known.kernel), todo, kind=np.float32)
    del todo  # it takes as much memory as the terms
    traits = launch_errors.traits(known.specs, known.blocks_per_sm.tolist())
    missed, left = launch_errors.learn(
        TimedLaunches(known.begin, places[known.gemm], terms, logs, weights),
        traits,
        residual.place(*np.array(extents).T),
    )
    squares = known.sums(weights * np.minimum(left, _MOST_MISSED) ** 2) + _UNSEEN * _MISFIT**2
    errors = np.sqrt(squares / (known.sums(weights) + _UNSEEN))
    least = np.minimum.reduceat(known.deviations, known.begin)
    figures = [
        replace(one, relative_error=error)
        for one, error in zip(figures, np.hypot(errors, least).tolist(), strict=True)
    ]
    return Learned(figures, missed, extents)
