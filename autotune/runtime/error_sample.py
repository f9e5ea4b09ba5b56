"""How far the results of launches are from float64, on some elements of C.

The relative error in the Frobenius norm, for numbers of mean zero and for positive ones, of operands that the
runtime made itself (harness.py). The float64 products are computed on the host, so there are few: their
number decides how well an error is known. Copied into exported tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..facts.gemm import FLOAT_BYTES, Triple
from ..files.errors import DispatchError
from .harness import Harness, Numbers
from .product import Product
from .summation import Depths

LEAST_ELEMENTS, MOST_ELEMENTS = 16, 64 * 64  # of C: an error is known to 18 % and to 1 % then
MOST_NUMBERS = 1 << 23  # of A and B that are looked up for them, which takes a host 0.2 s
WHOLE_BYTES = 4 << 20  # of C, up to which it is copied to the host at once
MOST_ROWS, ROWS_BYTES = 64, 16 << 20  # of a larger C so many rows, of no more bytes, but at least one

Launch = Callable[[Triple], None]  # enqueues one on operands


class ErrorSample:
    """Some elements of C of one kind of call. Overwrites the first set of a harness's operands, which must
    have been taken before, with new numbers."""

    def __init__(self, harness: Harness, problem: Product) -> None:
        self._harness, self._problem = harness, problem
        gemm, (_, _, ldc) = problem.gemm, problem.lds
        self._span = (gemm.m - 1) * ldc + gemm.n  # elements of C, with what lies between its rows
        most_rows = gemm.m
        if not self._is_copied_whole:
            most_rows = min(gemm.m, MOST_ROWS, max(1, ROWS_BYTES // (FLOAT_BYTES * gemm.n)))
        rows, columns = _numbers(most_rows, gemm.n, gemm.k)
        self._rows, self._columns = some(gemm.m, rows), some(gemm.n, columns)
        self._exact: dict[Numbers, np.ndarray[Any, Any]] = {}

    @property
    def _is_copied_whole(self) -> bool:
        return FLOAT_BYTES * self._span <= WHOLE_BYTES

    @property
    def num_elements(self) -> int:
        """Of C; too few for an error to be known if below LEAST_ELEMENTS."""
        return self._rows.size * self._columns.size

    def depths(self, launches: Sequence[Launch]) -> list[Depths]:
        """How deep the sums of each launch are, by its errors. Waits for the GPU. Raises DispatchError where
        a result is no number."""
        of_normal, of_uniform = (self._errors(launches, numbers) for numbers in ("normal", "uniform"))
        if not np.isfinite([*of_normal, *of_uniform]).all():
            raise DispatchError("a result is no number")
        return [Depths.of_errors(*errors) for errors in zip(of_normal, of_uniform, strict=True)]

    def _errors(self, launches: Sequence[Launch], numbers: Numbers) -> list[float]:
        harness = self._harness
        harness.fill_first(numbers)
        if numbers not in self._exact:
            self._exact[numbers] = self._in_float64(numbers)
        exact = self._exact[numbers]
        norm = math.sqrt(float(np.vdot(exact, exact)))
        found = []
        for launch in launches:
            harness.clear_result()
            launch(harness.sets[0])
            apart = self._result() - exact
            found.append(math.sqrt(float(np.vdot(apart, apart))) / norm)
        return found

    def _in_float64(self, numbers: Numbers) -> np.ndarray[Any, Any]:
        """(rows, columns)"""
        part_a, part_b = operand_parts(self._harness, self._problem, self._rows, self._columns, numbers)
        product: np.ndarray[Any, Any] = part_a @ part_b
        return product

    def _result(self) -> np.ndarray[Any, Any]:
        """(rows, columns)"""
        if not self._is_copied_whole:
            return result_rows(self._harness, self._problem, self._rows)[:, self._columns]
        whole = np.empty(self._span, np.float32)
        self._harness.copy_out(whole.ctypes.data, self._harness.sets[0][2], whole.nbytes)
        found: np.ndarray[Any, Any] = whole[self._rows[:, None] * self._problem.lds[2] + self._columns]
        return found


def operand_parts(
    harness: Harness,
    problem: Product,
    rows: np.ndarray[Any, Any],
    columns: np.ndarray[Any, Any],
    numbers: Numbers = "normal",
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(rows, k) of op(A) and (k, columns) of op(B), in float64: of the first set, filled with such
    numbers."""
    (a, b, _), (lda, ldb, _), gemm = harness.sets[0], problem.lds, problem.gemm
    along_k, down = np.arange(gemm.k), rows[:, None]
    at_a = along_k * lda + down if gemm.trans_a else down * lda + along_k
    at_b = columns * ldb + along_k[:, None] if gemm.trans_b else along_k[:, None] * ldb + columns
    part_a, part_b = (harness.stored(x, at, numbers).astype(np.float64) for x, at in ((a, at_a), (b, at_b)))
    return part_a, part_b


def result_rows(harness: Harness, problem: Product, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(rows, n) of C of the first set, copied to the host."""
    c, row_bytes = harness.sets[0][2], FLOAT_BYTES * problem.lds[2]
    found = np.empty((rows.size, problem.gemm.n), np.float32)
    for band, row in zip(found, rows.tolist(), strict=True):
        harness.copy_out(band.ctypes.data, c + row * row_bytes, band.nbytes)
    return found


def _numbers(m: int, n: int, k: int) -> tuple[int, int]:
    """Of rows and columns of C: about as many of both, unless one side is short; few or 0 if k is very
    large."""
    most = MOST_NUMBERS // max(k, 1)
    columns = min(n, max(math.isqrt(MOST_ELEMENTS), MOST_ELEMENTS // m))
    rows = min(m, MOST_ELEMENTS // columns, max(most // 2, most - columns))
    return rows, min(columns, most - rows)


def some(extent: int, most: int) -> np.ndarray[Any, Any]:
    """Up to this many indices below an extent, including the first and the last."""
    return np.unique(np.linspace(0, extent - 1, min(extent, most)).round().astype(int))
