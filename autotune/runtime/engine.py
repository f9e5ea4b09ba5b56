"""Plans launches and makes them: keeps, per kind of call, everything but addresses and scalars.

Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from ..column_major import ColumnMajorCall
from ..gemm import FLOAT_BYTES, SINGLE, Batch, Triple
from ..kernel.launch import (
    EPILOGUE_WORDS,
    NO_LAUNCH,
    PACK_SMEM_BYTES,
    PACK_THREADS,
    PLAIN,
    REDUCE_THREADS,
    SCHEDULE_WORDS,
    Epilogue,
    Grid,
    Pack,
    schedule,
)
from ..kernel.launch import plan as plan_grid
from .arrays import Forms
from .blas_library import BLAS_GRID
from .blas_provider import BlasProvider
from .call_recorder import CallRecorder, recorded_elsewhere
from .choices import KnownChoices
from .chooser import Chooser
from .counting import CallCount, CallCounts, Counted
from .cuda_driver import Driver
from .devices import Devices, Gpus, LoadedKernel, OpenGpu
from .pick import MAX_PLANS, TUNED_ALIGNMENT, Call, Pick, in_splits
from .product import Product, check_aligned, check_launches, common_device, no_scale, understand
from .table import Table

if TYPE_CHECKING:
    from .core_engine import CorePlan
    from .tensor_calls import TensorCalls

_ALIGNMENT_MASK = TUNED_ALIGNMENT - 1

# Arguments of the kernels, as documented at launch.Grid, and where each lies in the packed values.
# Of the epilogue only the bias is ever other than 0: all products of a batch share it.
_EPILOGUE = f"Q{8 * (EPILOGUE_WORDS - 1)}x"
_SGEMM = struct.Struct(f"=iiifQqQqf4xQqQi{SCHEDULE_WORDS}I4xqqqi4x{_EPILOGUE}")
_ALPHA = struct.Struct("=f")
_ALPHA_OFFSET = 12
_SGEMM_OFFSETS = (0, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 84, 144, 176)
_REDUCE = struct.Struct(f"=iiffQqQiiiii4xq{_EPILOGUE}")
_REDUCE_OFFSETS = (0, 4, 8, 12, 16, 24, 32, 40, 44, 48, 52, 56, 64, 72)
_PACK = struct.Struct("=iiQqi4xQiiq")
_PACK_OFFSETS = (0, 4, 8, 16, 24, 32, 40, 44, 48)


# The key of a plan: GPUs, forms and alignment of A, B and C, their flags, the batch, the epilogue
Key = tuple[Triple, Forms, Triple, bool, bool, Batch | None, Epilogue | None]


def key_of(
    devices: Triple,
    forms: Forms,
    addresses: Triple,
    trans_a: bool,
    trans_b: bool,
    batch: Batch | None = None,
    epilogue: Epilogue | None = None,
) -> Key:
    """The key of a call with arrays on these GPUs, of these forms, at these addresses."""
    a, b, c = addresses
    aligned = (a & _ALIGNMENT_MASK, b & _ALIGNMENT_MASK, c & _ALIGNMENT_MASK)
    return devices, forms, aligned, trans_a, trans_b, batch, epilogue


class Plan(NamedTuple):
    """What does not change while shapes, strides, alignment and GPU stay. `kernel` is None if there
    is nothing to launch. `blas` is the call of cuBLAS, if cuBLAS serves: the kernel serves if that fails.
    `loop`: the products of a batch whose kernel is launched once for each. `unsettled` is the call, if
    another launch may turn out to be faster; `key` is the key of the plan. `core`: the same plan of the core,
    if that launches and counts; else `tally` counts."""

    problem: Product
    gpu: OpenGpu
    kernel: LoadedKernel | None
    grid: Grid
    schedule: tuple[int, ...] = (0,) * SCHEDULE_WORDS
    key: Key | None = None
    unsettled: Call | None = None
    blas: ColumnMajorCall | None = None
    core: CorePlan | None = None
    tally: CallCount | None = None
    loop: Batch = SINGLE


class _Arguments(threading.local):
    """Kernel arguments of one thread: packed values, and for each kernel the array of their addresses."""

    def __init__(self) -> None:
        self.sgemm, self._sgemm_pointers = self._make(_SGEMM, _SGEMM_OFFSETS)
        self.reduce, self._reduce_pointers = self._make(_REDUCE, _REDUCE_OFFSETS)
        self.pack, self._pack_pointers = self._make(_PACK, _PACK_OFFSETS)
        self.at_sgemm = ctypes.addressof(self._sgemm_pointers)
        self.at_reduce = ctypes.addressof(self._reduce_pointers)
        self.at_pack = ctypes.addressof(self._pack_pointers)

    @staticmethod
    def _make(layout: struct.Struct, offsets: tuple[int, ...]) -> tuple[Any, Any]:
        values = ctypes.create_string_buffer(layout.size)
        base = ctypes.addressof(values)
        return values, (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))


class Planner:
    """Keeps what serves each kind of call, and counts its calls. Threads may share it."""

    def __init__(self, driver: Driver, devices: Gpus, blas: BlasProvider) -> None:
        self.driver, self.devices, self.blas = driver, devices, blas
        self._plans: dict[Key, Plan] = {}
        self._tallies = CallCounts()
        self._recorder: CallRecorder | None = None

    def plan(
        self,
        devices: Triple,
        forms: Forms,
        addresses: Triple,
        trans_a: bool,
        trans_b: bool,
        batch: Batch | None = None,
        epilogue: Epilogue | None = None,
    ) -> Plan:
        """The plan for a call with arrays on these GPUs, of these forms, at these addresses; of a batch the
        forms of one product.

        Raises DispatchError if the arrays do not fit each other, the table does not fit the GPU, or it lacks
        the epilogue.
        """
        key = key_of(devices, forms, addresses, trans_a, trans_b, batch, epilogue)
        plans = self._plans  # `forget_plans` replaces them
        try:
            found = plans.get(key)
        except TypeError:  # a flag without a hash: it is refused like other invalid flags
            found = None
        if found is None:
            check_aligned(key[2])
            problem = understand(*forms, trans_a, trans_b, batch)
            found = self._make_plan(problem, common_device(devices), key[2], key)
            self.remember(key, found)
        return found

    def remember(self, key: Key, plan: Plan) -> None:
        """Use a plan for all calls of its kind."""
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan

    def counted(self, plan: Plan, addresses: Triple, pick: Pick, epilogue: Epilogue = PLAIN) -> Plan:
        """The same plan, whose calls are counted from now on, and recorded if requested."""
        if self._recorder is not None:
            self._recorder.begin()
        return plan._replace(tally=self._tallies.of(plan.problem, addresses, pick, epilogue))

    def counts(self) -> list[Counted]:
        """How often each kind of call was served so far, even if its plan was dropped."""
        return self._tallies.counts()

    def record(self, file: str) -> None:
        """Write these counts beside a file, as long as calls come. Raises DispatchError if that cannot be
        written, or if they are already written to another."""
        if self._recorder is None:
            self._recorder = CallRecorder(file, self._tallies)
            finalize(self, self._recorder.end)
            if self.counts():
                self._recorder.begin()
        elif self._recorder.file != file:
            raise recorded_elsewhere()

    def tensor_calls(self, is_below_autograd: bool = False) -> TensorCalls | None:
        """What serves torch's tensors without inspecting them in Python, if possible. Below autograd it takes
        tensors of any class, and ignores gradients."""
        return None

    def forget_plans(self) -> None:
        """Plan every kind of call again: its kernel may have changed."""
        self._plans = {}

    def _make_plan(self, problem: Product, device: int, aligned: Triple, key: Key) -> Plan:
        raise NotImplementedError

    def run(
        self, plan: Plan, stream: int, addresses: Triple, alpha: float, beta: float, bias: int = 0
    ) -> None:
        """Enqueue a product with the GPU's primary context current, and restore the caller's. `bias`: the
        address of the vector that the plan's epilogue adds. Does not wait."""
        raise NotImplementedError

    def count(self, plan: Plan) -> None:
        """One call more of its kind."""
        if plan.tally is not None:
            plan.tally.add()
            if self._recorder is not None:
                self._recorder.help()


