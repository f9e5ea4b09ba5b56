"""The host time of a call of a known kind, beside torch.mm: medians of interleaved rounds.

    python benchmarks/host_cost.py [folder of a table for GPU 0, exported with --format c] [--out host.json]

Without a folder one is made as for GPU 0 with one tuned shape. Each round makes as many calls of each
contestant as a stream takes without waiting, and lets the GPU finish before the next one begins. Prints
microseconds of a call and their ratio to torch's, with its bar:

- with an out, and without: `torch.mm` and `sgemm`;
- `torch.ops.autotune.sgemm`; `torch.mm` while products are routed: served, left alone, and of bfloat16, with
  the router in C++ and with Python's kernels alone; `torch.addmm` of a vector, left alone;
- in C (`host_cost.c`, built with the folder's sources): `autotune_sgemm`, of this the driver's
  `cuLaunchKernelEx`, and what is more than that.

Needs a GPU, torch, a C++ compiler for the router, and for the last a C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pick_cost
import reports

from autotune.cli import console
from autotune.export.c_source import c_files
from autotune.facts.gemm import Gemm
from autotune.files.errors import EnvironmentProblem
from autotune.gpu.driver import device_limits, find_gpu
from autotune.runtime.choose.chooser import Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import load
from autotune.runtime.torch import routed_engine, torch_router
from autotune.runtime.torch.routed_engine import RoutedEngine
from autotune.runtime.torch.torch_routing import TorchRouting

SIZES = (64, 256, 512)  # of square products that take a GPU less time than a call takes the host
NUM_ROUNDS = 41
NUM_CALLS = 200  # fewer than a stream's queue holds
C_CALLS = 20_000
C_BAR_US = 1.0
WITH_OUT, NEW, HALF, SUM = "torch.mm(out=)", "torch.mm", "torch.mm, bfloat16", "torch.addmm"
Call = Callable[[], object]


class TimedCall(NamedTuple):
    """A call; the call that it is compared with, and its bar; and the context that is entered around it."""

    call: Call
    rival: str
    bar: float | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def contestants(torch: Any, runtime: Dispatcher, folder: Path, size: int) -> dict[str, TimedCall]:
    """By name; each was called before."""
    a, b, out = (torch.randn(size, size, device="cuda") for _ in range(3))
    half, vector = a.bfloat16(), torch.randn(size, device="cuda")
    runtime.sgemm(a, b, out)
    if runtime._tensors is None:
        console.note("The core reads no tensors of this torch: Python does")
    op = runtime.torch_op()
    own = {
        NEW: lambda: torch.mm(a, b),
        HALF: lambda: torch.mm(half, half),
        SUM: lambda: torch.addmm(vector, a, b),
    }
    found = {
        WITH_OUT: TimedCall(lambda: torch.mm(a, b, out=out), WITH_OUT),
        "sgemm(out=)": TimedCall(lambda: runtime.sgemm(a, b, out), WITH_OUT, 0.45),
        **{name: TimedCall(call, name) for name, call in own.items()},
        "sgemm": TimedCall(lambda: runtime.sgemm(a, b), NEW),
        "torch.ops.autotune.sgemm": TimedCall(lambda: op(a, b), NEW, 1.0),
    }
    for way, is_compiled in (("", True), (", Python alone", False)):
        served, alone = (routing_that(folder, reason, is_compiled) for reason in ("", "to be timed"))
        if is_compiled and served.no_router:
            console.note(f"There is no router in C++: {served.no_router}")
        for name, rival, bar, routing in (
            ("routed and served", NEW, 1.1, served), ("routed and left alone", NEW, 1.05, alone),
            ("routed", HALF, 1.05, served), ("routed and left alone", SUM, 1.05, alone),
        ):  # fmt: skip
            found[f"{rival}, {name}{way}"] = TimedCall(own[rival], rival, bar, partial(same, routing))
    return found


def same(routing: TorchRouting) -> TorchRouting:
    """A context that is entered again and again."""
    return routing


def routing_that(folder: Path, reason: str, is_compiled: bool) -> TorchRouting:
    """One that serves everything, or leaves all alone for a reason."""

    class Told(RoutedEngine):
        def why_not(self, gemm: Gemm, pick: Pick) -> str:
            return reason

    environment = {torch_router.SWITCH: str(int(is_compiled))}
    with patch.object(routed_engine, "RoutedEngine", Told), patch.dict(os.environ, environment):
        return Dispatcher(folder).torch()


def times_us(calls: Mapping[str, TimedCall], wait: Call) -> dict[str, list[float]]:
    """The host time of a call of each in each round; the first round is left out."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(NUM_ROUNDS + 1):
        for name, contestant in calls.items():
            call = contestant.call
            with contestant.around():
                call()
                wait()
                started = time.perf_counter()
                for _ in range(NUM_CALLS):
                    call()
                found[name].append(1e6 * (time.perf_counter() - started) / NUM_CALLS)
    wait()
    return {name: times[1:] for name, times in found.items()}


