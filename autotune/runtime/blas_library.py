"""The cuBLAS of this process: cublasSgemm, and cublasSgemmStridedBatched for batches.

The library is the one that this process has loaded already, else the one that cuda.pathfinder finds.

A thread has its own handle on each GPU (cuBLAS: two threads must not configure a handle at the same time).
When a thread ends, other threads take its handles; none is ever destroyed, since that would wait for the GPU.
A handle keeps no workspace between calls: each call sets its stream and then a workspace, since setting the
stream resets the workspace. Workspaces come from workspace.py, as for kernels. So streams never share one,
and a captured graph owns its own. Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from ..facts.column_major import (
    OP_N,
    PEDANTIC_MATH,
    WORKSPACE_BYTES,
    ColumnMajorCall,
    read_version,
    told_status,
)
from ..facts.gemm import FLOAT_BYTES, Triple
from ..files import wheel_libraries
from ..files.errors import DispatchError, DispatchWarning
from ..kernel.launch import NO_LAUNCH
from .cuda_driver import Driver

# What a call of cuBLAS takes from the workspaces, in the form of a launch.
BLAS_GRID = NO_LAUNCH._replace(sum_bytes=WORKSPACE_BYTES)
_SWITCH_OFF = "pass cublas=False, or set AUTOTUNE_CUBLAS=0, to do without cuBLAS"
_POINTER_MODE_HOST = 0
_SCALES = struct.Struct("=ff")  # alpha and beta
_FILE = r"libcublas\.so[.\d]*$"
_MAPS = Path("/proc/self/maps")  # on Linux: the files that this process has mapped
_I, _P, _L = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
_PROPERTY = "cublasGetProperty"
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    _PROPERTY: (_I, _P),
    "cublasCreate_v2": (_P,),
    "cublasSetMathMode": (_P, _I),
    "cublasSetPointerMode_v2": (_P, _I),
    "cublasSetStream_v2": (_P, _P),
    "cublasSetWorkspace_v2": (_P, _P, ctypes.c_size_t),
    "cublasSgemm_v2": (_P, _I, _I, _I, _I, _I, _P, _P, _I, _P, _I, _P, _P, _I),
    "cublasSgemmStridedBatched": (
        _P,
        _I,
        _I,
        _I,
        _I,
        _I,
        _P,
        _P,
        _I,
        _L,
        _P,
        _I,
        _L,
        _P,
        _P,
        _I,
        _L,
        _I,
    ),
}
# Where no kernel is there to scale: not among those that the core is given.
_GEAM = (_P, _I, _I, _I, _I, _P, _P, _I, _P, _P, _I, _P, _I)


def blas_fault(call: str, status: int) -> DispatchError:
    return DispatchError(f"{call} failed with {told_status(status)}; {_SWITCH_OFF}")


def _check(status: int, call: str) -> None:
    if status != 0:
        raise blas_fault(call, status)


class BlasHandle:
    """A handle of cuBLAS on one GPU, for one thread at a time. Made with the GPU's context current. Raises
    DispatchError where a call of cuBLAS fails."""

    def __init__(self, library: Any) -> None:
        made = ctypes.c_void_p()
        _check(library.cublasCreate_v2(ctypes.byref(made)), "cublasCreate")
        self._library, self._handle = library, made.value
        _check(library.cublasSetMathMode(self._handle, PEDANTIC_MATH), "cublasSetMathMode")
        _check(library.cublasSetPointerMode_v2(self._handle, _POINTER_MODE_HOST), "cublasSetPointerMode")
        self._scales = ctypes.create_string_buffer(_SCALES.size)
        self._alpha = ctypes.addressof(self._scales)
        self._beta = self._alpha + _SCALES.size // 2

    def scale(self, alpha: float, beta: float) -> bool:
        """Set the scales of the next call; False if a kernel must serve it: A and B must not be read, or a
        scale is not a float32, which a launch refuses."""
        try:
            _SCALES.pack_into(self._scales, 0, alpha, beta)
        except (struct.error, OverflowError, TypeError):
            return False
        return bool(_SCALES.unpack_from(self._scales)[0] != 0)

    def sgemm(self, call: ColumnMajorCall, stream: int, addresses: Triple, workspace: int) -> None:
        """Enqueue a product, or a batch, with the scales set before; beta = 0 does not read C. The GPU's
        context must be current, and nothing else may use the workspace before the product is done."""
        library, handle, (a, b, c) = self._library, self._handle, addresses
        _check(library.cublasSetStream_v2(handle, stream), "cublasSetStream")
        _check(library.cublasSetWorkspace_v2(handle, workspace, WORKSPACE_BYTES), "cublasSetWorkspace")
        head = handle, call.trans_first, call.trans_second, call.rows, call.columns, call.depth, self._alpha
        if call.products == 1:
            name, status = "cublasSgemm", library.cublasSgemm_v2(
                *head, b, call.ld_first, a, call.ld_second, self._beta, c, call.ld_result
            )  # fmt: skip
        else:
            name, status = "cublasSgemmStridedBatched", library.cublasSgemmStridedBatched(
                *head, b, call.ld_first, call.stride_first, a, call.ld_second, call.stride_second,
                self._beta, c, call.ld_result, call.stride_result, call.products,
            )  # fmt: skip
        _check(status, name)

    def scale_result(self, call: ColumnMajorCall, stream: int, address: int, beta: float) -> None:
        """Enqueue C = beta C, for each of a batch; beta = 0 does not read C. By cublasSgeam in place, with a
        scale of 0 for the second operand: cuBLAS states that it does not read an operand whose scale is 0."""
        library, handle = self._library, self._handle
        _check(library.cublasSetStream_v2(handle, stream), "cublasSetStream")
        _SCALES.pack_into(self._scales, 0, beta, 0.0)
        for product in range(call.products):
            at = address + FLOAT_BYTES * product * call.stride_result
            status = library.cublasSgeam(
                handle, OP_N, OP_N, call.rows, call.columns, self._alpha, at, call.ld_result,
                self._beta, at, call.ld_result, at, call.ld_result,
            )  # fmt: skip
            _check(status, "cublasSgeam")


class _Lent(dict[int, BlasHandle]):
    """The handles of one thread, by GPU. When it ends, other threads take them."""

    def __init__(self, idle: dict[int, list[BlasHandle]]) -> None:
        super().__init__()
        self._idle = idle

    def __del__(self) -> None:
        for device, handle in self.items():
            self._idle.setdefault(device, []).append(handle)


class _OfThread(threading.local):
    def __init__(self, idle: dict[int, list[BlasHandle]]) -> None:
        self.handles = _Lent(idle)


class BlasLibrary:
    """cuBLAS in this process, with its handles. Threads may share it. Raises DispatchError if the library
    does not report its version."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.version = read_version(library, _check)
        self._idle: dict[int, list[BlasHandle]] = {}
        self._of_thread = _OfThread(self._idle)
        self._refused: set[int] = set()
        self._lock = threading.Lock()

    @property
    def functions(self) -> dict[str, Any]:
        """What enqueues products, by name, in the order that a handle needs them."""
        return {name: getattr(self._library, name) for name in _SIGNATURES if name != _PROPERTY}

    def handle(self, device: int, stream: int, driver: Driver) -> BlasHandle | None:
        """The handle of this thread on a GPU, whose context is current. None if cuBLAS gave none before, or
        if one would have to be made while the stream is captured."""
        handles = self._of_thread.handles
        found = handles.get(device)
        if found is None:
            found = self._take(device, stream, driver)
            if found is not None:
                handles[device] = found
        return found

    def _take(self, device: int, stream: int, driver: Driver) -> BlasHandle | None:
        with self._lock:
            if idle := self._idle.get(device):
                return idle.pop()
            if device in self._refused or driver.is_capturing(stream):
                return None
            try:
                with driver.relaxed():  # captures of other threads go on
                    return BlasHandle(self._library)
            except DispatchError as fault:
                self._refused.add(device)
                told = f"cuBLAS {self.version} cannot be used on GPU {device}, kernels serve instead: {fault}"
        warnings.warn(told, DispatchWarning, stacklevel=2)
        return None


