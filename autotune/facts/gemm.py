"""The problem: C[m,n] = alpha * op(A) * op(B) + beta * C, FP32, row-major; or a batch of such products.

A is stored m x k (k x m if `trans_a`), B is stored k x n (n x k if `trans_b`). The operands of a batch follow
each other in memory; all products may share A or B, which is then stored once. A may be of BF16 or FP16: it
counts as what it is in FP32. Below: what cuBLAS takes for
it, which knows matrices by columns, and how cuBLASLt describes it (names, numbers and layouts of cublasLt.h).
This file is copied into exported tables: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


# Of cublas_api.h
OP_N, OP_T = 0, 1
PEDANTIC_MATH = 2  # FP32 throughout: no TF32, no reduced-precision reductions
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # 1: calls of cuBLAS that are not pedantic run as TF32
_VERSION_PARTS = (0, 1, 2)  # major, minor, patch
_STATUSES = {  # cublasStatus_t, as far as a caller can do something about it
    1: "not initialized: the CUDA context may have ended",
    3: "the GPU has no memory left for it: other programs may hold it, see `nvidia-smi`",
    7: "an argument is not allowed",
    8: "this cuBLAS is not for this GPU",
    13: "a kernel failed",
    14: "an internal error",
    15: "not supported",
}
WORKSPACE_BYTES = 32 << 20  # what cuBLAS asks for on Hopper; given by us, so that capture allocates nothing
Lds = tuple[int, int, int]  # leading dimensions of A, B and C in elements


class ColumnMajorCall(NamedTuple):
    """The arguments of cublasSgemm that compute a row-major product: C^T = op(B)^T op(A)^T. A row-major
    matrix read by columns is its transpose, so the operands change places and keep their flags. Strides are
    in elements, from product to product of a batch; 0 for a shared operand."""

    trans_first: int
    trans_second: int
    rows: int
    columns: int
    depth: int
    ld_first: int
    ld_second: int
    ld_result: int
    stride_first: int = 0
    stride_second: int = 0
    stride_result: int = 0
    products: int = 1

    @classmethod
    def of(cls, gemm: Gemm, lds: Lds | None = None, batch: Batch | None = None) -> ColumnMajorCall:
        """`lds`: of A, B and C as they are stored, and `batch`, as it is; None: packed."""
        lda, ldb, ldc = lds or gemm.lds  # cuBLAS wants them to be at least 1 even where k = 0
        products, stride_a, stride_b, stride_c = batch or gemm.strides
        flags = (OP_T if gemm.trans_b else OP_N, OP_T if gemm.trans_a else OP_N)
        strides = (stride_b, stride_a, stride_c)
        return cls(*flags, gemm.n, gemm.m, gemm.k, ldb, lda, ldc, *strides, products)


def forced_tf32() -> str:
    """That a program's own calls of cuBLAS run as TF32, whatever it asks for; "" where they do not."""
    if os.environ.get(TF32_OVERRIDE) != "1":
        return ""
    return f"{TF32_OVERRIDE} is 1: torch's own products, so routed ones that are left alone, run as TF32"


def adds_bias_within(gemm: Gemm) -> bool:
    """Whether torch has cuBLAS add a vector to each row within the product (cublasLtMatmul): of no batch, and
    of nothing that is only a vector. cublasSgemm serves others, behind a copy of the vector to all rows."""
    return not gemm.is_batched and gemm.is_float and min(gemm.m, gemm.n, gemm.k) > 1


def describe_status(status: int) -> str:
    """`status 3 (the GPU has no memory left for it ...)`, of a call of cuBLAS that failed."""
    return f"status {status} ({_STATUSES.get(status, 'see cublasStatus_t')})"


def read_version(library: Any, check: Callable[[int, str], None]) -> str:
    """`13.1.0`. `check` is called with the status of each call and its name, and raises if it failed."""
    parts = []
    for part in _VERSION_PARTS:
        value = ctypes.c_int()
        check(library.cublasGetProperty(part, ctypes.byref(value)), "cublasGetProperty")
        parts.append(str(value.value))
    return ".".join(parts)


LT_CANDIDATES = 32
TORCH_BYTES = 1 << 20  # the workspace that torch gives cuBLASLt, unless its environment says another
_CUDA_R_32F = 0
_COMPUTE_32F, _COMPUTE_32F_PEDANTIC = 68, 69
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8
_EPILOGUE_BIAS = 4
_LAYOUT_BATCH_COUNT, _LAYOUT_STRIDE = 5, 6
_PREF_MAX_WORKSPACE_BYTES = 1
_PREF_ALIGNMENTS = 5, 6, 7, 8  # of the first and second operand, the result, and what torch passes: the bias
_MOST_ALIGNED = 256  # bytes: torch looks no further
_NOT_SUPPORTED = 15


