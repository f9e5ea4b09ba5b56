r"""The cost of products in a graph that keeps their memory, against one that takes it at each replay.

    python benchmarks/decisions/captured_cost.py FOLDER [--gpu 0] [--shapes 20] [--seed 5] \
        [--out captured.json]

FOLDER is an exported table. Shapes are drawn (autotune/facts/distribution.py); those count whose kernel needs
a workspace that a graph would keep. Graphs of 40 products of each are replayed alternately. Prints
microseconds of a product and their ratio. Needs a GPU, torch and the core in C.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks

import reports

from autotune.cli import console
from autotune.facts import distribution
from autotune.facts.gemm import Gemm
from autotune.gpu.driver import device_limits, find_gpu
from autotune.kernel.launch import plan
from autotune.runtime.choose.chooser import in_splits
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core

NUM_CALLS, NUM_ROUNDS, MOST_DRAWN = 40, 31, 1000
KEPT, NODES = "kept", "nodes"


def shapes_of(runtime: Dispatcher, num: int, seed: int) -> list[Gemm]:
    """The first drawn ones whose kernels need a workspace that a graph would keep."""
    limits = runtime.table.limits
    kernels = {kernel.id: kernel for kernel in runtime.table.kernels}
    found = []
    for gemm in islice(distribution.drawn(seed, limits.fma_tflops, limits.bandwidth_gbs), MOST_DRAWN):
        pick = runtime.pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
        grid = plan(in_splits(kernels[pick.kernel_id], pick.split_k), gemm.m, gemm.n, gemm.k)
        if 0 < grid.workspace_bytes <= core.CAPTURED_BYTES:
            found.append(gemm)
        if len(found) == num:
            break
    return found


def samples_us(torch: Any, runtimes: dict[str, Dispatcher], gemm: Gemm) -> dict[str, list[float]]:
    """Of a product, by who holds its memory."""
    a = torch.randn(*((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)), device="cuda")
    b = torch.randn(*((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)), device="cuda")
    out = torch.empty(gemm.m, gemm.n, device="cuda")
    graphs = {}
    for name, runtime in runtimes.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(NUM_CALLS):
                runtime.sgemm(a, b, out, trans_a=gemm.trans_a, trans_b=gemm.trans_b)
        graph.replay()
        graphs[name] = graph
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(NUM_ROUNDS):
        for name, graph in graphs.items():
            started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            started.record()
            graph.replay()
            ended.record()
            ended.synchronize()
            found[name].append(1e3 * started.elapsed_time(ended) / NUM_CALLS)
    return found


def row(shape: str, found: dict[str, list[float]]) -> list[str]:
    kept, nodes = (statistics.median(found[name]) for name in (KEPT, NODES))
    return [shape, f"{nodes:.2f}", f"{kept:.2f}", f"{nodes - kept:.2f}", f"{kept / nodes:.3f}"]


def _describe(shapes: Sequence[dict[str, Any]]) -> str:
    rows = [row(one["shape"], one["samples_us"]) for one in shapes]
    ratio = statistics.geometric_mean(float(cells[-1]) for cells in rows)
    return "\n".join(
        [*reports.table(["shape", "nodes, us", "kept, us", "less", "ratio"], rows), f"all: {ratio:.3f}"]
    )


def _run(args: argparse.Namespace) -> None:
    import torch

    gpu = find_gpu(args.gpu)
    torch.cuda.set_device(gpu.index)
    runtimes = {KEPT: Dispatcher(args.folder, cublas=False)}
    with patch.object(core, "CAPTURED_BYTES", 0):
        runtimes[NODES] = Dispatcher(args.folder, cublas=False)
        runtimes[NODES].pick(64, 64, 64)  # the core reads its constants
    shapes = [
        {"shape": str(gemm), "samples_us": samples_us(torch, runtimes, gemm)}
        for gemm in shapes_of(runtimes[KEPT], args.shapes, args.seed)
    ]
    report = {
        "benchmark": "captured_cost",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": device_limits(gpu.index).name,
        "torch": torch.__version__,
        "seed": args.seed,
        "num_calls": NUM_CALLS,
        "shapes": shapes,
    }
    reports.keep(args.out, report)
    console.show(_describe(shapes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--shapes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
