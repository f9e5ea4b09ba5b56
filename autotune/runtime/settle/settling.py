"""Settles which launch serves a call signature: times the model's first few where the table is used, once.
And checks one kernel there: its result, and its time against the recorded one (`check_kernel`).

The model's first choice loses a twentieth to the best kernel of a table; the best of its first four loses
hardly anything (docs/decisions/0040). So these are timed, as a search times its candidates:

1. Operands are the runtime's own: random numbers, with the strides and alignment of the call. Nothing
   of the caller's is read or written.
2. If cuBLAS may serve, its errors on some elements of C tell how deep sums may be (harness.py), which
   the model can only guess from the shape. The model ranks launches anew by that. Those whose own errors turn
   out to be too large are left out, if any is accurate enough (docs/decisions/0066).
3. Each launch runs twice between events. A launch that is surely slower than the fastest is left out.
4. Each of the others becomes a graph of launches that takes about BATCH_US. If the table's times are cold,
   each launch has its own operands, and L2 is overwritten before each graph.
5. The graphs run in rounds, in shuffled order, so that drift affects all alike. The first round warms up.
6. The launch with the least median of its shares of the rounds is chosen.

Beside a table of one summation order cuBLAS may serve only where all of its C has a kernel's bits, which is
found out first, in each process (ProvenBlas, 0094): of what the model picks for, and of what was tuned where
it was faster.

If cuBLAS may serve, it is timed beside them, in the same way, and serves if its median is less. The fastest
kernel is still timed to the end: it serves if cuBLAS cannot be called. Where no launch is accurate enough,
all count as slower, as when the model picks (model_figures.slower_by).

All of this runs on its own stream, after the work of the caller's stream. The host waits for it. Under graph
capture nothing is settled. A failure prevents the choice, never the product: the model's first choice serves,
and this process does not settle that call signature again.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ...facts.accuracy_class import worst_ratio
from ...facts.fitted import MAX_ERROR, number
from ...facts.gemm import Gemm
from ...files.errors import DispatchError
from ...files.words import time_text
from ...perf_model.model_figures import SHORTEST_CHAIN, Floats, excess_depth, slower_by
from ..calls.product import Product, packed
from ..choose.chooser import NUM_FIRST, Call, Chooser, Pick, call_signature
from ..launch.cuda_driver import LEGACY_STREAMS, CudaFault
from ..launch.devices import OpenGpu, differences
from ..launch.planner import Engine, Plan
from ..table.table import Entry, Table
from .choices import MOST_EXCESS, Choice, KnownChoices
from .harness import (
    LEAST_ELEMENTS,
    ErrorSample,
    Harness,
    Launch,
    Numbers,
    launch_of,
    on_own_stream,
    operand_parts,
    result_rows,
    some,
)

BATCH_US = 300.0  # of launches in a graph: events resolve 0.5 us
MAX_LAUNCHES = 64  # in a graph: capturing one takes the host as long as a short kernel runs
BUDGET_US = 20_000.0  # of the GPU for all rounds, as long as there are MIN_ROUNDS
MIN_ROUNDS, MAX_ROUNDS = 3, 9  # the first of which is not counted
PREDICTED_SLOWER = 1.3  # times the fastest, of single launches
LATENCY_US = 50.0  # by which equally long single launches may differ between events
LONG_US = 2000.0  # a launch that took this long needs no second one
MOST_CHECKED = 2 * NUM_FIRST  # launches whose errors are looked at to find the first that are accurate
DEFAULT_STREAM = LEGACY_STREAMS[0]  # waits for the work of all streams that do not opt out


class Settler:
    """Settles calls of one table. Threads may share it: one settles at a time."""

    def __init__(self, table: Table, engine: Engine, chooser: Chooser, known: KnownChoices) -> None:
        self._engine, self._chooser, self._known = engine, chooser, known
        self._l2_bytes = Harness.l2_bytes(table)
        self._lock = threading.Lock()

    def at_first_use(self, plan: Plan, stream: int) -> bool:
        """Settle a plan's call signature, after the work of its stream; returns whether another launch may
        serve from now on. Neither waits nor settles while the stream is captured, or another thread settles:
        the model's choice serves meanwhile, and a later call settles."""
        assert plan.open_call is not None
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.is_captured(plan.gpu, stream):
                return False
            self._try(plan.problem, plan.open_call, plan.gpu, stream)
            return True
        finally:
            self._lock.release()

    def settle(self, problem: Product, gpu: OpenGpu, stream: int) -> None:
        """Settle a call signature with operands aligned to 16 bytes, unless that was done before."""
        with self._lock:
            self._try(problem, Call(problem.gemm, problem.lds), gpu, stream)

    def is_captured(self, gpu: OpenGpu, stream: int) -> bool:
        """Whether the host must not wait for this stream: the stream is being captured, or it is the default
        stream and a stream that waits for it is being captured."""
        with self._engine.devices.current(gpu):
            try:
                return self._engine.driver.is_capturing(stream)
            except CudaFault:  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                return True

    def _try(self, problem: Product, call: Call, gpu: OpenGpu, stream: int) -> None:
        blas, device, kind = self._engine.blas, gpu.device, call_signature(call)
        before, choices = self._known.pick(call, device), self._known.choices_on(gpu)
        try:
            picked = before or self._chooser.pick(call)
            if blas.is_unproven(picked, call, device):
                self._prove(problem, kind, gpu, stream, picked)
            if before is not None:
                return  # settled by another thread, or before
            ranked = self._chooser.ranked(call, NUM_FIRST)
            has_others = ranked[0].how == "modelled" and len(ranked) > 1
            has_others |= blas.is_wanted(picked) and blas.may_serve(call, device)
            if not (has_others and call.gemm.k) or choices.is_full:
                self._known.leave(call)
                return
            choice = self._race(problem, kind, gpu, stream, ranked)
        except DispatchError as fault:
            self._known.leave(call)
            self._known.tell("settling", f"{call.gemm} is not settled, the model's choice serves: {fault}")
            return
        choices.add(choice)

    def _prove(self, problem: Product, kind: Call, gpu: OpenGpu, stream: int, pick: Pick) -> None:
        """Find out whether cuBLAS has the bits of a launch. Raises DispatchError if that is not known."""
        with _Race.on(self._engine, problem, kind, gpu, stream, l2_bytes=0) as race:
            self._engine.blas.prove(kind, gpu.device, race.has_bits_of(pick))

    def first(self, problem: Product, call: Call, gpu: OpenGpu, stream: int) -> Sequence[Pick]:
        """The launches that settling times, as far as they are accurate. Raises DispatchError."""
        with _Race.on(self._engine, problem, call_signature(call), gpu, stream, self._l2_bytes) as race:
            candidates = race.candidates(self._chooser.ranked(call, NUM_FIRST), self._chooser)
        return [candidate.pick for candidate in candidates if candidate.excess == 1]

    def _race(
        self, problem: Product, kind: Call, gpu: OpenGpu, stream: int, ranked: Sequence[Pick]
    ) -> Choice:
        """The fastest of some launches, and how fast cuBLAS is. Raises DispatchError."""
        with _Race.on(self._engine, problem, kind, gpu, stream, self._l2_bytes) as race:
            candidates = race.candidates(ranked, self._chooser)
            slower = slower_by(np.array([candidate.excess for candidate in candidates]))
            times_us = race.times_us(candidates, slower)
        shares = np.median(times_us / times_us[np.isfinite(times_us[:, 0])].mean(axis=0), axis=1)
        best = int((shares[: len(candidates)] * slower).argmin())
        gemm, (pick, _, excess), time_us = kind.gemm, candidates[best], float(np.median(times_us[best]))
        cublas_us = [time_us * float(share / shares[best]) for share in shares[len(candidates) :]]
        return Choice(
            gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, kind.lds, kind.addresses,
            pick.kernel_id, pick.split_k, time_us, len(candidates),
            cublas_us[0] if cublas_us and np.isfinite(cublas_us[0]) else None,
            min(excess, MOST_EXCESS),
        )  # fmt: skip


