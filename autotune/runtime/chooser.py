"""Picks kernels of one table: by the core (core.py); `Selector` says why, and ranks what is nearly as good.
Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..facts.gemm import SINGLE, Gemm, Triple
from ..kernel.launch import Epilogue, plan
from .pick import Call, Pick, in_splits
from .product import Product, folded
from .table import Table

if TYPE_CHECKING:  # both take long to import, and an application may never need one
    from .core import Core
    from .selector import Selector
    from .summation import Depths
    from .variants import Variants


class Chooser:
    """Asks no GPU; threads may share it. `loaded_cublas`: the version of the cuBLAS that would serve, as far
    as that is known."""

    def __init__(self, table: Table, loaded_cublas: Callable[[], str | None] | None = None) -> None:
        self._table, self._loaded_cublas = table, loaded_cublas
        self.kernels = {kernel.id: kernel for kernel in table.kernels}

    @cached_property
    def core(self) -> Core:
        from .core import core_of

        return core_of(self._table)

    @cached_property
    def _variants(self) -> Variants:
        from .variants import Variants

        return Variants(self._table)

    @cached_property
    def _selector(self) -> Selector:
        from .selector import Selector

        return Selector(self._table, self._loaded_cublas)

    @cached_property
    def _tuned(self) -> frozenset[Gemm]:
        return frozenset(entry.gemm for entry in self._table.entries)

    def served_as(self, problem: Product, addresses: Triple) -> Product:
        """A batch as one product of all its rows if possible, unless it was tuned as a batch."""
        call = Call(problem.gemm, problem.lds, addresses, problem.batch)
        if not problem.gemm.is_batched or (problem.gemm in self._tuned and call.is_as_tuned):
            return problem
        return folded(problem) or problem

    def pick(self, call: Call) -> Pick:
        """The kernel for a call with m and n at least 1, and who serves it. Raises DispatchError if even the
        default kernel is not legal, which needs more tiles than a grid holds."""
        g = call.gemm
        version = self._loaded_cublas() if self._loaded_cublas and g.layout in self._table.cublas else None
        found = self.core.choose(call, version)
        if found is None:
            return self._selector.pick(call)  # says what is wrong
        return Pick(
            kernel_id=self._table.kernels[found.kernel].id,
            how=found.how,
            tell=lambda: self._selector.pick(call).reason,
            split_k=found.split_k,
            expected_us=found.expected_us or None,
            entry=self._table.entries[found.entry].gemm if found.entry >= 0 else None,
            provider="cublas" if found.is_cublas else "autotune",
            cublas_us=found.cublas_us or None,
            is_looped=found.is_looped,
        )

    def with_epilogue(self, pick: Pick, epilogue: Epilogue) -> Pick:
        """The same pick with the variant of its kernel. Raises DispatchError if the table lacks the
        epilogue."""
        return replace(pick, kernel_id=self._variants.of(pick.kernel_id, epilogue).id)

    def workspace_bytes(self, pick: Pick, call: Call) -> int:
        """Memory that a launch of the picked kernel takes besides the operands."""
        spec, gemm = in_splits(self.kernels[pick.kernel_id], pick.split_k), call.gemm
        return plan(spec, gemm.m, gemm.n, gemm.k, SINGLE if pick.is_looped else call.batch).workspace_bytes

    def ranked(self, call: Call, num: int, allowed: Depths | None = None) -> tuple[Pick, ...]:
        """Up to `num` launches of kernels for a call, the one that is picked first. More than one only where
        the model picks; none behind the first is less accurate than is allowed, or than the first.
        `allowed`: how deep sums may be, where that is known better than by the shape."""
        return self._selector.ranked(call, num, allowed)
