"""Products of torch's tensors of known kinds, by a function in C that reads the tensors; and what torch may
do besides computing: follow derivatives in forward mode, show calls to a mode, or trace.

A tensor's type offers DLPack's exchange in C (DLPack 1.3; torch from 2.10 on): addresses, extents and the
current stream, without Python objects. All other cases are left to the dispatcher.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from ...files.errors import DispatchError
from ..native.core import Core, loaded, tell

_CAPSULE = b"dlpack_exchange_api"
_MAJOR = 1  # of DLPack, whose minor versions add to the end of its structs
# Places among the pointers of DLPackExchangeAPI: dltensor_from_py_object_no_sync, which may be absent, and
# current_work_stream
_VIEW, _CURRENT_STREAM = 5, 6
_FASTCALL = 0x80  # METH_FASTCALL: arguments come as an array
_REPORT_LOCK = threading.Lock()
_NO_FORWARD_MODE = SimpleNamespace(_current_level=-1)
_NO_DISPATCH_MODE = SimpleNamespace(_is_in_torch_dispatch_mode=False)
# The functions of Python that the core calls, by their names in autotune_python (core/tensors.h)
_OF_PYTHON = {
    "save_thread": "PyEval_SaveThread", "restore_thread": "PyEval_RestoreThread",
    "clear_error": "PyErr_Clear", "error": "PyErr_Occurred", "hold": "Py_IncRef", "release": "Py_DecRef",
    "type_of": "PyObject_Type", "attribute": "PyObject_GetAttr", "call": "PyObject_CallFunctionObjArgs",
    "call_method": "PyObject_CallMethodObjArgs", "build": "Py_BuildValue", "as_double": "PyFloat_AsDouble",
    "as_address": "PyLong_AsVoidPtr",
}  # fmt: skip


class _Method(ctypes.Structure):
    """PyMethodDef of Python's stable ABI: how a function in C is called."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


