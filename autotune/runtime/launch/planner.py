"""Keeps what serves each call signature as a plan, which the core (core.py) launches, counts and records. The
core keeps it too, for calls that bypass Python. Of a routed program's calls a few launches, and torch's own
kernel, may serve in turn, until it is known what serves best (core/live.h)."""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...facts.cublas_calls import WORKSPACE_BYTES
from ...facts.gemm import A_TYPES, MAX_EXTENT, SINGLE, TYPED_LAYOUTS, Batch, Gemm, Triple
from ...files.errors import DispatchError
from ...kernel.launch import ACTIVATIONS, BIASES, NO_LAUNCH, PLAIN, Epilogue, Grid
from ...kernel.launch import plan as plan_grid
from ..calls.product import MAX_PLANS, Forms, Product, check_aligned, common_device, no_scale, read_operands
from ..choose.blas_provider import BlasProvider
from ..choose.chooser import OTHERS, TUNED_ALIGNMENT, Call, Chooser, Counted, Pick, in_splits
from ..native.core import Core, core_of, numbered, tell
from ..settle.choices import KnownChoices
from ..table.table import Table
from ..torch.tensor_calls import TensorCalls, tensor_calls_of
from .cuda_driver import Driver
from .devices import Devices, Gpus, OpenGpu

_ALIGNMENT_MASK = TUNED_ALIGNMENT - 1
_SPARE = 64  # counts

# Of a plan: GPUs, forms and alignment of A, B and C, their flags, the batch, the type of A, the epilogue
Key = tuple[Triple, Forms, Triple, bool, bool, Batch | None, str, Epilogue | None]


def key_of(
    devices: Triple,
    forms: Forms,
    addresses: Triple,
    trans_a: bool,
    trans_b: bool,
    batch: Batch | None = None,
    epilogue: Epilogue | None = None,
    a_type: str = A_TYPES[0],
) -> Key:
    """The key of a call with arrays on these GPUs, of these forms, at these addresses."""
    a, b, c = addresses
    aligned = (a & _ALIGNMENT_MASK, b & _ALIGNMENT_MASK, c & _ALIGNMENT_MASK)
    return devices, forms, aligned, trans_a, trans_b, batch, a_type, epilogue


class CorePlan:
    """A plan of the core, as long as this is held."""

    def __init__(self, core: Core, planned: Any) -> None:
        made = ctypes.c_void_p()
        if status := core.library.autotune_make_plan(core.handle, ctypes.byref(planned), ctypes.byref(made)):
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

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:  # the module may end first
        address = getattr(self, "address", None)
        if address and not is_ending():  # threads may be in the middle of a call
            self._release(address)


class Plan(NamedTuple):
    """What does not change while shapes, strides, alignment and GPU stay. `is_cublas`: cuBLAS serves, and the
    kernel, if there is one, where that fails. `loop`: the products of a batch whose kernel is launched
    once for each. `open_call` is the call, if another launch may turn out to be faster; `key` is the key of
    the plan. `core`: the same plan of the core; None if there is nothing to launch."""

    problem: Product
    gpu: OpenGpu
    grid: Grid
    key: Key | None = None
    open_call: Call | None = None
    is_cublas: bool = False
    core: CorePlan | None = None
    loop: Batch = SINGLE


