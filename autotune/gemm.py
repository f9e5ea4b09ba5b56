"""The problem: C[m,n] = alpha * op(A) * op(B) + beta * C, FP32, row-major.

A is stored m x k (k x m if `trans_a`), B is stored k x n (n x k if `trans_b`).
This file is copied into exported tables: standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UsageError

FLOAT_BYTES = 4
LAYOUTS = ("NN", "NT", "TN", "TT")
# Kernels count rows and columns in int32 and round them up to whole tiles, of at most 256.
MAX_EXTENT = 2**31 - 256
_ENDLESS = 10**40  # no message shows a number with more digits
_SHAPE = re.compile(r"(\d{1,20})(?:x(\d{1,20})x(\d{1,20}))?(?::([NTnt]{2}))?", re.ASCII)


@dataclass(frozen=True, order=True)
class Gemm:
    """One matrix product. Extents count elements; leading dimensions are the packed ones."""

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            extent = getattr(self, name)
            if not 0 <= extent <= MAX_EXTENT:
                shown = extent if abs(extent) < _ENDLESS else "an endless number"
                raise UsageError(f"{name} = {shown} is outside 0 ... {MAX_EXTENT}")

    @classmethod
    def parse(cls, text: str) -> Gemm:
        """Read `4096`, `4096x128x4096` (m x n x k) or either with `:NT` behind it."""
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"shape {text!r} is neither SIZE nor MxNxK; write 4096, 4096x128x4096 or 4096:NT"
            )
        first, n, k, layout = match.groups()
        layout = (layout or "NN").upper()
        extents = (int(first), int(n or first), int(k or first))
        return cls(*extents, trans_a=layout[0] == "T", trans_b=layout[1] == "T")

    def need_output(self) -> None:
        """Raises UsageError where C has no element: such a product is legal, but there is nothing to tune."""
        if not self.m or not self.n:
            raise UsageError(f"{self}: C is empty, there is nothing to time; choose m and n of at least 1")

    @property
    def layout(self) -> str:
        """Which operands are transposed, A before B: NN, NT, TN or TT."""
        return ("T" if self.trans_a else "N") + ("T" if self.trans_b else "N")

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
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def num_bytes(self) -> int:
        """Least traffic with beta = 0: A and B read once, C written once."""
        return FLOAT_BYTES * (self.m * self.k + self.k * self.n + self.m * self.n)

    def limit_us(self, fma_tflops: float, bandwidth_gbs: float) -> float:
        """Roofline: the time in us below which no FP32 kernel can go on such hardware."""
        return max(self.flops / (fma_tflops * 1e6), self.num_bytes / (bandwidth_gbs * 1e3))

    def tflops(self, time_us: float) -> float:
        return self.flops / (time_us * 1e6)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}:{self.layout}"
