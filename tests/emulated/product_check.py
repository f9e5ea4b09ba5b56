"""What C must be: a float64 reference with an error bound that grows with k, and the rules for NaN."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
from covering_instances import Instance
from emulator import LaunchProblem, LaunchResult

from autotune.facts.gemm import Gemm
from autotune.kernel.launch import LONG_ACTIVATIONS
from autotune.kernel.summation_order import chunk_sums, fma

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sum_lengths import lengths_of

UNIT_ROUNDOFF = 2.0**-24  # of float32
MAX_SLOPE = 1.13  # no activation is steeper: GELU at the square root of two
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
        bound = MAX_SLOPE * bound + ACTIVATION_UNITS * UNIT_ROUNDOFF * np.abs(value)
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


def in_order(p: LaunchProblem, tested: Instance) -> np.ndarray | None:
    """What is kept, or C but for its activation, bit by bit, as the order of the kernel's sums has it; None
    if it has none."""
    config, variant = replace(tested.config, split_k=p.split_k), tested.variant
    a, b = (x.matrices.astype(np.float32) for x in (p.a, p.b))
    a, b = a.swapaxes(1, 2) if variant.trans_a else a, b.swapaxes(1, 2) if variant.trans_b else b
    lengths = lengths_of(config, Gemm(p.m, p.n, p.k, variant.trans_a, variant.trans_b, p.products))
    if lengths is None:
        return None
    alpha, beta = np.float32(p.alpha), np.float32(p.beta)
    parts = chunk_sums(a, b, () if p.alpha == 0 else lengths)
    with np.errstate(invalid="ignore"):
        if config.reduction in ("two_pass", "cluster"):
            value = reduce(np.add, (alpha * part for part in parts))
        else:
            value = alpha * reduce(np.add, parts)
        if beta:
            value = fma(np.broadcast_to(beta, p.c.matrices.shape), p.c.matrices, value)
        if p.epilogue.bias != "none":
            value = value + p.bias.matrices.swapaxes(1, 2 if p.epilogue.bias == "rows" else 1)
    return np.broadcast_to(value, p.c.matrices.shape)


def check_order(p: LaunchProblem, result: LaunchResult, tested: Instance) -> bool:
    """Whether the sums have an order. Raises `WrongProduct` unless each bit is as that has it."""
    expected = in_order(p, tested)
    if expected is None or (tested.variant.epilogue.activation in LONG_ACTIVATIONS and not p.epilogue.keeps):
        return False
    found = result.kept if p.epilogue.keeps else result.c
    if p.epilogue.activation == "relu" and not p.epilogue.keeps:
        expected = np.where(expected < 0, np.float32(0), expected)
    is_same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    if not is_same.all():
        at = tuple(np.argwhere(~is_same)[0])
        raise WrongProduct(
            f"{p.name}: {tested.id} at {at}: {found[at]!r}, and its order has {expected[at]!r}"
        )
    return True