class _TimedLaunch(NamedTuple):
    """A launch that is timed; `excess`: by how many times its sums are too deep, at least 1."""

    pick: Pick
    plan: Plan
    excess: float = 1.0


class _Race:
    """Launches of one call signature beside each other, and beside cuBLAS if that may serve."""

    def __init__(self, engine: Engine, problem: Product, kind: Call, gpu: OpenGpu, harness: Harness) -> None:
        self._engine, self._problem, self._kind, self._gpu = engine, problem, kind, gpu
        self._harness = harness
        may_serve = engine.blas.may_serve(kind, gpu.device)
        self._references = [engine.blas_plan(problem, gpu)] if may_serve else []

    @classmethod
    @contextmanager
    def on(
        cls, engine: Engine, problem: Product, kind: Call, gpu: OpenGpu, stream: int, l2_bytes: int
    ) -> Iterator[_Race]:
        """A race on a stream of its own, after the work of this one, with the GPU's context current."""
        with on_own_stream(engine, problem, kind, gpu, l2_bytes, stream) as harness:
            yield cls(engine, problem, kind, gpu, harness)

    def candidates(self, ranked: Sequence[Pick], chooser: Chooser) -> Sequence[_TimedLaunch]:
        """The chooser's first launches that are accurate enough by their errors and cuBLAS's, or if none is,
        the first. The given ones where errors tell nothing: all sums are short, or too few elements of C are
        looked at. The limit is less by two deviations of the ratio of two such errors. Takes the memory for
        all of it, once. Raises DispatchError if there is no room for any."""
        given, harness = self._planned(ranked), self._harness
        wanted = BATCH_US / max(ranked[0].expected_us or 1.0, 1.0)
        num_launches = round(min(max(wanted, 1), MAX_LAUNCHES))
        harness.take(num_launches, [*(candidate.plan for candidate in given), *self._references])
        sample = ErrorSample(harness, self._problem)
        is_short = self._kind.gemm.k <= SHORTEST_CHAIN
        if not self._references or is_short or sample.num_elements < LEAST_ELEMENTS:
            return given
        (of_cublas,) = sample.depths([self._launch_of(reference) for reference in self._references])
        most = MAX_ERROR / (1 + 2 / math.sqrt(sample.num_elements))
        allowed = of_cublas.within(most, most)
        found: list[_TimedLaunch] = []
        accurate: list[_TimedLaunch] = []
        left = chooser.ranked(self._kind, MOST_CHECKED, allowed)
        while len(accurate) < NUM_FIRST and left:
            some, left = self._planned(left[:NUM_FIRST]), left[NUM_FIRST:]
            feasible = [candidate for candidate in some if harness.has_room_for(candidate.plan)]
            harness.take_workspace([*(candidate.plan for candidate in feasible), *self._references])
            depths = sample.depths([self._launch_of(candidate.plan) for candidate in feasible])
            for candidate, own in zip(feasible, depths, strict=True):
                found.append(candidate._replace(excess=float(excess_depth(own, allowed))))
            accurate = [candidate for candidate in found if candidate.excess == 1]
        candidates = (accurate or found)[:NUM_FIRST]
        if not candidates:
            raise DispatchError("partial sums are too large for the memory that is free")
        harness.fill_first("normal")
        harness.take_workspace([*(candidate.plan for candidate in candidates), *self._references])
        return candidates

    def has_bits_of(self, pick: Pick) -> bool:
        """Whether all of cuBLAS's C has the bits of a launch's, of normal numbers and of some whose products
        are subnormal. Raises DispatchError if there is no room."""
        harness = self._harness
        plans = [
            self._engine.plan_of(self._problem, self._gpu, replace(pick, provider="autotune")),
            self._engine.blas_plan(self._problem, self._gpu),
        ]
        harness.take(1, plans)
        given: tuple[Numbers, ...] = "normal", "tiny"
        for numbers in given:
            harness.fill_first(numbers)
            if len({harness.digest(self._launch_of(plan)) for plan in plans}) > 1:
                return False
        return True

    def times_us(self, candidates: Sequence[_TimedLaunch], slower: Floats) -> Floats:
        """(launches, rounds) the time of each, and of cuBLAS behind them if that may serve. `slower`: the
        factor by which each entrant counts as slower."""
        launches = [self._launch_of(plan) for plan in (*(one.plan for one in candidates), *self._references)]
        factors = np.concatenate([slower, np.ones(len(self._references))])
        return _times_us(launches, factors, len(candidates), self._harness)

    def _planned(self, picks: Sequence[Pick]) -> list[_TimedLaunch]:
        return [_TimedLaunch(pick, self._engine.plan_of(self._problem, self._gpu, pick)) for pick in picks]

    def _launch_of(self, plan: Plan) -> Launch:
        return launch_of(self._engine, plan, self._harness)


