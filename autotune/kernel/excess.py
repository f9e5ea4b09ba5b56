"""By how much a config breaks a rule: the figures that the rule compares, where there are some."""

from __future__ import annotations

from collections.abc import Callable

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from .config import Config
from .launch import WORKSPACE_LIMIT
from .resources import (
    MAX_REGISTERS,
    MAX_THREADS,
    main_smem_bytes,
    packed_bytes,
    register_cap,
    register_estimate,
    staged_bytes,
    sum_bytes,
    threads,
    threads_per_slice,
)
from .rules import Rule


def excess(rule: Rule, config: Config, limits: DeviceLimits, gemm: Gemm) -> str:
    """What a config that breaks the rule has, and what is allowed; else the values that the rule reads."""
    if rule.id in _FIGURES:
        return _FIGURES[rule.id](config, limits, gemm)
    return ", ".join(f"{name}={getattr(config, name)}" for name in dict.fromkeys(rule.needs))


def _warp_lanes(c: Config, d: DeviceLimits, g: Gemm) -> str:
    lanes = f"{c.wm * c.wn / (c.tm * c.tn):g}"
    return f"({c.wm}/{c.tm}) * ({c.wn}/{c.tn}) = {lanes}"


def _threads(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{threads(c):,} threads, at most {MAX_THREADS:,}"


def _shared_memory(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{main_smem_bytes(c, g):,} bytes, at most {d.smem_per_block:,} per block"


def _staged_rows(c: Config, d: DeviceLimits, g: Gemm) -> str:
    num_bytes = staged_bytes(c)
    return (
        f"{num_bytes:,} bytes, at most {d.smem_per_block:,} per block; "
        + _of_sm(c, num_bytes + d.smem_reserved)
        + f" bytes, at most {d.smem_per_sm:,} per SM"
    )


def _resident_smem(c: Config, d: DeviceLimits, g: Gemm) -> str:
    each = main_smem_bytes(c, g) + d.smem_reserved
    return f"{_of_sm(c, each)} bytes, at most {d.smem_per_sm:,} per SM"


def _of_sm(c: Config, each: int) -> str:
    return f"min_blocks {c.min_blocks} x {each:,} = {c.min_blocks * each:,}"


def _resident_threads(c: Config, d: DeviceLimits, g: Gemm) -> str:
    num = threads(c)
    return (
        f"{_of_sm(c, num)} threads, at most {d.threads_per_sm:,} per SM; "
        f"{c.min_blocks} blocks, at most {d.blocks_per_sm}"
    )


def _registers(c: Config, d: DeviceLimits, g: Gemm) -> str:
    cap, num = register_cap(c, d), threads(c)
    text = f"at least {register_estimate(c)} registers per thread, at most {cap}"
    if cap == MAX_REGISTERS:
        return f"{text} for any thread"
    return f"{text}: {d.regs_per_sm:,} of an SM for {_of_sm(c, num)} threads"


def _exact_edges(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"m = {g.m} and bm = {c.bm}, n = {g.n} and bn = {c.bn}"


def _workspace(c: Config, d: DeviceLimits, g: Gemm) -> str:
    num_bytes = int(sum_bytes(c, g, d))
    return f"{c.split_k} splits of whole tiles: {num_bytes:,} bytes, at most {WORKSPACE_LIMIT:,}"


def _pack_workspace(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{packed_bytes(c, g):,} bytes, at most {WORKSPACE_LIMIT:,}"


def _gains_threads(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{threads(c):,} threads"


def _gains_slices(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{threads_per_slice(c):,} threads per slice"


def _sums(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{c.tm} x {c.tn} = {c.tm * c.tn} sums per thread"


def _gains_min_blocks(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"min_blocks {c.min_blocks} leaves {register_cap(c, d)} registers per thread for {_sums(c, d, g)}"


def _gains_occupancy(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{_of_sm(c, threads(c))} threads"


def _gains_split(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"k = {g.k} in {c.split_k} splits is {g.k / c.split_k:g} each; reduction={c.reduction}"


_FIGURES: dict[str, Callable[[Config, DeviceLimits, Gemm], str]] = {
    "warp-lanes": _warp_lanes,
    "threads": _threads,
    "shared-memory": _shared_memory,
    "staged-rows": _staged_rows,
    "resident-smem": _resident_smem,
    "resident-threads": _resident_threads,
    "registers": _registers,
    "exact-edges": _exact_edges,
    "extent-a": lambda c, d, g: f"lda = {g.lda}, vec_a = {c.vec_a}",
    "extent-b": lambda c, d, g: f"ldb = {g.ldb}, vec_b = {c.vec_b}",
    "extent-c": lambda c, d, g: f"ldc = {g.ldc}, vec_c = {c.vec_c}",
    "workspace": _workspace,
    "pack-workspace": _pack_workspace,
    "worth-threads": _gains_threads,
    "worth-slices": _gains_slices,
    "worth-thread-tile": _sums,
    "worth-small-tile": _sums,
    "worth-min-blocks": _gains_min_blocks,
    "worth-occupancy": _gains_occupancy,
    "worth-split": _gains_split,
}
