"""Picks kernels of one table, and ranks what is nearly as good: the core does (core/choice.h), and this says
why. Copied into exported tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ...facts.gemm import MAX_EXTENT, SINGLE, Gemm, Triple
from ...files.errors import DispatchError
from ...files.words import counted, time_text
from ...kernel.launch import Epilogue, plan
from ..calls.product import Product, folded
from ..table.table import Entry, Kernel, Table
from .pick import Call, How, Pick, in_splits

if TYPE_CHECKING:  # both take long to import, and an application may never need one
    from ...perf_model.model_figures import Depths
    from ..native.core import Core
    from .pick import Variants

_MATCHES: tuple[How, ...] = ("exact", "modelled", "nearest", "default")  # as core/choice.h numbers them


class Chooser:
    """Asks no GPU; threads may share it. `loaded_cublas`: the version of the cuBLAS that would serve, as far
    as that is known."""

    def __init__(self, table: Table, loaded_cublas: Callable[[], str | None] | None = None) -> None:
        self._table, self._loaded_cublas = table, loaded_cublas
        self.kernels = {kernel.id: kernel for kernel in table.kernels}

    @cached_property
    def core(self) -> Core:
        from ..native.core import core_of

        return core_of(self._table)

    @cached_property
    def _variants(self) -> Variants:
        from .pick import Variants

        return Variants(self._table)

    @cached_property
    def _entries(self) -> dict[Gemm, Entry]:
        return {entry.gemm: entry for entry in self._table.entries}

    def served_as(self, problem: Product, addresses: Triple) -> Product:
        """A batch as one product of all its rows if possible, unless it was tuned as a batch."""
        call = Call(problem.gemm, problem.lds, addresses, problem.batch)
        if not problem.gemm.is_batched or (problem.gemm in self._entries and call.is_as_tuned):
            return problem
        return folded(problem) or problem

    def pick(self, call: Call) -> Pick:
        """The kernel for a call with m and n at least 1, and who serves it. Raises DispatchError if even the
        default kernel is not legal, which needs more tiles than a grid holds."""
        layout = call.gemm.layout
        version = self._loaded_cublas() if self._loaded_cublas and layout in self._table.cublas else None
        found = self.core.choose(call, version)
        if found is None:
            raise self._rejected_pick(call)
        return self._picked(found, partial(self._why, call, found, version))

    def ranked(self, call: Call, num: int, allowed: Depths | None = None) -> tuple[Pick, ...]:
        """Up to `num` launches of kernels for a call that is no batch, the one that is picked first. More
        than one only where the model picks; none behind the first is less accurate than is allowed, or than
        the first, and none is of a kernel with nearly as many splits as before it: their times hardly differ.
        `allowed`: how deep sums may be, where that is known better than by the shape."""
        found = self.core.rank(call, num, allowed)
        if not found:
            raise self._rejected_pick(call)
        tell = partial(self._why, call, found[0], None)
        slower = (self._picked(one, partial(_why_not_first, tell, at)) for at, one in enumerate(found) if at)
        return self._picked(found[0], tell), *slower

    @cached_property
    def _batched(self) -> dict[tuple[str, Any], Kernel]:
        """Kernels for batches, by layout and config."""
        those = (kernel for kernel in self._table.kernels if kernel.variant.is_batched and kernel.is_plain)
        return {(kernel.layout, kernel.config): kernel for kernel in those}

    def ranked_in_batch(self, call: Call, num: int) -> list[Pick]:
        """Up to `num` launches for a batch that was not tuned, the best first; none where the table has no
        kernels for batches. The model's times are those of one product of all rows, longer by the rows that
        tiles reach beyond each product."""
        gemm, rows = call.gemm, call.gemm.m * call.gemm.batch
        if not self._batched or rows > MAX_EXTENT:
            return []
        whole = replace(gemm, m=rows, batch=1, shares_a=False, shares_b=False)
        found = dict[tuple[str, int], Pick]()
        for one in self.ranked(Call(whole, call.lds, call.single.addresses), len(self.kernels)):
            kernel = self._batched.get((gemm.layout, self.kernels[one.kernel_id].config))
            if kernel is not None and one.expected_us and not call.rejection(kernel, one.split_k):
                tiles = math.ceil(gemm.m / kernel.spec.bm)
                time_us = one.expected_us * (tiles * kernel.spec.bm / gemm.m)
                served = replace(one, kernel_id=kernel.id, expected_us=time_us)
                found.setdefault((kernel.id, one.split_k), served)
        return sorted(found.values(), key=lambda one: one.expected_us or math.inf)[:num]

    def with_epilogue(self, pick: Pick, epilogue: Epilogue) -> Pick:
        """The same pick with the variant of its kernel. Raises DispatchError if the table lacks the
        epilogue."""
        return replace(pick, kernel_id=self._variants.of(pick.kernel_id, epilogue).id)

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
            return self._why_exact(call, found) + _why_cublas(found)
        if call.gemm.is_batched:
            return f"{self._not_exact(call)}: {self._why_near_batch(found)}"
        if how == "nearest":
            return f"{self._not_exact(call)}: nearest tuned shape {self._table.entries[found.entry].gemm}"
        if how == "default":
            return f"{self._not_exact(call)}: no tuned kernel is legal for this call"
        why_cublas = _why_cublas(found, self._why_uncertain(call.gemm.layout, version))
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

    def _why_uncertain(self, layout: str, version: str | None) -> str:
        """What widened the margin."""
        known = self._table.cublas.get(layout)
        if known is None or version in (None, known.version):
            return ""
        return f"; cuBLAS {known.version} was timed, and {version} is loaded"

    def _not_exact(self, call: Call) -> str:
        entry = self._entries.get(call.gemm)
        if entry is None:
            return f"{call.gemm} was not tuned"
        if not call.is_as_tuned:
            return f"{call.gemm} was tuned, but packed and aligned"
        return f"{call.gemm} was tuned, but {call.rejection(self.kernels[entry.ranked[0].kernel])}"


def _why_cublas(found: Any, uncertainty: str = "") -> str:
    if not found.is_cublas:
        return ""
    if not found.margin:
        return f"; cuBLAS was faster, with {time_text(found.cublas_us)}"
    least = f"what is so little known has to be faster by {math.expm1(found.margin):.0%}{uncertainty}"
    return f"; cuBLAS is expected to take {time_text(found.cublas_us)}, and {least}"


def _why_not_first(tell: Callable[[], str], num: int) -> str:
    return f"{tell()}; behind {num} others"