class Planner:
    """Plans calls; the core launches them. Threads may share it. `kernel_ids`: of the core's table."""

    def __init__(
        self, core: Core, driver: Driver, devices: Gpus, blas: BlasProvider, kernel_ids: Sequence[str] = ()
    ) -> None:
        self.core, self.driver, self.devices, self.blas = core, driver, devices, blas
        self._kernel_ids = kernel_ids
        self._plans: dict[Key, Plan] = {}
        self._blas_calls: Any = None  # as long as the core may call them
        self._blas_lock = threading.Lock()
        if driver.core_calls is not None:  # a double's
            core.library.autotune_use_driver(core.handle, ctypes.byref(driver.core_calls))

    def plan(self, key: Key) -> Plan:
        """The plan for calls of this key; of a batch the forms are those of one product. Raises DispatchError
        if the arrays do not fit each other, the table does not fit the GPU, or it lacks the epilogue."""
        plans = self._plans  # `forget_plans` replaces them
        try:
            found = plans.get(key)
        except TypeError:  # a flag without a hash: it is refused like other invalid flags
            found = None
        if found is None:
            devices, forms, aligned, trans_a, trans_b, batch, a_type, _ = key
            check_aligned(aligned, a_type)
            problem = read_operands(*forms, trans_a, trans_b, batch, a_type)
            found = self._make_plan(problem, common_device(devices), key)
            self.remember(key, found)
        return found

    def _make_plan(self, problem: Product, device: int, key: Key) -> Plan:
        raise NotImplementedError

    def core_plan(self, problem: Product, device: int, addresses: Triple, **others: Any) -> CorePlan:
        """Of a product, or a batch; `others`: what else autotune_planned (core/plan.h) holds."""
        gemm = problem.gemm
        extents = {"m": gemm.m, "n": gemm.n, "k": gemm.k} | others
        planned = self.core.library.structs.planned(
            **extents, layout=TYPED_LAYOUTS.index(gemm.layout), device=device, ld=problem.lds,
            num_bytes=problem.num_bytes, batch=_batch(problem.batch), low=addresses,
        )  # fmt: skip
        return CorePlan(self.core, planned)

    def _as_read(self, problem: Product, gpu: OpenGpu) -> tuple[Product, dict[str, int]]:
        """A product as kernels of FP32 and cuBLAS read it, and what a plan of the core holds of an A that is
        converted before; nothing for one of FP32."""
        if problem.gemm.is_float:
            return problem, {}
        stride = problem.batch.stride_a
        others = {
            "from_type": A_TYPES.index(problem.gemm.a_type), "from_ld": problem.lds[0], "from_stride": stride,
            "upcast": self.devices.upcast(gpu, self.core.upcast_code),
        }  # fmt: skip
        return problem.converted(), others

    def blas_plan(self, problem: Product, gpu: OpenGpu, addresses: Triple = (0, 0, 0)) -> Plan:
        """Of cuBLAS, which may serve it (BlasProvider), and no kernel beside it."""
        self._use_blas()
        problem, others = self._as_read(problem, gpu)
        core = self.core_plan(
            problem, gpu.device, addresses, kernel=self.core.library.numbers.ONLY_BLAS, split_k=1,
            is_cublas=True, context=gpu.context, **others,
        )  # fmt: skip
        grid = NO_LAUNCH._replace(sum_bytes=WORKSPACE_BYTES)
        return Plan(problem, gpu, grid, is_cublas=True, core=core)

    def remember(self, key: Key, plan: Plan) -> None:
        """Use a plan for all calls of its kind."""
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        if plan.core is not None and plan.open_call is None:
            self.remember_in_core(key, plan.core.address)

    def remember_in_core(self, key: Key, address: int | None) -> None:
        """Use the core's plan at an address for all calls that reach it of this kind."""
        kind = self.core.library.structs.kind(**_kind(key))
        self.core.library.autotune_remember(self.core.handle, ctypes.byref(kind), address)

    def forget_plans(self) -> None:
        """Plan every call signature again: its kernel may have changed."""
        self._plans = {}
        self.core.library.autotune_forget(self.core.handle)

    def counts(self) -> list[Counted]:
        """How often each call signature was served so far, even if its plan was dropped."""
        library, room, num = self.core.library, 0, 1
        rows: Sequence[Any] = ()
        while num > room:  # more may have come since
            room = num + _SPARE
            rows = (library.structs.count * room)()
            num = library.autotune_counts(self.core.handle, rows, room)
        return [self._counted(row) for row in rows[:num]]

    def _counted(self, row: Any) -> Counted:
        if not row.m:
            return OTHERS._replace(calls=row.calls)
        of_batch = row.products, row.shared == 1, row.shared == 2
        gemm = Gemm.of_layout(TYPED_LAYOUTS[row.layout], row.m, row.n, row.k, *of_batch)
        return Counted(
            gemm, tuple(row.ld), tuple(row.alignment),
            Epilogue(BIASES[row.bias], ACTIVATIONS[row.activation]),
            "" if row.kernel == self.core.library.numbers.ONLY_BLAS else self._kernel_ids[row.kernel],
            row.split_k, "cublas" if row.is_cublas else "autotune", row.calls,
        )  # fmt: skip

    def record(self, file: str) -> None:
        """Write these counts beside a file, as long as calls come. Raises DispatchError if that cannot be
        written, or if they are already written to another."""
        if status := self.core.library.autotune_record_calls(self.core.handle, os.fsencode(file)):
            tell(status, None, None)

    def tensor_calls(self, is_below_autograd: bool = False) -> TensorCalls | None:
        """What serves torch's tensors without inspecting them in Python, if possible. Below autograd it takes
        tensors of any class, and ignores gradients."""
        return tensor_calls_of(self.core, is_below_autograd)

    def run(
        self, plan: Plan, stream: int, addresses: Triple, alpha: float, beta: float, bias: int = 0
    ) -> None:
        """Enqueue a product with the GPU's primary context current, and restore the caller's. `bias`: the
        address of the vector that the plan's epilogue adds. Does not wait, but where the plan is settled."""
        if plan.open_call is not None:
            plan = self._settled(plan, stream)
        if plan.core is not None:
            self._call(self.core.library.autotune_run_plan, plan, stream, (*addresses, bias), alpha, beta)

    def _settled(self, plan: Plan, stream: int) -> Plan:
        """The plan that serves from now on."""
        raise NotImplementedError

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

    def _use_blas(self) -> None:
        """Let the core call cuBLAS, too, as soon as cuBLAS is found."""
        library = self.blas.library
        with self._blas_lock:  # what the core was told of must not be freed by another that tells it
            if library is not None and self._blas_calls is None:
                self._blas_calls = _blas_calls(self.core.library.structs.blas, library.functions)
                self.core.library.autotune_use_blas(self.core.handle, ctypes.byref(self._blas_calls))