def tensor_calls_of(core: Core, is_below_autograd: bool = False) -> TensorCalls | None:
    """For torch, if that is loaded and offers the exchange. Below autograd, tensors of any class are
    accepted, and gradients are ignored."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    exchange = _exchange_of(tensor) if isinstance(tensor, type) else None
    return None if exchange is None else TensorCalls(core, tensor, exchange, is_below_autograd)


def _exchange_of(tensor: type) -> int | None:
    """The address of the DLPackExchangeAPI of a type."""
    api = getattr(tensor, "__dlpack_c_exchange_api__", None)
    if api is None:
        return None
    pointer = _pointer_of()
    try:
        address = pointer(api, _CAPSULE)
    except ValueError:  # a capsule of another name
        return None
    is_known = ctypes.c_uint32.from_address(address).value == _MAJOR
    return address if is_known and _call_of(address, _VIEW) else None


def _call_of(exchange: int, place: int) -> int | None:
    return (ctypes.c_void_p * (place + 1)).from_address(exchange)[place]


def current_stream_of(tensor: type) -> int | None:
    """The address of the function of torch's tensors that tells a device's current stream."""
    exchange = _exchange_of(tensor)
    return None if exchange is None else _call_of(exchange, _CURRENT_STREAM)


@cache
def _pointer_of() -> Any:
    made = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return made(("PyCapsule_GetPointer", ctypes.pythonapi))


class TensorCalls:
    """Answers calls of the dispatcher. Threads may share it.

    `sgemm` is a function in C, of (a, b, out or None, alpha, beta, trans_a, trans_b), by position: a call
    through ctypes would take longer than its work. It returns the result; None, with nothing launched, if the
    dispatcher must serve or report a fault; False, likewise, for a plan that leaves a call alone. It raises
    DispatchError if a launch fails."""

    def __init__(self, core: Core, tensor: Any, exchange: int, is_below_autograd: bool) -> None:
        requested = {"is_neg": tensor.is_neg, "tell": tell}
        requested |= {name: name for name in ("requires_grad", "new_empty", "storage_offset")}
        if not is_below_autograd:  # there torch itself counts what is written
            torch = sys.modules["torch"]
            requested |= {"tensor": tensor, "is_grad_enabled": torch.is_grad_enabled}
            if count_write := count_of_writes(torch):
                requested["wrote"] = count_write
        self._kept = core, requested
        held = {name: id(one) for name, one in requested.items()}
        self._tensors = core.library.structs.tensors(handle=core.handle, exchange=exchange, **held)
        with _REPORT_LOCK:
            core.library.autotune_use_python(ctypes.addressof(_python()))
        function = _address(core.library.autotune_sgemm_of_tensors)
        self._method = _Method(b"sgemm", function, _FASTCALL, None)
        self.sgemm: Callable[..., Any] = _new_function()(
            ctypes.addressof(self._method), ctypes.addressof(self._tensors), None
        )


class CombinedCalls:
    """Answers calls as `TensorCalls` does. Each table knows only the calls on its own GPUs, so they are asked
    one after another; with one table, `sgemm` is its function itself."""

    def __init__(self) -> None:
        self._all: list[TensorCalls] = []
        self.sgemm: Callable[..., Any] = self._by_any

    def add(self, calls: TensorCalls) -> None:
        self.exchange([*self._all, calls])

    def exchange(self, calls: list[TensorCalls]) -> None:
        """Ask these from now on."""
        self._all = calls
        self.sgemm = calls[0].sgemm if len(calls) == 1 else self._by_any

    def _by_any(self, *arguments: Any) -> Any:
        for calls in self._all:
            found = calls.sgemm(*arguments)
            if found is not None:
                return found
        return None


class TorchCalls:
    """Products of torch's tensors by a dispatcher's engines, once each has served one: `calls` where torch
    follows derivatives itself, `below` where it is below autograd. What torch does besides are variables of
    its modules: to call a function would take longer."""

    def __init__(self, torch: Any) -> None:
        self.forward_mode, self.dispatch_mode = forward_mode_of(torch), dispatch_mode_of(torch)
        self.is_traced = tracing_check_of(torch)
        self.calls, self.below = CombinedCalls(), CombinedCalls()

    def add(self, calls: TensorCalls, below: TensorCalls) -> None:
        self.calls.add(calls)
        self.below.add(below)


@cache
def _new_function() -> Any:
    made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return made(("PyCFunction_NewEx", ctypes.pythonapi))


@cache
def _python() -> Any:
    """What the core calls of Python, one for all. Made under a lock: else a cache makes one for each of two
    threads, and keeps the second."""
    return _python_here()


def _python_here() -> Any:
    struct = loaded().structs.python
    kinds, python = dict(struct._fields_), ctypes.pythonapi
    calls = {name: kinds[name](_address(getattr(python, call))) for name, call in _OF_PYTHON.items()}
    return struct(**calls, none=id(None), yes=id(True), no=id(False))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def forward_mode_of(torch: Any) -> Any:
    """torch's module whose `_current_level` is not negative while tensors may have tangents."""
    found = getattr(getattr(torch, "autograd", None), "forward_ad", None)
    return found if hasattr(found, "_current_level") else _NO_FORWARD_MODE


def dispatch_mode_of(torch: Any) -> Any:
    """torch's module whose `_is_in_torch_dispatch_mode` is set while a mode sees what is called."""
    found = getattr(getattr(torch, "utils", None), "_python_dispatch", None)
    return found if hasattr(found, "_is_in_torch_dispatch_mode") else _NO_DISPATCH_MODE


def tracing_check_of(torch: Any) -> Callable[[], bool]:
    """torch's function, in C, that says whether torch.jit.trace records what is called."""
    return getattr(torch._C, "_is_tracing", lambda: False)


def check_no_trace(torch: Any) -> None:
    """Raises DispatchError while torch records a trace, of which a call of `sgemm` would be no part."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")  # else nothing is recorded by them
    if tracing_check_of(torch)() or (proxies is not None and proxies.get_proxy_mode() is not None):
        raise DispatchError(
            "torch records a trace, of which this product would be no part; call the operator of torch_op()"
        )


def count_of_writes(torch: Any) -> Callable[[Any], object] | None:
    """The function that tells torch that a tensor was written: then a backward pass that needs the old values
    refuses; None if this torch has none."""
    autograd = getattr(torch, "autograd", None)
    return getattr(getattr(autograd, "graph", None), "increment_version", None)
