"""A call, and what serves it: the input and output of a choice; and kernels that differ in their epilogue.

Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from ...facts.frozen import frozen
from ...facts.gemm import FLOAT_BYTES, SINGLE, Batch, Gemm, Triple
from ...files.errors import DispatchError
from ...kernel.launch import (
    ACTIVATED,
    ACTIVATIONS,
    BIAS,
    BIASES,
    PLAIN,
    Epilogue,
    LaunchSpec,
    name_of,
    rejection,
)
from ..table.table import Kernel, Table

How = Literal["exact", "settled", "modelled", "nearest", "default"]
Provider = Literal["autotune", "cublas"]
NUM_FIRST = 4  # launches, by rank: those that settling times (docs/decisions/0040)
MAX_PLANS = 4096  # call signatures that are remembered
TUNED_ALIGNMENT = 16  # bytes: of the widest vectors


@frozen()
class Pick:
    """The kernel for a call. `entry` is the tuned shape it is based on, if any; `expected_us` the
    measured (exact) or modelled time of the call, if any, `cublas_us` that of cuBLAS. `provider` serves the
    call: if it is "cublas", the kernel serves only if cuBLAS cannot be called. `is_looped`: the kernel is one
    for single products, launched once for each of a batch. `workspace_bytes`: memory that a launch of the
    kernel takes for packed copies and partial sums, told by `Dispatcher.pick`. It and `reason` are made when
    they are read."""

    kernel_id: str
    how: How
    tell: Callable[[], str] = field(compare=False)
    split_k: int  # parts that k is split into
    expected_us: float | None = None
    entry: Gemm | None = None
    provider: Provider = "autotune"
    cublas_us: float | None = None
    is_looped: bool = False
    tell_workspace: Callable[[], int] = field(default=int, compare=False)

    @property
    def reason(self) -> str:
        return self.tell()

    @property
    def workspace_bytes(self) -> int:
        return self.tell_workspace()

    def __repr__(self) -> str:
        return (
            f"Pick(kernel_id={self.kernel_id!r}, how={self.how!r}, reason={self.reason!r}, "
            f"split_k={self.split_k!r}, expected_us={self.expected_us!r}, entry={self.entry!r}, "
            f"provider={self.provider!r}, cublas_us={self.cublas_us!r}, is_looped={self.is_looped!r}, "
            f"workspace_bytes={self.workspace_bytes!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also in other processes, hold what is told itself and not the table that explains it."""
        text, workspace = partial(str, self.reason), partial(int, self.workspace_bytes)
        own = (self.split_k, self.expected_us, self.entry, self.provider, self.cublas_us, self.is_looped)
        return Pick, (self.kernel_id, self.how, text, *own, workspace)


class Call(NamedTuple):
    """One product, or a batch, as it would be launched: leading dimensions in elements, base addresses of A,
    B, C, and their distances from one product of a batch to the next."""

    gemm: Gemm
    lds: Triple
    addresses: Triple = (0, 0, 0)
    batch: Batch = SINGLE

    @classmethod
    def packed(cls, gemm: Gemm) -> Call:
        """Packed leading dimensions (at least 1) and addresses as aligned as they can be."""
        return cls(gemm, gemm.lds, batch=gemm.strides)

    @property
    def is_packed(self) -> bool:
        packed = Call.packed(self.gemm)
        return self.lds == packed.lds and self.batch == packed.batch

    @property
    def is_as_tuned(self) -> bool:
        """Whether leading dimensions, strides and alignment are those that shapes are tuned with."""
        return self.is_packed and not any(address % TUNED_ALIGNMENT for address in self.addresses)

    def rejection(self, kernel: Kernel, split_k: int | None = None) -> str | None:
        """Why this kernel must not serve this call, with this number of splits or its own, or None if it
        may."""
        g = self.gemm
        if kernel.layout != g.layout:
            return f"it is for {kernel.layout}, not {g.layout}"
        if kernel.variant.is_batched and not g.is_batched:
            return "it is for batches"
        return rejection(in_splits(kernel, split_k), g.m, g.n, g.k, self.lds, self.addresses, self.batch)

    @property
    def single(self) -> Call:
        """One product of a batch. Its addresses are as aligned as those of all products are."""
        gemm = replace(self.gemm, batch=1, shares_a=False, shares_b=False)
        a, b, c = (
            at | FLOAT_BYTES * stride for at, stride in zip(self.addresses, self.batch[1:], strict=True)
        )
        return Call(gemm, self.lds, (a % TUNED_ALIGNMENT, b % TUNED_ALIGNMENT, c % TUNED_ALIGNMENT))


