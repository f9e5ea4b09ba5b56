"""Keeps, per kind of call, all that does not change between calls: everything but addresses and scalars.

Copied into exported tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..facts.column_major import ColumnMajorCall
from ..facts.gemm import SINGLE, Batch, Triple
from ..kernel.launch import Epilogue, Grid
from .arrays import Forms
from .blas_provider import BlasProvider
from .counting import CallCount, Counted
from .cuda_driver import Driver
from .devices import Gpus, OpenGpu
from .pick import MAX_PLANS, TUNED_ALIGNMENT, Call
from .product import Product, check_aligned, common_device, understand

if TYPE_CHECKING:
    from .engine import CorePlan
    from .tensor_calls import TensorCalls

_ALIGNMENT_MASK = TUNED_ALIGNMENT - 1

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
    """What does not change while shapes, strides, alignment and GPU stay. `blas` is the call of cuBLAS, if
    cuBLAS serves: the kernel serves if that fails. `loop`: the products of a batch whose kernel is launched
    once for each. `unsettled` is the call, if another launch may turn out to be faster; `key` is the key of
    the plan. `core`: the same plan of the core, which launches and counts it; None if there is nothing to
    launch, or no table: then `tally` counts."""

    problem: Product
    gpu: OpenGpu
    grid: Grid
    key: Key | None = None
    unsettled: Call | None = None
    blas: ColumnMajorCall | None = None
    core: CorePlan | None = None
    tally: CallCount | None = None
    loop: Batch = SINGLE


class Planner:
    """Keeps what serves each kind of call. Threads may share it."""

    def __init__(self, driver: Driver, devices: Gpus, blas: BlasProvider) -> None:
        self.driver, self.devices, self.blas = driver, devices, blas
        self._plans: dict[Key, Plan] = {}

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

    def counts(self) -> list[Counted]:
        """How often each kind of call was served so far, even if its plan was dropped."""
        raise NotImplementedError

    def record(self, file: str) -> None:
        """Write these counts beside a file, as long as calls come. Raises DispatchError if that cannot be
        written, or if they are already written to another."""
        raise NotImplementedError

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
