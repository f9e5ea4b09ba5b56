"""Launches of an exported table as an application gets them, and cuBLAS, timed on one stream.

What runs is the runtime's own: its engine plans a call from the arrays' forms and addresses, and makes the
launches. So splits, alignment, packed operands and workspaces are those that a user gets, for leading
dimensions of any size. Used by any_shape.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from contest import Arena

from autotune.cli import console
from autotune.facts.accuracy_class import STRICT
from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.files.errors import DispatchError, EnvironmentProblem
from autotune.gpu import instance
from autotune.gpu.driver import check
from autotune.gpu.memory import Buffer, Enqueue, OperandSet, Region, aligned, num_sets
from autotune.gpu.session import Session
from autotune.kernel.config import Config
from autotune.kernel.launch import Grid, has_work
from autotune.kernel.resources import residency
from autotune.perf_model.launches import Launches, Shapes
from autotune.perf_model.model_figures import Depths
from autotune.perf_model.prediction import Splits
from autotune.runtime.calls.product import Product
from autotune.runtime.choose.blas_provider import BlasProvider
from autotune.runtime.choose.chooser import NUM_FIRST, Call, Chooser, Pick, in_splits
from autotune.runtime.launch.cuda_driver import Driver
from autotune.runtime.launch.devices import Devices
from autotune.runtime.launch.planner import Engine, key_of
from autotune.runtime.native.core import Core
from autotune.runtime.settle.choices import KnownChoices
from autotune.runtime.settle.settling import Settler
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import Kernel, KernelRecord, Table, launchable, load

CUBLAS, ALONE = "cublas", "alone"
CUTOFF = 2.0  # times the best known of a shape: what is clearly slower is launched once


class Chosen(NamedTuple):
    """A kernel and its number of splits: of a pick what tells one launch from another."""

    kernel_id: str
    split_k: int

    @classmethod
    def named(cls, name: str) -> Chosen:
        """That of `name_of`."""
        kernel_id, split_k = name.rsplit("/", 1)
        return cls(kernel_id, int(split_k))


def name_of(pick: Pick | Chosen) -> str:
    """One name per launch: equal ones race once."""
    return f"{pick.kernel_id}/{pick.split_k}"


def every_launch(kernels: Sequence[Kernel], call: Call, num_sms: int) -> list[Chosen]:
    """All kernels that may serve a call, in each number of splits that the model would weigh: those without
    an epilogue, as one with a bias would read it from where none is."""
    found = []
    for kernel in kernels:
        if kernel.layout != call.gemm.layout or not kernel.is_plain:
            continue
        splits = Splits(Launches.of([kernel.spec], [kernel.blocks_per_sm]), num_sms)
        for split_k in sorted({int(value) for value in splits.choices(Shapes.of(*call[:3])).ravel()}):
            is_busy = has_work(in_splits(kernel, split_k), call.gemm.k)
            if is_busy and call.rejection(kernel, split_k) is None:
                found.append(Chosen(kernel.id, split_k))
    return found


class OnlyOne(Chooser):
    """Answers every call with one launch of a table's kernel."""

    def __init__(self, table: Table, chosen: Chosen) -> None:
        super().__init__(table)
        self.table = table
        self._pick = Pick(chosen.kernel_id, "settled", lambda: "it is timed alone", chosen.split_k)

    def pick(self, call: Call, allowed: Depths | None = None) -> Pick:
        return self._pick


