"""Products of arrays of any library, as far as the core does not read these itself: read, planned, enqueued.

All that is passed to a call comes through one door, `Products._read`. Arrays of NumPy are copied to a GPU,
multiplied there and copied back. `Engines` finds the engine for a GPU: that of the table for its model, or
cuBLAS, or none.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ...facts.gemm import FLOAT_BYTES, FP32, Triple
from ...files.errors import DispatchError, DispatchWarning
from ...kernel.launch import Epilogue
from ..choose.blas_provider import BlasProvider
from ..choose.chooser import requested
from ..launch.cuda_driver import PER_THREAD_STREAM, Driver
from ..launch.devices import first_served, gpu_model_here
from ..launch.planner import BlasEngine, Plan, Planner, key_of
from ..served_model import ServedModel
from ..table.gpu_models import GpuModel, no_table
from ..torch.routed_engine import RoutedEngine, RoutedSignatures
from .arrays import BIAS_ROLE, Libraries, Library
from .product import (
    MAX_PLANS,
    NO_DEVICE,
    Fallback,
    Form,
    Forms,
    Leading,
    Stack,
    UnsupportedStrides,
    check_apart,
    check_launches,
    check_overlap,
    check_products_apart,
    common_device,
    packed_form,
    stacked,
)

_LeadingDims = tuple[Leading, Leading, Leading | None]
_Array = np.ndarray[Any, np.dtype[np.float32]]
_NO_FORM = (1, 0, 1, 1)


class Added(NamedTuple):
    """`library`, `address`, `device` and `form` are those of `bias`; without one, no library."""

    epilogue: Epilogue
    bias: Any = None
    library: Library | None = None
    address: int = 0
    device: int = NO_DEVICE
    form: Form = _NO_FORM

    @classmethod
    def of(cls, libraries: Libraries, bias: Any, activation: str | None) -> Added | None:
        """None for a plain product. Raises DispatchError for another array, or what is no activation."""
        epilogue = requested(bias is not None, activation)
        if epilogue is None or bias is None:
            return None if epilogue is None else cls(epilogue)
        library = libraries.of(bias, BIAS_ROLE)
        address, device, form, _ = library.describe(bias, BIAS_ROLE)
        return cls(epilogue, bias, library, address, device, form)

    def check(self, columns: int, device: int) -> None:
        """Raises DispatchError if the bias does not fit this number of columns of C, on this GPU."""
        if self.library is None:
            return
        _, length, _, stride = self.form
        if length != columns:
            raise DispatchError(f"bias has {length} elements, expected {columns}: one for each column of out")
        is_copied = self.library.is_host
        if not is_copied and ((length > 1 and stride != 1) or self.address % FLOAT_BYTES):
            raise DispatchError(
                f"bias has elements {stride} floats apart, at {self.address % FLOAT_BYTES} bytes beyond a "
                "whole float; pass a contiguous copy"
            )
        if self.device not in (device, NO_DEVICE):
            raise DispatchError(f"bias is on GPU {self.device}, the product on GPU {device}; move it there")

    def check_apart(self, address: int, num_bytes: int) -> None:
        """Raises DispatchError if C, of this many bytes, shares a range of addresses with the bias."""
        own = FLOAT_BYTES * self.form[1]
        check_overlap((self.address, self.address, address), (own, own, num_bytes))


# The arrays a, b and out of a call as they lie, with their libraries, GPUs, addresses, forms and leading
# dimensions, and what the call adds. A plain tuple: made for each call
_Operands = tuple[
    tuple[Any, Any, Any], tuple[Library, Library, Library], Triple, Triple, Forms, _LeadingDims, Added | None
]


class Engines:
    """The engines of a dispatcher, each made when needed, and given to `on_new`. Threads may share it."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        driver: Driver,
        fallback: Fallback,
        on_new: Callable[[Planner], None],
    ) -> None:
        self.driver = driver
        self._models, self._fallback, self._on_new = models, fallback, on_new
        self._lock = threading.RLock()
        self._by_devices: dict[Triple, Planner] = {}
        self._model_of: dict[int, ServedModel | None] = {}
        self._for_host: dict[int | None, int] = {}  # by the current GPU
        self._cublas: BlasEngine | None = None
        self._routed: list[RoutedEngine] = []
        self._warned: set[GpuModel] = set()

    @property
    def all(self) -> list[Planner]:
        """Those that were needed so far."""
        return [*dict.fromkeys(self._by_devices.values()), *self._routed]

    def serving(self, devices: Triple) -> Planner:
        """The engine for arrays on these GPUs. Raises DispatchError if they are on several, or without."""
        found = self._by_devices.get(devices)
        if found is None:
            found = self.of(common_device(devices))
            self._by_devices[devices] = found
        return found

    def of(self, device: int) -> Planner:
        """The engine for a GPU. Raises DispatchError if there is none for it."""
        devices = (device, device, device)
        found = self._by_devices.get(devices)
        if found is None:
            with self._lock:
                found = self._by_devices.get(devices) or self._made(device)
                self._by_devices[devices] = found
        return found

    def model(self, device: int) -> ServedModel | None:
        """The model whose table is for a GPU; None if cuBLAS serves. Raises DispatchError if nothing does."""
        if device not in self._model_of:
            found, fault = self._found(device)
            if found is None and self._fallback == "refuse":
                raise DispatchError(fault)
            self._model_of[device] = found
        return self._model_of[device]

    def for_host(self) -> int:
        """The GPU for host arrays: the current one if there is a table for it, else the first with a table,
        else the one that cuBLAS serves."""
        current = self.driver.current_device()
        if current not in self._for_host:
            try:
                found = first_served(self.driver, lambda one: self._found(one)[1] or None)
            except DispatchError:
                if self._fallback == "refuse" or not self.driver.num_devices():
                    raise
                found = current or 0
            self._for_host[current] = found
        return self._for_host[current]

    def routed_signatures(self, has_bias: bool) -> RoutedSignatures:
        """What serves torch's own products, with or without a bias. The first model's engine leaves alone
        calls on GPUs without a table."""
        try:
            first = self.for_host()
        except DispatchError:  # there is no table for any: all calls are left alone
            first = 0
        return RoutedSignatures(self.routed(has_bias), first)

    def routed(self, has_bias: bool) -> Callable[[int], RoutedEngine]:
        """Makes the engine for torch's own products on a GPU, one for each model."""
        made: dict[ServedModel, RoutedEngine] = {}

        def make(device: int) -> RoutedEngine:
            try:
                model = self.model(device) or self._models[0]
            except DispatchError:
                model = self._models[0]
            if model not in made:
                engine = made[model] = model.routed_engine(self.driver, has_bias=has_bias)
                with self._lock:
                    self._routed.append(engine)
                    self._on_new(engine)
            return made[model]

        return make

    def _found(self, device: int) -> tuple[ServedModel | None, str]:
        """The model for a GPU, or None and why."""
        here = gpu_model_here(self.driver, device)
        of = {model.gpu_model: model for model in self._models}
        found = next((of[model] for model in here.accepted if model in of), None)
        return found, "" if found else no_table([model.table for model in self._models], device, here)

    def _made(self, device: int) -> Planner:
        model = self.model(device)
        if model is not None:
            made: Planner = model.open(self.driver)[0]
        else:
            self._warn(device)
            self._cublas = made = self._cublas or BlasEngine(self.driver, BlasProvider(is_on=True))
        if made not in self._by_devices.values():
            self._on_new(made)
        return made

    def _warn(self, device: int) -> None:
        """Once for each GPU model."""
        here = gpu_model_here(self.driver, device)
        if here not in self._warned:
            self._warned.add(here)
            names = " and ".join(str(model.gpu_model) for model in self._models)
            warnings.warn(
                f"no table is for GPU {device}, {here}: cuBLAS serves its products (the folder is for "
                f"{names}); run `autotune search --gpu {device}` here and add its table with `autotune "
                "export-table --add`",
                DispatchWarning,
                stacklevel=2,
            )


