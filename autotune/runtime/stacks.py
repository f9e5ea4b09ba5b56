"""Arrays of more than two dimensions: how their leading dimensions are served by a few batches.

Leading dimensions broadcast as in NumPy: all products share an operand along a dimension that it lacks or
that is 1. Dimensions that are regular in memory become one, the batch of a call. Otherwise the longest
dimension is the batch, and there is one call for each index of the others. Copied into exported tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from ..facts.gemm import FLOAT_BYTES, MAX_BATCH, Batch, Triple
from ..files.errors import DispatchError
from .arrays import Forms, Leading, packed_form
from .product import MAX_LOOPED, Form, UnfitStrides, extents_of

_ROLES = ("a", "b", "out")


class Stack(NamedTuple):
    """The calls that make up a product of arrays. `shape`: of the result; `batch`: of each call, None for a
    single product; `offsets`: in bytes, of A, B and C of each call, none where there is nothing to compute;
    `reach`: the largest of them."""

    shape: tuple[int, ...]
    batch: Batch | None
    offsets: tuple[Triple, ...]
    reach: Triple

    def lowest(self, addresses: Triple) -> Triple:
        """Addresses that are no more aligned than those of any call."""
        found = list(addresses)
        for offset in self.offsets:
            found = [at | behind for at, behind in zip(found, offset, strict=True)]
        return found[0], found[1], found[2]


class _Dimension(NamedTuple):
    """Of all three arrays: the number of products along it, and their distance in elements."""

    extent: int
    strides: Triple


def stacked(
    forms: Forms,
    leading: tuple[Leading, Leading, Leading | None],
    trans_a: bool,
    trans_b: bool,
) -> Stack:
    """The calls for arrays of such forms with these leading dimensions; without an out, C is packed. Raises
    DispatchError if they do not fit each other, or products of out overlap."""
    m, n, _ = extents_of(forms[0], forms[1], trans_a, trans_b)
    extents = _broadcast(leading[0], leading[1])
    of_c = packed_form((*extents, m, n))[1] if leading[2] is None else leading[2]
    if tuple(extent for extent, _ in of_c) != extents:
        raise _other_shape(of_c, forms[2] or packed_form((m, n))[0], (*extents, m, n))
    if 0 in extents:
        return Stack((*extents, m, n), None, (), (0, 0, 0))
    dimensions = _dimensions(extents, (leading[0], leading[1], of_c))
    for role, at in zip(_ROLES, range(3), strict=True):
        if any(one.strides[at] < 0 for one in dimensions):
            raise UnfitStrides(f"matrices of {role} lie backwards; pass a contiguous copy", role)
    if forms[2] is not None and m and n:
        rows, columns, by_row, by_column = forms[2]
        own = [(rows, by_row), (columns, by_column)]
        check_products_apart([*own, *((one.extent, one.strides[2]) for one in dimensions)])
    return _calls((*extents, m, n), _merged(dimensions))


def _other_shape(of_c: Leading, form: Form, expected: tuple[int, ...]) -> DispatchError:
    mine = _text((*(extent for extent, _ in of_c), *form[:2]))
    fault = f"out is {mine}, expected {_text(expected)}"
    if _told(of_c) != _text(expected[:-2]):
        fault = f"out has {_told(of_c)} matrices, expected {_text(expected[:-2])}: {fault}"
    return DispatchError(f"{fault}; pass another out")


def _broadcast(a: Leading, b: Leading) -> tuple[int, ...]:
    width = max(len(a), len(b))
    extents = []
    for (of_a, _), (of_b, _) in zip(_padded(a, width), _padded(b, width), strict=True):
        if of_a != of_b and 1 not in (of_a, of_b):
            raise DispatchError(
                f"a has {_told(a)} matrices and b has {_told(b)}: they differ in a leading dimension; "
                "make them alike, or 1"
            )
        extents.append(of_b if of_a == 1 else of_a)
    return tuple(extents)


def _padded(leading: Leading, width: int) -> Leading:
    return ((1, 0),) * (width - len(leading)) + leading


def _told(leading: Leading) -> str:
    return _text(extent for extent, _ in leading)


def _text(extents: Iterable[int]) -> str:
    return "x".join(map(str, extents)) or "1"


def _dimensions(extents: Sequence[int], leading: tuple[Leading, Leading, Leading]) -> list[_Dimension]:
    """Those of more than one product, the outermost first."""
    aligned = zip(*(_padded(one, len(extents)) for one in leading), strict=True)
    found = []
    for extent, of_each in zip(extents, aligned, strict=True):
        a, b, c = (stride if own > 1 else 0 for own, stride in of_each)
        found.append(_Dimension(extent, (a, b, c)))
    return [one for one in found if one.extent > 1]


def check_products_apart(sides: Iterable[tuple[int, int]]) -> None:
    """Raises DispatchError if products of an out, of these extents and strides, may share elements: the next
    dimension must step beyond all that smaller steps reach."""
    reach = 1
    for stride, extent in sorted((abs(stride), extent) for extent, stride in sides):
        if extent > 1:
            if stride < reach:
                raise DispatchError("products of out overlap each other in memory; pass an out of its own")
            reach += (extent - 1) * stride


def _merged(dimensions: Iterable[_Dimension]) -> list[_Dimension]:
    """With neighbouring dimensions merged if they are regular in memory."""
    found: list[_Dimension] = []
    for one in dimensions:
        a, b, c = (one.extent * stride for stride in one.strides)
        if found and found[-1].strides == (a, b, c) and found[-1].extent * one.extent <= MAX_BATCH:
            found[-1] = _Dimension(found[-1].extent * one.extent, one.strides)
        else:
            found.append(one)
    return found


def _calls(shape: tuple[int, ...], dimensions: list[_Dimension]) -> Stack:
    """The longest of these dimensions, the innermost of equals, as the batch, and the others in turn."""
    longest = max(enumerate(dimensions), key=lambda at: (at[1].extent, at[0]), default=None)
    if longest is None:
        return Stack(shape, None, ((0, 0, 0),), (0, 0, 0))
    at, inner = longest
    if inner.extent > MAX_BATCH:
        raise DispatchError(f"{inner.extent} matrices are more than {MAX_BATCH}; pass parts of the arrays")
    outer = [one for number, one in enumerate(dimensions) if number != at]
    if (num_calls := math.prod(one.extent for one in outer)) > MAX_LOOPED:
        raise DispatchError(
            f"the matrices lie so irregularly that they are {num_calls:,} calls, more than {MAX_LOOPED:,}; "
            "pass contiguous copies, or parts of the arrays"
        )
    offsets = []
    for place in product(*(range(one.extent) for one in outer)):
        a, b, c = (
            FLOAT_BYTES * sum(i * one.strides[role] for i, one in zip(place, outer, strict=True))
            for role in range(3)
        )
        offsets.append((a, b, c))
    return Stack(shape, Batch(inner.extent, *inner.strides), tuple(offsets), offsets[-1])
