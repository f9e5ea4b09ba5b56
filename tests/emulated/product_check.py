"""What C must be: a float64 reference with an error bound that grows with k, and the rules for NaN."""

from __future__ import annotations

import math

import numpy as np
from emulator import LaunchProblem, LaunchResult

UNIT_ROUNDOFF = 2.0**-24  # of float32
STEEPEST = 1.13  # no activation is steeper: GELU at the square root of two
ACTIVATION_UNITS = 8  # an activation errs by so many units of its argument at most


class WrongProduct(AssertionError):
    """C is not what BLAS says, or not what the epilogue makes of it."""


def reference(p: LaunchProblem, trans_a: bool, trans_b: bool) -> tuple[np.ndarray, np.ndarray]:
    """The result before its activation, in float64, and the error that float32 may make of it, element by
    element; both (products, m, n).

    A sum of k products in any order errs by at most k units in sum |a b|; splits add their number,
    scaling and a bias a few more.
    """
    a, b = (x.matrices.astype(np.float64) for x in (p.a, p.b))
    a, b = a.swapaxes(1, 2) if trans_a else a, b.swapaxes(1, 2) if trans_b else b
    beta = np.float64(np.float32(p.beta))
    added = np.zeros(p.c.matrices.shape) if p.beta == 0 else beta * p.c.matrices
    size = np.abs(added)
    if p.epilogue.bias != "none":
        bias = p.bias.matrices.astype(np.float64)
        bias = bias.swapaxes(1, 2) if p.epilogue.bias == "rows" else bias
        added, size = added + bias, size + np.abs(bias)
    if p.alpha == 0 or p.k == 0:
        return added, 3 * UNIT_ROUNDOFF * size
    alpha = np.float64(np.float32(p.alpha))
    with np.errstate(invalid="ignore"):
        expected = alpha * np.einsum("...ik,...kj->...ij", a, b) + added
        size = np.abs(alpha) * np.einsum("...ik,...kj->...ij", np.abs(a), np.abs(b)) + size
    return expected, (p.k + p.split_k + 8) * UNIT_ROUNDOFF * size


def activated(activation: str, x: np.ndarray) -> np.ndarray:
    """An activation by its formula, in float64. Where GELU is given -Inf it is 0 * Inf: NaN, as in torch."""
    with np.errstate(invalid="ignore", over="ignore"):
        if activation == "relu":
            return np.where(x < 0, 0, x)
        if activation == "gelu":
            return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))
        if activation == "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def check(p: LaunchProblem, result: LaunchResult, trans_a: bool = False, trans_b: bool = False) -> None:
    """Raises `WrongProduct` unless NaN and Inf stand where they must and the rest is within the bound."""
    value, bound = reference(p, trans_a, trans_b)
    if p.epilogue.keeps:
        _check(p, "what is kept", result.kept, value, bound)
    if p.epilogue.activation != "none":
        bound = STEEPEST * bound + ACTIVATION_UNITS * UNIT_ROUNDOFF * np.abs(value)
        value = activated(p.epilogue.activation, value)
    _check(p, "C", result.c, value, bound)


def _check(p: LaunchProblem, name: str, result: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> None:
    special = ~np.isfinite(expected)
    with np.errstate(invalid="ignore"):  # what was never written is a signalling NaN
        error = np.abs(np.where(special, 0, result) - np.where(special, 0, expected))
    is_right = np.where(
        special,
        (np.isnan(expected) & np.isnan(result)) | (expected == result),
        error <= np.where(special, 0, bound),
    )
    if is_right.all():
        return
    at = tuple(np.argwhere(~is_right)[0])
    raise WrongProduct(
        f"{p.name}: {np.count_nonzero(~is_right)} of {p.products} x {p.m} x {p.n} elements are wrong, "
        f"the first {name}[{', '.join(map(str, at))}] = {result[at]}, not {expected[at]} within {bound[at]}"
    )
