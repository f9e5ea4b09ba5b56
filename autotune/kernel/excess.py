"""By how much a config breaks a rule: the figures that the rule compares, where there are some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from .config import Config
from .launch import WORKSPACE_LIMIT
from .resources import (
    MAX_REGISTERS,
    MAX_THREADS,
    main_smem_bytes,
    most_sum_bytes,
    packed_bytes,
    register_cap,
    register_estimate,
    staged_bytes,
    threads,
    threads_per_slice,
)
from .rules import Rule


def excess(rule: Rule, config: Any, limits: DeviceLimits, gemm: Gemm) -> str:
    """What a config that breaks the rule has, and what is allowed; else the values that the rule reads."""
    if rule.id in _FIGURES:
        return _FIGURES[rule.id](config, limits, gemm)
    return ", ".join(f"{name}={getattr(config, name)}" for name in dict.fromkeys(rule.needs))


def _of_sm(c: Config, each: int) -> str:
    return f"min_blocks {c.min_blocks} x {each:,} = {c.min_blocks * each:,}"


def _resident(c: Config, num_bytes: int, d: DeviceLimits) -> str:
    return f"{_of_sm(c, num_bytes + d.smem_reserved)} bytes, at most {d.smem_per_sm:,} per SM"


def _registers(c: Config, d: DeviceLimits, g: Gemm) -> str:
    cap, num = register_cap(c, d), threads(c)
    text = f"at least {register_estimate(c)} registers per thread, at most {cap}"
    if cap == MAX_REGISTERS:
        return f"{text} for any thread"
    return f"{text}: {d.regs_per_sm:,} of an SM for {_of_sm(c, num)} threads"


def _sums(c: Config, d: DeviceLimits, g: Gemm) -> str:
    return f"{c.tm} x {c.tn} = {c.tm * c.tn} sums per thread"


_FIGURES: dict[str, Callable[[Config, DeviceLimits, Gemm], str]] = {
    "warp-lanes": lambda c, d, g: f"({c.wm}/{c.tm}) * ({c.wn}/{c.tn}) = {c.wm * c.wn / (c.tm * c.tn):g}",
    "threads": lambda c, d, g: f"{threads(c):,} threads, at most {MAX_THREADS:,}",
    "shared-memory": lambda c, d, g: (
        f"{main_smem_bytes(c, g):,} bytes, at most {d.smem_per_block:,} per block"
    ),
    "staged-rows": lambda c, d, g: (
        f"{staged_bytes(c):,} bytes, at most {d.smem_per_block:,} per block; "
        + _resident(c, staged_bytes(c), d)
    ),
    "resident-smem": lambda c, d, g: _resident(c, main_smem_bytes(c, g), d),
    "resident-threads": lambda c, d, g: (
        f"{_of_sm(c, threads(c))} threads, at most {d.threads_per_sm:,} per SM; "
        f"{c.min_blocks} blocks, at most {d.blocks_per_sm}"
    ),
    "registers": _registers,
    "exact-edges": lambda c, d, g: f"m = {g.m} and bm = {c.bm}, n = {g.n} and bn = {c.bn}",
    "extent-a": lambda c, d, g: f"lda = {g.lda}, vec_a = {c.vec_a}",
    "extent-b": lambda c, d, g: f"ldb = {g.ldb}, vec_b = {c.vec_b}",
    "extent-c": lambda c, d, g: f"ldc = {g.ldc}, vec_c = {c.vec_c}",
    "workspace": lambda c, d, g: (
        f"{c.split_k} splits of whole tiles: {int(most_sum_bytes(c, g, d)):,} bytes, "
        f"at most {WORKSPACE_LIMIT:,}"
    ),
    "pack-workspace": lambda c, d, g: f"{packed_bytes(c, g):,} bytes, at most {WORKSPACE_LIMIT:,}",
    "worth-threads": lambda c, d, g: f"{threads(c):,} threads",
    "worth-slices": lambda c, d, g: f"{threads_per_slice(c):,} threads per slice",
    "worth-thread-tile": _sums,
    "worth-small-tile": _sums,
    "worth-min-blocks": lambda c, d, g: (
        f"min_blocks {c.min_blocks} leaves {register_cap(c, d)} registers per thread for {_sums(c, d, g)}"
    ),
    "worth-occupancy": lambda c, d, g: f"{_of_sm(c, threads(c))} threads",
    "worth-split": lambda c, d, g: (
        f"k = {g.k} in {c.split_k} splits is {g.k / c.split_k:g} each; reduction={c.reduction}"
    ),
}
