"""Products of torch's tensors of kinds that came before: one call into the core, which reads the tensors.

A tensor's type offers DLPack's exchange in C (DLPack 1.3; torch from 2.10 on): addresses, extents and the
current stream, without an object of Python for any of them. Whatever is not as simple is left to the
dispatcher. Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from .core import EXCHANGE_SIGNATURE, OK, UNKNOWN, Core
from .core_faults import tell
from .core_structs import PythonCalls

_CAPSULE = b"dlpack_exchange_api"
_MAJOR = 1  # of DLPack, whose minor versions add to the end of its structs
# Place of dltensor_from_py_object_no_sync among the pointers of DLPackExchangeAPI, which may lack it
_VIEW = 5


def tensor_calls_of(core: Core) -> TensorCalls | None:
    """For torch, if that is loaded and offers the exchange."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    exchange = _exchange_of(tensor) if isinstance(tensor, type) else None
    return None if exchange is None else TensorCalls(core, tensor, exchange)


def _exchange_of(tensor: type) -> int | None:
    """The address of the DLPackExchangeAPI of a type."""
    offered = getattr(tensor, "__dlpack_c_exchange_api__", None)
    if offered is None:
        return None
    pointer = _pointer_of()
    try:
        address = pointer(offered, _CAPSULE)
    except ValueError:  # a capsule of another name
        return None
    is_known = ctypes.c_uint32.from_address(address).value == _MAJOR
    return address if is_known and (ctypes.c_void_p * (_VIEW + 1)).from_address(address)[_VIEW] else None


@cache
def _pointer_of() -> Any:
    made = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return made(("PyCapsule_GetPointer", ctypes.pythonapi))


class TensorCalls:
    """Answers calls of the dispatcher. Threads may share it."""

    def __init__(self, core: Core, tensor: Any, exchange: int) -> None:
        self._core, self._tensor = core, tensor
        self._is_grad_enabled = sys.modules["torch"].is_grad_enabled
        self._python = PythonCalls.of_this_process()
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int, *EXCHANGE_SIGNATURE)  # it holds Python's lock
        self._multiply = prototype(("autotune_multiply", core.library))
        self._at = (core.handle, ctypes.addressof(self._python), exchange)

    def sgemm(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool
    ) -> Any | None:
        """The result; None, with nothing launched, where the dispatcher is to serve, or to say what is wrong.
        Raises DispatchError where a launch fails."""
        tensor = self._tensor
        if type(a) is not tensor or type(b) is not tensor or a.is_neg() or b.is_neg():
            return None
        if (a.requires_grad or b.requires_grad) and self._is_grad_enabled():
            return None
        if out is None:
            if beta != 0 or a.dim() != 2 or b.dim() != 2:
                return None
            out = a.new_empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]))
        elif type(out) is not tensor or out.is_neg() or (out.requires_grad and self._is_grad_enabled()):
            return None
        try:
            status = self._multiply(*self._at, a, b, out, alpha, beta, trans_a, trans_b)
        except ctypes.ArgumentError:  # a scale or a flag that is none
            return None
        if status == OK:
            return out
        if status == UNKNOWN:
            return None
        tell(status, alpha, beta)
        return out
