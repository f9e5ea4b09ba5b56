"""The resources of a config on a GPU: threads, shared memory, registers, residency, and how it is launched.

Each function reads a Config or columns of configs: only operators numpy also knows. A test compares the
figures with the compiler's own report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.fitted import number
from ..facts.frozen import picked
from ..facts.gemm import FLOAT_BYTES, Gemm
from ..files.errors import UsageError
from .config import PARAMETER, WARP, Config, Value, lanes_k
from .launch import (
    COUNTER_BYTES,
    LONG_ACTIVATIONS,
    PACK_ALIGNMENT,
    PLAIN,
    Epilogue,
    LaunchSpec,
    Variant,
    num_shares,
    num_splits,
)

MAX_THREADS = 1024
MAX_REGISTERS = 255
SM_PARTITIONS = 4  # each has a quarter of an SM's registers and runs a quarter of its warps
REGISTER_GRANULE = 8  # ptxas hands out registers in eights
SPARE_REGISTERS = number("SPARE_REGISTERS")  # that kernels take beyond the least estimate: most do on sm_90
_VALUES = attrgetter(*PARAMETER)  # of a config
# Addresses, counters and predicates of the leanest kernel seen: a lower bound
OVERHEAD_REGISTERS = number("OVERHEAD_REGISTERS")


class ConfigColumns:
    """The parameters of many configs, each as an array, for what reads a Config or columns of configs."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update({name: np.asarray(column) for name, column in values.items()})

    def at(self, places: Sequence[int]) -> ConfigColumns:
        """Those of some of the configs."""
        index = np.array(places, int)
        return ConfigColumns({name: column[index] for name, column in vars(self).items()})


class Layouts(NamedTuple):
    """The layouts of many problems, as columns: for what asks a Gemm for no more."""

    trans_a: Any
    trans_b: Any

    @classmethod
    def of(cls, variants: Iterable[Variant]) -> Layouts:
        return cls(*np.array([(one.trans_a, one.trans_b) for one in variants]).T)


def values_of(configs: Sequence[Config]) -> dict[str, tuple[Any, ...]]:
    """The values of each parameter; none without configs."""
    rows = [_VALUES(config) for config in configs]
    return dict(zip(PARAMETER, zip(*rows, strict=True), strict=True)) if rows else {}


def _chunk(t: Any) -> Any:
    """Widest of 4, 2, 1 floats that divides a thread's extent: one shared-memory access."""
    return 4 - 2 * (t % 4 != 0) - 1 * (t % 2 != 0)


def chunk_m(c: Any) -> Any:
    """Neighbouring rows of C that a thread reads from shared A in one access."""
    return _chunk(c.tm)


def chunk_n(c: Any) -> Any:
    """Neighbouring columns of C that a thread reads from shared B in one access."""
    return _chunk(c.tn)


