"""Figures of many kernels are found at once: each as if it were alone, by plain least squares."""

from __future__ import annotations

from dataclasses import astuple
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import LIMITS
from test_launches import many

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.perf_model import fit as feasible
from autotune.perf_model.fit import Sample, fit, modelled

NEARLY = 1e-9  # relative


@st.composite
def timed(draw: st.DrawFn) -> tuple[list[list[Sample]], list[int]]:
    """Kernels of one layout, each with a few times of one launch or two, and their resident blocks."""
    layout = draw(st.sampled_from(LAYOUTS))
    specs = draw(many(layout))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kernels = []
    for spec in specs:
        gemms = [Gemm(*map(int, 2 ** random.uniform(4, 12, 3))) for _ in range(random.integers(1, 9))]
        slower = np.exp(random.uniform(0, 1, len(gemms)))
        least = [2 + gemm.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs) for gemm in gemms]
        uncertainties = random.choice([0.0, 0.1], len(gemms))
        kernels.append(
            [Sample(spec, *known) for known in zip(gemms, least * slower, uncertainties, strict=True)]
        )
    return kernels, [int(n) for n in random.integers(1, 5, len(kernels))]


@given(timed())
def test_kernels_are_fitted_and_modelled_as_if_each_were_alone(
    known: tuple[list[list[Sample]], list[int]],
) -> None:
    kernels, resident = known
    combined = fit(kernels, resident, LIMITS)
    times_us = modelled(combined, kernels, resident, LIMITS)
    for figures, times, samples, blocks in zip(combined, times_us, kernels, resident, strict=True):
        (alone,) = fit([samples], [blocks], LIMITS)
        assert astuple(figures) == pytest.approx(astuple(alone), rel=NEARLY)
        assert modelled([figures], [samples], [blocks], LIMITS)[0] == pytest.approx(times, rel=NEARLY)


def plainly(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The best of all choices of unknowns that are held at zero."""
    best, least = np.zeros(rows.shape[1]), float(target @ target)
    for free in (list(c) for count in (1, 2, 3) for c in combinations(range(3), count)):
        part = np.linalg.lstsq(rows[:, free], target, rcond=None)[0]
        loss = float(np.sum((rows[:, free] @ part - target) ** 2))
        if (part >= 0).all() and loss < least:
            best, least = np.zeros(rows.shape[1]), loss
            best[free] = part
    return best


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_no_unknown_is_negative_and_no_others_are_better(seed: int, num_kernels: int) -> None:
    random = np.random.default_rng(seed)
    rows, target = random.normal(size=(num_kernels, 6, 3)), random.normal(size=(num_kernels, 6))
    squares = np.einsum("nrx,nry->nxy", rows, rows)
    found = feasible._nonnegative(squares, np.einsum("nrx,nr->nx", rows, target))
    for one, of_kernel, wanted in zip(found, rows, target, strict=True):
        assert one == pytest.approx(plainly(of_kernel, wanted), rel=1e-6, abs=1e-9)