def _times_us(launches: Sequence[Launch], slower: Floats, num_plans: int, harness: Harness) -> Floats:
    """(launches, rounds) the time of each in each round; infinite if it is surely slower than the fastest of
    the first `num_plans`, the table's own. `slower`: the factor by which each counts as slower there."""
    single_launches = [partial(launch, harness.sets[0]) for launch in launches]
    once_us = [harness.intervals_us([single])[0] for single in single_launches]
    if min(once_us) < LONG_US:
        once_us = harness.intervals_us(single_launches)
    counted_us = slower * once_us
    most_us = PREDICTED_SLOWER * counted_us[:num_plans].min() + LATENCY_US
    timed = np.flatnonzero(counted_us <= most_us).tolist()
    graphs = {i: harness.graph(partial(harness.launch_in_loop, launches[i])) for i in timed}
    generator = random.Random(0)
    rounds: list[list[float]] = []
    while len(rounds) < MIN_ROUNDS or (len(rounds) < MAX_ROUNDS and sum(map(sum, rounds)) < BUDGET_US):
        order = generator.sample(timed, len(timed))
        of = dict(zip(order, harness.intervals_us([graphs[i] for i in order]), strict=True))
        rounds.append([of[i] for i in timed])
    times_us = np.full((len(launches), len(rounds) - 1), np.inf)
    times_us[timed] = np.array(rounds[1:]).T / harness.num_launches
    if not (times_us > 0).all():
        raise DispatchError("the GPU's events tell no times")
    return times_us