def offsets_of(addresses: Triple) -> Triple:
    """Of operands at addresses, as far as these limit vectors."""
    a, b, c = (address & -address & 15 for address in addresses)
    return a, b, c


def call_signature(call: Call) -> Call:
    """The same for all calls that may run the same launches: addresses count only as they limit vectors."""
    offsets = offsets_of(call.addresses)
    return call if offsets == call.addresses else call._replace(addresses=offsets)


class Counted(NamedTuple):
    """A call signature, what served it, and how often. `lds`: leading dimensions in elements;
    `alignment`: of the addresses of A, B and C in bytes, 4, 8 or 16; `epilogue`: what the call adds to the
    product or makes of it, which may need more than the kernel. `gemm` is None for the calls of all
    kinds beyond those that are counted separately, of which nothing else is known."""

    gemm: Gemm | None
    lds: Triple
    alignment: Triple
    epilogue: Epilogue
    kernel_id: str
    split_k: int
    provider: Provider
    calls: int


OTHERS = Counted(None, (0, 0, 0), (0, 0, 0), PLAIN, "", 0, "autotune", 0)


def in_splits(kernel: Kernel, split_k: int | None) -> LaunchSpec:
    """How a kernel is launched with this number of splits of k; None: its own."""
    spec = kernel.spec
    return spec if split_k is None or split_k == spec.split_k else replace(spec, split_k=split_k)


def plain_ids(table: Table) -> dict[str, str]:
    """For each kernel the id of the first one that is the same without an epilogue. A plain one without
    variants has its own id."""
    if all(kernel.is_plain for kernel in table.kernels):
        return {kernel.id: kernel.id for kernel in table.kernels}
    first: dict[Any, str] = {}
    for kernel in table.kernels:
        if kernel.is_plain:
            first.setdefault((kernel.config, kernel.variant), kernel.id)
    return {
        kernel.id: first[kernel.config, replace(kernel.variant, epilogue=PLAIN)] for kernel in table.kernels
    }


def numbers_of(epilogue: Epilogue) -> tuple[int, int]:
    """The numbers of its bias and its activation in core/table.h and core/autotune_sgemm.h."""
    return BIASES.index(epilogue.bias), ACTIVATIONS.index(epilogue.activation)


def numbered(epilogue: Epilogue) -> dict[str, int]:
    """The same numbers, by name."""
    return dict(zip(("bias", "activation"), numbers_of(epilogue), strict=True))


def numbered_as(bias: int, activation: int) -> Epilogue:
    """The epilogue of such numbers."""
    return Epilogue(BIASES[bias], ACTIVATIONS[activation])


class Variants:
    """Finds kernels by the plain one that was picked."""

    def __init__(self, table: Table) -> None:
        self._plain = plain_ids(table)
        self._found = {(self._plain[kernel.id], kernel.variant.epilogue): kernel for kernel in table.kernels}

    def of(self, kernel_id: str, epilogue: Epilogue) -> Kernel:
        """Raises DispatchError if the table was exported without the epilogue for this kernel."""
        found = self._found.get((self._plain[kernel_id], epilogue))
        if found is None:
            raise DispatchError(
                f"the table holds {kernel_id} without the epilogue {name_of(epilogue)}; export it with "
                f"`autotune export-table --epilogue {name_of(epilogue)}`, for all kernels, or add bias and "
                "activation yourself"
            )
        return found


def requested(has_bias: bool, activation: str | None) -> Epilogue | None:
    """The epilogue of a call; None for a plain product. Raises DispatchError if it is not an activation."""
    if activation is None:
        return BIAS if has_bias else None
    if type(activation) is not str or activation not in ACTIVATED:
        text = activation if type(activation) is str else f"a {type(activation).__name__}"
        raise DispatchError(f"activation is {text!r:.60}; pass one of {', '.join(ACTIVATED)}, or None")
    return Epilogue(BIAS.bias if has_bias else "none", activation)