def _blas_calls(struct: Any, functions: Mapping[str, Any]) -> Any:
    """autotune_blas (core/blas.h): other callables than C functions are wrapped."""
    kinds = (kind for _, kind in struct._fields_)
    calls = zip(kinds, functions.values(), strict=True)
    return struct(*(kind(_address(function) or function) for kind, function in calls))


def _address(function: Any) -> int | None:
    """Of a function of a library; None of another."""
    return ctypes.cast(function, ctypes.c_void_p).value if hasattr(function, "argtypes") else None


def _batch(batch: Batch) -> tuple[int, Triple]:
    """autotune_batch."""
    return batch.products, batch[1:]


def _kind(key: Key) -> dict[str, Any]:
    """autotune_kind (core/plan.h) of calls that are planned so."""
    devices, (a, b, c), low, trans_a, trans_b, batch, a_type, epilogue = key
    m, n = a[1 if trans_a else 0], b[0 if trans_b else 1]
    forms = zip(a, b, c or (m, n, max(n, 1), 1), strict=True)
    sides = dict(zip(("rows", "columns", "by_row", "by_column"), forms, strict=True))
    flags = {"trans_a": int(trans_a), "trans_b": int(trans_b)} | numbered(epilogue or PLAIN)
    of = {"batch": _batch(batch or SINGLE), "devices": devices, "low": low, "a_type": A_TYPES.index(a_type)}
    return sides | flags | of


