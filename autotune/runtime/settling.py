"""Settles which launch serves a kind of call: times the model's first few where the table is used, once.

The model's first choice loses a twentieth to the best kernel of a table; the best of its first four loses
hardly anything (docs/decisions/0040). So these are timed, as a search times its candidates:

1. Operands are the runtime's own: random numbers, with the strides and alignment of the call. Nothing
   of the caller's is read or written.
2. Each launch runs twice between events. A launch that is surely slower than the fastest is left out.
3. Each of the others becomes a graph of launches that takes about BATCH_US. If the table's times are cold,
   each launch has its own operands, and L2 is overwritten before each graph.
4. The graphs run in rounds, in shuffled order, so that drift affects all alike. The first round warms up.
5. The launch with the least median of its shares of the rounds is chosen.

If cuBLAS may serve, it is timed beside them, in the same way, and serves if its median is less. The fastest
kernel is still timed to the end: it serves if cuBLAS cannot be called.

All of this runs on its own stream, after the work of the caller's stream. The host waits for it. Under graph
capture nothing is settled. A failure prevents the choice, never the product: the model's first choice serves,
and this process does not settle that kind of call again. Copied into exported tables.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

import numpy as np

from ..column_major import WORKSPACE_BYTES
from ..errors import DispatchError
from ..gemm import FLOAT_BYTES, Triple
from ..models.launches import Floats
from .blas_library import BlasHandle
from .choices import Choice, KnownChoices, kind_of_call
from .chooser import Chooser
from .cuda_driver import LEGACY_STREAMS, CudaFault, Driver
from .devices import OpenGpu
from .engine import Engine, Plan
from .pick import NUM_FIRST, Call, Pick
from .product import Product
from .table import Table
from .workspace import aligned

BATCH_US = 300.0  # of launches in a graph: events resolve 0.5 us
MAX_LAUNCHES = 64  # in a graph: capturing one takes the host as long as a short kernel runs
BUDGET_US = 20_000.0  # of the GPU for all rounds, as long as there are MIN_ROUNDS
MIN_ROUNDS, MAX_ROUNDS = 3, 9  # the first of which is not counted
SURELY_SLOWER = 1.3  # times the fastest, of single launches
LATENCY_US = 50.0  # by which equally long single launches may differ between events
LONG_US = 2000.0  # a launch that took this long needs no second one
MEMORY_SHARE = 0.25  # of the free memory that settling takes at most
L2_TIMES = 2  # as much as L2 holds is overwritten, to clear it
NUM_RANDOM = 1 << 18  # normal numbers that are made; operands repeat them
DEFAULT_STREAM = LEGACY_STREAMS[0]  # waits for the work of all streams that do not opt out


class Settler:
    """Settles calls of one table. Threads may share it: one settles at a time."""

    def __init__(self, table: Table, engine: Engine, chooser: Chooser, known: KnownChoices) -> None:
        self._engine, self._chooser, self._known = engine, chooser, known
        self._l2_bytes = Harness.l2_bytes(table)
        self._lock = threading.Lock()

    def at_first_use(self, plan: Plan, stream: int) -> bool:
        """Settle a plan's kind of call, after the work of its stream; returns whether another launch may
        serve from now on. Neither waits nor settles while the stream is captured, or another thread settles:
        the model's choice serves meanwhile, and a later call settles."""
        assert plan.unsettled is not None
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.is_captured(plan.gpu, stream):
                return False
            self._try(plan.problem, plan.unsettled, plan.gpu, stream)
            return True
        finally:
            self._lock.release()

    def settle(self, problem: Product, gpu: OpenGpu, stream: int) -> None:
        """Settle a kind of call with operands aligned to 16 bytes, unless that was done before."""
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
        if self._known.pick(call, gpu.device) is not None:
            return  # by another thread, or before
        choices, kind = self._known.choices_on(gpu), kind_of_call(call)
        try:
            ranked = self._chooser.ranked(call, NUM_FIRST)
            is_alone = len(ranked) < 2 and not self._engine.blas.may_serve(call)
            if ranked[0].how != "modelled" or is_alone or not call.gemm.k or choices.is_full:
                self._known.leave(call)
                return
            choice = self._race(problem, kind, gpu, stream, ranked)
        except DispatchError as fault:
            self._known.leave(call)
            self._known.tell("settling", f"{call.gemm} is not settled, the model's choice serves: {fault}")
            return
        choices.add(choice)

    def _race(
        self, problem: Product, kind: Call, gpu: OpenGpu, stream: int, ranked: Sequence[Pick]
    ) -> Choice:
        """The fastest of some launches, and how fast cuBLAS is. Raises DispatchError."""
        engine, driver = self._engine, self._engine.driver
        plans = [engine.plan_of(problem, gpu, pick) for pick in ranked]
        wanted = BATCH_US / max(ranked[0].expected_us or 1.0, 1.0)
        with engine.devices.current(gpu), driver.relaxed(), ExitStack() as at_end:
            driver.synchronize(stream)
            own = driver.make_stream()
            at_end.callback(driver.free_stream, own)
            at_end.callback(driver.synchronize, own)
            library = engine.blas.library if engine.blas.may_serve(kind) else None
            handle = None if library is None else library.handle(gpu.device, own, driver)
            harness = Harness(driver, problem, kind, plans, handle is not None, self._l2_bytes, own, at_end)
            harness.take(round(min(max(wanted, 1), MAX_LAUNCHES)))
            times_us = _times_us(_launches(engine, plans, handle, harness), len(plans), harness)
        shares = np.median(times_us / times_us[np.isfinite(times_us[:, 0])].mean(axis=0), axis=1)
        best = int(shares[: len(plans)].argmin())
        gemm, pick, time_us = kind.gemm, ranked[best], float(np.median(times_us[best]))
        cublas_us = [time_us * float(share / shares[best]) for share in shares[len(plans) :]]
        return Choice(
            gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, kind.lds, kind.addresses,
            pick.kernel_id, pick.split_k, time_us, len(ranked),
            cublas_us[0] if cublas_us and np.isfinite(cublas_us[0]) else None,
        )  # fmt: skip


