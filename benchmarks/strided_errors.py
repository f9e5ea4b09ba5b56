"""How far products are from float64, for leading dimensions of any size and for numbers of two kinds.

The relative error in the Frobenius norm over tiles of C that are drawn: enough elements for the norm of their
errors to be known to a part in a hundred or better. The float64 products are computed on the GPU. Of a batch
the first, the middle and the last product are looked at.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from accuracy import cut
from table_arena import Runner, stored_bytes

from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.gpu.driver import check
from autotune.gpu.memory import POISON_WORD, Buffer, OperandSet, Region, lay_out
from autotune.gpu.module import pack
from autotune.gpu.session import Session
from autotune.gpu.verification import CHECK_THREADS, CHECK_TILE, choose_tiles
from autotune.runtime.choose.chooser import Call

DATA = ("normal", "uniform")  # of mean 0; of 0 ... 1
LEAST_TILES, MOST_TILES = 64, 1024  # of C
ENOUGH_ELEMENTS = 1 << 16
_PERIOD = 4_194_301  # uniform numbers repeat after so many, a prime: no two rows are alike
_SEED = 5


def relative_errors(session: Session, call: Call, runners: Sequence[Runner]) -> dict[str, dict[str, float]]:
    """By kind of numbers and by name: ||C - C64|| / ||C64||. Infinite where a result is no number, or was not
    written. Raises EnvironmentProblem where memory is too small."""
    product = _Product(session, call)
    try:
        return {kind: product.errors(kind, runners) for kind in DATA}
    finally:
        product.free()


def drawn_tiles(gemm: Gemm) -> list[int]:
    """Numbers of tiles of C: all of a small one, else corners, edges and others drawn; ascending."""
    of_one = min(gemm.m, CHECK_TILE) * min(gemm.n, CHECK_TILE)
    budget = min(max(LEAST_TILES, -(-ENOUGH_ELEMENTS // of_one)), MOST_TILES)
    return choose_tiles(gemm, budget, _SEED)


class _Product:
    """Operands of one call, and the tiles of each C that are looked at."""

    def __init__(self, session: Session, call: Call) -> None:
        self._session, self._call = session, call
        self._driver, self._stream = session.driver, session.stream
        self._one, batch = replace(call.gemm, batch=1), call.gemm.batch
        self._products = sorted({0, batch // 2, batch - 1})
        self._tiles = drawn_tiles(self._one)
        self._layout = lay_out(stored_bytes(call))
        self._buffer = Buffer(self._driver, self._layout.num_bytes, f"operands of {call.gemm}")
        self._operands = OperandSet(*(self._buffer.address + r.offset for r in self._layout.operands))

    def free(self) -> None:
        check(self._driver.cuStreamSynchronize, self._stream)
        self._buffer.free()

    def errors(self, kind: str, runners: Sequence[Runner]) -> dict[str, float]:
        for number, region in enumerate(self._layout.operands[:2]):
            if kind == "normal":
                fill = self._session.checks.kernel("fill_normal")
                self._buffer.fill_normal(fill, region, _SEED + number, self._stream)
            else:
                self._fill_uniform(region, _SEED + number)
        exact = [self._exact(product) for product in self._products]
        return {runner.name: self._error(runner, exact) for runner in runners}

    def _address(self, operand: int, product: int) -> int:
        """Of A, B or C of one product of the batch."""
        stride = FLOAT_BYTES * self._call.batch[1 + operand]
        return int((self._operands.a, self._operands.b, self._operands.c)[operand]) + stride * product

    def _fill_uniform(self, region: Region, seed: int) -> None:
        count = region.num_bytes // FLOAT_BYTES
        period = np.random.default_rng(seed).random(min(count, _PERIOD), dtype=np.float32)
        for begin in range(0, count, len(period)):
            part, offset = period[: count - begin], region.offset + FLOAT_BYTES * begin
            self._buffer.upload((ctypes.c_float * len(part)).from_buffer(part.data), self._stream, offset)

    def _exact(self, product: int) -> np.ndarray:
        """(tiles, CHECK_TILE, CHECK_TILE) of one product in float64, zero beyond the edges of C."""
        call, gemm, tiles = self._call, self._one, self._tiles
        exact = np.empty((len(tiles), CHECK_TILE, CHECK_TILE))
        behind = exact.nbytes + exact.nbytes // 2  # products, sums of absolute values, numbers of tiles
        buffer = Buffer(self._driver, behind + 4 * len(tiles), f"the float64 reference of {gemm}")
        try:
            buffer.upload((ctypes.c_int32 * len(tiles))(*tiles), self._stream, behind)
            places = (buffer.address + offset for offset in (behind, 0, exact.nbytes))
            arguments = [
                *map(ctypes.c_int32, (gemm.m, gemm.n, gemm.k)),
                *(ctypes.c_void_p(self._address(0, product)), *_strides(call.lds[0], gemm.trans_a)),
                *(ctypes.c_void_p(self._address(1, product)), *_strides(call.lds[1], gemm.trans_b)),
                *map(ctypes.c_void_p, places),
            ]
            kernel = self._session.checks.kernel("reference_tiles")
            kernel.launch(self._stream, (len(tiles), 1), CHECK_THREADS, pack(arguments))
            self._download(buffer.address, exact)
        finally:
            buffer.free()
        return exact

    def _error(self, runner: Runner, exact: Sequence[np.ndarray]) -> float:
        self._buffer.fill(POISON_WORD, self._layout.operands[2], self._stream)
        runner.enqueue(self._operands)
        squares = sum(map(self._squares, self._products, exact))
        error = math.sqrt(squares / sum(float(np.vdot(one, one)) for one in exact))
        return error if math.isfinite(error) else math.inf

    def _squares(self, product: int, exact: np.ndarray) -> float:
        """The sum of the squares of what one C differs by."""
        gemm, ldc = self._one, self._call.lds[2]
        columns, squares, slot = -(-gemm.n // CHECK_TILE), 0.0, 0
        for down, group in groupby(self._tiles, key=lambda tile: tile // columns):
            tiles = [tile % columns for tile in group]
            height = min(CHECK_TILE, gemm.m - down * CHECK_TILE)
            band = np.empty(height * ldc, np.float32)
            reached = band[: (height - 1) * ldc + gemm.n]
            self._download(self._address(2, product) + FLOAT_BYTES * down * CHECK_TILE * ldc, reached)
            c = cut(band.reshape(height, ldc)[:, : gemm.n], tiles)
            difference = c - exact[slot : slot + len(tiles)]
            squares += float(np.vdot(difference, difference))
            slot += len(tiles)
        return squares

    def _download(self, address: int, to: np.ndarray) -> None:
        check(self._driver.cuMemcpyDtoHAsync, to.ctypes.data, address, to.nbytes, self._stream)
        check(self._driver.cuStreamSynchronize, self._stream)


def _strides(ld: int, is_transposed: bool) -> list[ctypes.c_int64]:
    """Elements from row to row and from column to column of op(X), and from product to product."""
    rows, columns = (1, ld) if is_transposed else (ld, 1)
    return [ctypes.c_int64(stride) for stride in (rows, columns, 0)]