def rows(size: int, calls: Mapping[str, TimedCall], found: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Of one size: medians, and the median of the ratios to its rival's."""
    notes = []
    for name, times in found.items():
        _, rival, bar, _ = calls[name]
        ratio = statistics.median(mine / its for mine, its in zip(times, found[rival], strict=True))
        notes.append(
            [f"{size}: {name}", f"{statistics.median(times):.2f}", f"{ratio:.3f}", f"{bar:g}" if bar else ""]
        )
    return notes


def c_times_us(folder: Path, size: int) -> tuple[float, float]:
    """The host time of a call from C, and the part of `cuLaunchKernelEx`. Raises EnvironmentProblem if it
    does not build or run."""
    table = load(folder)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise EnvironmentProblem("no C compiler is here; install gcc")
    with tempfile.TemporaryDirectory() as place:
        for name, content in c_files([(table, load_cubins(folder, table))]).items():
            path = Path(place) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        sources, program = Path(place) / "c", str(Path(place) / "host_cost")
        own = [str(path) for path in sorted(sources.glob("*.c")) if path.name != "example.c"]
        own += [str(Path(__file__).with_suffix(".c")), str(sources / "cubins.S"), "-o", program]
        include = (f"-I{sources}", f"-Wa,-I{sources}")
        _run_command([compiler, "-O2", "-std=gnu11", *include, *own, "-lm", "-ldl", "-pthread"])
        call_us, launch_us = _run_command([program, str(size), str(C_CALLS)]).split()
    return float(call_us), float(launch_us)


def _run_command(command: Sequence[str]) -> str:
    environment = os.environ | {"AUTOTUNE_CUBLAS": "0"}  # whose launches are its own
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise EnvironmentProblem(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named.resolve()
        return
    with pick_cost.table_of(device_limits(find_gpu("0").index)) as folder:
        yield folder


def _measure(folder: Path, out: Path | None) -> None:
    import torch

    report: dict[str, Any] = {
        "benchmark": "host_cost", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "num_calls": NUM_CALLS, "sizes": {},
    }  # fmt: skip
    notes: list[list[str]] = []
    runtime = Dispatcher(folder)
    for size in SIZES:
        calls = contestants(torch, runtime, folder, size)
        found = times_us(calls, torch.cuda.synchronize)
        call_us, launch_us = c_times_us(folder, size)
        notes += rows(size, calls, found)
        notes.append([f"{size}: autotune_sgemm in C", f"{call_us:.2f}", "", ""])
        notes.append(
            [f"{size}: of this beside the launch", f"{call_us - launch_us:.2f}", "", f"{C_BAR_US:g} us"]
        )
        report["sizes"][size] = {"times_us": found, "c_call_us": call_us, "c_launch_us": launch_us}
    reports.keep(out, report)
    console.show("\n".join(reports.table(["call", "us", "over torch", "bar"], notes)))


def _run(args: argparse.Namespace) -> None:
    with _folder(args.folder) as folder:
        _measure(folder, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
