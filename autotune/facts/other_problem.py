"""A problem that is no matrix product: what another tool tuned a kernel of its own on.

It stands wherever a `Gemm` does, for a replay and in a database, but has neither flops nor traffic, so that
nobody holds its times against the limit of a product.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..files.errors import UsageError
from .frozen import frozen
from .gemm import A_TYPES, FP32, MAX_EXTENT, Gemm

KERNEL_TUNER, OTHER = "kernel-tuner:", "other-kernel:"  # begin the source of a kernel that is not ours
A_TYPE_MARK = ":a-"  # with the type behind it ends the source of kernels that take an A of two bytes
_PRODUCT = re.compile(r"gemm(?!v)|mat(rix)?_?mul|(^|_)mm(_|$)", re.IGNORECASE)
_LABEL = re.compile(r"(?P<name>\D.*?)(:(?P<sizes>\d{1,20}(x\d{1,20}){0,2}))?", re.DOTALL)


@frozen()
class OtherProblem(Gemm):
    """`name` is the kernel's; m, n and k are up to three sizes of the problem, 0 where there is none."""

    name: str = ""

    @classmethod
    def of(cls, name: str, sizes: tuple[int, ...]) -> OtherProblem:
        """With at most three sizes, each at most MAX_EXTENT."""
        m, n, k = (*sizes, 0, 0, 0)[:3]
        return cls(m, n, k, name=name)

    @property
    def flops(self) -> int:
        """Not known."""
        return 0

    @property
    def num_bytes(self) -> int:
        """Not known."""
        return 0

    def need_output(self) -> None:
        """Whatever it computes, it was timed."""

    def __lt__(self, other: Gemm) -> bool:
        """After every product."""
        return isinstance(other, OtherProblem) and self._rank < other._rank

    def __gt__(self, other: Gemm) -> bool:
        return not isinstance(other, OtherProblem) or self._rank > other._rank

    @property
    def _rank(self) -> tuple[str, int, int, int]:
        return self.name, self.m, self.n, self.k

    def __str__(self) -> str:
        """`convolution_kernel:4096x4096`, as `read_problem` reads it."""
        sizes = "x".join(str(size) for size in (self.m, self.n, self.k) if size)
        return f"{self.name}:{sizes}" if sizes else self.name


def is_product(kernel_name: str) -> bool:
    """Whether a kernel's name says that it multiplies matrices: `Xgemm`, `matmul_kernel`."""
    return _PRODUCT.search(kernel_name) is not None


def is_external(source: str) -> bool:
    """Whether a kernel's source is another tool's: nothing of it can be exported."""
    return source.startswith((KERNEL_TUNER, OTHER))


def a_type_of(source: str) -> str:
    """Of A's elements in studies of this kernel source."""
    return next((one for one in A_TYPES if source.endswith(A_TYPE_MARK + one)), FP32)


def untyped(source: str) -> str:
    """A source without the type of A: the kernels' text, and their class."""
    return source.partition(A_TYPE_MARK)[0]


def problem_of(source: str, gemm: Gemm) -> Gemm:
    """The problem of a study of this kernel source, whose extents a database holds: the source tells the type
    of A. Earlier versions stored every kernel of Kernel Tuner as a product."""
    name = source.removeprefix(OTHER).removeprefix(KERNEL_TUNER)
    is_other = source.startswith(OTHER) or (source.startswith(KERNEL_TUNER) and not is_product(name))
    if is_other:
        return OtherProblem.of(name, (gemm.m, gemm.n, gemm.k))
    return replace(gemm, a_type=a_type_of(source))


def read_problem(text: str) -> Gemm:
    """A shape, as `Gemm.parse` reads it, or the name of another problem with its sizes. Raises UsageError."""
    found = None if text[:1].isdigit() else _LABEL.fullmatch(text.strip())
    if found is None:
        return Gemm.parse(text)
    sizes = tuple(int(size) for size in (found["sizes"] or "").split("x") if size)
    if max(sizes, default=0) > MAX_EXTENT:
        raise UsageError(f"{text!r}: a size is larger than {MAX_EXTENT:,}")
    return OtherProblem.of(found["name"], sizes)
