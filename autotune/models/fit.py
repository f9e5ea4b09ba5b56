"""Finds the figures of the time model (time_model.py) from the times that a search took.

Least squares on relative errors, no figure below what the hardware allows, drawn weakly towards
figures of thumb: one sample moves them, a few decide them. Single outliers are weighed down, and so is what
was measured on another GPU or in another layout (export/portfolio.py), and what other kernels do much faster:
nobody chooses by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

from ..device import DeviceLimits
from ..gemm import Gemm
from ..kernel.launch import LaunchSpec
from . import residual
from .launches import Flags, Floats, Launches, Shapes, Whole, grids
from .residual import Residuals
from .time_model import FMAS_PER_L2_FLOAT, ModelFigures, Speeds, TimeModel, Work, fmas_per_us, modelled_us

# Figures of thumb for a kernel without a sample, and how strongly they draw one with samples. They were
# chosen so that tiles timed cold on an H200 are modelled within 1.3 of what was measured: 16x11008x4096
# 46.9 us, 1x4096x4096 17.6, 64x64x100000 29.3, 65536x64x64 15.6, 256^3 4.15, 1024^3 45.7, 2048^3 325,
# 4096^3 2561 (tests/unit/test_export_portfolio.py holds them to it). So they are figures of a kernel that
# suits its shape. What single terms contribute was not measured.
_FIXED_US = 2.0
_LEAST_FIXED_US = 1.5  # of the fixed: no kernel is launched, reads and writes in less (docs/decisions/0053)
_ROUND_US = 0.1  # latency of one k-step that nothing hides
_WASTE = 0.05  # time per step beyond pure FMAs
_EFFICIENCY = 0.93  # of the bandwidth
# Copying one float to shared memory takes the time of so many FMAs:
_FMAS_PER_FLOAT = 3  # of issue and shared memory, whatever carries it
_FMAS_PER_ACCESS = 9  # and of issue per access to global memory, of 1, 2 or 4 floats
_DRAW = 0.03  # weight of a figure of thumb against one sample

_BOUND = 0.7  # from this share of its time at full bandwidth, of memory or of L2, on, a sample tells of that
_OUTLIER = 0.05  # relative residual from which a sample loses weight
_NUM_ROUNDS = 4  # of reweighting
_MOST_MISSED = 0.5  # by which a single outlier counts
_LEADING = 0.5  # power of the best time of a shape over another's, by which that one counts
_MISFIT = 0.1  # relative, of the model itself: a sample known better than that counts in full


@dataclass(frozen=True)
class Sample:
    """One time of a kernel, launched as `spec` says, on one shape: measured, or carried over from elsewhere
    with a relative `deviation`."""

    spec: LaunchSpec
    gemm: Gemm
    time_us: float
    deviation: float = 0.0


def fma_step_us(spec: LaunchSpec, limits: DeviceLimits) -> float:
    """Least time of one k-step of one block: its FMAs at the full rate of an SM."""
    return spec.bm * spec.bn * spec.bk * limits.num_sms / fmas_per_us(limits)


def guess(spec: LaunchSpec, limits: DeviceLimits) -> ModelFigures:
    """Figures of thumb: for a kernel that was never timed. The less a tile reuses what it copies, and
    the narrower its copies, the longer a step takes."""
    per_fma = {spec.vec_a: 0.0, spec.vec_b: 0.0}  # floats copied by vectors of this width
    per_fma[spec.vec_a] += 1 / spec.bn
    per_fma[spec.vec_b] += 1 / spec.bm
    copies = sum(floats * (_FMAS_PER_FLOAT + _FMAS_PER_ACCESS / vec) for vec, floats in per_fma.items())
    share = max(1 + _WASTE + copies, FMAS_PER_L2_FLOAT * sum(per_fma.values()))
    return ModelFigures(
        fixed_us=_FIXED_US,
        round_us=_ROUND_US,
        step_us=fma_step_us(spec, limits) * share,
        memory_efficiency=_EFFICIENCY,
        num_samples=0,
        relative_error=0.0,
    )


def fit(samples: Sequence[Sample], blocks_per_sm: int, limits: DeviceLimits) -> ModelFigures:
    """Figures of one kernel from all its times. At least one sample; all share tiles and cubin.

    `num_samples` counts the measured ones. `relative_error` is what one of its modelled times is off by, as
    far as samples tell: root of the mean square, of what the model misses and of what is inferred.
    """
    return _fit(samples, np.ones(len(samples)), work_of(samples, blocks_per_sm, limits), limits)


def _fit(samples: Sequence[Sample], leads: Floats, todo: Work, limits: DeviceLimits) -> ModelFigures:
    """`leads`: of each sample, the best time of any kernel on its shape over its own."""
    thumb = guess(samples[0].spec, limits)
    times = np.array([s.time_us for s in samples])
    deviations = np.array([s.deviation for s in samples])
    trusts = leads**_LEADING / np.hypot(1, deviations / _MISFIT)
    shares = todo.memory_us / times
    is_memory = shares >= _BOUND
    efficiency = _EFFICIENCY
    if is_memory.any():
        efficiency = min(max(_weighted_median(shares[is_memory], trusts[is_memory] ** 2), 0.05), 1.0)
    is_compute = ~is_memory & (todo.l2_us / times < _BOUND)
    figures = thumb
    if is_compute.any():
        figures = _fit_compute(todo, times, trusts, is_compute, thumb, samples[0].spec, limits)
    figures = replace(figures, memory_efficiency=efficiency)
    missed = np.minimum(np.log(modelled_us(Speeds.of([figures]), todo) / times) ** 2, _MOST_MISSED**2)
    return replace(
        figures,
        num_samples=int((deviations == 0).sum()),
        relative_error=math.sqrt(np.average(missed + deviations**2, weights=trusts**2)),
    )


def work_of(samples: Sequence[Sample], blocks_per_sm: int, limits: DeviceLimits) -> Work:
    """What a kernel had to do for each of its samples. All are of one layout."""
    specs = {id(s.spec): s.spec for s in samples}  # most share one: a kernel has few numbers of splits
    at = {key: i for i, key in enumerate(specs)}
    launches = Launches.of(list(specs.values()), [blocks_per_sm] * len(specs))
    launches = launches.take([at[id(s.spec)] for s in samples])
    m, n, k = np.array([(s.gemm.m, s.gemm.n, s.gemm.k) for s in samples], np.int64).T
    shapes = Shapes(m, n, k, samples[0].gemm.trans_a, samples[0].gemm.trans_b)
    return TimeModel(launches, limits).work(shapes, grids(launches, shapes))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    middle = np.searchsorted(below, below[-1] / 2)
    return float(values[order][middle])


def _fit_compute(
    todo: Work,
    times: Floats,
    trusts: Floats,
    is_compute: Flags,
    thumb: ModelFigures,
    spec: LaunchSpec,
    limits: DeviceLimits,
) -> ModelFigures:
    """Fixed, wave and step time, the first and the last as what comes on top of the least, from samples that
    tell of them."""
    least = fma_step_us(spec, limits)
    counts = (np.ones(len(times)), todo.wave_steps, todo.queue_steps)
    unknown = np.stack(counts, axis=1)[is_compute]  # (samples, 3)
    rest = (times - _LEAST_FIXED_US - least * todo.queue_steps - todo.overhead_us)[is_compute]
    times, trusts = times[is_compute], trusts[is_compute]
    prior = np.array([thumb.fixed_us - _LEAST_FIXED_US, thumb.round_us, thumb.step_us - least])
    pull = _DRAW * np.eye(3) / prior  # rows that say: figure / thumb = 1
    weights = np.ones(len(times))
    for _ in range(_NUM_ROUNDS):
        scale = trusts * weights / times
        rows = np.vstack([unknown * scale[:, None], pull])
        found = _nonnegative(rows, np.concatenate([rest * scale, np.full(3, _DRAW)]))
        residuals = np.abs(unknown @ found - rest) / times
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(residuals, 1e-12)))
    beyond, round_us, waste = map(float, found)
    fixed = _LEAST_FIXED_US + beyond
    return replace(thumb, fixed_us=fixed, round_us=round_us, step_us=least + waste)


def _nonnegative(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with no negative unknown: the best of all choices of unknowns held at zero. Where none
    has to be held, nothing is better."""
    size = rows.shape[1]
    best: Floats = np.linalg.lstsq(rows, target, rcond=None)[0]
    if (best >= 0).all():
        return best
    best, least = np.zeros(size), float(target @ target)
    for count in range(1, size):
        for free in map(list, combinations(range(size), count)):
            part = np.linalg.lstsq(rows[:, free], target, rcond=None)[0]
            loss = float(np.sum((rows[:, free] @ part - target) ** 2))
            if (part >= 0).all() and loss < least:
                best, least = np.zeros(size), loss
                best[free] = part
    return best


