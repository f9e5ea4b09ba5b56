"""The problem: C[m,n] = alpha * op(A) * op(B) + beta * C, FP32, row-major; or a batch of such products.

A is stored m x k (k x m if `trans_a`), B is stored k x n (n x k if `trans_b`). The operands of a batch follow
each other in memory; all products may share A or B, which is then stored once. A may be of BF16 or FP16: it
counts as what it is in FP32. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..files.errors import UsageError
from ..files.words import flag, one_of, option, whole
from .frozen import frozen

FLOAT_BYTES = 4
FP32 = "fp32"
A_TYPES = (FP32, "bf16", "fp16")  # of A's elements, as kernels and the core number them
LAYOUTS = ("NN", "NT", "TN", "TT")
# Those of an A of FP32, then of BF16 and of FP16, as the core numbers them
TYPED_LAYOUTS = (*LAYOUTS, *(f"{layout}:a-{one}" for one in A_TYPES[1:] for layout in LAYOUTS))
# Kernels count rows and columns in int32 and round them up to whole tiles, of at most 256.
MAX_EXTENT = 2**31 - 256
MAX_BATCH = 2**31 - 1  # cuBLAS counts products in int32, too
Triple = tuple[int, int, int]  # of A, B and C
_NUMBERS = (("m", 0, MAX_EXTENT), ("n", 0, MAX_EXTENT), ("k", 0, MAX_EXTENT), ("batch", 1, MAX_BATCH))
_FLAGS = ("trans_a", "trans_b", "shares_a", "shares_b")
_put = object.__setattr__  # the record is frozen
_SHAPE = (
    r"(\d{1,20})(?:x(\d{1,20})x(\d{1,20}))?(?:b(\d{1,20}))?(?::(NN|NT|TN|TT))?(?::shared-([ab]))?"
    r"(?::a-(bf16|fp16))?"
)


def per_word(a_type: str) -> int:
    """Elements of such an A in four bytes."""
    return 1 if a_type == FP32 else 2


def layout_of(of: Any) -> str:
    """Of what has `trans_a`, `trans_b` and `a_type`."""
    typed = "" if of.a_type == FP32 else f":a-{of.a_type}"
    return ("T" if of.trans_a else "N") + ("T" if of.trans_b else "N") + typed


def type_of(layout: str) -> str:
    """Of A's elements, in one of TYPED_LAYOUTS."""
    return layout.partition(":a-")[2] or FP32


class Batch(NamedTuple):
    """The number of products, and the distances of A, B and C from one product to the next, in elements. A
    stride of 0 means that all products share the operand."""

    products: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0


SINGLE = Batch()


