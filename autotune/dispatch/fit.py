"""Finds the figures of the time model (model.py) from the times that a search took.

Least squares on relative errors, no figure below what the hardware allows, drawn weakly towards
figures of thumb: one sample moves them, a few decide them. Single outliers are weighed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ..device import DeviceLimits
from ..gemm import Gemm
from ..launch import LaunchSpec
from .model import Work, work
from .table import ModelFigures

# Figures of thumb for a kernel without a sample, and how strongly they draw one with samples.
_FIXED_US = 2.5
_ROUND_US = 0.15  # latency of one k-step that nothing hides
_ROUND_SHARE = 0.2  # and its part that grows with the tile
_WASTE = 0.35  # time per step beyond pure FMAs
_EFFICIENCY = 0.8  # of the bandwidth
_DRAW = 0.05  # weight of a figure of thumb against one sample

_MEMORY_BOUND = 0.7  # from this share of its time at full bandwidth on, a sample tells of memory
_OUTLIER = 0.05  # relative residual from which a sample loses weight
_NUM_ROUNDS = 4  # of reweighting


@dataclass(frozen=True)
class Sample:
    """One measured time of a kernel, launched as `spec` says, on one shape."""

    spec: LaunchSpec
    gemm: Gemm
    time_us: float


def fma_step_us(spec: LaunchSpec, limits: DeviceLimits) -> float:
    """Least time of one k-step of one block: its FMAs at the full rate of an SM."""
    fmas_per_us = limits.fma_tflops * 1e6 / 2 / limits.num_sms
    return spec.bm * spec.bn * spec.bk / fmas_per_us


def guess(spec: LaunchSpec, limits: DeviceLimits) -> ModelFigures:
    """Figures of thumb: for a kernel that was never timed."""
    least = fma_step_us(spec, limits)
    return ModelFigures(
        fixed_us=_FIXED_US,
        round_us=_ROUND_US + _ROUND_SHARE * least,
        step_us=least * (1 + _WASTE),
        memory_efficiency=_EFFICIENCY,
        num_samples=0,
        relative_error=0.0,
    )


def inherit(relative: ModelFigures, handicap: float) -> ModelFigures:
    """Figures for an untimed twin of a timed kernel that needs `handicap` times its time per step."""
    return replace(
        relative,
        round_us=relative.round_us * handicap,
        step_us=relative.step_us * handicap,
        num_samples=0,
        relative_error=0.0,
    )


def fit(samples: Sequence[Sample], blocks_per_sm: int, limits: DeviceLimits) -> ModelFigures:
    """Figures of one kernel from all its times. At least one sample; all share tiles and cubin."""
    thumb = guess(samples[0].spec, limits)
    todo = [work(s.spec, blocks_per_sm, s.gemm, limits) for s in samples]
    times = np.array([s.time_us for s in samples])
    shares = np.array([w.memory_us for w in todo]) / times
    is_memory = shares >= _MEMORY_BOUND
    efficiency = float(np.clip(np.median(shares[is_memory]), 0.05, 1.0)) if is_memory.any() else _EFFICIENCY
    figures = thumb
    if not is_memory.all():
        kept = np.flatnonzero(~is_memory)
        figures = _fit_compute([todo[i] for i in kept], times[kept], thumb, samples[0].spec, limits)
    figures = replace(figures, memory_efficiency=efficiency, num_samples=len(samples))
    modelled = np.array([_modelled_us(figures, w) for w in todo])
    return replace(figures, relative_error=float(np.median(np.abs(modelled / times - 1))))


def _modelled_us(figures: ModelFigures, todo: Work) -> float:
    compute_us = figures.round_us * todo.round_steps + figures.step_us * todo.queue_steps
    return figures.fixed_us + max(compute_us, todo.memory_us / figures.memory_efficiency) + todo.reduction_us


def _fit_compute(
    todo: Sequence[Work], times: np.ndarray, thumb: ModelFigures, spec: LaunchSpec, limits: DeviceLimits
) -> ModelFigures:
    """Fixed, round and step time, the last as what comes on top of pure FMAs."""
    least = fma_step_us(spec, limits)
    columns = np.array([[1.0, w.round_steps, w.queue_steps] for w in todo])  # (samples, 3)
    rest = times - np.array([least * w.queue_steps + w.reduction_us for w in todo])
    prior = np.array([thumb.fixed_us, thumb.round_us, thumb.step_us - least])
    pull = _DRAW * np.eye(3) / prior  # rows that say: figure / thumb = 1
    weights = np.ones(len(times))
    for _ in range(_NUM_ROUNDS):
        scale = weights / times
        rows = np.vstack([columns * scale[:, None], pull])
        found = _nonnegative(rows, np.concatenate([rest * scale, np.full(3, _DRAW)]))
        residuals = np.abs(columns @ found - rest) / times
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(residuals, 1e-12)))
    fixed, round_us, waste = map(float, found)
    return replace(thumb, fixed_us=fixed, round_us=round_us, step_us=least + waste)


def _nonnegative(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with no negative unknown: the best of all choices of unknowns held at zero."""
    size = rows.shape[1]
    best, least = np.zeros(size), float(target @ target)
    for count in range(1, size + 1):
        for free in map(list, combinations(range(size), count)):
            part = np.linalg.lstsq(rows[:, free], target, rcond=None)[0]
            loss = float(np.sum((rows[:, free] @ part - target) ** 2))
            if (part >= 0).all() and loss < least:
                best, least = np.zeros(size), loss
                best[free] = part
    return best
