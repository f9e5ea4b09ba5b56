"""How tables of earlier schemas differ.

    1   no kernel packs its operands, and none flushes its sums or spreads its copies
    2   no kernel overlaps what runs before it: its code does not wait
    3   each kernel has a `spec`, how it is launched, instead of its `variant`
    4   no cubin says which kernel it holds, and there is no place for batches
    5   the table says neither what the model misses nor how fast cuBLAS is
    6   no cubin is packed; the table need not say how well shapes are served that were left out
    7   there are no batches, although it has a place for them: nobody could call them
    8   no kernel has an epilogue, although it has a place for one
    9   each cubin is a file of its own; cuBLAS's times were learned without how empty its tiles are
    10  partial sums were counted without the padding of their tiles: more batches were tuned with splits of k

A stored spec is not trusted: it must equal the one that follows from the config. Copied into exported
tables.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from .. import strict
from ..kernel.launch import WORKSPACE_LIMIT, LaunchSpec, plan

if TYPE_CHECKING:
    from .table import Entry, Kernel, Table

DERIVED_SPECS = 4  # the first schema that stores none
_IDENTITIES = _BATCHES = 5  # the first schema whose cubins say which kernels they hold; that names batches
_MISSED = 6  # the first schema that says what the model misses
_PACKED = 7  # the first schema whose cubins are packed
ONE_FILE = 10  # the first schema whose cubins are in one file
_WHOLE_TILES = 11  # the first schema that counts partial sums as a launch takes them
_EPILOGUES = 9  # the first schema that says which epilogues kernels have
_OVERLAP = 3  # the first schema whose kernels wait for those before them
_LATER = {1: ("packs_a", "packs_b"), 2: ("overlaps",)}  # flags of a spec that came with the schema after
_SINGLE = {"batch": 1, "shares_a": False, "shares_b": False}
_LATER_PARAMETERS = {"pack_a": 0, "pack_b": 0, "flush_k": 0, "bursts": 1}  # as kernels were without them


def upgrade(body: dict[str, Any], version: int) -> list[LaunchSpec]:
    """Convert the JSON of a table to today's schema, except its number; returns the stored specs.

    Content that does not fit the table's schema raises Misfit, or stays unchanged, so that the reader of the
    result refuses it.
    """
    kernels, entries = (
        found if type(found) is list else [] for found in (body.get("kernels"), body.get("entries"))
    )
    specs = []
    body.setdefault("left_out", [])
    body.setdefault("max_workspace", None)  # also in tables of schema 10
    if version < _EPILOGUES:
        body.setdefault("epilogues", [])
    if version < DERIVED_SPECS:
        body.setdefault("power_limit_w", None)
        specs = [_upgrade(kernel, i, version) for i, kernel in enumerate(kernels)]
    if version < _PACKED:
        _default(kernels, "code_bytes", None)
    if version < ONE_FILE:
        _default(kernels, "packed_bytes", None)
        known = body.get("cublas")
        _default(list(known.values()) if type(known) is dict else [], "tile_apart", 0.0)
    if version < _MISSED:
        body.setdefault("places", {})
        body.setdefault("cublas", {})
        _default(kernels, "missed", "")
    if version < _BATCHES:
        _add(kernels, "variant", {"is_batched": False})
        _add(entries, "gemm", _SINGLE)
    return specs


def _default(records: list[Any], name: str, value: Any) -> None:
    """Give each record a field that its schema lacked."""
    for record in records:
        if type(record) is dict:
            record.setdefault(name, value)


def _add(records: list[Any], name: str, fields: dict[str, Any]) -> None:
    """Give an object within each record the fields that its schema lacked."""
    for record in records:
        if type(record) is dict and type(record.get(name)) is dict:
            record[name] = fields | record[name]


def _upgrade(kernel: Any, index: int, version: int) -> LaunchSpec:
    where = f"table.kernels[{index}]"
    if type(kernel) is not dict or type(kernel.get("config")) is not dict or "variant" in kernel:
        raise strict.Misfit("is no kernel of its schema", where)
    kernel["config"] = _LATER_PARAMETERS | kernel["config"]
    config = kernel["config"]
    unsaid = {name: False for schema, names in _LATER.items() if schema >= version for name in names}
    launched = {
        "group": config.get("group"),
        "is_along_m": config.get("raster") == "m",
        "max_workspace": None,
    }
    stored = kernel.pop("spec", None)
    if type(stored) is dict:
        stored = unsaid | launched | stored
        _add([stored], "variant", {"is_batched": False})
    spec: LaunchSpec = strict.read(LaunchSpec, stored, f"{where}.spec")
    kernel["variant"] = asdict(spec.variant)
    return spec


def as_it_was(kernels: tuple[Kernel, ...], stored: list[LaunchSpec], version: int) -> tuple[Kernel, ...]:
    """Kernels as in their schema. Raises Misfit if a stored spec differs."""
    if version < _IDENTITIES:
        kernels = tuple(replace(k, source_hash="") for k in kernels)
    if version >= DERIVED_SPECS:
        return kernels
    if version < _OVERLAP:
        kernels = tuple(replace(k, spec=replace(k.spec, overlaps=False)) for k in kernels)
    for kernel, spec in zip(kernels, stored, strict=True):
        if kernel.spec != spec:
            raise strict.Misfit(f"kernel {kernel.id!r} is launched otherwise than its config says")
    return kernels


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