class Learned(NamedTuple):
    """Figures of several kernels of one layout, and what they miss on the shapes that they were timed on."""

    figures: list[ModelFigures]
    missed: Residuals
    extents: tuple[tuple[int, int, int], ...]  # m, n, k of `missed.places`


def learn(kernels: Sequence[Sequence[Sample]], blocks_per_sm: Sequence[int], limits: DeviceLimits) -> Learned:
    """From at least one sample of each kernel."""
    extents = tuple(dict.fromkeys((s.gemm.m, s.gemm.n, s.gemm.k) for samples in kernels for s in samples))
    at = {shape: i for i, shape in enumerate(extents)}
    best: dict[Gemm, float] = {}
    for sample in chain.from_iterable(kernels):
        best[sample.gemm] = min(sample.time_us, best.get(sample.gemm, math.inf))
    found: list[ModelFigures] = []
    logs, doubts = np.full((2, len(kernels), len(extents)), np.nan)
    for row, doubt, samples, resident in zip(logs, doubts, kernels, blocks_per_sm, strict=True):
        todo = work_of(samples, resident, limits)
        leads = np.array([best[s.gemm] / s.time_us for s in samples])
        figures = _fit(samples, leads, todo, limits)
        found.append(figures)
        modelled = modelled_us(Speeds.of([figures]), todo)
        missed = np.log(np.array([s.time_us for s in samples]) / modelled)
        where = np.array([at[s.gemm.m, s.gemm.n, s.gemm.k] for s in samples])
        row[:] = _means(missed, where, len(extents))
        doubt[:] = _means(np.array([(s.deviation / _MISFIT) ** 2 for s in samples]), where, len(extents))
    return Learned(found, residual.learn(residual.place(*np.array(extents).T), logs, doubts), extents)


def _means(values: Floats, where: Whole, num: int) -> Floats:
    """(num,) of those at each place; NaN where there is none."""
    counts = np.bincount(where, minlength=num)
    means: Floats = np.full(num, np.nan)
    np.divide(np.bincount(where, values, num), counts, out=means, where=counts > 0)
    return means