class LtCandidate(ctypes.Structure):
    """A result of the heuristic: an algorithm, what it needs and what the heuristic thinks of it."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("num_waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class LtHandle:
    """cublasLtMatmul in FP32, by ctypes, on the current context and one stream. `check` is as of
    `read_version`; `workspace`: its address. Safe to capture into a graph."""

    def __init__(
        self,
        library: Any,
        check: Callable[[int, str], None],
        stream: Any,
        workspace: int,
        workspace_bytes: int = TORCH_BYTES,
    ) -> None:
        self.library, self.check, self.stream = library, check, stream
        self.workspace, self.workspace_bytes = workspace, workspace_bytes
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))

    def free(self) -> None:
        self.call("cublasLtDestroy", self.handle)

    def call(self, name: str, *arguments: Any) -> None:
        self.check(getattr(self.library, name)(*arguments), name)


class LtProduct:
    """C = op(A) op(B), row-major, as the column-major product that cuBLASLt computes. With the address of a
    `bias`, as torch calls it for its `addmm` and `linear`: that is added to each row of C. Operands have
    addresses `a`, `b` and `c`."""

    def __init__(self, lt: LtHandle, call: ColumnMajorCall, bias: int | None = None) -> None:
        self._lt, self._bias = lt, bias
        first = (call.depth, call.rows) if call.trans_first else (call.rows, call.depth)
        second = (call.columns, call.depth) if call.trans_second else (call.depth, call.columns)
        self._products = call.products
        self._first = self._layout(*first, call.ld_first, call.stride_first)
        self._second = self._layout(*second, call.ld_second, call.stride_second)
        self._result = self._layout(call.rows, call.columns, call.ld_result, call.stride_result)
        self._desc = ctypes.c_void_p()
        compute = _COMPUTE_32F_PEDANTIC if bias is None else _COMPUTE_32F
        lt.call("cublasLtMatmulDescCreate", ctypes.byref(self._desc), compute, _CUDA_R_32F)
        described: dict[int, Any] = {
            _DESC_TRANSA: ctypes.c_int32(call.trans_first), _DESC_TRANSB: ctypes.c_int32(call.trans_second)
        }  # fmt: skip
        if bias is not None:
            described[_DESC_EPILOGUE] = ctypes.c_int32(_EPILOGUE_BIAS)
            described[_DESC_BIAS_POINTER] = ctypes.c_void_p(bias)
        for attribute, value in described.items():
            self._set("cublasLtMatmulDescSetAttribute", self._desc, attribute, value)
        self._alpha, self._beta = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def first(self, operands: Any) -> LtCandidate:
        """What torch takes for operands that are aligned as these are. Fails the check where cuBLASLt has
        nothing: there torch calls cublasSgemm."""
        addresses = operands.b, operands.a, operands.c, self._bias or 0
        found = self.candidates(1, [(at & -at) % _MOST_ALIGNED or _MOST_ALIGNED for at in addresses])
        if not found:
            self._lt.check(_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic")
        return found[0]

    def candidates(self, count: int = LT_CANDIDATES, alignments: Sequence[int] = ()) -> list[LtCandidate]:
        """What the heuristic proposes, best guess first; empty where cuBLASLt cannot compute this product.
        Which of them is the best on this GPU only timing tells."""
        found, num_found = (LtCandidate * count)(), ctypes.c_int()
        with self._preference(alignments) as preference:
            status = self._lt.library.cublasLtMatmulAlgoGetHeuristic(
                *(self._lt.handle, self._desc, self._first, self._second, self._result, self._result),
                *(preference, count, found, ctypes.byref(num_found)),
            )
        if status == _NOT_SUPPORTED:
            return []
        self._lt.check(status, "cublasLtMatmulAlgoGetHeuristic")
        most = self._lt.workspace_bytes
        return [c for c in found[: num_found.value] if c.status == 0 and c.workspace_bytes <= most]

    def enqueue(self, candidate: LtCandidate, operands: Any) -> None:
        """Put one product on the stream. Fails the check where the algorithm refuses it after all."""
        a, b, c = map(ctypes.c_void_p, (operands.a, operands.b, operands.c))
        self._lt.call(
            "cublasLtMatmul",
            *(self._lt.handle, self._desc, ctypes.byref(self._alpha)),
            *(b, self._first, a, self._second),
            *(ctypes.byref(self._beta), c, self._result, c, self._result, ctypes.byref(candidate)),
            *(ctypes.c_void_p(self._lt.workspace), ctypes.c_size_t(self._lt.workspace_bytes)),
            ctypes.c_void_p(int(self._lt.stream)),
        )

    def free(self) -> None:
        for layout in (self._first, self._second, self._result):
            self._lt.call("cublasLtMatrixLayoutDestroy", layout)
        self._lt.call("cublasLtMatmulDescDestroy", self._desc)

    def _layout(self, rows: int, columns: int, lead: int, stride: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(lead))
        self._lt.call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _CUDA_R_32F, *extents)
        if self._products > 1:
            products = ctypes.c_int32(self._products)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_BATCH_COUNT, products)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_STRIDE, ctypes.c_int64(stride))
        return layout

    @contextmanager
    def _preference(self, alignments: Sequence[int]) -> Iterator[ctypes.c_void_p]:
        preference = ctypes.c_void_p()
        self._lt.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        try:
            preferred: dict[int, Any] = {_PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(self._lt.workspace_bytes)}
            preferred |= zip(_PREF_ALIGNMENTS, map(ctypes.c_uint32, alignments), strict=False)
            for attribute, value in preferred.items():
                self._set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, value)
            yield preference
        finally:
            self._lt.call("cublasLtMatmulPreferenceDestroy", preference)

    def _set(self, call: str, what: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._lt.call(call, what, attribute, ctypes.byref(value), size)
