"""GPU memory of a process that makes fresh streams again and again: whose is what grows?

    python benchmarks/stream_memory.py sgemm_dispatch --out stream-memory.json

Eight threads make four streams each, launch the table's products on each of them, and end them; that is a
round. Operands are made once, before. Each contestant has a process of its own: products of the exported
folder, the same by torch.mm, and streams on which nothing is multiplied. Needs torch, CuPy and the GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import reports

NUM_ROUNDS, NUM_THREADS, NUM_STREAMS = 6, 8, 4
MIB = 1 << 20
Product = Callable[[Any, Any, Any, int], None]  # a, b, out, handle of the stream


def by_table(module: ModuleType) -> Product:
    return lambda a, b, out, stream: module.sgemm(a, b, out, stream=stream)


def by_torch(_: ModuleType) -> Product:
    import torch

    def multiply(a: Any, b: Any, out: Any, stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.mm(a, b, out=out)

    return multiply


def by_nothing(_: ModuleType) -> Product:
    return lambda a, b, out, stream: None


CONTESTANTS = {"table": by_table, "torch.mm": by_torch, "nothing": by_nothing}


def used_mib(folder: Path, name: str) -> list[float]:
    """MiB of the GPU that are in use, before the first round and after each."""
    import torch

    sys.path.insert(0, str(folder.parent))
    module = __import__(folder.name)
    product = CONTESTANTS[name](module)
    gemms = [entry.gemm for entry in module.table.entries if entry.gemm.layout == "NN"]
    inputs = [(torch.randn(g.m, g.k, device="cuda"), torch.randn(g.k, g.n, device="cuda")) for g in gemms]
    outs = [[torch.empty(g.m, g.n, device="cuda") for g in gemms] for _ in range(NUM_THREADS)]
    for (a, b), out in zip(inputs, outs[0], strict=True):
        product(a, b, out, 0)  # loads what is loaded once
    used = [_used_mib()]
    for _ in range(NUM_ROUNDS):
        threads = [threading.Thread(target=_multiply, args=(product, inputs, out)) for out in outs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used.append(_used_mib())
    return used


def _multiply(product: Product, inputs: list[tuple[Any, Any]], outs: list[Any]) -> None:
    import cupy

    for _ in range(NUM_STREAMS):
        stream = cupy.cuda.Stream(non_blocking=True)
        for (a, b), out in zip(inputs, outs, strict=True):
            product(a, b, out, stream.ptr)
        stream.synchronize()


def _used_mib() -> float:
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return float(total - free) / MIB


def main(arguments: argparse.Namespace) -> None:
    spawn = multiprocessing.get_context("spawn")
    found = {}
    for name in CONTESTANTS:
        with spawn.Pool(1) as process:
            found[name] = process.apply(used_mib, (arguments.folder.resolve(), name))
    table = json.loads((arguments.folder / "table.json").read_text(encoding="utf-8"))
    report = {
        "benchmark": "stream_memory",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": table["environment"],
        "source_hash": table["source_hash"],
        "num_threads": NUM_THREADS,
        "num_streams": NUM_STREAMS,
        "used_mib": found,
    }
    reports.keep(arguments.out, report)
    headers = ["MiB in use, above the start", *(f"round {i}" for i in range(1, NUM_ROUNDS + 1))]
    rows = [[name, *(f"{after - used[0]:.0f}" for after in used[1:])] for name, used in found.items()]
    print("\n".join(reports.table(headers, rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="an exported folder for this GPU")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    reports.run(main, parser.parse_args())
