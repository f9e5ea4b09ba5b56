"""Launches one of five kernels once, for ncu to count: `counted_launch.py NUMBER`; and what the model counts
of it.

Operands begin with their allocation, and rows lie side by side, as the model has them. The kernels differ in
the way to shared memory, the width of vectors, the layout, edges and how splits are added.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulated"))

from covering_instances import Instance, instance
from emulator import LaunchProblem
from problems import LIMITS, Case, problem

from autotune.facts.gemm import Gemm
from autotune.tiles.launch_counts import AccessKey, count
from autotune.tiles.ncu_metrics import wide_operands
from autotune.tiles.warp_access import AccessCounts

_REGISTERS = {"copy_a": "register", "copy_b": "register", "bursts": 1}
KERNELS: tuple[tuple[Instance, Case, int], ...] = (
    (instance("NN", edges="exact"), Case("asynchronous, A transposed on its way", 1024, 1024, 512), 1),
    (instance("TN", vec_a=4, vec_b=4, pad=0, edges="exact"), Case("asynchronous, wide", 1024, 1024, 512), 1),
    (instance("NT", vec_a=4, vec_b=4, stages=2, pad=0, edges="exact", **_REGISTERS),
     Case("through registers, conflicts", 1024, 1024, 512), 1),
    (instance("NN", vec_a=1, vec_b=1, vec_c=1, stages=2, min_blocks=1, **_REGISTERS),
     Case("odd sizes, staged rows", 1023, 1021, 255), 1),
    (instance("NN", bm=64, bn=64, wm=32, wn=32, tm=8, tn=4, slice_k=2, unroll_k=8, bursts=1, min_blocks=1,
              reduction="last_block", split_k=4), Case("slices and splits", 512, 512, 1024), 4),
)  # fmt: skip


def task(number: int) -> tuple[Instance, LaunchProblem]:
    """The launch, its operands aligned as allocations are."""
    one, case, splits = KERNELS[number]
    made = problem(one, case, split_k=splits, seed=number)
    return one, replace(made, **{name: replace(getattr(made, name), offset=0) for name in ("a", "b", "c")})


def counted(number: int) -> tuple[str, dict[AccessKey, AccessCounts], tuple[str, ...]]:
    """The kernel's name, what the model counts of its launch, and which operands are copied 16 bytes at a
    time."""
    one, made = task(number)
    gemm = Gemm(made.m, made.n, made.k, one.variant.trans_a, one.variant.trans_b)
    config = replace(one.config, split_k=made.split_k)
    return made.name, count(config, gemm, LIMITS), wide_operands(config)


def main(number: int) -> None:
    from sanitized import Compiler, Gpu, compute

    gpu = Gpu()
    one, made = task(number)
    compiler = Compiler(gpu.limits.arch)
    module = gpu.load(compiler.compile(one.config, one.variant).code)
    compiler.close()
    compute(gpu, module, made)


if __name__ == "__main__":
    main(int(sys.argv[1]))