@cache
def find_library() -> BlasLibrary | None:
    """The cuBLAS of this process, loaded or else installed; None if none can be used."""
    loaded = loaded_library()
    if loaded is not None:
        return loaded
    path = wheel_libraries.load("cublas")
    return _opened(path, ctypes.DEFAULT_MODE) if path else None


def loaded_library() -> BlasLibrary | None:
    """The cuBLAS that this process has loaded, if any can be used."""
    opened = (_opened(path, os.RTLD_NOLOAD | os.RTLD_NOW) for path in _mapped())
    return next((library for library in opened if library is not None), None)


def _opened(path: str, mode: int) -> BlasLibrary | None:
    try:
        return BlasLibrary(_declared(ctypes.CDLL(path, mode=mode)))
    except (OSError, AttributeError, DispatchError):  # not there, too old, broken
        return None


def _mapped() -> list[str]:
    """cuBLAS as this process has mapped it."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[-1] for line in lines)  # address, rights, offset, device, inode, path
    return list(dict.fromkeys(path for path in paths if re.match(_FILE, path.rpartition("/")[2])))


def _declared(library: Any) -> Any:
    """With the types of arguments: Python's numbers are passed as they are. Raises AttributeError."""
    for name, types in _SIGNATURES.items():
        getattr(library, name).argtypes = types
    library.cublasSgeam.argtypes = _GEAM
    return library