@frozen(order=True)
class Gemm:
    """One matrix product, or `batch` of them. Extents count elements of one product; leading dimensions are
    the packed ones. `shares_a` (`shares_b`): all products of the batch read the same A (B). `a_type`: one of
    `A_TYPES`."""

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1
    shares_a: bool = False
    shares_b: bool = False
    a_type: str = FP32

    def __post_init__(self) -> None:
        # what is right already stays: this runs for each of many thousand calls
        for name, least, most in _NUMBERS:
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                _put(self, name, whole(name, value, least, most))
        for name in _FLAGS:
            value = getattr(self, name)
            if type(value) is not bool:
                _put(self, name, flag(name, value))
        if self.a_type not in A_TYPES:
            one_of(option("a_type"), self.a_type, A_TYPES)
        if self.batch == 1 and (self.shares_a or self.shares_b):
            raise UsageError(
                f"{self}: a single product shares no operand; name a batch, as in 4096b8:shared-a"
            )
        if self.shares_a and self.shares_b:
            raise UsageError(f"{self}: products that share A and B are all the same; share one of them")

    @classmethod
    def parse(cls, text: str) -> Gemm:
        """Read `4096` or `4096x128x4096` (m x n x k), followed by, each optional and in this order, `b32` for
        a batch of 32 products, `:NT` for the layout, `:shared-a` or `:shared-b` for the shared operand,
        `:a-bf16` or `:a-fp16` for the type of A's elements."""
        match = re.fullmatch(_SHAPE, text.strip(), re.ASCII | re.IGNORECASE)
        if match is None:
            raise UsageError(
                f"shape {text!r} is neither SIZE nor MxNxK; write 4096, 4096x128x4096 or 4096:NT, "
                "or 4096b32 for a batch"
            )
        first, n, k, batch, layout, shared, a_type = match.groups()
        layout, shared = (layout or "NN").upper(), (shared or "").lower()
        extents = int(first), int(n or first), int(k or first)
        flags = layout[0] == "T", layout[1] == "T"
        typed = (a_type or FP32).lower()
        return cls(*extents, *flags, int(batch or 1), shared == "a", shared == "b", typed)

    @classmethod
    def of_layout(
        cls,
        layout: str,
        m: int,
        n: int,
        k: int,
        batch: int = 1,
        shares_a: bool = False,
        shares_b: bool = False,
    ) -> Gemm:
        """Of one of TYPED_LAYOUTS."""
        trans_a, trans_b = layout[0] == "T", layout[1] == "T"
        return cls(m, n, k, trans_a, trans_b, batch, shares_a, shares_b, type_of(layout))

    def need_output(self) -> None:
        """Raises UsageError if C has no element: such a product is legal, but there is nothing to tune."""
        if not self.m or not self.n:
            raise UsageError(f"{self}: C is empty, there is nothing to time; choose m and n of at least 1")

    @property
    def layout(self) -> str:
        """Which operands are transposed, A before B: NN, NT, TN or TT; and the type of A, if not FP32: one of
        TYPED_LAYOUTS."""
        return layout_of(self)

    @property
    def is_float(self) -> bool:
        """Whether A is of FP32."""
        return self.a_type == FP32

    @property
    def lda(self) -> int:
        return self.m if self.trans_a else self.k

    @property
    def ldb(self) -> int:
        return self.k if self.trans_b else self.n

    @property
    def ldc(self) -> int:
        return self.n

    @property
    def lds(self) -> Triple:
        """Packed leading dimensions of A, B and C as libraries take them: at least 1."""
        return max(self.lda, 1), max(self.ldb, 1), max(self.ldc, 1)

    @property
    def is_batched(self) -> bool:
        return self.batch > 1

    @property
    def strides(self) -> Batch:
        """The batch in memory: packed, one product after the other."""
        if not self.is_batched:
            return SINGLE
        a, b = 0 if self.shares_a else self.m * self.k, 0 if self.shares_b else self.k * self.n
        return Batch(self.batch, a, b, self.m * self.n)

    @property
    def num_results(self) -> int:
        """Elements of C, of all products."""
        return self.batch * self.m * self.n

    @property
    def operand_bytes(self) -> Triple:
        """Bytes of A, B and C of all products, packed; a shared operand counts once."""
        count_a, count_b = (1 if is_shared else self.batch for is_shared in (self.shares_a, self.shares_b))
        bytes_a = FLOAT_BYTES // per_word(self.a_type) * count_a * self.m * self.k
        bytes_b = FLOAT_BYTES * count_b * self.k * self.n
        return bytes_a, bytes_b, FLOAT_BYTES * self.num_results

    @property
    def flops(self) -> int:
        return 2 * self.num_results * self.k

    @property
    def num_bytes(self) -> int:
        """Least traffic with beta = 0: A and B read once, C written once."""
        return sum(self.operand_bytes)

    def limit_us(self, fma_tflops: float, bandwidth_gbs: float) -> float:
        """Roofline: the least time in us of any FP32 kernel on such hardware."""
        return max(self.flops / (fma_tflops * 1e6), self.num_bytes / (bandwidth_gbs * 1e3))

    def tflops(self, time_us: float) -> float:
        return self.flops / (time_us * 1e6)

    def __str__(self) -> str:
        batch = f"b{self.batch}" if self.is_batched else ""
        shared = (":shared-a" if self.shares_a else "") + (":shared-b" if self.shares_b else "")
        layout, mark, typed = self.layout.partition(":")
        return f"{self.m}x{self.n}x{self.k}{batch}:{layout}{shared}{mark}{typed}"
