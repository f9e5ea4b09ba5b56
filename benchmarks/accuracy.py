"""The error of a C on the device against float64, in the usual figures: largest and Frobenius error.

`gpu/verification.py` decides whether a result is right; this measures how accurate a right one is. Over the
tiles of C that the reference holds (all of them, except for products too large to compute twice).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.gpu.driver import check
from autotune.gpu.verification import CHECK_TILE, TILE_ELEMENTS, Verifier, tiles_of_one

_DOUBLE_BYTES = 8


@dataclass(frozen=True)
class Accuracy:
    """`max_error` = max |C - C64|; `relative_error` = ||C - C64|| / ||C64||, Frobenius; `share` of C seen."""

    max_error: float
    relative_error: float
    share: float


def accuracy(driver: Any, stream: Any, gemm: Gemm, verifier: Verifier, c: int) -> Accuracy:
    """Compare the C at this address with the verifier's reference. Waits for the stream."""
    rows, columns = tiles_of_one(gemm)
    worst = squares = total = 0.0
    slot = 0
    for down, group in groupby(verifier.tiles, key=lambda tile: tile // columns):
        tiles = [tile % columns for tile in group]
        product, row = divmod(down, rows)
        height = min(CHECK_TILE, gemm.m - row * CHECK_TILE)
        band = np.empty((height, gemm.n), np.float32)
        exact = np.empty((len(tiles), CHECK_TILE, CHECK_TILE))
        _download(driver, stream, c + FLOAT_BYTES * (product * gemm.m + row * CHECK_TILE) * gemm.n, band)
        _download(driver, stream, verifier.products + _DOUBLE_BYTES * slot * TILE_ELEMENTS, exact)
        slot += len(tiles)
        difference = cut(band, tiles) - exact
        worst = max(worst, float(np.abs(difference).max()))
        squares += float(np.vdot(difference, difference))
        total += float(np.vdot(exact, exact))
    relative = math.sqrt(squares / total) if total else math.inf if squares else 0.0
    return Accuracy(worst, relative, verifier.share)


def cut(band: np.ndarray, tiles: Sequence[int]) -> np.ndarray:
    """Tiles of a band of rows, zero beyond its edges as the reference is: (h, n) -> (tiles, 64, 64)."""
    columns = -(-band.shape[1] // CHECK_TILE)
    whole = np.zeros((CHECK_TILE, columns * CHECK_TILE))
    whole[: band.shape[0], : band.shape[1]] = band
    return whole.reshape(CHECK_TILE, columns, CHECK_TILE).transpose(1, 0, 2)[list(tiles)]


def _download(driver: Any, stream: Any, address: int, array: np.ndarray) -> None:
    pointer = array.ctypes.data_as(ctypes.c_void_p).value
    check(driver.cuMemcpyDtoHAsync, pointer, address, array.nbytes, stream)
    check(driver.cuStreamSynchronize, stream)
