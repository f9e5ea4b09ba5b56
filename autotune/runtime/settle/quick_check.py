"""Is a table valid on this GPU now? Compares one kernel's result with float64, and its time with the recorded
one.

It takes some milliseconds, so a program can check at its start: a GPU that is capped, shared, or at other
clocks shows in the time, a broken one in the result. `autotune verify` checks every kernel instead.

The kernel is the winner of the tuned shape that takes about TARGET_US: long enough for its time to be that of
the GPU, short enough to be timed often. As in settling (settling.py) it runs in graphs, on the runtime's own
operands, cold if the table is. A few graphs are queued together, so that other users of the GPU get time
slices within them; their mean counts. A slow result is timed again, as the clocks of an idle GPU rise
meanwhile, and the least of these means is reported.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np

from ...facts.accuracy_class import worst_ratio
from ...facts.fitted import number
from ...facts.gemm import Gemm
from ...files.errors import DispatchError
from ...files.words import time_text
from ..calls.product import Product, packed
from ..choose.chooser import Call, Pick
from ..launch.devices import OpenGpu, differences
from ..launch.planner import Engine
from ..table.table import Entry, Table
from .harness import Harness, launch_of, on_own_stream, operand_parts, result_rows, some
from .settling import MAX_LAUNCHES

TARGET_US = 500.0  # of a launch
BATCH_US = 1000.0  # of a graph: events resolve 0.5 us
NUM_GRAPHS = 5  # queued at once, the first of which is not counted: 4 ms, twice a time slice of a shared GPU
MAX_ATTEMPTS = 12  # of these, as long as they are slow: 60 ms, in which the clocks of an idle GPU rise
# The largest acceptable ratio to the recorded time. For the same product, the largest time of four searches
# on H200 is 1.007 times the least in the median of 26 shapes, and 1.022 at most (cuBLAS's, in
# studies/results/h200-search-*seed*); the rest allows for this shorter way of timing. A neighbour that always
# computes takes half of the GPU.
SLOWER = number("SLOWER")
NUM_ROWS, NUM_COLUMNS = 8, 64  # of C that are compared with float64


class QuickCheck(NamedTuple):
    """The results. `error_ratio`: the largest |C - C64| over its bound (accuracy_class.py). `time_us` of a
    launch, and over the `recorded_us` of the table; without a tuned shape there is nothing to compare with.
    `differences`: how the GPU differs from the one that was measured (devices.py)."""

    device: int
    gpu_name: str
    gemm: Gemm
    kernel_id: str
    error_ratio: float
    time_us: float
    recorded_us: float | None
    differences: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        return None if self.recorded_us is None else self.time_us / self.recorded_us

    @property
    def is_right(self) -> bool:
        return self.error_ratio <= 1

    @property
    def is_as_fast(self) -> bool:
        return self.ratio is None or self.ratio <= SLOWER

    @property
    def is_ok(self) -> bool:
        return self.is_right and self.is_as_fast

    def __str__(self) -> str:
        wrong = "" if self.is_right else ": the result is wrong"
        notes = [f"error {self.error_ratio:.3g} of the bound against float64{wrong}"]
        if self.ratio is None or self.recorded_us is None:
            notes.append(f"{time_text(self.time_us)}, nothing recorded to compare with")
        else:
            recorded = time_text(self.recorded_us)
            notes.append(f"{time_text(self.time_us)}, {self.ratio:.3f} times the recorded {recorded}")
        where = f"GPU {self.device} ({self.gpu_name}), {self.kernel_id} on {self.gemm}"
        return "; ".join([f"{where}: {notes[0]}", *notes[1:], *self.differences])


def check_kernel(engine: Engine, gpu: OpenGpu) -> QuickCheck:
    """Check one kernel of a table on a GPU; waits. Raises DispatchError if it fails, or lacks memory."""
    table = engine.table
    entry = _entry(table)
    gemm = entry.gemm if entry else Gemm(512, 512, 512)
    kernel_id = entry.ranked[0].kernel if entry else table.defaults["NN"]
    split_k = next(kernel.spec.split_k for kernel in table.kernels if kernel.id == kernel_id)
    pick = Pick(kernel_id, "exact" if entry else "default", partial(str, "it is under test"), split_k)
    recorded_us = entry.ranked[0].time_us if entry else None
    problem = packed(gemm)
    plan = engine.plan_of(problem, gpu, pick)
    with on_own_stream(engine, problem, Call.packed(gemm), gpu, Harness.l2_bytes(table)) as harness:
        wanted = BATCH_US / (recorded_us or TARGET_US)
        harness.take(round(min(max(wanted, 1), MAX_LAUNCHES)), [plan])
        graph = harness.graph(partial(harness.launch_in_loop, launch_of(engine, plan, harness)))
        times_us = list[float]()
        while _is_open(times_us, recorded_us):
            taken = harness.intervals_us([graph] * NUM_GRAPHS)[1:]
            times_us.append(fmean(taken) / harness.num_launches)
        if min(times_us) <= 0:
            raise DispatchError("the GPU's events tell no times")
        error_ratio = _error_ratio(harness, problem)
    here = gpu.conditions
    name, other = ("", ()) if here is None else (here.gpu_name, tuple(differences(table, here)))
    return QuickCheck(gpu.device, name, gemm, pick.kernel_id, error_ratio, min(times_us), recorded_us, other)


def _is_open(times_us: list[float], recorded_us: float | None) -> bool:
    """Whether to time again."""
    if not times_us or recorded_us is None:
        return not times_us
    return min(times_us) > SLOWER * recorded_us and len(times_us) < MAX_ATTEMPTS


def _entry(table: Table) -> Entry | None:
    """The tuned shape in FP32 whose winner's time is nearest to TARGET_US; the first of equals."""
    single = (one for one in table.entries if one.gemm.is_float and not one.gemm.is_batched)
    return min(single, key=lambda entry: abs(math.log(entry.ranked[0].time_us / TARGET_US)), default=None)


def _error_ratio(harness: Harness, problem: Product) -> float:
    """Of some rows and columns of the first set of operands, the outermost among them."""
    gemm = problem.gemm
    rows, columns = some(gemm.m, NUM_ROWS), some(gemm.n, NUM_COLUMNS)
    part_a, part_b = operand_parts(harness, problem, rows, columns)
    found = result_rows(harness, problem, rows)
    if not np.isfinite(found).all():
        return math.inf
    return worst_ratio(gemm.k, found[:, columns], part_a @ part_b, np.abs(part_a) @ np.abs(part_b))
