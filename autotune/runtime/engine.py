"""Decides what serves a call. The core (core.py) launches it, counts it, and keeps plans for calls that
bypass Python.

Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..facts.gemm import LAYOUTS, SINGLE, Gemm, Triple
from ..kernel.launch import NO_LAUNCH, PLAIN, Epilogue
from ..kernel.launch import plan as plan_grid
from .blas_provider import BlasProvider
from .call_recorder import folder_of
from .choices import KnownChoices
from .chooser import Chooser
from .core import Core
from .core_faults import tell
from .core_structs import BlasCalls, CBatch, CCount, Kind, Planned
from .counting import OTHERS, Counted
from .cuda_driver import Driver
from .devices import Devices, OpenGpu
from .pick import Call, Pick, in_splits
from .planner import Key, Plan, Planner
from .product import Product, no_scale
from .table import Table
from .tensor_calls import TensorCalls, tensor_calls_of
from .variants import numbered, numbered_as, numbers_of

_SPARE = 64  # counts


class CorePlan:
    """A plan of the core, as long as this is held."""

    def __init__(self, core: Core, planned: Any) -> None:
        made = ctypes.c_void_p()
        status = core.library.autotune_make_plan(core.handle, ctypes.byref(planned), ctypes.byref(made))
        if status:
            tell(status, None, None)
        self.address, self._release = made.value, core.library.autotune_release_plan
        self._num_calls = core.library.autotune_tensor_calls
        self._count = core.library.autotune_count_call

    @property
    def num_tensor_calls(self) -> int:
        """How often the core met it in calls of Python's tensors."""
        return int(self._num_calls(self.address))

    def count(self) -> None:
        """Add one to these."""
        self._count(self.address)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address and not sys.is_finalizing():  # threads may be in the middle of a call
            self._release(address)


