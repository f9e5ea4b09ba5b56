"""What C must be: a float64 reference with an error bound that grows with k, and the rules for NaN."""

from __future__ import annotations

import numpy as np
from emulator import Problem

UNIT_ROUNDOFF = 2.0**-24  # of float32


class WrongResult(AssertionError):
    """C is not what BLAS says."""


def reference(p: Problem, trans_a: bool, trans_b: bool) -> tuple[np.ndarray, np.ndarray]:
    """C in float64 and the error that float32 may make of it, element by element; both (m, n).

    A sum of k products in any order errs by at most k units in sum |a b|; splits add their number,
    scaling a few more.
    """
    a = (p.a.T if trans_a else p.a).astype(np.float64)
    b = (p.b.T if trans_b else p.b).astype(np.float64)
    old = np.zeros((p.m, p.n)) if p.beta == 0 else np.float32(p.beta).astype(np.float64) * p.c
    if p.alpha == 0 or p.k == 0:
        return old, 2 * UNIT_ROUNDOFF * np.abs(old)
    alpha = np.float64(np.float32(p.alpha))
    with np.errstate(invalid="ignore"):
        expected = alpha * np.einsum("ik,kj->ij", a, b) + old
        size = np.abs(alpha) * np.einsum("ik,kj->ij", np.abs(a), np.abs(b)) + np.abs(old)
    return expected, (p.k + p.split_k + 8) * UNIT_ROUNDOFF * size


def check(p: Problem, result: np.ndarray, trans_a: bool = False, trans_b: bool = False) -> None:
    """Raises `WrongResult` unless NaN and Inf stand where they must and the rest is within the bound."""
    expected, bound = reference(p, trans_a, trans_b)
    special = ~np.isfinite(expected)
    is_right = np.where(
        special,
        (np.isnan(expected) & np.isnan(result)) | (expected == result),
        np.abs(np.where(special, 0, result) - np.where(special, 0, expected)) <= np.where(special, 0, bound),
    )
    if is_right.all():
        return
    i, j = np.argwhere(~is_right)[0]
    raise WrongResult(
        f"{p.name}: {np.count_nonzero(~is_right)} of {p.m} x {p.n} elements are wrong, "
        f"the first C[{i}, {j}] = {result[i, j]}, not {expected[i, j]} within {bound[i, j]}"
    )
