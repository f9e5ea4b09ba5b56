"""From the forms of three arrays to one product: shapes checked, storage understood, overlap refused.

Copied into exported tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DispatchError, UsageError
from ..gemm import FLOAT_BYTES, Gemm
from .arrays import NO_DEVICE, Form

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Matrix:
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


@dataclass(frozen=True, slots=True)
class Problem:
    """A product with its leading dimensions and the bytes that A, B and C reach over."""

    gemm: Gemm
    lds: Triple
    num_bytes: Triple


def make_gemm(m: int, n: int, k: int, trans_a: bool, trans_b: bool) -> Gemm:
    """A Gemm. Raises DispatchError for extents out of range."""
    try:
        return Gemm(m, n, k, bool(trans_a), bool(trans_b))
    except UsageError as error:
        raise DispatchError(f"{error}; split the product into smaller ones") from error


def understand(form_a: Form, form_b: Form, form_c: Form | None, trans_a: bool, trans_b: bool) -> Problem:
    """The product that arrays describe; without an out, C is packed. Raises DispatchError if their
    shapes or strides do not fit."""
    m, k = form_a[1::-1] if trans_a else form_a[:2]
    k_of_b, n = form_b[1::-1] if trans_b else form_b[:2]
    if k != k_of_b:
        raise DispatchError(
            f"op(a) is {m}x{k} and op(b) is {k_of_b}x{n}: their inner extents differ; "
            "check shapes, trans_a and trans_b"
        )
    a, b = _matrix(form_a, trans_a, "a"), _matrix(form_b, trans_b, "b")
    c = Matrix(m, n, max(n, 1), False) if form_c is None else _out(form_c, m, n)
    gemm = make_gemm(m, n, k, a.is_transposed, b.is_transposed)
    return Problem(gemm, (a.ld, b.ld, c.ld), (a.num_bytes, b.num_bytes, c.num_bytes))


def _out(form: Form, m: int, n: int) -> Matrix:
    if form[:2] != (m, n):
        raise DispatchError(f"out is {form[0]}x{form[1]}, expected {m}x{n}; pass another out")
    c = _matrix(form, False, "out")
    if c.is_transposed:
        raise DispatchError("out is stored by columns; pass an out whose rows are contiguous")
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
    raise DispatchError(
        f"{role} is {rows}x{columns} with strides of {by_row} and {by_column} elements: neither its rows "
        "nor its columns are contiguous and apart; pass a contiguous copy"
    )


def common_device(devices: Triple) -> int:
    """The GPU that all arrays are on. Arrays without elements are anywhere. Raises DispatchError."""
    found = sorted(set(devices) - {NO_DEVICE})
    if len(found) > 1:
        raise DispatchError(f"the arrays are on GPUs {', '.join(map(str, found))}; move them to one")
    return found[0] if found else 0


def check_overlap(addresses: Triple, num_bytes: Triple) -> None:
    """Raises DispatchError if C shares a range of addresses with A or B."""
    a, b, c = addresses
    bytes_a, bytes_b, bytes_c = num_bytes
    if (a < c + bytes_c and c < a + bytes_a) or (b < c + bytes_c and c < b + bytes_b):
        raise DispatchError("out overlaps an input in memory; pass a copy of the input or another out")
