"""The time model's errors for a kernel, learned from shapes that it was timed on.

For each kernel a Gaussian process over the logarithms of m, n and k (Matern 3/2), of the logarithm of a
measured time over the modelled one. Kernels share the shapes, so that the covariances of a new shape with all
of them are computed once, and each kernel adds a row of weights.
Source: C. E. Rasmussen, C. Williams, Gaussian Processes for Machine Learning (2006), 2.2 and 4.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..facts.fitted import number
from .launches import Flags
from .model_figures import LENGTH, Floats

NOISE = number("NOISE")  # of the variance: the part that a shape does not share with its neighbours
_AT_ONCE = 256  # rows of a matrix that NumPy inverts
_SCALE = np.full(8, 3 / LENGTH**2)  # of squared distances along each coordinate, for Matern 3/2


class Residuals(NamedTuple):
    """`places` (shapes, coordinates); `weights` (kernels, shapes): 0 where a kernel was not timed."""

    places: Floats
    weights: Floats


def place(m: Any, n: Any, k: Any) -> Floats:
    """(..., 3) of extents of at least 1."""
    places: Floats = np.log2(np.maximum(np.array((m, n, k), float).T, 1))
    return places


def none(num_kernels: int) -> Residuals:
    """For kernels without learned errors."""
    return Residuals(np.zeros((0, 3)), np.zeros((num_kernels, 0)))


def _covariance(apart: Floats) -> Floats:
    """(..., coordinates) differences of places -> (...)."""
    r = np.sqrt((apart * apart) @ _SCALE[: apart.shape[-1]])
    covariance: Floats = (1 + r) * np.exp(-r)
    return covariance


def _within(places: Floats) -> Floats:
    """(shapes, shapes) covariances of these, without all their differences in memory at once."""
    found = np.empty((len(places), len(places)))
    for row, at in zip(found, places, strict=True):
        row[:] = _covariance(places - at)
    return found


def learn(places: Floats, logs: Floats, uncertainties: Floats | float = 0.0) -> Residuals:
    """From (kernels, shapes) logarithms of measured over modelled times; NaN if there is none.
    `uncertainties`: the variance of each inferred one, in units of the process's own."""
    weights = np.zeros(logs.shape)
    covariance = _within(places)
    for row, found, uncertainty in zip(
        weights, logs, np.broadcast_to(uncertainties, logs.shape), strict=True
    ):
        known = np.flatnonzero(np.isfinite(found))
        if known.size:
            within = covariance[np.ix_(known, known)] + np.diag(NOISE + uncertainty[known])
            row[known] = np.linalg.solve(within, found[known])
    return Residuals(places, weights)


def precision(places: Floats) -> Floats:
    """(shapes, shapes) the inverse of the covariances of logarithms on these shapes."""
    covariance = _within(places)
    covariance[np.diag_indices(len(places))] += NOISE
    _invert(covariance)
    return covariance


def _invert(matrix: Floats) -> None:
    """In place, of a symmetric positive definite matrix: by halves, as NumPy takes four times its memory."""
    if len(matrix) <= _AT_ONCE:
        matrix[:] = np.linalg.inv(matrix)
        _make_symmetric(matrix)
        return
    half = len(matrix) // 2
    first, across, last = matrix[:half, :half], matrix[:half, half:], matrix[half:, half:]
    _invert(first)
    through = first @ across
    last -= across.T @ through
    _invert(last)
    across[:] = -through @ last
    matrix[half:, :half] = across.T
    first -= across @ through.T
    _make_symmetric(first)


def _make_symmetric(matrix: Floats) -> None:
    """What rounding leaves would grow from half to half: to a wrong third digit from 1,400 rows on."""
    matrix += matrix.T.copy()
    matrix *= 0.5


def without(inverse: Floats, apart: Flags) -> Floats:
    """The `precision` of the other shapes: leaving out a few costs little."""
    rest = ~apart
    across = inverse[np.ix_(rest, apart)]
    reduced: Floats = inverse[np.ix_(rest, rest)]
    if across.size:
        reduced -= across @ np.linalg.solve(inverse[np.ix_(apart, apart)], across.T)
    return reduced


def learned_and_missed(inverse: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """(shapes,) weights of one kernel that was timed on all shapes, and the error of each logarithm when
    predicted from all others. Takes the `precision` of the shapes. Source: Rasmussen and Williams, 5.4.2."""
    weights: Floats = inverse @ logs
    return weights, weights / np.diag(inverse)


def factors(residuals: Residuals, where: Floats) -> Floats:
    """The factors for the modelled time of each kernel on the shape at this place; (kernels,)."""
    if not len(residuals.places):
        return np.ones(len(residuals.weights))
    times: Floats = np.exp(residuals.weights @ _covariance(residuals.places - where))
    return times
