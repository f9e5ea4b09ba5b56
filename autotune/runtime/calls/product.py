"""From the forms of three arrays to one product: shapes checked, storage understood, overlap refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple

from ...facts.gemm import FLOAT_BYTES, FP32, MAX_BATCH, MAX_EXTENT, SINGLE, Batch, Gemm, Triple, per_word
from ...files.errors import DispatchError, UsageError
from ...files.words import flag

Settle = Literal["off", "first-use", "live", "live-any-order"]
Fallback = Literal["refuse", "cublas"]
Activation = Literal["relu", "gelu", "gelu_tanh"]
Form = tuple[int, int, int, int]  # rows, columns, strides of both in elements
Forms = tuple[Form, Form, Form | None]  # of A, B and C; without an out, none of C
Leading = tuple[tuple[int, int], ...]  # extents of leading dimensions, outermost first, and their strides
MAX_LOOPED = 1 << 16  # launches of a call, one for each product: nothing interrupts them
MAX_PLANS = 4096  # call signatures that are remembered
NO_DEVICE = -1  # of an array without elements


class UnsupportedStrides(DispatchError):
    """A matrix with strides that no kernel supports. `role`: a, b or out; `is_by_columns`: an out
    whose columns are contiguous, which is the transpose of one that fits."""

    def __init__(self, message: str, role: str, is_by_columns: bool = False) -> None:
        super().__init__(message)
        self.role, self.is_by_columns = role, is_by_columns


class Matrix(NamedTuple):
    """A matrix as it is stored: `rows` of `columns` elements, `ld` apart; transposed when used."""

    rows: int
    columns: int
    ld: int
    is_transposed: bool

    @property
    def num_bytes(self) -> int:
        """From the first element to the end of the last."""
        if not (self.rows and self.columns):
            return 0
        return FLOAT_BYTES * ((self.rows - 1) * self.ld + self.columns)


class Product(NamedTuple):
    """A product, or a batch, with its leading dimensions, the bytes that A, B and C span, and their distances
    from one product of a batch to the next."""

    gemm: Gemm
    lds: Triple
    num_bytes: Triple
    batch: Batch = SINGLE

    def converted(self) -> Product:
        """As it is once A is packed and of FP32; the bytes that A spans stay those of what is read."""
        gemm = replace(self.gemm, a_type=FP32)
        stride_a = gemm.m * gemm.k if self.batch.stride_a else 0
        lds = gemm.lds[0], *self.lds[1:]
        return Product(gemm, lds, self.num_bytes, self.batch._replace(stride_a=stride_a))


def make_gemm(*values: Any, **named: Any) -> Gemm:
    """A Gemm. Raises DispatchError for extents that are not whole numbers (NumPy's are accepted) or out of
    range, and for flags that are neither true nor false, or contradict each other."""
    try:
        return Gemm(*values, **named)
    except UsageError as error:
        raise DispatchError(
            f"{error}; pass the product's extents and flags, and split larger products into smaller"
        ) from error


def packed(gemm: Gemm) -> Product:
    """A product, or a batch, of packed matrices."""
    return Product(gemm, gemm.lds, gemm.operand_bytes, gemm.strides)


def form_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[Form, Leading]:
    """Of an array of at least two dimensions, with its strides in elements."""
    *extents, rows, columns = shape
    *steps, by_row, by_column = strides
    return (rows, columns, by_row, by_column), tuple(zip(extents, steps, strict=True))


def packed_form(extents: Sequence[int]) -> tuple[Form, Leading]:
    """Of a packed array."""
    rows, cols = extents[-2:]
    leading, stride = list[tuple[int, int]](), rows * cols
    for extent in reversed(extents[:-2]):
        leading.append((extent, stride))
        stride *= extent
    return (rows, cols, max(cols, 1), 1), tuple(reversed(leading))


def packed_forms(gemm: Gemm) -> tuple[Form, Form, Form]:
    """A, B and C of one such product as they are stored."""
    rows_a, columns_a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
    rows_b, columns_b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
    lda, ldb, ldc = packed(gemm).lds
    return (rows_a, columns_a, lda, 1), (rows_b, columns_b, ldb, 1), (gemm.m, gemm.n, ldc, 1)


def extents_of(form_a: Form, form_b: Form, trans_a: bool, trans_b: bool) -> Triple:
    """m, n and k. Raises DispatchError if shapes do not fit, or a flag is invalid."""
    trans_a = flag("trans_a", trans_a, error=DispatchError)
    trans_b = flag("trans_b", trans_b, error=DispatchError)
    m, k = form_a[1::-1] if trans_a else form_a[:2]
    k_of_b, n = form_b[1::-1] if trans_b else form_b[:2]
    if k != k_of_b:
        raise DispatchError(
            f"op(a) is {m}x{k} and op(b) is {k_of_b}x{n}: their inner extents differ; "
            "check shapes, trans_a and trans_b"
        )
    return m, n, k


def read_operands(
    form_a: Form,
    form_b: Form,
    form_c: Form | None,
    trans_a: bool,
    trans_b: bool,
    batch: Batch | None = None,
    a_type: str = FP32,
) -> Product:
    """The product that arrays describe, or the batch, of matrices of these forms; without an out, C is
    packed. Raises DispatchError if their shapes or strides do not fit, or a flag is invalid."""
    m, n, k = extents_of(form_a, form_b, trans_a, trans_b)
    a, b = _matrix(form_a, trans_a, "a"), _matrix(form_b, trans_b, "b")
    c = Matrix(m, n, max(n, 1), False) if form_c is None else _out(form_c, m, n)
    gemm = make_gemm(m, n, k, a.is_transposed, b.is_transposed, a_type=a_type)
    bytes_a = a.num_bytes // per_word(a_type)
    single = Product(gemm, (a.ld, b.ld, c.ld), (bytes_a, b.num_bytes, c.num_bytes))
    return single if batch is None else _repeated(single, batch)


def _repeated(single: Product, batch: Batch) -> Product:
    """A batch of a product. An array without elements counts as packed."""
    gemm = single.gemm
    if not gemm.k:
        batch = batch._replace(stride_a=0, stride_b=0)
    shares_a, shares_b = (not stride and gemm.k > 0 for stride in (batch.stride_a, batch.stride_b))
    whole = make_gemm(
        gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, batch.products, shares_a,
        shares_b and not shares_a,  # products that share both are marked as sharing A: strides say the rest
        gemm.a_type,
    )  # fmt: skip
    sizes = FLOAT_BYTES // per_word(gemm.a_type), FLOAT_BYTES, FLOAT_BYTES
    a, b, c = (
        reach + size * (batch.products - 1) * stride if reach else 0
        for size, reach, stride in zip(sizes, single.num_bytes, batch[1:], strict=True)
    )
    return Product(whole, single.lds, (a, b, c), batch)


def folded(problem: Product) -> Product | None:
    """A batch as one product of all its rows, if all share B, and rows of op(A) and of C continue from
    product to product; else None."""
    gemm, (lda, ldb, ldc), _, (products, stride_a, stride_b, stride_c) = problem
    if products == 1 or stride_b or not gemm.k or products * gemm.m > MAX_EXTENT:
        return None
    if gemm.m == 1:  # a row each, any distance apart
        lda, ldc = lda if gemm.trans_a else stride_a, stride_c
    if gemm.trans_a:
        is_contiguous = stride_a == gemm.m and lda >= products * gemm.m
    else:
        is_contiguous = stride_a == gemm.m * lda and lda >= gemm.k
    if not is_contiguous or stride_c != gemm.m * ldc or ldc < gemm.n:
        return None
    single = replace(gemm, m=products * gemm.m, batch=1, shares_a=False, shares_b=False)
    return Product(single, (lda, ldb, ldc), problem.num_bytes)


def check_apart(form: Form, leading: Iterable[tuple[int, int]] = ()) -> None:
    """Raises DispatchError for an out of which elements share memory, as those of an expanded one."""
    rows, columns, by_row, by_column = form
    sides = [*leading, (rows, by_row), (columns, by_column)]
    if not all(extent for extent, _ in sides):
        return  # no elements: their strides mean nothing
    is_shared = not all(stride for extent, stride in sides if extent > 1)
    if rows > 1 < columns and not is_shared:  # they meet as far along a row as along a column
        step = math.gcd(by_row, by_column)
        is_shared = abs(by_column) // step < rows and abs(by_row) // step < columns
    if is_shared:
        raise DispatchError("elements of out share memory; pass an out of its own, which is not expanded")


def _out(form: Form, m: int, n: int) -> Matrix:
    if form[:2] != (m, n):
        raise DispatchError(f"out is {form[0]}x{form[1]}, expected {m}x{n}; pass another out")
    c = _matrix(form, False, "out")
    if c.is_transposed:
        raise UnsupportedStrides(
            "out is stored by columns; pass an out whose rows are contiguous", "out", True
        )
    return c


def _matrix(form: Form, is_transposed: bool, role: str) -> Matrix:
    """How a matrix is stored: by rows, or by columns, which is by rows of its transpose."""
    rows, columns, by_row, by_column = form
    if not (rows and columns):
        return Matrix(rows, columns, max(columns, 1), is_transposed)
    if (columns == 1 or by_column == 1) and (rows == 1 or by_row >= columns):
        return Matrix(rows, columns, by_row if rows > 1 else columns, is_transposed)
    if (rows == 1 or by_row == 1) and (columns == 1 or by_column >= rows):
        return Matrix(columns, rows, by_column if columns > 1 else rows, not is_transposed)
    raise UnsupportedStrides(
        f"{role} is {rows}x{columns} with strides of {by_row} and {by_column} elements: neither its rows "
        "nor its columns are contiguous and apart; pass a contiguous copy",
        role,
    )


def common_device(devices: Triple) -> int:
    """The GPU that all arrays are on. Arrays without elements may be on any. Raises DispatchError."""
    found = sorted(set(devices) - {NO_DEVICE})
    if len(found) > 1:
        raise DispatchError(f"the arrays are on GPUs {', '.join(map(str, found))}; move them to one")
    return found[0] if found else 0


def check_aligned(addresses: Triple, a_type: str = FP32) -> None:
    """Raises DispatchError where a matrix does not begin at a whole float: a kernel that reads it there ends
    the context. Their low bits will do."""
    for role, address in zip(("a", "b", "out"), addresses, strict=True):
        remainder = address % (FLOAT_BYTES // (per_word(a_type) if role == "a" else 1))
        if remainder:
            raise DispatchError(f"{role} begins {remainder} bytes behind a whole float; pass a copy of it")


def no_scale(alpha: Any, beta: Any, reason: object) -> DispatchError:
    return DispatchError(f"alpha = {alpha!r} or beta = {beta!r} is no float32 ({reason})")


def many_launches() -> DispatchError:
    return DispatchError(
        "the batch was not tuned, and cuBLAS does not serve it: it would be a launch for each of more than "
        f"{MAX_LOOPED:,} products; tune such batches with `autotune search`, let cuBLAS serve (cublas=True, "
        "AUTOTUNE_CUBLAS=1), or pass parts of the arrays"
    )


def check_launches(num_products: int) -> None:
    """Raises DispatchError for so many that are launched one by one in a call."""
    if num_products > MAX_LOOPED:
        raise many_launches()


def check_overlap(addresses: Triple, num_bytes: Triple) -> None:
    """Raises DispatchError if C shares a range of addresses with A or B. What has no bytes shares none."""
    a, b, c = addresses
    bytes_a, bytes_b, bytes_c = num_bytes
    meets_a = bytes_a and a < c + bytes_c and c < a + bytes_a
    if bytes_c and (meets_a or (bytes_b and b < c + bytes_c and c < b + bytes_b)):
        raise DispatchError("out overlaps an input in memory; pass a copy of the input or another out")


_ROLES = ("a", "b", "out")


class Stack(NamedTuple):
    """The calls that make up a product of arrays. `shape`: of the result; `batch`: of each call, None for a
    single product; `offsets`: in bytes, of A, B and C of each call, none where there is nothing to compute;
    `reach`: the largest of them."""

    shape: tuple[int, ...]
    batch: Batch | None
    offsets: tuple[Triple, ...]
    reach: Triple

    def with_type(self, a_type: str) -> Stack:
        """The same for an A of this type, whose distances are of other elements."""
        short = per_word(a_type)
        offsets = tuple((a // short, b, c) for a, b, c in self.offsets)
        return self._replace(offsets=offsets, reach=(self.reach[0] // short, *self.reach[1:]))

    def lowest(self, addresses: Triple) -> Triple:
        """Addresses that are no more aligned than those of any call."""
        found = list(addresses)
        for offset in self.offsets:
            found = [at | remainder for at, remainder in zip(found, offset, strict=True)]
        return found[0], found[1], found[2]


class _Dimension(NamedTuple):
    """Of all three arrays: the number of products along it, and their distance in elements."""

    extent: int
    strides: Triple


def stacked(
    forms: Forms, leading: tuple[Leading, Leading, Leading | None], trans_a: bool, trans_b: bool
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
            raise UnsupportedStrides(f"matrices of {role} lie backwards; pass a contiguous copy", role)
    if forms[2] is not None and m and n:
        rows, columns, by_row, by_column = forms[2]
        own = [(rows, by_row), (columns, by_column)]
        check_products_apart([*own, *((one.extent, one.strides[2]) for one in dimensions)])
    return _calls((*extents, m, n), _merged(dimensions))


def _other_shape(of_c: Leading, form: Form, expected: tuple[int, ...]) -> DispatchError:
    actual = _text((*(extent for extent, _ in of_c), *form[:2]))
    fault = f"out is {actual}, expected {_text(expected)}"
    if _shown(of_c) != _text(expected[:-2]):
        fault = f"out has {_shown(of_c)} matrices, expected {_text(expected[:-2])}: {fault}"
    return DispatchError(f"{fault}; pass another out")


def _broadcast(a: Leading, b: Leading) -> tuple[int, ...]:
    width = max(len(a), len(b))
    extents = []
    for (of_a, _), (of_b, _) in zip(_padded(a, width), _padded(b, width), strict=True):
        if of_a != of_b and 1 not in (of_a, of_b):
            raise DispatchError(
                f"a has {_shown(a)} matrices and b has {_shown(b)}: they differ in a leading dimension; "
                "make them alike, or 1"
            )
        extents.append(of_b if of_a == 1 else of_a)
    return tuple(extents)


def _padded(leading: Leading, width: int) -> Leading:
    return ((1, 0),) * (width - len(leading)) + leading


def _shown(leading: Leading) -> str:
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