class Engine(Planner):
    """Plans launches of the kernels of one table, or of cuBLAS where that is picked. Threads may share it.

    A choice in `known` has priority over the chooser's. `settle` is called before an unsettled plan runs,
    with the plan and its stream; it returns whether another launch may serve from now on. `adds_bias`: if the
    cuBLAS that may serve a product adds a vector to it; `allowed`: as of `Chooser.pick`. `core`: its own."""

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
        self.table, self._chooser, self._known = table, chooser, known
        self.settle: Callable[[Plan, int], bool] = lambda plan, stream: False
        self.adds_bias: Callable[[Gemm], bool] = lambda gemm: False
        self.allowed: Callable[[Call, OpenGpu], Any] = lambda call, gpu: None
        self._numbers = {kernel_id: number for number, kernel_id in enumerate(ids)}

    def _make_plan(self, problem: Product, device: int, key: Key) -> Plan:
        gpu, gemm, aligned, epilogue = self.devices.gpu(device), problem.gemm, key[2], key[-1]
        if not (gemm.m and gemm.n):
            return Plan(problem, gpu, NO_LAUNCH)
        if not gemm.is_float:
            return self._mixed_plan(problem, gpu, aligned, epilogue)
        problem = self._chooser.served_as(problem, aligned)
        call = Call(problem.gemm, problem.lds, aligned, problem.batch)
        if (known := self._known) is not None and known.is_first_use:
            known.choices_on(gpu)
        own = call._replace(adds_bias=self.adds_bias(gemm), has_epilogue=epilogue is not None)
        pick = (known and known.pick(call, device)) or self._chooser.pick(own, self.allowed(own, gpu))
        is_open = known is not None and known.is_open(call, pick, device)
        if epilogue is None:
            pick = self.blas.served(pick, call, device)
        else:
            pick = self.blas.with_epilogue(self._chooser.with_epilogue(pick, epilogue))
        plan = self.plan_of(problem, gpu, pick, aligned)
        return plan._replace(key=key, open_call=call) if is_open else plan

    def _mixed_plan(self, problem: Product, gpu: OpenGpu, aligned: Triple, epilogue: Epilogue | None) -> Plan:
        """Of an A of BF16 or FP16: by a kernel that reads it as it is, or once it is converted."""
        served = self._chooser.served_as(problem, aligned)
        pick = self._chooser.reading(Call(served.gemm, served.lds, aligned, served.batch))
        if pick is not None and epilogue is not None:
            pick = self._chooser.find_epilogue(pick, epilogue)
        if pick is not None:
            return self.plan_of(served, gpu, pick, aligned)
        problem, others = self._as_read(problem, gpu)
        aligned = (0, *aligned[1:])
        call = Call(problem.gemm, problem.lds, aligned, problem.batch, has_epilogue=epilogue is not None)
        pick = self._chooser.pick(call)
        if epilogue is None:
            pick = self.blas.served(pick, call, gpu.device)
        else:
            pick = self.blas.with_epilogue(self._chooser.with_epilogue(pick, epilogue))
        return self.plan_of(problem, gpu, pick, aligned, **others)

    def plan_of(
        self, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple = (0, 0, 0), **others: int
    ) -> Plan:
        """The plan of a pick, for operands at addresses that are aligned like these. `others`: of an A that
        is converted before. Raises DispatchError if its kernel cannot be loaded."""
        kernel, gemm = self._chooser.kernels[pick.kernel_id], problem.gemm
        batch, loop = (SINGLE, problem.batch) if pick.is_looped else (problem.batch, SINGLE)
        grid = plan_grid(in_splits(kernel, pick.split_k), gemm.m, gemm.n, gemm.k, batch)
        is_cublas, loaded = pick.provider == "cublas", self.devices.kernel(gpu, kernel)
        if is_cublas:
            self._use_blas()
        core = self.core_plan(
            problem, gpu.device, addresses, kernel=self._numbers[pick.kernel_id], split_k=pick.split_k,
            is_cublas=is_cublas, is_looped=pick.is_looped, context=gpu.context, sgemm=loaded.sgemm,
            reduce=loaded.reduce, pack=loaded.pack, **numbered(self.requested(pick)), **others,
        )  # fmt: skip
        return Plan(problem, gpu, grid, is_cublas=is_cublas, core=core, loop=loop)

    def requested(self, pick: Pick) -> Epilogue:
        """The epilogue that calls of this pick ask for."""
        return self._chooser.kernels[pick.kernel_id].variant.epilogue

    def _settled(self, plan: Plan, stream: int) -> Plan:
        if not self.settle(plan, stream):
            return plan
        key = plan.key
        assert key is not None
        plan = self._make_plan(plan.problem, plan.gpu.device, key)
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

    def _make_plan(self, problem: Product, device: int, key: Key) -> Plan:
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
        return self.blas_plan(problem, gpu, key[2])