class Products:
    """Serves calls of `sgemm`. Threads may share it. `num_copied`: how many needed a packed copy, by role;
    `on_torch` gets the engine that served tensors of torch."""

    def __init__(
        self,
        engines: Engines,
        libraries: Libraries,
        num_copied: Counter[str],
        on_torch: Callable[[Planner], None],
    ) -> None:
        self.engines, self._libraries, self._num_copied = engines, libraries, num_copied
        self._on_torch = on_torch
        self._stacks: dict[tuple[Forms, _LeadingDims, bool, bool, str], Stack] = {}

    def multiply(
        self,
        arrays: tuple[Any, Any, Any],
        scales: tuple[Any, Any],
        transposed: tuple[bool, bool],
        stream: Any,
        adds: tuple[Any, Any],
    ) -> Any:
        """As `Dispatcher.sgemm`; `adds`: bias and activation. Raises DispatchError."""
        operands = self._read(arrays, scales[1], stream, adds)
        _, (library, _, _), devices, addresses, forms, leading_dims, added = operands
        trans_a, trans_b = transposed
        a_type = library.a_type(arrays[0])
        if library.is_host:
            device = self.engines.for_host()
            handle = PER_THREAD_STREAM if stream is None else self._libraries.stream(stream, device)
            engine = self.engines.of(device)
            return sgemm_host(engine, device, handle, arrays, scales, transposed, added)
        engine, stack, batch = self.engines.serving(devices), None, None
        epilogue = None if added is None else added.epilogue
        try:
            if leading_dims[0] or leading_dims[1] or leading_dims[2]:
                stack = self._stack(forms, leading_dims, trans_a, trans_b, a_type)
                addresses, batch = stack.lowest(addresses), stack.batch
            plan = engine.plan(key_of(devices, forms, addresses, trans_a, trans_b, batch, epilogue, a_type))
        except UnsupportedStrides as fault:
            return self._serve_by_copies(fault, operands, a_type, scales, transposed, stream, adds)
        explicit = None if stream is None else self._libraries.stream(stream, plan.gpu.device)
        found = self._enqueue(engine, plan, stack, operands, scales, explicit)
        if library.name == "torch":
            self._on_torch(engine)
        return found

    def _read(self, arrays: tuple[Any, Any, Any], beta: Any, stream: Any, adds: tuple[Any, Any]) -> _Operands:
        a, b, out = arrays
        libraries = self._libraries
        library = libraries.of(a, "a")
        library_b = libraries.of(b, "b")
        library_c = library if out is None else libraries.of(out, "out")
        added = None if adds[0] is None and adds[1] is None else Added.of(libraries, *adds)
        library_v = library if added is None or added.library is None else added.library
        if not (library is library_b is library_c is library_v):
            _check_mixed((library, library_b, library_c, library_v), stream)
        if beta != 0 and out is None:
            raise DispatchError("beta is not 0, but there is no out to scale; pass out=")
        at_a, device_a, form_a, leading_a = library.describe(a, "a")
        at_b, device_b, form_b, leading_b = library_b.describe(b, "b")
        at_c, device_c, form_c, leading_c = (
            (0, device_a, None, None) if out is None else library_c.describe(out, "out")
        )
        library.check_call()
        if form_c is not None:
            check_apart(form_c, (leading_c or ()) if library.is_host else ())
        return (
            arrays, (library, library_b, library_c), (device_a, device_b, device_c), (at_a, at_b, at_c),
            (form_a, form_b, form_c), (leading_a, leading_b, leading_c), added,
        )  # fmt: skip

    def _enqueue(
        self,
        engine: Planner,
        plan: Plan,
        stack: Stack | None,
        operands: _Operands,
        scales: tuple[Any, Any],
        stream: int | None,
    ) -> Any:
        """Run a plan on a stream, or the current one. Returns the result."""
        (a, b, out), (library, library_b, library_c), _, (at_a, at_b, at_c), _, _, added = operands
        device = plan.gpu.device
        if added is not None:
            added.check(plan.problem.gemm.n, device)
        handle = library.current_stream(a, device) if stream is None else stream
        if out is None:
            gemm = plan.problem.gemm
            shape = (gemm.m, gemm.n) if stack is None else stack.shape
            out = library.empty(shape, device, stream)
            at_c = library.describe(out, "out")[0]
        else:
            num_bytes = _num_bytes(plan, stack)
            check_overlap((at_a, at_b, at_c), num_bytes)
            if added is not None:
                added.check_apart(at_c, num_bytes[2])
        for owner, x in ((library, a), (library_b, b), (library_c, out)):
            if owner.is_foreign:
                owner.order(x, handle)
        if added is not None and added.library is not None:
            added.library.order(added.bias, handle)
        if stack is not None and not plan.is_cublas:
            check_launches(len(stack.offsets) * plan.loop.products)
        at_bias = 0 if added is None else added.address
        for offset_a, offset_b, offset_c in ((0, 0, 0),) if stack is None else stack.offsets:
            at = (at_a + offset_a, at_b + offset_b, at_c + offset_c)
            engine.run(plan, handle, at, *scales, at_bias)
        if operands[0][2] is not None:
            library_c.mark_written(out)
        return out

    def _stack(self, forms: Forms, leading: _LeadingDims, trans_a: bool, trans_b: bool, a_type: str) -> Stack:
        """Which calls serve arrays of more than two dimensions."""
        key = forms, leading, trans_a, trans_b, a_type
        stacks = self._stacks  # others may replace it
        try:
            found = stacks.get(key)
        except TypeError:  # a flag without a hash: it is refused like other invalid flags
            found = None
        if found is None:
            found = stacked(forms, leading, trans_a, trans_b).with_type(a_type)
            if len(stacks) >= MAX_PLANS:
                self._stacks = stacks = {}
            stacks[key] = found
        return found

    def _serve_by_copies(
        self,
        fault: UnsupportedStrides,
        operands: _Operands,
        a_type: str,
        scales: tuple[Any, Any],
        transposed: tuple[bool, bool],
        stream: Any,
        adds: tuple[Any, Any],
    ) -> Any:
        """A product with strides that no kernel supports: computed by transposes if `out` is stored by
        columns, C^T = op(b)^T op(a)^T; else with a packed copy. Raises the fault if neither is possible."""
        arrays, owners, *_ = operands
        (a, b, out), (trans_a, trans_b) = arrays, transposed
        out_transposed = _transposed(out)
        may_swap = adds[0] is None and a_type == FP32  # a bias would be along rows, the second of other types
        if fault.is_by_columns and out_transposed is not None and may_swap:
            self.multiply((b, a, out_transposed), scales, (not trans_b, not trans_a), stream, adds)
            return out
        place = ("a", "b", "out").index(fault.role)
        owner = owners[place]
        copy = None if stream is not None else owner.packed_copy(arrays[place])
        if copy is None:
            raise fault
        self._num_copied[fault.role] += 1
        copied = (a, b, copy) if place == 2 else (a, copy, out) if place else (copy, b, out)
        found = self.multiply(copied, scales, transposed, stream, adds)
        if fault.role != "out":
            return found
        owner.assign(out, copy)
        return out