class OneWorkspace:
    """A workspace that launches of one stream use one after another, as the runtime's own piece of a stream
    that stays. It need not grow under capture: whoever captures has launched before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffer: Buffer | None = None
        self._sizes = 0, 0  # of scratch, and of the counters behind it

    def of(self, grid: Grid) -> int:
        """Its address for a launch; 0 if that needs none. Raises EnvironmentProblem where memory is too
        small."""
        if not grid.scratch_bytes:
            return 0
        scratch, counters = (
            max(aligned(need), held)
            for need, held in zip((grid.scratch_bytes, grid.counter_bytes), self._sizes, strict=True)
        )
        if self._buffer is None or (scratch, counters) != self._sizes:
            self.free()
            driver, stream = self._session.driver, self._session.stream
            self._buffer = Buffer(driver, scratch + counters, "packed operands and partial sums")
            self._buffer.fill(0, Region(scratch, counters), stream)
            self._sizes = scratch, counters
        return self._buffer.address + self._sizes[0] - grid.scratch_bytes

    def free(self) -> None:
        if self._buffer is not None:
            check(self._session.driver.cuStreamSynchronize, self._session.stream)
            self._buffer.free()
            self._buffer, self._sizes = None, (0, 0)


@dataclass
class Runner:
    """One launch that takes part; `launch_us` is about what it takes."""

    name: str
    enqueue: Enqueue
    launch_us: float = 0.0


class TableArena:
    """A table on the GPU of an arena. Raises DispatchError where it is not for this GPU."""

    def __init__(self, arena: Arena, folder: Path, accuracy: str = STRICT) -> None:
        self.arena, self.session = arena, arena.session
        whole = load(folder)
        self.table = whole.for_class(accuracy)
        self.chooser = Chooser(self.table)
        self._kernels = {kernel.id: kernel for kernel in self.table.kernels}
        self._driver = Driver()
        self._workspace = OneWorkspace(self.session)
        self._devices = Devices(self.table, load_cubins(folder, whole), self._driver)
        self._settler = self._make_settler()

    # ---------------------------------------------------------------------------- who takes part

    def picked(self, call: Call, sets: Sequence[OperandSet]) -> tuple[Pick, Runner]:
        """What the table picks for a call, and the launch of its kernel: of a batch that was not tuned, the
        one that is ranked first."""
        pick = self.chooser.pick(call)
        return pick, self.launched(self._of_batch(call)[0] if pick.is_looped else pick, call, sets)

    def first(self, call: Call, pick: Pick) -> tuple[Pick, ...]:
        """The accurate launches that settling would time, if any; the pick alone where it cannot. Of a batch
        those that are ranked first."""
        if call.gemm.is_batched:
            return tuple(self._of_batch(call))
        problem = Product(call.gemm, call.lds, stored_bytes(call))
        gpu = self._devices.gpu(self.arena.gpu.index)
        try:
            return tuple(self._settler.first(problem, call, gpu, int(self.session.stream)))
        except DispatchError as fault:
            console.note(f"{call.gemm} is not settled, the pick serves: {fault}")
            return (pick,)

    def _of_batch(self, call: Call) -> list[Pick]:
        """Raises DispatchError where the table has none."""
        if not (found := self.chooser.ranked_in_batch(call, NUM_FIRST)):
            raise DispatchError(f"no kernel for batches serves {call.gemm}")
        return found

    def launched(self, chosen: Pick | Chosen, call: Call, sets: Sequence[OperandSet]) -> Runner:
        """A launch of one of the table's kernels. Raises DispatchError for one of another layout: it would
        read operands as they do not lie."""
        chosen = Chosen(chosen.kernel_id, chosen.split_k)
        if (layout := self._kernels[chosen.kernel_id].layout) != call.gemm.layout:
            raise DispatchError(f"{chosen.kernel_id} is for {layout}, not for {call.gemm}")
        only = OnlyOne(self.table, chosen)
        enqueue = self._enqueue(only, self.chooser.core, self._devices, call, sets)
        return Runner(name_of(chosen), enqueue)

    def tuned(self, config: Config, call: Call, sets: Sequence[OperandSet]) -> Runner:
        """A kernel that is not in the table. Raises DispatchError where it may not serve the call."""
        gemm, limits = call.gemm, self.table.limits
        variant = instance.variant(gemm)
        cubin = self.arena.compiler.compile(config, variant)
        resident = int(residency(config, limits, gemm, cubin.registers))
        record = KernelRecord(
            ALONE, config, variant, cubin.sha256, len(cubin.code), None, cubin.registers, resident, None, ""
        )
        kernel = launchable(record, limits, self.table.source_hash, self.table.max_workspace)
        if fault := call.rejection(kernel):
            raise EnvironmentProblem(f"{config} does not serve {call.gemm}: {fault}")
        table = replace(self.table, kernels=(*self.table.kernels, kernel))
        only = OnlyOne(table, Chosen(ALONE, config.split_k))
        devices = Devices(table, {cubin.sha256: cubin.code}, self._driver)
        return Runner(ALONE, self._enqueue(only, only.core, devices, call, sets))

    def cublas(self, call: Call) -> Runner:
        """cublasSgemm in pedantic FP32."""
        return Runner(CUBLAS, partial(self.arena.cublas().sgemm, call.gemm, lds=call.lds))

    def every(self, call: Call) -> list[Chosen]:
        """All launches of the table's kernels that may serve a call."""
        return every_launch(self.table.kernels, call, self.table.limits.num_sms)

    def _make_settler(self) -> Settler:
        blas = BlasProvider(is_on=True)
        known = KnownChoices(self.table, self._kernels, None, is_first_use=False, blas=blas)
        engine = Engine(self.table, {}, self.chooser, self._driver, known, blas)
        engine.devices = self._devices
        return Settler(self.table, engine, self.chooser, known)

    def _enqueue(
        self, only: OnlyOne, core: Core, devices: Devices, call: Call, sets: Sequence[OperandSet]
    ) -> Enqueue:
        """What the runtime does for a call on arrays like these sets, whose addresses are alike aligned."""
        engine = Engine(only.table, {}, only, self._driver, core=core)
        engine.devices = devices
        gemm, (lda, ldb, ldc) = call.gemm, call.lds
        stored_a, stored_b, stored_c = stored(gemm)
        forms = ((*stored_a, lda, 1), (*stored_b, ldb, 1), (*stored_c, ldc, 1))
        index, stream = self.arena.gpu.index, int(self.session.stream)
        first = sets[0].a, sets[0].b, sets[0].c
        batch = call.batch if gemm.is_batched else None
        plan = engine.plan(key_of((index,) * 3, forms, first, gemm.trans_a, gemm.trans_b, batch))

        def enqueue(operands: OperandSet) -> None:
            workspace, addresses = self._workspace.of(plan.grid), (operands.a, operands.b, operands.c)
            with devices.current(plan.gpu):
                engine.launch_all(plan, stream, addresses, 1.0, 0.0, workspace)

        return enqueue

    # ---------------------------------------------------------------------------- time

    def sets(self, call: Call) -> tuple[OperandSet, ...]:
        """Operand sets of a call to rotate among, filled with normal numbers."""
        count = num_sets(call.gemm, self.arena.limits.l2_bytes, self.arena.policy)
        return self.session.pool.sets(stored_bytes(call), count)

    def race(
        self, runners: Sequence[Runner], sets: Sequence[OperandSet], rounds: int, seed: int
    ) -> dict[str, tuple[float, ...]]:
        """Samples in us by name, interleaved: sample r of each was taken in round r."""
        watch = self.session.timer
        for runner in runners:
            for operands in (sets[0], sets[-1]):  # the first loads code
                runner.launch_us = watch.time_once(partial(runner.enqueue, operands))
        samples = watch.race([(r.enqueue, r.launch_us) for r in runners], sets, rounds, seed)
        return {runner.name: found for runner, found in zip(runners, samples, strict=True)}

    def trial_totals(
        self, launches: Sequence[Chosen], call: Call, sets: Sequence[OperandSet]
    ) -> dict[str, float]:
        """Time in us of each launch that is not clearly slower than the best before it, by name."""
        found: dict[str, float] = {}
        for chosen in launches:
            runner = self.launched(chosen, call, sets)
            cutoff_us = CUTOFF * min(found.values()) if found else None
            timing = self.session.timer.probe(runner.enqueue, sets, cutoff_us)
            if not timing.is_cut_short:
                found[runner.name] = timing.time_us
        return found


def stored(gemm: Gemm) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Rows and columns of A, B and C as they are stored."""
    a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
    b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
    return a, b, (gemm.m, gemm.n)


def stored_bytes(call: Call) -> tuple[int, int, int]:
    """What A, B and C reach over."""
    a, b, c = (
        FLOAT_BYTES * ((call.gemm.batch - 1) * stride + (rows - 1) * ld + columns)
        for (rows, columns), ld, stride in zip(stored(call.gemm), call.lds, call.batch[1:], strict=True)
    )
    return a, b, c
