"""Picks kernels of one table, and ranks others: the core does (core/choice.h), and this says why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...facts.frozen import frozen
from ...facts.gemm import FLOAT_BYTES, SINGLE, Batch, Gemm, Triple, per_word
from ...files.errors import DispatchError
from ...files.words import counted, time_text
from ...kernel.launch import ACTIVATED, BIAS, PLAIN, Epilogue, LaunchSpec, name_of, plan, rejection
from ..calls.product import Product, folded
from ..table.table import CublasFigures, Entry, Kernel, Table

if TYPE_CHECKING:  # both take long to import, and an application may never need one
    from ...perf_model.model_figures import Depths
    from ..native.core import Core


How = Literal["exact", "settled", "modelled", "nearest", "default"]
Provider = Literal["autotune", "cublas"]
NUM_FIRST = 4  # launches, by rank: those that settling times (docs/decisions/0040)
TUNED_ALIGNMENT = 16  # bytes: of the widest vectors


@frozen()
class Pick:
    """The kernel for a call. `entry` is the tuned shape it is based on, if any; `expected_us` the
    measured (exact) or modelled time of the call, if any, `cublas_us` that of cuBLAS. `provider` serves the
    call: if it is "cublas", the kernel serves only if cuBLAS cannot be called; the kernel, if it is expected
    to be faster by a factor whose logarithm is `margin`. `is_looped`: the kernel is one
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
    margin: float = 0.0
    tell_workspace: Callable[[], int] = field(default=int, compare=False)

    @property
    def reason(self) -> str:
        return self.tell()

    @property
    def workspace_bytes(self) -> int:
        return self.tell_workspace()

    def __repr__(self) -> str:
        return f"Pick({', '.join(f'{name}={getattr(self, name)!r}' for name in _SHOWN)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, also in other processes, hold what is told itself and not the table that explains it."""
        told = {"tell": partial(str, self.reason), "tell_workspace": partial(int, self.workspace_bytes)}
        return Pick, tuple(told.get(one.name, getattr(self, one.name)) for one in fields(self))


_SHOWN = (
    "kernel_id", "how", "reason", "split_k", "expected_us", "entry", "provider", "cublas_us", "is_looped",
    "workspace_bytes",
)  # fmt: skip


class Call(NamedTuple):
    """One product, or a batch, as it would be launched: leading dimensions in elements, base addresses of A,
    B, C, and their distances from one product of a batch to the next. `adds_bias`: a vector is added to each
    row, and the cuBLAS that may serve would do so within the product, as torch calls it. `has_epilogue`: the
    kernel has to have one, as few for batches have."""

    gemm: Gemm
    lds: Triple
    addresses: Triple = (0, 0, 0)
    batch: Batch = SINGLE
    adds_bias: bool = False
    has_epilogue: bool = False

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
        """Why this kernel must not serve this call, with these or its own splits, or None if it may."""
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
            at | size * stride
            for size, at, stride in zip(_sizes(gemm), self.addresses, self.batch[1:], strict=True)
        )
        return Call(gemm, self.lds, (a % TUNED_ALIGNMENT, b % TUNED_ALIGNMENT, c % TUNED_ALIGNMENT))


def _sizes(gemm: Gemm) -> Triple:
    """Bytes of elements of A, B and C."""
    return FLOAT_BYTES // per_word(gemm.a_type), FLOAT_BYTES, FLOAT_BYTES


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


def requested(has_bias: bool, activation: str | None) -> Epilogue | None:
    """The epilogue of a call; None for a plain product. Raises DispatchError if it is not an activation."""
    if activation is None:
        return BIAS if has_bias else None
    if type(activation) is not str or activation not in ACTIVATED:
        text = activation if type(activation) is str else f"a {type(activation).__name__}"
        raise DispatchError(f"activation is {text!r:.60}; pass one of {', '.join(ACTIVATED)}, or None")
    return Epilogue(BIAS.bias if has_bias else "none", activation)


_MATCHES: tuple[How, ...] = ("exact", "modelled", "nearest", "default")  # as core/choice.h numbers them


