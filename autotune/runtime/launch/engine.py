"""Decides what serves a call: a table, or cuBLAS alone on a GPU without one. Copied into exported tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ...facts.gemm import MAX_EXTENT, SINGLE, Gemm, Triple
from ...files.errors import DispatchError
from ...kernel.launch import NO_LAUNCH, Epilogue
from ...kernel.launch import plan as plan_grid
from ..calls.product import Product
from ..choose.blas_provider import BlasProvider
from ..choose.chooser import Call, Chooser, Pick, in_splits
from ..native.core import Core, core_of, numbered
from ..settle.choices import KnownChoices
from ..table.table import Table
from .cuda_driver import Driver
from .devices import Devices, Gpus, OpenGpu
from .planner import Key, Plan, Planner


class Engine(Planner):
    """Plans launches of the kernels of one table, or of cuBLAS where that is picked. Threads may share it.

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
        blas, ids = blas or BlasProvider(is_on=False), [kernel.id for kernel in table.kernels]
        super().__init__(core or chooser.core, driver, Devices(table, code, driver), blas, ids)
        self.table = table
        self.settle: Callable[[Plan, int], bool] = lambda plan, stream: False
        self._chooser, self._known = chooser, known
        self._numbers = {kernel_id: number for number, kernel_id in enumerate(ids)}

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
        is_open = known is not None and known.is_open(call, pick, device)
        epilogue = key[-1]
        if epilogue is None:
            pick = self.blas.served(pick, call, device)
        else:
            pick = self.blas.with_epilogue(self._chooser.with_epilogue(pick, epilogue))
        plan = self.plan_of(problem, gpu, pick, aligned)
        if is_open:
            return plan._replace(key=key, open_call=call)
        return plan

    def plan_of(self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple = (0, 0, 0)) -> Plan:
        """The plan of a pick, for operands at addresses that are aligned like these. Raises
        DispatchError if its kernel cannot be loaded."""
        kernel, gemm = self._chooser.kernels[pick.kernel_id], problem.gemm
        batch, loop = (SINGLE, problem.batch) if pick.is_looped else (problem.batch, SINGLE)
        grid = plan_grid(in_splits(kernel, pick.split_k), gemm.m, gemm.n, gemm.k, batch)
        is_cublas, loaded = pick.provider == "cublas", self.devices.kernel(gpu, kernel)
        if is_cublas:
            self._use_blas()
        core = self.core_plan(
            problem, gpu.device, addresses, kernel=self._numbers[pick.kernel_id], split_k=pick.split_k,
            is_cublas=is_cublas, is_looped=pick.is_looped, context=gpu.context, sgemm=loaded.sgemm,
            reduce=loaded.reduce, pack=loaded.pack, **numbered(self.requested(pick)),
        )  # fmt: skip
        return Plan(problem, gpu, grid, is_cublas=is_cublas, core=core, loop=loop)

    def requested(self, pick: Pick) -> Epilogue:
        """The epilogue that calls of this pick ask for."""
        return self._chooser.kernels[pick.kernel_id].variant.epilogue

    def _settled(self, plan: Plan, stream: int) -> Plan:
        if not self.settle(plan, stream):
            return plan
        key, open_call = plan.key, plan.open_call
        assert key is not None and open_call is not None
        plan = self._make_plan(plan.problem, plan.gpu.device, open_call.addresses, key)
        self.remember(key, plan)
        return plan


def blas_pick(gemm: Gemm) -> Pick:
    """What serves any product here."""
    text = partial(str, f"no table is for this GPU: cuBLAS serves {gemm}")
    return Pick("", "default", text, 1, provider="cublas")


class BlasEngine(Planner):
    """Has cuBLAS (pedantic FP32) serve every product on any GPU. Threads may share it."""

    def __init__(self, driver: Driver, blas: BlasProvider) -> None:
        super().__init__(core_of(None), driver, Gpus(driver), blas)

    def _make_plan(self, problem: Product, device: int, aligned: Triple, key: Key) -> Plan:
        if key[-1] is not None:
            raise DispatchError(
                f"no table is for GPU {device}, which cuBLAS serves: it adds no bias and applies no "
                "activation; add them yourself, or tune on this GPU and add its table with `autotune "
                "export-table --add`"
            )
        gpu, gemm = self.devices.gpu(device), problem.gemm
        if self.blas.library is None:
            raise DispatchError(
                f"no table is for GPU {device}, and no cuBLAS can be loaded to serve it; install "
                "nvidia-cublas, or tune on this GPU and add its table with `autotune export-table --add`"
            )
        if max(problem.lds) > MAX_EXTENT:
            raise DispatchError(f"cuBLAS takes no rows {max(problem.lds)} elements apart; pass packed copies")
        if not (gemm.m and gemm.n):
            return Plan(problem, gpu, NO_LAUNCH)
        return self.blas_plan(problem, gpu, aligned)
