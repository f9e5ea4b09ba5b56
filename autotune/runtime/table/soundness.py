"""Checks beyond types and bounds of a table: configs obey the rules, references are valid, defaults serve any
call, cubins hold the kernels named in the table.

Rules are checked for all kernels at once, as columns: kernel by kernel this would take longer than the rest
of loading a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...facts.accuracy_class import CLASSES, STRICT
from ...facts.device import DeviceLimits
from ...facts.gemm import A_TYPES, FP32, LAYOUTS, MAX_EXTENT
from ...files.errors import UsageError
from ...files.folder_files import is_hex, is_sha256
from ...files.strict import Mismatch
from ...kernel import identity
from ...kernel.config import PARAMETER, Config
from ...kernel.launch import EPILOGUES, PLAIN, WORKSPACE_LIMIT, LaunchSpec, name_of, plan, rejection
from ...kernel.resources import ConfigColumns, Layouts, blocks_per_sm, values_of
from ...kernel.rules import RULES, broken_rules
from ...kernel.summation_order import SummationOrder, has_order
from ...perf_model.model_figures import NUM_TERMS

if TYPE_CHECKING:
    from .table import CublasFigures, Entry, Kernel, KernelRecord, Table

_MOST_MISSED = 100.0  # of a weight: times would be off by many orders of magnitude


def _require(is_right: bool, fault: str) -> None:
    if not is_right:
        raise Mismatch(fault)


# ------------------------------------------------------------------------------------------------
# Each kernel by itself


def check_kernels(records: Sequence[Any], limits: DeviceLimits) -> ConfigColumns:
    """The configs as columns. Raises Mismatch for a kernel that the template does not allow or this GPU model
    cannot run, and for impossible figures of its residency."""
    values = values_of([record.config for record in records])
    _check_values(records, values)
    columns = ConfigColumns(values)
    for record in records:
        _check_record(record)
    if records:
        layouts = Layouts.of(record.variant for record in records)
        _check_rules(records, columns, layouts, limits)
        _check_residency(records, columns, layouts, limits)
    return columns


def check_tensor_kernels(records: Sequence[Any], table: Table) -> None:
    """The same for kernels on tensor cores, of which there are few."""
    _require(table.accuracy in CLASSES, f"it serves an unknown class of accuracy, {table.accuracy!r:.60}")
    is_named = bool(table.tensor_source_hash) if records else not table.tensor_source_hash
    _require(is_named, "it does not say what its kernels on tensor cores are compiled from, and only that")
    for record in records:
        where, limits = f"kernel {record.id!r}", table.limits
        _require(record.accuracy == table.accuracy, f"{where} is of another class than the table")
        _require(record.variant.a_type in A_TYPES, f"{where} takes an A of an unknown type")
        try:
            type(record.config).from_dict(record.config.to_dict())
        except UsageError as error:
            raise Mismatch(f"{where} has {error}") from error
        for rule in broken_rules(record.config, limits, record.example, ("template", "device")):
            raise Mismatch(f"{where} breaks the rule {rule.id}: {rule.sentence}")
        _check_place(record)
        feasible = max(1, record.config.blocks_per_sm(limits, record.example, record.registers))
        stated = record.blocks_per_sm
        _require(stated == feasible, f"{where} has {stated} blocks per SM, where {feasible} fit")


def _check_values(records: Sequence[KernelRecord], values: dict[str, tuple[Any, ...]]) -> None:
    """Each parameter has one of its values. They are of its type already."""
    for name, column in values.items():
        if not set(column) <= set(PARAMETER[name].values):
            for record in records:
                try:
                    Config.from_dict({name: getattr(record.config, name)})
                except UsageError as error:
                    raise Mismatch(f"kernel {record.id!r} has {error}") from error


def _check_record(record: KernelRecord) -> None:
    where = f"kernel {record.id!r}"
    _require(record.variant.a_type == FP32, f"{where} takes an A of another type than FP32")
    splits, reduction = record.config.split_k > 1, record.config.reduction
    _require(splits == (reduction not in ("none", "chunks")), f"{where} splits k without a reduction")
    _check_place(record)


def _check_place(record: KernelRecord) -> None:
    where = f"kernel {record.id!r}"
    has_place = record.model is None or not record.variant.is_batched
    _require(has_place, f"{where} is for batches, and has a model, which is of single products")
    _require(record.model is None or record.is_plain, f"{where} has an epilogue, and a model")
    _require(record.packed_bytes is not None, f"{where} does not say how many bytes its cubin takes, packed")
    _require(is_sha256(record.sha256), f"{where} has no SHA-256 of its cubin")


def _check_rules(
    records: Sequence[KernelRecord], columns: ConfigColumns, layouts: Any, limits: DeviceLimits
) -> None:
    for kind in ("template", "device"):  # the latter assume it compiles; both depend only on layouts
        for rule in (rule for rule in RULES if rule.kind == kind):
            holds = rule.holds(columns, limits, layouts)
            if not np.all(holds):
                broken = records[int(np.argmin(np.broadcast_to(holds, len(records))))]
                raise Mismatch(f"kernel {broken.id!r} breaks the rule {rule.id}: {rule.sentence}")


def _check_residency(
    records: Sequence[KernelRecord], columns: ConfigColumns, layouts: Any, limits: DeviceLimits
) -> None:
    registers = np.array([record.registers for record in records])
    resident = np.maximum(1, blocks_per_sm(columns, limits, layouts, registers))
    for record, feasible in zip(records, resident.tolist(), strict=True):
        stated = record.blocks_per_sm
        if stated != feasible:
            raise Mismatch(f"kernel {record.id!r} has {stated} blocks per SM, where {feasible} fit")


# ------------------------------------------------------------------------------------------------
# All together


def check_references(table: Table) -> None:
    """Raises Mismatch if a reference has no target, occurs twice, or is of another GPU."""
    kernels = {kernel.id: kernel for kernel in table.kernels}
    _require(len(kernels) == len(table.kernels), "two kernels share an id")
    cubins = {(kernel.sha256, (kernel.code_bytes, kernel.packed_bytes)) for kernel in table.kernels}
    _require(len(dict(cubins)) == len(cubins), "two kernels share a cubin and say that it has other sizes")
    _require(len({entry.gemm for entry in table.entries}) == len(table.entries), "a shape stands twice")
    _require(table.environment.compute_capability == table.limits.compute_capability,
             "environment and limits are of different GPUs")  # fmt: skip
    _check_order(table)
    _check_defaults(table, kernels)
    _check_epilogues(table)
    for entry in table.entries:
        _check_entry(entry, kernels)
    _require(set(table.places) <= set(LAYOUTS), "places are of an unknown layout")
    _check_missed(table)
    for known, num_extents in ((table.cublas, 3), (table.cublas_adding, 3), (table.cublas_batched, 4)):
        _require(set(known) <= set(LAYOUTS), "cuBLAS times are of an unknown layout")
        for layout, figures in known.items():
            _check_cublas(figures, num_extents, f"what is known of cuBLAS for {layout}")


def _check_order(table: Table) -> None:
    """All kernels sum in the order of a table that names one."""
    if table.order is not None:
        order = SummationOrder.of_kernels(table.order)
        _require(table.accuracy == STRICT, f"it serves accuracy {table.accuracy}, and names an order of sums")
        for kernel in table.kernels:
            is_of_it = isinstance(kernel.config, Config) and has_order(kernel.config, order, order.chunk)
            _require(bool(is_of_it), f"kernel {kernel.id!r} does not sum in the order {order}")


def _check_cublas(figures: CublasFigures, num_extents: int, where: str) -> None:
    num, rest = divmod(len(figures.weights), 8)
    are_digits = is_hex(figures.places) and is_hex(figures.weights)
    _require(num > 0 and not rest and len(figures.places) == 8 * num_extents * num and are_digits,
             f"{where} is no weight for each of its shapes")  # fmt: skip
    numbers = np.frombuffer(bytes.fromhex(figures.weights), "<f4")
    extents = np.frombuffer(bytes.fromhex(figures.places), "<u4")
    _require(bool((np.abs(numbers) <= _MOST_MISSED).all()), f"{where} is not finite or too large")
    _require(bool(((extents >= 1) & (extents <= MAX_EXTENT)).all()), f"{where} has a shape out of bounds")


def _check_missed(table: Table) -> None:
    for kernel in table.kernels:
        if kernel.missed:
            where = f"what is missed of kernel {kernel.id!r}"
            _require(kernel.model is not None, f"{where} belongs to no model")
            is_right = len(kernel.missed) == 8 * NUM_TERMS and is_hex(kernel.missed)
            _require(is_right, f"{where} is no number for each of {NUM_TERMS} terms")
    _require(set(table.levels) == set(table.places), "not each place has a level")
    for layout, level in table.levels.items():
        num_places = len(table.places[layout])
        is_right = len(level) == 8 * num_places and is_hex(level)
        _require(is_right, f"the level of {layout} is no number for each of {num_places} places")
    texts = (*(kernel.missed for kernel in table.kernels), *table.levels.values())
    numbers = np.frombuffer(bytes.fromhex("".join(texts)), "<f4")
    fault = "what is missed of a kernel is not finite or too large"
    _require(bool((np.abs(numbers) <= _MOST_MISSED).all()), fault)


def _check_defaults(table: Table, kernels: dict[str, Kernel]) -> None:
    _require(sorted(table.defaults) == sorted(LAYOUTS), "not every layout has a default kernel")
    for layout, name in table.defaults.items():
        _require(name in kernels, f"the default {name!r} is no kernel of the table")
        _require(kernels[name].layout == layout, f"the default {name!r} is not of layout {layout}")
        _require(is_universal(kernels[name].spec), f"the default {name!r} does not serve every call")
        is_modelled = any(k.model is not None for k in table.kernels if k.layout == layout)
        _require(kernels[name].model is not None or not is_modelled,
                 f"the default {name!r} has no model to compete with the others of {layout}")  # fmt: skip


def _check_epilogues(table: Table) -> None:
    """Each plain kernel has a variant with each epilogue of the table; some may have more. Not those that
    read an A of two-byte elements: with an epilogue, it is converted."""
    stated = set(table.epilogues)
    _require(len(stated) == len(table.epilogues), "an epilogue stands twice")
    _require(stated <= set(EPILOGUES.values()), "the table has an epilogue that no call asks for")
    there = {(kernel.config, kernel.variant) for kernel in table.kernels}
    for kernel in table.kernels:
        plain = replace(kernel.variant, epilogue=PLAIN)
        where = f"kernel {kernel.id!r}"
        is_known = kernel.is_plain or kernel.variant.epilogue in EPILOGUES.values()
        _require(is_known, f"{where} has an epilogue that no call asks for")
        fits = kernel.spec.smem_bytes <= table.limits.smem_per_block
        _require(fits, f"{where} needs more shared memory with its epilogue than the GPU has")
        _require((kernel.config, plain) in there, f"{where} has an epilogue, and there is none without")
        for epilogue in stated if plain.a_type == FP32 else ():
            is_there = (kernel.config, replace(plain, epilogue=epilogue)) in there
            _require(is_there, f"{where} lacks a variant with the epilogue {name_of(epilogue)}")


def is_universal(spec: LaunchSpec) -> bool:
    """Whether a kernel serves any plain single product, however it lies in memory, without a workspace."""
    vectors = (spec.vec_a, spec.vec_b, spec.vec_c)
    needs_workspace = spec.reduction != "none" or spec.packs_a or spec.packs_b
    variant = spec.variant
    is_general = variant.is_wide and not variant.is_batched and variant.epilogue == PLAIN
    return not spec.is_exact and is_general and vectors == (1, 1, 1) and not needs_workspace


def _check_entry(entry: Entry, kernels: dict[str, Kernel]) -> None:
    where = f"the entry of {entry.gemm}"
    _require(bool(entry.ranked), f"{where} is empty")
    for ranked in entry.ranked:
        kernel = kernels.get(ranked.kernel)
        if kernel is None:
            raise Mismatch(f"{where} names {ranked.kernel!r}, which is no kernel of the table")
        _require(kernel.layout == entry.gemm.layout, f"{where} names a kernel of another layout")
        _require(kernel.is_plain, f"{where} names a kernel with an epilogue")
        g, kind = entry.gemm, "batches" if kernel.variant.is_batched else "single products"
        _require(kernel.variant.is_batched == g.is_batched, f"{where} names a kernel for {kind}")
        if g.is_batched:
            fault = rejection(kernel.spec, g.m, g.n, g.k, g.lds, batch=g.strides)
            _require(fault is None, f"{where} names {ranked.kernel!r}, which cannot serve it: {fault}")


# ------------------------------------------------------------------------------------------------
# Cubins


def check_identity(kernels: Sequence[Kernel], sha256: str, code: bytes) -> None:
    """Raises Mismatch if a cubin's identity is not the kernel whose record names it by its SHA-256. Checksums
    do not show that: they fit if two cubins were swapped with their checksums."""
    held = identity.read(code)
    for kernel in kernels:
        if kernel.sha256 == sha256 and kernel.identity != held:
            expected = [f"kernel {other.id!r}" for other in kernels if held and other.identity == held]
            what = [*expected, f"another kernel ({held})" if held else "no kernel that it names"][0]
            raise Mismatch(f"the cubin of kernel {kernel.id!r} holds {what}")


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