class Harness:
    """The resources for timing launches of one kind of call: a stream, operands, a workspace, and events. All
    are released when the stack ends."""

    def __init__(
        self,
        driver: Driver,
        problem: Product,
        kind: Call,
        plans: Sequence[Plan],
        has_rival: bool,
        l2_bytes: int,
        stream: int,
        at_end: ExitStack,
    ) -> None:
        self.stream, self.num_launches = stream, 1
        self.sets: list[Triple] = []
        self._driver, self._at_end, self._l2_bytes = driver, at_end, l2_bytes
        self._offsets = kind.addresses
        self._sizes = [
            aligned(size + offset) for size, offset in zip(problem.num_bytes, kind.addresses, strict=True)
        ]
        scratch_bytes = max(plan.grid.scratch_bytes for plan in plans)
        self._scratch_bytes = aligned(max(scratch_bytes, WORKSPACE_BYTES if has_rival else 0))
        self._counter_bytes = aligned(max(plan.grid.counter_bytes for plan in plans))
        self._base = self._border = self._l2 = 0
        self._events: list[int] = []

    @staticmethod
    def l2_bytes(table: Table) -> int:
        """How much is overwritten to clear L2; 0 if the table's times are warm."""
        return 0 if table.policy == "warm" else L2_TIMES * table.limits.l2_bytes

    def take(self, num_launches: int) -> None:
        """Take memory for this many launches, or for fewer if these would take too much of the free memory.
        Raises DispatchError if there is not enough for one."""
        driver, set_bytes = self._driver, sum(self._sizes)
        others = self._scratch_bytes + self._counter_bytes + self._l2_bytes
        most = int(MEMORY_SHARE * driver.free_bytes())
        num_sets = min(num_launches if self._l2_bytes else 1, (most - others) // set_bytes)
        if num_sets < 1:
            raise DispatchError(
                f"it takes {set_bytes + others >> 20} MiB to time, more than a quarter of what is free"
            )
        self.num_launches = num_sets if self._l2_bytes else num_launches
        base = self._base = self._allocate(num_sets * set_bytes)
        self._fill(base, num_sets * set_bytes)
        for start in range(base, base + num_sets * set_bytes, set_bytes):
            a, b, c = (start + sum(self._sizes[:i]) + self._offsets[i] for i in range(3))
            self.sets.append((a, b, c))
        if self._scratch_bytes:
            self._border = self._allocate(self._scratch_bytes + self._counter_bytes) + self._scratch_bytes
            if self._counter_bytes:
                driver.zero(self._border, self._counter_bytes, self.stream)
        if self._l2_bytes:
            self._l2 = self._allocate(self._l2_bytes)
        self._events = [self._make_event() for _ in range(2 * (NUM_FIRST + 1))]

    def workspace(self, scratch_bytes: int) -> int:
        """For one launch at a time: the boundary between scratch and counters is the same for all."""
        return self._border - scratch_bytes if scratch_bytes else 0

    def stored(self, address: int, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The numbers of an operand at an address, at these offsets from it."""
        start = (address - self._base) // FLOAT_BYTES
        found: np.ndarray[Any, Any] = _random_numbers()[(start + at) % NUM_RANDOM]
        return found

    def copy_out(self, host: int, address: int, num_bytes: int) -> None:
        """Copies to the host, after the work of the stream. Waits for it."""
        self._driver.copy_out(host, address, num_bytes, self.stream)
        self._driver.synchronize(self.stream)

    def intervals_us(self, actions: Sequence[Callable[[], None]]) -> list[float]:
        """How long each of a few actions takes on the GPU, one after another. Waits for them."""
        driver, pairs = self._driver, list(zip(self._events[::2], self._events[1::2], strict=True))
        for action, (begin, end) in zip(actions, pairs, strict=False):
            if self._l2:
                driver.zero(self._l2, self._l2_bytes, self.stream)
            driver.record(begin, self.stream)
            action()
            driver.record(end, self.stream)
        driver.synchronize(self.stream)
        return [driver.elapsed_us(*pair) for _, pair in zip(actions, pairs, strict=False)]

    def graph(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Launches the work that `enqueue` gives to the stream as one graph."""
        made = self._driver.capture(self.stream, enqueue)
        self._at_end.callback(self._driver.free_graph, made)
        return partial(self._driver.launch_graph, made, self.stream)

    def _allocate(self, num_bytes: int) -> int:
        address = self._driver.allocate(num_bytes, self.stream)
        self._at_end.callback(self._driver.free, address, self.stream)
        return address

    def _make_event(self) -> int:
        event = self._driver.make_event()
        self._at_end.callback(self._driver.free_event, event)
        return event

    def _fill(self, address: int, num_bytes: int) -> None:
        """With random numbers: zeros draw less power, and are multiplied faster."""
        numbers = _random_numbers()
        filled = min(num_bytes, numbers.nbytes)
        self._driver.copy_in(address, numbers.ctypes.data, filled, self.stream)
        while filled < num_bytes:
            more = min(filled, num_bytes - filled)
            self._driver.copy(address + filled, address, more, self.stream)
            filled += more


def _launches(
    engine: Engine, plans: Sequence[Plan], handle: BlasHandle | None, harness: Harness
) -> list[Callable[[Triple], None]]:
    """Functions that enqueue each plan, and last cuBLAS if its handle is given, with some operands."""

    def launch(plan: Plan, operands: Triple) -> None:
        workspace = harness.workspace(plan.grid.scratch_bytes)
        engine.launch_all(plan, harness.stream, operands, 1.0, 0.0, workspace)

    launches: list[Callable[[Triple], None]] = [partial(launch, plan) for plan in plans]
    if handle is not None:
        handle.scale(1.0, 0.0)
        call, workspace = engine.blas.call(plans[0].problem), harness.workspace(WORKSPACE_BYTES)
        launches.append(lambda operands: handle.sgemm(call, harness.stream, operands, workspace))
    return launches


def _times_us(launches: Sequence[Callable[[Triple], None]], num_plans: int, harness: Harness) -> Floats:
    """(launches, rounds) the time of each in each round; infinite if it is surely slower than the fastest of
    the first `num_plans`, the table's own."""

    def launch_several(launch: Callable[[Triple], None]) -> None:
        for number in range(harness.num_launches):
            launch(harness.sets[number % len(harness.sets)])

    singles = [partial(launch, harness.sets[0]) for launch in launches]
    once_us = [harness.intervals_us([single])[0] for single in singles]
    if max(once_us) < LONG_US:
        once_us = harness.intervals_us(singles)
    most_us = SURELY_SLOWER * min(once_us[:num_plans]) + LATENCY_US
    timed = [i for i, time_us in enumerate(once_us) if time_us <= most_us]
    graphs = {i: harness.graph(partial(launch_several, launches[i])) for i in timed}
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


@cache
def _random_numbers() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(NUM_RANDOM, dtype=np.float32)