class Engine(Planner):
    """Launches the kernels of one table, or lets `blas` serve where that is picked. Threads may share it.

    A choice in `known` has priority over the chooser's. `settle` is called before an unsettled plan runs,
    with the plan and its stream; it returns whether another launch may serve from now on.
    """

    devices: Devices

    def __init__(
        self,
        table: Table,
        code: Mapping[str, bytes],
        chooser: Chooser,
        driver: Driver,
        known: KnownChoices | None = None,
        blas: BlasProvider | None = None,
    ) -> None:
        super().__init__(driver, Devices(table, code, driver), blas or BlasProvider(is_on=False))
        self.table = table
        self.settle: Callable[[Plan, int], bool] = lambda plan, stream: False
        self._chooser, self._known = chooser, known
        self._arguments = _Arguments()

    def _make_plan(self, problem: Product, device: int, aligned: Triple, key: Key) -> Plan:
        gpu, gemm = self.devices.gpu(device), problem.gemm
        if not (gemm.m and gemm.n):
            return Plan(problem, gpu, None, NO_LAUNCH)
        problem = self._chooser.served_as(problem, aligned)
        call = Call(problem.gemm, problem.lds, aligned, problem.batch)
        known = self._known
        if known is not None and known.is_first_use:
            known.choices_on(gpu)
        pick = (known and known.pick(call, device)) or self._chooser.pick(call)
        epilogue = key[-1]
        if epilogue is None:
            pick = self.blas.served(pick, call)
        else:
            pick = self.blas.with_epilogue(self._chooser.with_epilogue(pick, epilogue))
        plan = self.counted(self.plan_of(problem, gpu, pick, aligned), aligned, pick, epilogue or PLAIN)
        if known is not None and known.is_open(call, pick):
            return plan._replace(key=key, unsettled=call)
        return plan

    def plan_of(self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple = (0, 0, 0)) -> Plan:
        """The plan of a pick, for operands at addresses that are aligned like these. Raises
        DispatchError if its kernel cannot be loaded."""
        kernel, gemm = self._chooser.kernels[pick.kernel_id], problem.gemm
        spec = in_splits(kernel, pick.split_k)
        batch, loop = (SINGLE, problem.batch) if pick.is_looped else (problem.batch, SINGLE)
        grid = plan_grid(spec, gemm.m, gemm.n, gemm.k, batch)
        blas = self.blas.call(problem) if pick.provider == "cublas" else None
        loaded, walk = self.devices.kernel(gpu, kernel), schedule(spec, grid)
        return Plan(problem, gpu, loaded, grid, walk, blas=blas, loop=loop)

    def run(
        self, plan: Plan, stream: int, addresses: Triple, alpha: float, beta: float, bias: int = 0
    ) -> None:
        """Launch with the GPU's primary context current, and restore the caller's. Does not wait."""
        if plan.unsettled is not None and self.settle(plan, stream):
            key = plan.key
            assert key is not None
            plan = self._make_plan(plan.problem, plan.gpu.device, plan.unsettled.addresses, key)
            self.remember(key, plan)
        if plan.kernel is None:
            return
        self.serve(plan, stream, addresses, alpha, beta, bias)

    def serve(
        self, plan: Plan, stream: int, addresses: Triple, alpha: float, beta: float, bias: int = 0
    ) -> None:
        """As `run`, of a plan with a kernel that is settled."""
        if plan.blas is None or not self._run_blas(plan, plan.blas, stream, addresses, alpha, beta):
            check_launches(plan.loop.products)
            with self.devices.current(plan.gpu):
                launch = partial(self.launch_all, plan, stream, addresses, alpha, beta, bias=bias)
                if plan.grid.scratch_bytes:
                    plan.gpu.workspaces.run(plan.grid, stream, launch)
                else:
                    launch(0)
        self.count(plan)

    def _run_blas(
        self, plan: Plan, call: ColumnMajorCall, stream: int, addresses: Triple, alpha: float, beta: float
    ) -> bool:
        """Let cuBLAS serve; False if the kernel has to."""
        library, gpu = self.blas.library, plan.gpu
        with self.devices.current(gpu):
            handle = None if library is None else library.handle(gpu.device, stream, self.driver)
            if handle is None or not handle.scale(alpha, beta):
                return False
            gpu.workspaces.run(BLAS_GRID, stream, partial(handle.sgemm, call, stream, addresses))
        return True

    def launch_all(
        self,
        plan: Plan,
        stream: int,
        addresses: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int = 0,
    ) -> None:
        """Every launch of a plan that has some, with its workspace at an address: 0 where it needs none. The
        GPU's context must be current."""
        for product in range(plan.loop.products):
            a, b, c = (
                at + FLOAT_BYTES * product * apart for at, apart in zip(addresses, plan.loop[1:], strict=True)
            )
            self._launch_one(plan, stream, (a, b, c), alpha, beta, workspace, bias)

    def _launch_one(
        self,
        plan: Plan,
        stream: int,
        addresses: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int,
    ) -> None:
        """A product, or a batch that is launched at once."""
        kernel = plan.kernel
        assert kernel is not None
        operands, lds = _where_packed(plan, addresses, workspace)
        behind = workspace + plan.grid.pack_bytes
        self._set(plan, operands, lds, alpha, beta, behind, bias)
        if _ALPHA.unpack_from(self._arguments.sgemm, _ALPHA_OFFSET)[0] != 0:  # else A and B are not read
            for pack in plan.grid.packs:
                self._launch_pack(plan, kernel, stream, pack, addresses, workspace + pack.offset)
        self._launch(plan, kernel, stream)
        if plan.grid.reduce_blocks:
            self._launch_reduce(plan, kernel, stream, addresses, alpha, beta, behind, bias)

    def _set(
        self,
        plan: Plan,
        addresses: Triple,
        lds: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int,
    ) -> None:
        """Arguments of `sgemm` for this thread. Raises DispatchError, with nothing launched yet."""
        gemm = plan.problem.gemm
        lda, ldb, ldc = lds
        a, b, c = addresses
        try:
            _SGEMM.pack_into(
                self._arguments.sgemm, 0,
                gemm.m, gemm.n, gemm.k, alpha, a, lda, b, ldb, beta, c, ldc, workspace, plan.grid.split_k,
                *plan.schedule, *plan.grid.strides, plan.grid.products, bias,
            )  # fmt: skip
        except (struct.error, OverflowError, TypeError) as error:
            raise no_scale(alpha, beta, error) from error

    def _launch(self, plan: Plan, kernel: LoadedKernel, stream: int) -> None:
        size, at = plan.grid.size, self._arguments.at_sgemm
        self.driver.launch(kernel.sgemm, size, kernel.threads, kernel.smem_bytes, stream, at, kernel.overlaps)

    def _launch_pack(
        self, plan: Plan, kernel: LoadedKernel, stream: int, pack: Pack, addresses: Triple, to: int
    ) -> None:
        arguments, k = self._arguments, plan.problem.gemm.k
        operand, ld = (x[0 if pack.is_a else 1] for x in (addresses, plan.problem.lds))
        _PACK.pack_into(
            arguments.pack, 0,
            pack.extent, k, operand, ld, pack.is_k_major, to, pack.padded, pack.blocks_per_product,
            pack.stride,
        )  # fmt: skip
        size, at = (pack.blocks, 1), arguments.at_pack
        self.driver.launch(kernel.pack, size, PACK_THREADS, PACK_SMEM_BYTES, stream, at, kernel.overlaps)

    def _launch_reduce(
        self,
        plan: Plan,
        kernel: LoadedKernel,
        stream: int,
        addresses: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int,
    ) -> None:
        arguments, grid, gemm = self._arguments, plan.grid, plan.problem.gemm
        _REDUCE.pack_into(
            arguments.reduce, 0,
            gemm.m, gemm.n, alpha, beta, addresses[2], plan.problem.lds[2], workspace,
            grid.split_k, grid.padded_m, grid.padded_n, grid.reduce_group_bits,
            grid.reduce_blocks_per_product, grid.strides[2], bias,
        )  # fmt: skip
        size, smem_bytes, at = (grid.reduce_blocks, 1), grid.reduce_smem_bytes, arguments.at_reduce
        self.driver.launch(kernel.reduce, size, REDUCE_THREADS, smem_bytes, stream, at, kernel.overlaps)


def _where_packed(plan: Plan, addresses: Triple, workspace: int) -> tuple[Triple, Triple]:
    """Addresses and leading dimensions as `sgemm` gets them: of the copies, where operands are packed."""
    a, b, c = addresses
    lda, ldb, ldc = plan.problem.lds
    for pack in plan.grid.packs:
        if pack.is_a:
            a, lda = workspace + pack.offset, pack.padded
        else:
            b, ldb = workspace + pack.offset, pack.padded
    return (a, b, c), (lda, ldb, ldc)