def threads_per_slice(c: Any) -> Any:
    return (c.bm // c.wm) * (c.bn // c.wn) * WARP


def threads(c: Any) -> Any:
    """Threads per block."""
    return threads_per_slice(c) * c.slice_k


def is_k_major_a(c: Any, g: Gemm) -> Any:
    """Whether the kernel reads an A that is contiguous along k. Shared memory holds A by k, then m: it is
    transposed on the way there. One that was packed before is K-major no longer."""
    return (c.pack_a == 0) & (g.trans_a == 0)


def is_k_major_b(c: Any, g: Gemm) -> Any:
    """Whether the kernel reads a B that is contiguous along k. Shared memory holds B by k, then n: it is
    transposed on the way there. One that was packed before is K-major no longer."""
    return (c.pack_b == 0) & g.trans_b


def row_a(c: Any, g: Gemm) -> Any:
    """Floats from one k to the next of A's tile in shared memory."""
    return c.bm + c.pad * is_k_major_a(c, g)


def row_b(c: Any, g: Gemm) -> Any:
    """Floats from one k to the next of B's tile in shared memory."""
    return c.bn + c.pad * is_k_major_b(c, g)


def stage_floats(c: Any, g: Gemm) -> Any:
    """Floats of a stage: A's tile, then B's. Lanes that share out k need no stages."""
    return c.bk * (row_a(c, g) + row_b(c, g)) * (lanes_k(c) == 1)


def main_smem_bytes(c: Any, g: Gemm) -> Any:
    """`smem_bytes` of the same config without its reduction."""
    stages = c.stages * stage_floats(c, g)
    flushed = c.bm * c.bn * c.slice_k * (c.flush_k > 0) * (c.reduction != "chunks")
    sums = c.bm * c.bn * ((c.slice_k > 1) | (lanes_k(c) > 1))
    return FLOAT_BYTES * np.maximum(stages + flushed, sums)


def staged_stride(c: Any) -> Any:
    """Floats from one staged row to the next: lanes in different rows touch different banks."""
    return c.bn + (c.wn // c.tn * chunk_n(c) - c.bn) % WARP


def staged_bytes(c: Any) -> Any:
    """Shared memory for one row of each thread's sums, padded as kernels/config.cuh says."""
    return FLOAT_BYTES * (c.bm // c.tm) * staged_stride(c)


def _has_no_planes(c: Any) -> Any:
    return (c.reduction != "two_pass") & (c.reduction != "chunks")


def has_staged_rows(c: Any, epilogue: Epilogue = PLAIN) -> Any:
    """Whether sums go through shared memory, by rows, on their way to C (kernels/staged_rows.cuh)."""
    is_long = epilogue.activation in LONG_ACTIVATIONS
    return (c.reduction == "cluster") | (_has_no_planes(c) & ((c.vec_c < chunk_n(c)) | is_long))


def smem_bytes(c: Any, g: Gemm, epilogue: Epilogue = PLAIN) -> Any:
    """Dynamic shared memory per block: the stages and, behind them, the sums that blocks of k are flushed to;
    or the slices' partial sums, if those need more.

    Rows on their way to C (kernels/staged_rows.cuh) go through it one per thread at a time where more do not
    fit: less than the stages of all but the smallest, which never decides how many blocks an SM holds."""
    return np.maximum(main_smem_bytes(c, g), has_staged_rows(c, epilogue) * staged_bytes(c))


def register_cap(c: Any, limits: DeviceLimits) -> Any:
    """Registers per thread that ptxas may use under the launch bounds: the fullest partition decides."""
    warps = -(-threads(c) * c.min_blocks // (WARP * SM_PARTITIONS))
    per_thread = limits.regs_per_sm // (SM_PARTITIONS * WARP * warps)
    return np.minimum(MAX_REGISTERS, per_thread // REGISTER_GRANULE * REGISTER_GRANULE)


def register_estimate(c: Any) -> Any:
    """The least registers per thread for any compiler: sums, fragments, the smallest overhead. Lanes that
    divide k have all fragments of a step at once."""
    buffers = np.where(lanes_k(c) > 1, c.bk // c.slice_k, c.frag_buffers)
    return c.tm * c.tn + buffers * (c.tm + c.tn) + OVERHEAD_REGISTERS


def expected_registers(c: Any, limits: DeviceLimits) -> Any:
    """Registers per thread that ptxas is expected to use, before compiling."""
    return np.minimum(register_estimate(c) + SPARE_REGISTERS, register_cap(c, limits))


def blocks_by_limit(c: Any, limits: DeviceLimits, g: Gemm, registers: Any) -> dict[str, Any]:
    """Blocks that each of an SM's means has room for, given the compiler's registers per thread."""
    units = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
    warps = limits.regs_per_sm // (SM_PARTITIONS * WARP * units) * SM_PARTITIONS
    return {
        "registers": warps // (threads(c) // WARP),
        "shared memory": limits.smem_per_sm // (smem_bytes(c, g) + limits.smem_reserved),
        "threads": limits.threads_per_sm // threads(c),
        "block slots": limits.blocks_per_sm,
    }


def blocks_per_sm(c: Any, limits: DeviceLimits, g: Gemm, registers: Any) -> Any:
    """Blocks resident on one SM, given the compiler's registers per thread."""
    return reduce(np.minimum, blocks_by_limit(c, limits, g, registers).values())


def num_resident(config: Any, limits: DeviceLimits, g: Gemm, registers: int | None = None) -> int:
    """Blocks of one kernel on an SM: by the compiler's registers, or by those expected. Of any template."""
    if not isinstance(config, Config):
        return int(config.blocks_per_sm(limits, g, registers or config.expected_registers))
    stated = expected_registers(config, limits) if registers is None else registers
    return int(blocks_per_sm(config, limits, g, stated))


def residency(config: Any, limits: DeviceLimits, g: Gemm, registers: int | None = None) -> int:
    """The same, at least 1."""
    return max(1, num_resident(config, limits, g, registers))


def tiles_m(c: Any, g: Gemm) -> Any:
    return -(-g.m // c.bm)


def tiles_n(c: Any, g: Gemm) -> Any:
    return -(-g.n // c.bn)


def tiles(c: Any, g: Gemm) -> Any:
    """Block tiles of all products."""
    return tiles_m(c, g) * tiles_n(c, g) * g.batch


def packed_bytes(c: Any, g: Gemm) -> Any:
    """Memory of packed operands, padded to whole tiles; as launch.plan lays them out."""
    products_a, products_b = (1 if is_shared else g.batch for is_shared in (g.shares_a, g.shares_b))
    bytes_a = c.pack_a * FLOAT_BYTES * products_a * g.k * c.bm * tiles_m(c, g)
    bytes_b = c.pack_b * FLOAT_BYTES * products_b * g.k * c.bn * tiles_n(c, g)
    return PACK_ALIGNMENT * (-(-bytes_a // PACK_ALIGNMENT) + -(-bytes_b // PACK_ALIGNMENT))


def launch_spec(
    config: Any,
    gemm: Gemm,
    limits: DeviceLimits,
    *,
    is_wide: bool = False,
    epilogue: Epilogue = PLAIN,
) -> LaunchSpec:
    """What a launch of this config needs to know, for problems of this layout, on this GPU model. Of any
    template."""
    variant = Variant(gemm.trans_a, gemm.trans_b, is_wide, gemm.is_batched, epilogue)
    if not isinstance(config, Config):
        spec: LaunchSpec = config.launch_spec(replace(variant, a_type=gemm.a_type), limits)
        return spec
    smem = int(smem_bytes(config, gemm, epilogue))
    return _spec(config, variant, limits, lanes_k(config), threads(config), smem)


def splits(c: Any, g: Gemm) -> Any:
    """Parts of k of a tile that is split."""
    return num_splits(c.flush_k * (c.reduction == "chunks"), c.split_k, g.k)


def _split_tiles(c: Any, g: Gemm, d: DeviceLimits) -> Any:
    """Tiles whose partial sums are in the workspace."""
    is_last_wave, num_tiles = c.reduction == "last_wave", tiles(c, g)
    is_whole = np.logical_not(_has_no_planes(c)) | (c.reduction == "last_block")
    return np.where(is_last_wave, num_tiles % (d.num_sms * c.min_blocks), num_tiles * is_whole)


def _shares(c: Any, g: Gemm, d: DeviceLimits) -> Any:
    """`launch.num_shares` of launches; 0 for those without chunks."""
    are_chunks = 1 * (c.reduction == "chunks")
    in_chunk = np.maximum(c.flush_k * are_chunks // c.bk, 1)
    wave = d.num_sms * c.min_blocks * are_chunks
    return num_shares(
        1.0 * tiles(c, g), splits(c, g), -(-g.k // c.bk), in_chunk, c.bm * c.bn, d.num_sms, wave
    )


def sum_bytes(c: Any, g: Gemm, d: DeviceLimits) -> Any:
    """`Grid.sum_bytes` of launches; of a Config or columns. Floats: no product is too large for them."""
    return 1.0 * FLOAT_BYTES * (splits(c, g) * _split_tiles(c, g, d) + _shares(c, g, d)) * c.bm * c.bn


def most_sum_bytes(c: Any, g: Gemm, d: DeviceLimits) -> Any:
    """The same at most, whatever the depth of a step."""
    most_shares = d.num_sms * c.min_blocks * (c.reduction == "chunks")
    return 1.0 * FLOAT_BYTES * (splits(c, g) * _split_tiles(c, g, d) + most_shares) * c.bm * c.bn


def workspaces(c: Any, g: Gemm, d: DeviceLimits) -> Any:
    """`Grid.workspace_bytes` of launches; of a Config or columns."""
    counters = COUNTER_BYTES * (_has_no_planes(c) * _split_tiles(c, g, d) + _shares(c, g, d))
    return packed_bytes(c, g) + sum_bytes(c, g, d) + counters


def workspace_bytes(config: Any, gemm: Gemm, limits: DeviceLimits) -> int:
    """Memory that a launch of this config takes besides its operands: packed copies, sums, counters. Of any
    template."""
    if not isinstance(config, Config):
        return int(config.workspaces(config, gemm))
    return int(workspaces(config, gemm, limits))


def workspace_of(point: Mapping[str, Value], gemm: Gemm, limits: DeviceLimits | None) -> int | None:
    """The same of a stored point; None if it is of another kernel, or the GPU model is unknown."""
    if limits is None or not point.keys() <= PARAMETER.keys():
        return None
    try:
        return workspace_bytes(Config.from_dict(point), gemm, limits)
    except UsageError:  # a value of another version of the kernel
        return None


def launch_specs(
    kinds: Sequence[tuple[Config, Variant]], columns: ConfigColumns, limits: DeviceLimits
) -> list[LaunchSpec]:
    """The same for many configs, which are given as columns, too. Their variants have one epilogue."""
    layouts: Any = Layouts.of(variant for _, variant in kinds)
    smem = smem_bytes(columns, layouts, kinds[0][1].epilogue)
    figures = lanes_k(columns).tolist(), threads(columns).tolist(), smem.tolist()
    return [_spec(*kind, limits, *one) for kind, *one in zip(kinds, *figures, strict=True)]


def launched(config: Any) -> dict[str, Any]:
    """What a launch is told of a config of either template as the config has it."""
    return {
        **picked(config, "bn vec_a vec_b vec_c reduction split_k group"),
        "packs_a": bool(config.pack_a),
        "packs_b": bool(config.pack_b),
        "is_along_m": config.raster == "m",
    }


def _spec(
    config: Config, variant: Variant, limits: DeviceLimits, lanes: int, num_threads: int, smem: int
) -> LaunchSpec:
    return LaunchSpec(
        **launched(config),
        bm=config.bm,
        bk=config.bk * lanes,
        threads=num_threads,
        smem_bytes=smem,
        is_exact=config.edges == "exact",
        overlaps=limits.has_dependent_launch,
        wave=limits.num_sms * config.min_blocks if config.reduction in ("last_wave", "chunks") else 0,
        variant=variant,
        chunk=config.flush_k if config.reduction == "chunks" else 0,
        num_sms=limits.num_sms if config.reduction == "chunks" else 0,
    )