# What limited the program while it was sampled, as core/live.h numbers it
REGIMES = ("the GPU", "the host")
# What became of the last sample, likewise
OUTCOMES = (
    "no call was due for a sample yet",
    "the calls so far have not paid for the next sample",
    "the GPU has not passed the last sample",
    "the stream was busy first and idle then",
    "the stream was captured",
    "the product failed",
    "the driver refused the sample",
    "samples spread",
)


class LiveState(NamedTuple):
    """What is known of a call signature. `times_us`: median times of the GPU and of the host, by each of
    `LivePlan.rivals`; 0 without a sample. `is_dropped`: samples spread too far, or too few were alike.
    `reason`: why it is not settled or was dropped, of which `fault` is the CUresult; "": it is settled.
    `calls_left`: until the next sample."""

    is_settled: bool
    is_dropped: bool
    winner: int
    limited_by: str
    num_samples: int
    times_us: tuple[tuple[float, float], ...]
    reason: str = ""
    fault: int = 0
    calls_left: int = 0


class LivePlan:
    """A plan of the core whose calls are served in turn by `rivals`, the first of which serves where no turns
    are taken. `expected_us`: of a call of each, 0 where unknown. `kept`: the number of the one that has won
    in an earlier process, what limited that, and the number of samples."""

    def __init__(
        self,
        core: Core,
        rivals: Sequence[CorePlan],
        expected_us: Sequence[float],
        kept: tuple[int, str, int] | None = None,
    ) -> None:
        self._library, self.rivals, self.kept = core.library, tuple(rivals), kept
        addresses = (ctypes.c_void_p * len(rivals))(*(plan.address for plan in rivals))
        expected = (ctypes.c_double * len(rivals))(*expected_us)
        made, seed = ctypes.c_void_p(), secrets.randbits(63)  # Python's own generator is the program's
        winner = kept[0] if kept else -1
        status = self._library.autotune_make_live(
            core.handle, addresses, len(rivals), expected, seed, winner, ctypes.byref(made)
        )
        if status:
            tell(status, None, None)
        self.address = made.value

    def state(self) -> LiveState:
        found = self._library.structs.live_state()
        self._library.autotune_tell_live(self.address, ctypes.byref(found))
        times_us = zip(found.gpu_us, found.host_us, strict=True)
        reason = "" if found.is_settled and not found.is_dropped else OUTCOMES[found.outcome]
        if reason and found.outcome == self._library.numbers.AT_REFUSED:
            reason += f" (CUresult {found.fault})"
        _, limited_by, num_samples = self.kept or (0, REGIMES[found.regime], found.num_samples)
        return LiveState(
            bool(found.is_settled), bool(found.is_dropped), found.winner, limited_by,
            num_samples, tuple(times_us)[: found.num_rivals], reason, found.fault, found.calls_left,
        )  # fmt: skip

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:  # the module may end first
        address = getattr(self, "address", None)
        if address and not is_ending():  # threads may be in the middle of a call
            self._library.autotune_release_plan(address)
