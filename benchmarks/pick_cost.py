"""The host costs of a table beside their bars: its files, its import, a pick, and a call of a new shape.

    python benchmarks/pick_cost.py [folder of an exported table] [--shapes 2000] [--gpu h200]

Without a folder a table is made, and compiled, as for a GPU on which one shape was tuned: its other kernels
come from the shipped matrices. Prints

- megabytes of the cubins, and the time to read, unpack and check one;
- milliseconds that an import takes after numpy's and CUDA's, with its modules compiled to bytecode, and how
  many of these the table takes: least and median of some processes;
- microseconds of a pick, for a new shape and for a known one: for each shape the least of some rounds;
- on a GPU that the table is for, microseconds from the call of `sgemm` with a new shape to its return, with
  its kernel loaded: pick, plan and launch, without waiting for the GPU; for shapes whose operands fit.

Only the last needs a GPU. Each is printed with its bar.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import reports

from autotune.cli import console
from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.device import DeviceLimits, Environment, known_limits
from autotune.facts.distribution import drawn_suite
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, UsageError
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.planner import Engine
from autotune.runtime.table.gpu_models import CubinFiles
from autotune.runtime.table.table import CUBIN_FILE, load
from autotune.target_finder import matrices

SEED = 7
NUM_ROUNDS = 3
NUM_REMEMBERED = 50  # picks of a shape that was asked before, on one clock
NUM_PROCESSES = 15
NUM_CALLS = 200  # of new shapes on a GPU
MAX_FLOATS = 1 << 26  # of an operand of these
MAX_MB, MAX_IMPORT_MS, MAX_PICK_US, MAX_REMEMBERED_US, MAX_CALL_US = 5.0, 50.0, 100.0, 1.0, 1000.0  # the bars
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


def table_folder(gpu: str) -> AbstractContextManager[Path]:
    """A table as one tuned shape and the shipped matrices make it for a known GPU model."""
    return table_of(known_limits(gpu))


@contextmanager
def table_of(limits: DeviceLimits) -> Iterator[Path]:
    """The same for a GPU."""
    environment = Environment(limits.name, "played", limits.compute_capability, "0", "13.0", "13.0", "", "")
    gemm, config = Gemm(4096, 4096, 4096), Config()
    time_us = 1.2 * gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    shape = TunedShape(gemm, (TunedPoint(config, time_us, True),), ((config, time_us),))
    results = TunedResults(environment, limits, template.source_hash(), "cold", 1, (shape,))
    with tempfile.TemporaryDirectory() as folder, closing(Compiler(limits.arch)) as compiler:
        yield export_table(results, Path(folder) / "made_table", compiler, matrices=matrices())


def cost_us(call: Callable[[], object], num: int = 1) -> float:
    """The cost per call of many: reading the clock takes longer than some."""
    started = time.perf_counter()
    for _ in range(num):
        call()
    return 1e6 * (time.perf_counter() - started) / num


def pick_costs_us(folder: Path, gemms: Sequence[Gemm]) -> list[tuple[float, float, float]]:
    """For each shape the cost of a new pick, of a cached one, and of its reason."""
    runtime = Dispatcher(folder)
    found = []
    for g in gemms:
        pick = partial(runtime.pick, g.m, g.n, g.k, g.trans_a, g.trans_b)
        found.append((cost_us(pick), cost_us(pick, NUM_REMEMBERED), cost_us(pick().tell)))
    return found


def call_costs_us(folder: Path, gemms: Sequence[Gemm]) -> list[float]:
    """The host cost of the first call of each shape, with its kernel loaded. Raises DispatchError if there is
    no GPU that the table is for."""
    runtime = Dispatcher(folder)
    engines, _ = runtime._open()
    number = engines.for_host()
    import torch

    device = torch.device("cuda", number)
    longest = max(max(g.m * g.k, g.k * g.n, g.m * g.n) for g in gemms)
    buffers = [torch.ones(longest, device=device) for _ in range(3)]
    found = []
    for g in gemms:
        operands = [
            buffer[: rows * columns].view(rows, columns)
            for buffer, (rows, columns) in zip(buffers, _extents(g), strict=True)
        ]
        _load(runtime, number, g)
        call = partial(runtime.sgemm, *operands, trans_a=g.trans_a, trans_b=g.trans_b)
        found.append(cost_us(call))
        torch.cuda.synchronize(device)
    return found


def _load(runtime: Dispatcher, device: int, gemm: Gemm) -> None:
    """Loads the kernel that a shape gets, and nothing else of its call."""
    engine = runtime._open()[0].of(device)
    assert isinstance(engine, Engine)
    chosen = runtime.pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b).kernel_id
    kernel = next(kernel for kernel in runtime.table.kernels if kernel.id == chosen)
    engine.devices.kernel(engine.devices.gpu(device), kernel)


def _extents(gemm: Gemm) -> tuple[tuple[int, int], ...]:
    a, b = (gemm.m, gemm.k), (gemm.k, gemm.n)
    return a[::-1] if gemm.trans_a else a, b[::-1] if gemm.trans_b else b, (gemm.m, gemm.n)


def row(what: str, costs: Sequence[float], bar: float | None = None) -> list[str]:
    median, most = statistics.median(costs), statistics.quantiles(costs, n=20)[-1]
    return [what, f"{median:.2f}", f"{most:.2f}", "" if bar is None else f"{bar:g}"]


def imports_ms(folder: Path) -> tuple[list[float], list[float]]:
    """The time of a table's import in processes that have CUDA and numpy; and of one more load."""
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
    return [one for one, _ in numbers], [two for _, two in numbers]


