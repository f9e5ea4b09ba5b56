"""How tables of the schema before this differ: in 10, partial sums were counted without the padding of their
tiles, so more batches were tuned with splits of k. Earlier ones are refused. Copied into exported tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..kernel.launch import WORKSPACE_LIMIT, plan

if TYPE_CHECKING:
    from .table import Entry, Table

OLDEST = 10  # that is read
_WHOLE_TILES = 11  # the first schema that counts partial sums as a launch takes them


def without_too_large(table: Table, version: int) -> Table:
    """Without what kernels did whose partial sums take more than is allowed now, and entries that say nothing
    else."""
    if version >= _WHOLE_TILES:
        return table
    specs = {k.id: k.spec for k in table.kernels if k.variant.is_batched and k.spec.split_k > 1}

    def is_too_large(name: str, entry: Entry) -> bool:
        gemm = entry.gemm
        grid = plan(specs[name], gemm.m, gemm.n, gemm.k, gemm.strides) if name in specs else None
        return grid is not None and grid.sum_bytes > WORKSPACE_LIMIT

    entries = []
    for entry in table.entries:
        ranked = tuple(one for one in entry.ranked if not is_too_large(one.kernel, entry))
        if ranked or not entry.ranked:  # which is refused
            entries.append(replace(entry, ranked=ranked))
    return replace(table, entries=tuple(entries))
