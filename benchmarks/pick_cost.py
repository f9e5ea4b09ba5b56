"""What a choice costs the host: a pick, of a shape that is new and of one that came before; a table's load.

    python benchmarks/pick_cost.py [folder of an exported table] [--shapes 2000] [--gpu h200]

Without a folder a table is made as for a GPU on which one shape was tuned: its other kernels are those that
the shipped matrices tell of, and as nothing is launched, bytes stand for their code. Told are microseconds,
of each shape the least of three rounds; and the milliseconds that an import takes after numpy's and CUDA's,
with its modules compiled to bytecode, and how many of these the table takes: medians of some processes. No
GPU is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import reports

from autotune.cli import console
from autotune.device import Environment, known_limits
from autotune.distribution import drawn_suite
from autotune.errors import UsageError
from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.gemm import Gemm
from autotune.kernel import families, identity, template
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table import load
from autotune.targets import matrices

SEED = 7
NUM_ROUNDS = 3
NUM_PROCESSES = 9
CODE_BYTES = 60_000  # of a kernel
_IMPORT = """
import sys, time
import numpy
from cuda.bindings import driver
sys.path.insert(0, sys.argv[1])
began = time.perf_counter()
table = __import__(sys.argv[2])
all_s = time.perf_counter() - began
began = time.perf_counter()
type(table._dispatcher)(table.__path__[0])
print(1e3 * all_s, 1e3 * (time.perf_counter() - began))
"""


@dataclass(frozen=True)
class PlayedCubin:
    """What is compiled without a compiler."""

    code: bytes
    registers: int = 128
    spill_bytes: int = 0

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.code).hexdigest()


@dataclass(frozen=True)
class PlayedCompiler:
    """Answers at once, with bytes that say which kernel they stand for."""

    arch: str
    version: str = "played"

    def submit(self, config: Config, variant: Variant, /) -> Future[PlayedCubin]:
        text = f"{identity.MARK}{identity.of(template.source_hash(), config, variant)}\0"
        done = Future[PlayedCubin]()
        done.set_result(PlayedCubin(text.encode().ljust(CODE_BYTES, b"\0")))
        return done


@contextmanager
def table_folder(gpu: str) -> Iterator[Path]:
    """A table as one tuned shape and the shipped matrices make it."""
    limits = known_limits(gpu)
    environment = Environment(limits.name, "played", limits.compute_capability, "0", "13.0", "13.0", "", "")
    gemm, config = Gemm(4096, 4096, 4096), families.LARGE[0]
    time_us = 1.2 * gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    shape = TunedShape(gemm, (TunedPoint(config, time_us, True),), ((config, time_us),))
    results = TunedResults(environment, limits, template.source_hash(), "cold", 1, (shape,))
    with tempfile.TemporaryDirectory() as folder:
        yield export_table(
            results, Path(folder) / "played_table", PlayedCompiler(limits.arch), matrices=matrices()
        )


def cost_us(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - began)


def pick_costs_us(folder: Path, gemms: Sequence[Gemm]) -> list[tuple[float, float, float]]:
    """For each shape what a pick costs that is new, one that is remembered, and its reason."""
    runtime = Dispatcher(folder)
    found = []
    for g in gemms:
        pick = partial(runtime.pick, g.m, g.n, g.k, g.trans_a, g.trans_b)
        found.append((cost_us(pick), cost_us(pick), cost_us(pick().tell)))
    return found


def row(what: str, costs: Sequence[float]) -> list[str]:
    return [what, f"{statistics.median(costs):.2f}", f"{statistics.quantiles(costs, n=20)[-1]:.2f}"]


def imports_ms(folder: Path) -> tuple[float, float]:
    """What the import of a table takes in a process that has CUDA and numpy, and what one more load of it."""
    arguments = [sys.executable, "-c", _IMPORT, str(folder.parent), folder.name]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        subprocess.run(arguments, capture_output=True, text=True, check=False, env=env)
        for _ in range(NUM_PROCESSES)
    ]
    for done in runs:
        if done.returncode:
            raise UsageError(f"{folder} cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    numbers = [tuple(map(float, done.stdout.split())) for done in runs[1:]]  # the first one compiles modules
    return statistics.median(one for one, _ in numbers), statistics.median(two for _, two in numbers)


def _measure(folder: Path, num_shapes: int) -> None:
    table = load(folder)
    layouts = Counter(kernel.layout for kernel in table.kernels)
    told = ", ".join(f"{num} {x} of {len(table.places.get(x, ()))} places" for x, num in layouts.items())
    console.show(f"{folder.name}: {len(table.kernels)} kernels, {told}")
    gemms = drawn_suite(num_shapes, SEED, table.limits.fma_tflops, table.limits.bandwidth_gbs)
    rounds = [pick_costs_us(folder, gemms) for _ in range(NUM_ROUNDS)]
    least = np.min(np.array(rounds), axis=0).T.tolist()
    names = ("pick, new shape", "pick, remembered shape", "reason of a pick")
    rows = [row(name, costs) for name, costs in zip(names, least, strict=True)]
    console.show("\n".join(reports.table(["us", "median", "95 %"], rows)))
    all_ms, load_ms = imports_ms(folder)
    console.show(f"import after numpy and CUDA: {all_ms:.1f} ms, of which the table takes {load_ms:.1f} ms")


def _run(args: argparse.Namespace) -> None:
    if args.folder is not None:
        _measure(args.folder.resolve(), args.shapes)
        return
    with table_folder(args.gpu) as folder:
        _measure(folder, args.shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--gpu", default="h200")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
