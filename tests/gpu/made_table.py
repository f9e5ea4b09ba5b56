"""A table that was made up, not searched: kernels that are called the winners of shapes on GPU 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.device import DeviceLimits, Environment
from autotune.facts.gemm import Gemm
from autotune.gpu.driver import device_limits
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import named
from autotune.kernel.where import ANY, Where

Array = np.ndarray[Any, Any]


def plain_config(limits: DeviceLimits, vec_b: int) -> Config:
    """A kernel that serves any shape, with the copies that a GPU has."""
    copy, stages = ("async", 3) if limits.has_async_copy else ("register", 2)
    return Config(copy_a=copy, copy_b=copy, stages=stages, min_blocks=1, vec_a=1, vec_b=vec_b)


def each_kind_of_launch(
    plain: Config, squares: Iterable[Gemm], ragged: Iterable[Gemm], deep: Iterable[Gemm]
) -> dict[Gemm, Config]:
    """Winners that are launched in every way: once, in two passes, with a last block or wave, and packed. The
    last three are for further depths of the first deep shape."""
    splits, all_deep = {"split_k": 4}, list(deep)
    first = all_deep[0]
    return {
        **dict.fromkeys(squares, plain),
        **dict.fromkeys(ragged, replace(plain, vec_c=1)),
        **dict.fromkeys(all_deep, replace(plain, reduction="two_pass", **splits)),
        replace(first, k=1040): replace(plain, reduction="last_block", **splits),
        replace(first, k=1056): replace(plain, reduction="last_wave", **splits),
        replace(first, k=1072): replace(plain, pack_a=1, pack_b=1, vec_a=4, vec_b=4),
    }


def export_winners(
    winners: Mapping[Gemm, Config],
    folder: Path,
    *,
    epilogues: Iterable[str] = (),
    cublas_us: float | None = None,
    with_c: bool = False,
    where: Where = ANY,
) -> Path:
    """The folder, exported with what every export adds. `cublas_us`: what cuBLAS is said to take for each
    shape. `with_c`: with sources for programs in C. `where`: what all kernels obey."""
    limits = device_limits(0)
    shapes = tuple(
        TunedShape(gemm, (TunedPoint(config, 10.0, True),), cublas_us=cublas_us)
        for gemm, config in winners.items()
    )
    environment = Environment(limits.name, "", limits.compute_capability, "", "", "", "")
    compiler = Compiler(limits.arch)
    results = TunedResults(environment, limits, template.source_hash(), "cold", 1, shapes)
    made = export_table(results, folder, compiler, epilogues=named(epilogues), with_c=with_c, where=where)
    compiler.close()
    return made


def stored(gemm: Gemm, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random A, B and C as they are stored."""
    random = np.random.default_rng(seed)
    shapes = (
        (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k),
        (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n),
        (gemm.m, gemm.n),
    )
    a, b, c = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return a, b, c