def _tell_files(folder: Path) -> None:
    table = load(folder)
    layouts = Counter(kernel.layout for kernel in table.kernels)
    message = ", ".join(f"{num} {x} of {len(table.places.get(x, ()))} places" for x, num in layouts.items())
    files = CubinFiles(folder, table)
    packed_mb, whole_mb = (sum(sizes) / 1e6 for sizes in (
        [(folder / CUBIN_FILE).stat().st_size],
        [len(code) for code in files.values()],
    ))  # fmt: skip
    unpack_us = [cost_us(partial(files.__getitem__, sha256)) for sha256 in files]
    console.show(
        f"{folder.name}: {len(table.kernels)} kernels, {message}\n"
        f"{len(files)} cubins: {packed_mb:.2f} MB (bar: {MAX_MB:g}), {whole_mb:.2f} MB unpacked; "
        f"to read, unpack and check one: {statistics.median(unpack_us):.0f} us, at most {max(unpack_us):.0f}"
    )


def _tell_imports(folder: Path) -> None:
    (least, median), (least_load, median_load) = (
        (min(costs), statistics.median(costs)) for costs in imports_ms(folder)
    )
    console.show(
        f"import after numpy and CUDA: {least:.1f} ms at least, {median:.1f} ms in the median (bar: "
        f"{MAX_IMPORT_MS:g}), of which the table takes {least_load:.1f} and {median_load:.1f} ms"
    )


def _call_rows(folder: Path, gemms: Sequence[Gemm]) -> list[list[Any]]:
    """The row of calls; none, and a note, where nothing can be called here."""
    feasible = [g for g in gemms if max(g.m * g.k, g.k * g.n, g.m * g.n) <= MAX_FLOATS][:NUM_CALLS]
    try:
        return [row("call of a new shape, its kernel loaded", call_costs_us(folder, feasible), MAX_CALL_US)]
    except (DispatchError, ImportError) as error:
        console.note(f"Calls were not measured: {error}")
        return []


def _measure(folder: Path, num_shapes: int) -> None:
    _tell_files(folder)
    _tell_imports(folder)
    limits = load(folder).limits
    gemms = drawn_suite(num_shapes, SEED, limits.fma_tflops, limits.bandwidth_gbs)
    rounds = [pick_costs_us(folder, gemms) for _ in range(NUM_ROUNDS)]
    least = np.min(np.array(rounds), axis=0).T.tolist()
    names = ("pick, new shape", "pick, remembered shape", "reason of a pick")
    bars = (MAX_PICK_US, MAX_REMEMBERED_US, None)
    rows = [row(name, costs, bar) for name, costs, bar in zip(names, least, bars, strict=True)]
    rows += _call_rows(folder, gemms)
    console.show("\n".join(reports.table(["us", "median", "95 %", "bar"], rows)))


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
