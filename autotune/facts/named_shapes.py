"""Shapes as callers of the functions name them: 4096, "4096x128x4096:NT", (m, n, k) or a Gemm."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from ..files.errors import UsageError
from .gemm import Gemm

Shape = Gemm | str | int | tuple[int, int, int]
Value = TypeVar("Value")


class ByShape(dict[Gemm, Value]):
    """What is known of each shape, which may be named in any way: `best[4096]`."""

    def __missing__(self, shape: Shape) -> Value:
        gemm = read_shape(shape)
        if gemm != shape and gemm in self:
            return self[gemm]
        raise KeyError(f"{gemm} was not searched; known are {', '.join(map(str, self)) or 'none'}")

    def __contains__(self, shape: object) -> bool:
        try:
            return super().__contains__(read_shape(shape))
        except UsageError:  # it names none
            return False

    def get(self, shape: Any, default: Any = None) -> Any:
        return self[read_shape(shape)] if shape in self else default


def read_shapes(shapes: Shape | Iterable[Shape]) -> tuple[Gemm, ...]:
    """Each shape once. Raises UsageError for an invalid shape, or one without elements of C."""
    if isinstance(shapes, np.ndarray):
        shapes = [tuple(row) if isinstance(row, list) else row for row in np.atleast_1d(shapes).tolist()]
    is_one = isinstance(shapes, Gemm | str) or _is_triple(shapes) or not isinstance(shapes, Iterable)
    gemms = tuple(dict.fromkeys(map(read_shape, [shapes] if is_one else shapes)))  # type: ignore[arg-type]
    for gemm in gemms:
        gemm.need_output()
    return gemms


def read_shape(shape: Any) -> Gemm:
    """Raises UsageError."""
    if isinstance(shape, Gemm):
        return shape
    if isinstance(shape, str):
        return Gemm.parse(shape)
    if isinstance(shape, Integral):
        shape = (shape,) * 3
    if _is_triple(shape):
        return Gemm(*shape)
    raise UsageError(f"shape {shape!r:.60}: write 4096, '4096x128x4096:NT', (m, n, k) or a Gemm")


def _is_triple(shape: object) -> bool:
    return isinstance(shape, tuple) and len(shape) == 3 and all(isinstance(x, Integral) for x in shape)