class Engine(Planner):
    """Plans launches of the kernels of one table, or of cuBLAS where that is picked; the core makes them.
    Threads may share it.

    A choice in `known` has priority over the chooser's. `settle` is called before an unsettled plan runs,
    with the plan and its stream; it returns whether another launch may serve from now on. `core`: of its own,
    instead of the chooser's.
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
        *,
        core: Core | None = None,
    ) -> None:
        super().__init__(driver, Devices(table, code, driver), blas or BlasProvider(is_on=False))
        self.table = table
        self.settle: Callable[[Plan, int], bool] = lambda plan, stream: False
        self._chooser, self._known = chooser, known
        self.core = core or chooser.core
        self._blas_calls: Any = None  # as long as the core may call them
        self._blas_lock = threading.Lock()
        self._numbers = {kernel.id: number for number, kernel in enumerate(table.kernels)}
        if driver.core_calls is not None:  # a double's
            self.core.library.autotune_use_driver(self.core.handle, ctypes.byref(driver.core_calls))

    def _make_plan(self, problem: Product, device: int, aligned: Triple, key: Key) -> Plan:
        gpu, gemm = self.devices.gpu(device), problem.gemm
        if not (gemm.m and gemm.n):
            return Plan(problem, gpu, NO_LAUNCH)
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
        plan = self.plan_of(problem, gpu, pick, aligned)
        if known is not None and known.is_open(call, pick):
            return plan._replace(key=key, unsettled=call)
        return plan

    def plan_of(self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple = (0, 0, 0)) -> Plan:
        """The plan of a pick, for operands at addresses that are aligned like these. Raises
        DispatchError if its kernel cannot be loaded."""
        kernel, gemm = self._chooser.kernels[pick.kernel_id], problem.gemm
        batch, loop = (SINGLE, problem.batch) if pick.is_looped else (problem.batch, SINGLE)
        grid = plan_grid(in_splits(kernel, pick.split_k), gemm.m, gemm.n, gemm.k, batch)
        blas = self.blas.call(problem) if pick.provider == "cublas" else None
        loaded = self.devices.kernel(gpu, kernel)
        if blas is not None:
            self._use_blas()
        planned = Planned(
            m=gemm.m, n=gemm.n, k=gemm.k, layout=LAYOUTS.index(gemm.layout), ld=problem.lds,
            kernel=self._numbers[pick.kernel_id], split_k=pick.split_k, is_cublas=blas is not None,
            device=gpu.device, num_bytes=problem.num_bytes, context=gpu.context, sgemm=loaded.sgemm,
            reduce=loaded.reduce, pack=loaded.pack, low=addresses, is_looped=pick.is_looped,
            batch=CBatch.of(problem.batch), **numbered(self.asked(pick)),
        )  # fmt: skip
        return Plan(problem, gpu, grid, blas=blas, core=CorePlan(self.core, planned), loop=loop)

    def asked(self, pick: Pick) -> Epilogue:
        """The epilogue that calls of this pick ask for."""
        return self._chooser.kernels[pick.kernel_id].variant.epilogue

    def remember(self, key: Key, plan: Plan) -> None:
        super().remember(key, plan)
        if plan.core is not None and plan.unsettled is None:
            kind = core_kind(key)
            self.core.library.autotune_remember(self.core.handle, ctypes.byref(kind), plan.core.address)

    def counts(self) -> list[Counted]:
        room, num, rows = 0, 1, (CCount * 0)()
        while num > room:  # more may have come since
            room = num + _SPARE
            rows = (CCount * room)()
            num = self.core.library.autotune_counts(self.core.handle, rows, room)
        return [self._counted(row) for row in rows[:num]]

    def _counted(self, row: Any) -> Counted:
        if not row.m:
            return OTHERS._replace(calls=row.calls)
        layout, kernel = LAYOUTS[row.layout], self.table.kernels[row.kernel]
        gemm = Gemm(
            *(row.m, row.n, row.k, layout[0] == "T", layout[1] == "T"),
            *(row.products, row.shared == 1, row.shared == 2),
        )
        return Counted(
            gemm, tuple(row.ld), tuple(row.alignment), numbered_as(row.bias, row.activation), kernel.id,
            row.split_k,
            "cublas" if row.is_cublas else "autotune", row.calls,
        )  # fmt: skip

    def record(self, file: str) -> None:
        folder_of(file)  # says why it cannot be written
        if status := self.core.library.autotune_record_calls(self.core.handle, os.fsencode(file)):
            tell(status, None, None)

    def tensor_calls(self, is_below_autograd: bool = False) -> TensorCalls | None:
        return tensor_calls_of(self.core, is_below_autograd)

    def forget_plans(self) -> None:
        super().forget_plans()
        self.core.library.autotune_forget(self.core.handle)

    def run(
        self, plan: Plan, stream: int, addresses: Triple, alpha: float, beta: float, bias: int = 0
    ) -> None:
        """Launch with the GPU's primary context current, and restore the caller's. Does not wait."""
        if plan.unsettled is not None and self.settle(plan, stream):
            key = plan.key
            assert key is not None
            plan = self._make_plan(plan.problem, plan.gpu.device, plan.unsettled.addresses, key)
            self.remember(key, plan)
        if plan.core is not None:
            self._call(self.core.library.autotune_run_plan, plan, stream, (*addresses, bias), alpha, beta)

    def _use_blas(self) -> None:
        """Let the core call cuBLAS, too, as soon as cuBLAS is found."""
        library = self.blas.library
        with self._blas_lock:  # what the core was told of must not be freed by another that tells it
            if library is not None and self._blas_calls is None:
                self._blas_calls = _blas_calls(library.functions)
                self.core.library.autotune_use_blas(self.core.handle, ctypes.byref(self._blas_calls))

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
        function, at = self.core.library.autotune_launch_plan, (*addresses, bias)
        self._call(function, plan, stream, at, alpha, beta, workspace)

    def _call(
        self,
        function: Any,
        plan: Plan,
        stream: int,
        addresses: tuple[int, int, int, int],
        alpha: Any,
        beta: Any,
        *workspace: int,
    ) -> None:
        assert plan.core is not None
        at = (self.core.handle, plan.core.address, stream, *addresses)
        try:
            status = function(*at, alpha, beta, *workspace)
        except ctypes.ArgumentError as error:
            raise no_scale(alpha, beta, error) from error
        if status:
            tell(status, alpha, beta, self.blas.version or "", f"GPU {plan.gpu.device}")


def _blas_calls(functions: Mapping[str, Any]) -> Any:
    """For the core: other callables than C functions are wrapped."""
    kinds = (kind for _, kind in BlasCalls._fields_)
    calls = zip(kinds, functions.values(), strict=True)
    return BlasCalls(*(kind(_address(function) or function) for kind, function in calls))


def _address(function: Any) -> int | None:
    """Of a function of a library; None of another."""
    return ctypes.cast(function, ctypes.c_void_p).value if hasattr(function, "argtypes") else None


def core_kind(key: Key) -> Any:
    """autotune_kind of calls that are planned so."""
    devices, (a, b, c), low, trans_a, trans_b, batch, epilogue = key
    m, n = a[1 if trans_a else 0], b[0 if trans_b else 1]
    forms = zip(a, b, c or (m, n, max(n, 1), 1), strict=True)
    of_batch, flags = CBatch.of(batch or SINGLE), (int(trans_a), int(trans_b))
    return Kind(*forms, of_batch, devices, low, *flags, *numbers_of(epilogue or PLAIN))