def sgemm_host(
    engine: Planner,
    device: int,
    stream: int,
    arrays: tuple[_Array, _Array, _Array | None],
    scales: tuple[float, float],
    transposed: tuple[bool, bool],
    added: Added | None = None,
) -> _Array:
    """C = alpha * op(A) * op(B) + beta * C for arrays a, b, out of the host; waits for the result.

    `scales` are alpha and beta, `transposed` trans_a and trans_b; `added`: a bias on the host, and an
    activation. Arrays with any strides are packed during the copy.

    Raises DispatchError if shapes do not fit, out overlaps an input, products of out may overlap each other,
    or the stream is captured."""
    a, b, out = arrays
    bias = None if added is None else added.bias
    read = [x for x in (a, b, bias) if x is not None]
    if out is not None and any(np.may_share_memory(x, out) for x in read):
        raise DispatchError("out overlaps an input in memory; pass a copy of the input or another out")
    if out is not None and out.ndim > 2 and out.size:
        strides = [stride // FLOAT_BYTES for stride in out.strides]
        check_products_apart(zip(out.shape, strides, strict=True))
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b)
    (form_a, leading_a), (form_b, leading_b) = packed_form(a.shape), packed_form(b.shape)
    form_c, leading_c = (None, None) if out is None else packed_form(out.shape)
    forms = form_a, form_b, form_c
    stack = stacked(forms, (leading_a, leading_b, leading_c), *transposed)
    lowest, epilogue = stack.lowest((0, 0, 0)), None if added is None else added.epilogue
    plan = engine.plan(key_of((device,) * 3, forms, lowest, *transposed, stack.batch, epilogue))
    if added is not None:
        added.check(plan.problem.gemm.n, device)
    if not plan.is_cublas:
        check_launches(len(stack.offsets) * plan.loop.products)
    result = np.empty(stack.shape, np.float32) if out is None else np.ascontiguousarray(out)
    driver = engine.driver
    with engine.devices.current(plan.gpu), ExitStack() as at_end:
        if driver.is_capturing(stream):
            raise DispatchError("NumPy arrays cannot be part of a graph; copy them to the GPU first")
        at_end.callback(driver.synchronize, stream)
        places = []
        copied = [(a, True), (b, True), (result, scales[1] != 0)]
        copied += [] if bias is None else [(np.ascontiguousarray(bias), True)]
        for x, is_read in copied:
            place = driver.allocate(max(x.nbytes, 1), stream)
            at_end.callback(driver.free, place, stream)
            if is_read and x.nbytes:
                driver.copy_in(place, x.ctypes.data, x.nbytes, stream)
            places.append(place)
        for offsets in stack.offsets:
            at_a, at_b, at_c = (at + offset for at, offset in zip(places[:3], offsets, strict=True))
            engine.run(plan, stream, (at_a, at_b, at_c), *scales, sum(places[3:]))
        if result.nbytes:
            driver.copy_out(result.ctypes.data, places[2], result.nbytes, stream)
    if out is None or out is result:
        return result
    out[...] = result
    return out


def _num_bytes(plan: Plan, stack: Stack | None) -> Triple:
    """The bytes that A, B and C span."""
    a, b, c = plan.problem.num_bytes
    if stack is None:
        return a, b, c
    if not stack.offsets:
        return 0, 0, 0
    return a + stack.reach[0], b + stack.reach[1], c + stack.reach[2]


def _transposed(x: Any) -> Any | None:
    """The transposes of all matrices of an array, as a view; None if that is impossible."""
    if getattr(x, "ndim", 2) == 2:
        return getattr(x, "T", None)
    swapped = getattr(x, "swapaxes", None)
    return None if swapped is None else swapped(-1, -2)


def _check_mixed(libraries: tuple[Library, ...], stream: Any) -> None:
    names = ", ".join(sorted({library.name for library in libraries}))
    if any(library.is_host for library in libraries):
        raise DispatchError(f"arrays of the host and of a GPU are mixed ({names}); move all to one place")
    if stream is None:
        raise DispatchError(f"arrays of {names} each have a current stream of their own; pass stream=")
