"""The host time of one call of torch's, routed and plain, in one run, also with CUBLAS_WORKSPACE_CONFIG set.

`linear` with a bias, `mm` and `bmm`: plain; routed and served; routed and left alone; and the table's `sgemm`
without an `out`, and with one. A batch without a kernel in the table is left alone, and not served. Medians
of interleaved rounds of products that take the GPU less time than the host (`host_cost.py`). torch reads
CUBLAS_WORKSPACE_CONFIG once, so this script runs once more with it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import reports
import torch
from host_cost import Call, TimedCall, routing_that, same, times_us

from autotune.files.errors import DispatchError, EnvironmentProblem
from autotune.runtime.dispatcher import Dispatcher

SETTING, VALUE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
QUICKEST = "quickest"  # of those that serve
BARS = {"linear": 0.6, "mm": 0.6, "bmm": 0.65}
OPERATORS = {"addmm": "linear", "baddbmm": "bmm", "mm": "mm", "bmm": "bmm"}  # of aten, by whose they are told
SERVED, ALONE, TORCH, OURS, OURS_OUT = "served", "left alone", "torch", "sgemm", "sgemm(out=)"
ALONE_BAR = 1.03


def contestants(folder: Path) -> dict[str, TimedCall]:
    """By "operator, way"; each was called before."""
    table = Dispatcher(folder)
    served, alone = (routing_that(folder, reason, True) for reason in ("", "to be timed"))
    x, weight, vector = (torch.randn(*extents, device="cuda") for extents in ((32, 256), (256, 256), (256,)))
    stack, stack_b = (torch.randn(8, 64, 64, device="cuda") for _ in range(2))
    own: dict[str, Call] = {
        "linear": lambda: torch.nn.functional.linear(x, weight, vector),
        "mm": lambda: torch.mm(x, weight),
        "bmm": lambda: torch.bmm(stack, stack_b),
    }  # fmt: skip
    adds = {"bias": vector} if _adds(table, x, weight.t(), vector) else {}
    operands = {"linear": (x, weight.t(), adds), "mm": (x, weight, {}), "bmm": (stack, stack_b, {})}
    found: dict[str, TimedCall] = {}
    lacks_batch = table.pick(64, 64, 64, batch=8).is_looped  # serving it is a launch for each product
    for name, call in own.items():
        a, b, options = operands[name]
        out = call()
        plain = f"{name}, {TORCH}"
        found |= {
            plain: TimedCall(call, plain),
            f"{name}, {SERVED}": TimedCall(call, plain, BARS[name], partial(same, served)),
            f"{name}, {ALONE}": TimedCall(call, plain, ALONE_BAR, partial(same, alone)),
            f"{name}, {OURS}": TimedCall(partial(table.sgemm, a, b, **options), plain),
            f"{name}, {OURS_OUT}": TimedCall(partial(table.sgemm, a, b, out, **options), plain),
        }
    if lacks_batch:
        del found[f"bmm, {SERVED}"]
    return found


def _adds(table: Dispatcher, a: Any, b: Any, bias: Any) -> bool:
    """Whether the kernel of this product has a variant that adds a bias."""
    try:
        table.sgemm(a, b, bias=bias)
    except DispatchError:
        return False
    return True


def measured(folder: Path, with_setting: bool) -> dict[str, dict[str, list[float]]]:
    """The us of a call in each round, by setting and by "operator, way". Raises EnvironmentProblem if the
    process with the setting fails."""
    with torch.no_grad():
        found = {os.environ.get(SETTING, "default"): times_us(contestants(folder), torch.cuda.synchronize)}
    if not with_setting or SETTING in os.environ:
        return found
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "times.json"
        command = [sys.executable, __file__, str(folder), str(out)]
        environment = os.environ | {SETTING: VALUE}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentProblem(f"with {SETTING}={VALUE} it failed: {done.stderr[-2000:]}")
        return found | dict(json.loads(out.read_text()))


def medians(found: Mapping[str, Mapping[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Without a setting: us of torch's call and of the quickest way to serve it, by operator of aten."""
    times = next(iter(found.values()))
    us = {call: statistics.median(samples) for call, samples in times.items()}
    return {
        operator: {
            TORCH: us[f"{name}, {TORCH}"],
            QUICKEST: min(us[call] for way in (SERVED, OURS, OURS_OUT) if (call := f"{name}, {way}") in us),
        }
        for operator, name in OPERATORS.items()
    }


def describe(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """A row for each call: its us, and the median of the ratios to torch's in the same rounds."""
    rows = []
    for setting, times in found.items():
        for name, us in times.items():
            operator, way = name.split(", ")
            rival = times[f"{operator}, {TORCH}"]
            ratio = statistics.median(mine / its for mine, its in zip(us, rival, strict=True))
            bar = {SERVED: BARS[operator], ALONE: ALONE_BAR}.get(way)
            cells = [f"{statistics.median(us):.2f}", f"{ratio:.3f}", f"{bar:g}" if bar else ""]
            rows.append([f"{name} ({setting})", *cells])
    return "\n".join(reports.table(["call", "us", "over torch", "bar"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.write_text(json.dumps(measured(args.folder, with_setting=False)))


if __name__ == "__main__":
    main()
