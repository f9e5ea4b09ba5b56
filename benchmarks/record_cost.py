"""The cost of counting and recording a call: the core with and without, interleaved.

    python benchmarks/record_cost.py

Builds the core twice, once with the counting taken out, and calls a plan of each on a driver that does
nothing. Prints nanoseconds of a call: of one thread, and of as many as there are cores that call the same
plan at once; medians of rounds, and the differences with those of the core that counts nothing. The third
contestant records into a file meanwhile. Needs gcc, and no GPU.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pick_cost

from autotune.cli import console
from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.runtime.calls.product import packed
from autotune.runtime.native import core
from autotune.runtime.native.core import Core
from autotune.runtime.table.table import load

NUM_ROUNDS, NUM_CALLS = 41, 200_000
COUNTING = "atomic_fetch_add_explicit(&tally->calls, 1, memory_order_relaxed);"
WITHOUT, COUNTED, RECORDED = "not counted", "counted", "counted and recorded"
BAR_NS = 300.0
GEMM = Gemm(64, 64, 64)


class CostedPlan(NamedTuple):
    """A plan to call; what it needs is kept."""

    run: Any
    core: Core
    plan: int
    kept: tuple[Any, ...]


def built(folder: Path, *, is_counting: bool) -> Path:
    """A library of the core."""
    folder.mkdir()
    for path in core.FOLDER.glob("*.[ch]"):
        shutil.copy(path, folder)
    if not is_counting:
        header = folder / "tally.h"
        text = header.read_text()
        assert text.count(COUNTING) == 1
        header.write_text(text.replace(COUNTING, "(void)tally;"))
    flags = runpy.run_path(str(core.FOLDER / "build.py"))["FLAGS"]
    made = folder / core.LIBRARY
    subprocess.run(["gcc", *flags, *map(str, folder.glob("*.c")), "-o", made, "-lm", "-ldl"], check=True)
    return made


def contestant(folder: Path, table: Path, driver: Any) -> CostedPlan:
    with patch.object(core, "FOLDER", folder):
        library = core.library.__wrapped__()
    assert library is not None
    read = load(table)
    own, calls, made = Core(read, library), library.structs.driver(), ctypes.c_void_p()
    driver.nothing(ctypes.byref(calls))
    library.autotune_use_driver(own.handle, ctypes.byref(calls))
    number = next(
        i
        for i, k in enumerate(read.kernels)
        if k.layout == "NN" and k.spec.split_k == 1 and not k.spec.packs_a
    )
    _, lds, num_bytes, batch = packed(GEMM)
    planned = library.structs.planned(
        m=64, n=64, k=64, kernel=number, split_k=1, ld=lds, num_bytes=num_bytes, context=1, sgemm=1,
        batch=(batch.products, batch[1:]),
    )  # fmt: skip
    assert not library.autotune_make_plan(own.handle, ctypes.byref(planned), ctypes.byref(made))
    run = ctypes.cast(library.autotune_run_plan, ctypes.c_void_p)
    return CostedPlan(run, own, made.value or 0, (calls, library))


def times_ns(found: Mapping[str, CostedPlan], loop: Any, num_threads: int) -> dict[str, list[float]]:
    """Of a call in each round, the slowest thread's; the first round is left out."""
    message: dict[str, list[float]] = {name: [] for name in found}
    with ThreadPoolExecutor(num_threads) as threads:
        for _ in range(NUM_ROUNDS + 1):
            for name, one in found.items():
                calls = [
                    threads.submit(loop, one.run, one.core.handle, one.plan, NUM_CALLS)
                    for _ in range(num_threads)
                ]
                message[name].append(max(call.result() for call in calls))
    return {name: times[1:] for name, times in message.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as place, pick_cost.table_of(known_limits("h200")) as table:
        shared = Path(place) / "driver.so"
        source = str(Path(__file__).with_suffix(".c"))
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{core.FOLDER}", source, "-o", str(shared)]
        subprocess.run(command, check=True)
        driver = ctypes.CDLL(str(shared))
        driver.loop.restype = ctypes.c_double
        driver.loop.argtypes = [*3 * [ctypes.c_void_p], ctypes.c_long]
        plain = built(Path(place) / "plain", is_counting=False).parent
        counting = built(Path(place) / "counting", is_counting=True).parent
        found = {
            WITHOUT: contestant(plain, table, driver),
            COUNTED: contestant(counting, table, driver),
            RECORDED: contestant(counting, table, driver),
        }
        recorded = found[RECORDED].core
        assert not recorded.library.autotune_record_calls(recorded.handle, os.fsencode(f"{place}/calls.json"))
        rows = []
        for num_threads in (1, os.cpu_count() or 1):
            times = times_ns(found, driver.loop, num_threads)
            for name, own in times.items():
                more = statistics.median(a - b for a, b in zip(own, times[WITHOUT], strict=True))
                rows.append(
                    (f"{num_threads} threads: {name}", f"{statistics.median(own):.1f}", f"{more:+.1f}")
                )
        console.show(console.table(("ns of a call", "median", "more"), rows, right=(1, 2)))
        console.show(f"The bar is {BAR_NS:.0f} ns more.")


if __name__ == "__main__":
    main()