# ------------------------------------- is a table valid on this GPU now? One kernel's result and time


TARGET_US = 500.0  # of a launch
CHECKED_BATCH_US = 1000.0  # of a graph of a check: events resolve 0.5 us
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
    """Check one kernel of a table on a GPU; waits. Raises DispatchError if it fails, or lacks memory.

    It takes some milliseconds, so a program can check at its start: a GPU that is capped, shared, or at other
    clocks shows in the time, a broken one in the result. `autotune verify` checks every kernel instead.

    The kernel is the winner of the tuned shape that takes about TARGET_US: long enough for its time to be
    that of the GPU, short enough to be timed often. It runs as in settling. A few graphs are queued together,
    so that other users of the GPU get time slices within them; their mean counts. A slow result is timed
    again, as the clocks of an idle GPU rise meanwhile, and the least of these means is reported."""
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
        wanted = CHECKED_BATCH_US / (recorded_us or TARGET_US)
        harness.take(round(min(max(wanted, 1), MAX_LAUNCHES)), [plan])
        graph = harness.graph(partial(harness.launch_in_loop, launch_of(engine, plan, harness)))
        times_us = list[float]()
        while _is_open(times_us, recorded_us):
            taken = harness.intervals_us([graph] * NUM_GRAPHS)[1:]
            times_us.append(sum(taken) / len(taken) / harness.num_launches)
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