class Chooser:
    """Asks no GPU; threads may share it. `loaded_cublas`: the version of what would serve, where known."""

    def __init__(self, table: Table, loaded_cublas: Callable[[], str | None] | None = None) -> None:
        self._table, self._loaded_cublas = table, loaded_cublas
        self.kernels = {kernel.id: kernel for kernel in table.kernels}

    @cached_property
    def core(self) -> Core:
        from ..native.core import core_of

        return core_of(self._table)

    @cached_property
    def _variants(self) -> dict[tuple[str, Epilogue], Kernel]:
        """Kernels by the plain one that is picked, and by their epilogue."""
        plain = self._table.plain_ids()
        return {(plain.get(k.id, k.id), k.variant.epilogue): k for k in self._table.kernels}

    @cached_property
    def _entries(self) -> dict[Gemm, Entry]:
        return {entry.gemm: entry for entry in self._table.entries}

    def served_as(self, problem: Product, addresses: Triple) -> Product:
        """A batch as one product of all its rows if possible, unless it was tuned as a batch."""
        call = Call(problem.gemm, problem.lds, addresses, problem.batch)
        if not problem.gemm.is_batched or (problem.gemm in self._entries and call.is_as_tuned):
            return problem
        return folded(problem) or problem

    def pick(self, call: Call, allowed: Depths | None = None) -> Pick:
        """The kernel for a call with m and n at least 1, and who serves it; `allowed` as of `ranked`. Raises
        DispatchError if even the default kernel is not legal, which needs more tiles than a grid holds."""
        version = self._loaded_cublas() if self._loaded_cublas and any(self._timed(call)) else None
        found = self.core.choose(call, version, allowed)
        if found is None:
            raise self._rejected_pick(call)
        return self._picked(found, partial(self._why, call, found, version))

    def _timed(self, call: Call) -> tuple[CublasFigures | None, CublasFigures | None]:
        """What is known of the cuBLAS that may serve: as it adds the bias, if it does, and alone."""
        layout, table = call.gemm.layout, self._table
        if call.gemm.is_batched:
            return None, table.cublas_batched.get(layout)
        return table.cublas_adding.get(layout) if call.adds_bias else None, table.cublas.get(layout)

    def reading(self, call: Call) -> Pick | None:
        """The kernel that reads the A of a call as it is, of BF16 or FP16; None where none does, or cuBLAS is
        expected to be faster, to which A is given converted."""
        found = self.core.choose(call, None)
        if found is None or found.is_cublas or found.is_looped:
            return None
        return self._picked(found, partial(self._why, call, found, None))

    def ranked(self, call: Call, num: int, allowed: Depths | None = None) -> tuple[Pick, ...]:
        """Up to `num` launches of kernels for a call that is no batch, the one that is picked first. More
        than one only where the model picks; none behind the first is less accurate than is allowed, or than
        the first, and none is of a kernel with nearly as many splits as before it: their times hardly differ.
        `allowed`: how deep sums may be, where that is known better than by the shape."""
        assert not call.gemm.is_batched, "the model knows single products"
        found = self.core.rank(call, num, allowed)
        if not found:
            raise self._rejected_pick(call)
        return tuple(self._ranked(call, found))

    def ranked_in_batch(self, call: Call, num: int) -> list[Pick]:
        """Up to `num` launches for a batch, as if it was not tuned, the best first; none where the table has
        no kernels for batches."""
        return [*self._ranked(call, self.core.rank(call, num, None))]

    def _ranked(self, call: Call, found: Sequence[Any]) -> Iterator[Pick]:
        for at, one in enumerate(found):
            tell = partial(self._why, call, found[0], None)
            yield self._picked(one, partial(_why_not_first, tell, at) if at else tell)

    def with_epilogue(self, pick: Pick, epilogue: Epilogue) -> Pick:
        """The same pick with the variant of its kernel. Raises as `variant`."""
        return replace(pick, kernel_id=self.variant(pick.kernel_id, epilogue).id)

    def find_epilogue(self, pick: Pick, epilogue: Epilogue) -> Pick | None:
        """The same, or None where the table has no such variant."""
        found = self._variants.get((pick.kernel_id, epilogue))
        return None if found is None else replace(pick, kernel_id=found.id)

    def variant(self, kernel_id: str, epilogue: Epilogue) -> Kernel:
        """Of a plain kernel. Raises DispatchError if the table was exported without the epilogue for it."""
        found, name = self._variants.get((kernel_id, epilogue)), name_of(epilogue)
        if found is None:
            raise DispatchError(
                f"the table holds {kernel_id} without the epilogue {name}; export it with `autotune "
                f"export-table --epilogue {name}`, for all kernels, or add bias and activation yourself"
            )
        return found

    def workspace_bytes(self, pick: Pick, call: Call) -> int:
        """Memory that a launch of the picked kernel takes besides the operands."""
        spec, gemm = in_splits(self.kernels[pick.kernel_id], pick.split_k), call.gemm
        return plan(spec, gemm.m, gemm.n, gemm.k, SINGLE if pick.is_looped else call.batch).workspace_bytes

    def _picked(self, found: Any, tell: Callable[[], str]) -> Pick:
        return Pick(
            kernel_id=self._table.kernels[found.kernel].id,
            how=_MATCHES[found.how],
            tell=tell,
            split_k=found.split_k,
            expected_us=found.expected_us or None,
            entry=self._table.entries[found.entry].gemm if found.entry >= 0 else None,
            provider="cublas" if found.is_cublas else "autotune",
            cublas_us=found.cublas_us or None,
            is_looped=bool(found.is_looped),
            margin=found.margin,
        )

    def _rejected_pick(self, call: Call) -> DispatchError:
        fault = call.rejection(self.kernels[self._table.defaults[call.gemm.layout]])
        return DispatchError(f"no kernel serves {call.gemm} ({fault}); split the product into smaller ones")

    def _why(self, call: Call, found: Any, version: str | None) -> str:
        """The reason for what the core chose with this version of cuBLAS."""
        order = self._table.order
        return self._why_fastest(call, found, version) + (f"; sums have the order {order}" if order else "")

    def _why_fastest(self, call: Call, found: Any, version: str | None) -> str:
        how = _MATCHES[found.how]
        if found.is_looped:
            return (
                f"{call.gemm} was not tuned: {'cuBLAS, or else ' * found.is_cublas}a launch for each product"
            )
        if how == "exact":
            is_adding = call.adds_bias and self._entries[call.gemm].adding_us is not None
            return self._why_exact(call, found) + _why_cublas(found, is_adding=is_adding)
        if how == "nearest" and call.gemm.is_batched:
            return f"{self._not_exact(call)}: {self._why_near_batch(found)}"
        if how == "nearest":
            return f"{self._not_exact(call)}: nearest tuned shape {self._table.entries[found.entry].gemm}"
        if how == "default":
            return f"{self._not_exact(call)}: no tuned kernel is legal for this call"
        adding, alone = self._timed(call)
        uncertain = _why_uncertain(adding or alone, version)
        why_cublas = _why_cublas(found, uncertain, is_adding=adding is not None)
        return f"{self._not_exact(call)}: {self._why_modelled(found)}{why_cublas}"

    def _why_exact(self, call: Call, found: Any) -> str:
        ranked = [one.kernel for one in self._entries[call.gemm].ranked]
        rank = ranked.index(self._table.kernels[found.kernel].id)
        reason = f"{call.gemm} was tuned"
        if rank:
            reason += f"; number {rank + 1} for it, because {call.rejection(self.kernels[ranked[0]])}"
        return reason

    def _why_near_batch(self, found: Any) -> str:
        text = f"the nearest batch that was tuned is {self._table.entries[found.entry].gemm}"
        least = f"{math.expm1(found.margin):.0%} faster than cuBLAS"
        return text + (f", which is too far, or its kernel was not {least}" if found.is_cublas else "")

    def _why_modelled(self, found: Any) -> str:
        reason = f"the least modelled time of {counted(found.num_legal, 'legal kernel')}"
        if found.excess > 1:
            reason += ", although its sums are deeper than is accurate"
        elif found.is_for_accuracy:
            reason += " that are accurate enough"
        model = self._table.kernels[found.kernel].model
        if model is not None and not model.num_samples:
            is_default = not model.relative_error
            reason += "; it was never timed" if is_default else "; it was timed on other GPUs only"
        return reason

    def _not_exact(self, call: Call) -> str:
        entry = self._entries.get(call.gemm)
        if entry is None:
            return f"{call.gemm} was not tuned"
        if not call.is_as_tuned:
            return f"{call.gemm} was tuned, but packed and aligned"
        return f"{call.gemm} was tuned, but {call.rejection(self.kernels[entry.ranked[0].kernel])}"


def _why_uncertain(known: CublasFigures | None, version: str | None) -> str:
    """What widened the margin."""
    if known is None or version in (None, known.version):
        return ""
    return f"; cuBLAS {known.version} was timed, and {version} is loaded"


def _why_cublas(found: Any, uncertainty: str = "", *, is_adding: bool = False) -> str:
    if not found.is_cublas:
        return ""
    cublas = "cuBLAS, which adds the bias," if is_adding else "cuBLAS"
    if not found.margin:
        return f"; {cublas} was faster, with {time_text(found.cublas_us)}"
    least = f"what is so little known has to be faster by {math.expm1(found.margin):.0%}{uncertainty}"
    return f"; {cublas} is expected to take {time_text(found.cublas_us)}, and {least}"


def _why_not_first(tell: Callable[[], str], num: int) -> str:
    return f"{tell()}; behind {num} others"
