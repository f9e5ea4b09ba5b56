"""How deep cuBLAS's sums are in a product, read off what it would launch: its call is captured, and nothing
runs.

cuBLAS splits k by its own rules, which the model only guesses (perf_model/sum_depths.py). A guess that is too
large keeps launches away that err no more than cuBLAS. Its tiled kernels have a plane of blocks for each part
of k. Of what has other names, or launches something else beside one part, nothing is said: the guess stays.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from typing import Any

from ...facts.gemm import MAX_EXTENT, PEDANTIC_MATH, WORKSPACE_BYTES
from ...files.errors import DispatchError
from ...perf_model.model_figures import DEFAULT_ERRORS, LEAST_K, NARROW, Depths
from ..calls.product import MAX_PLANS
from ..choose.blas_provider import BlasLibrary, loaded_library
from ..choose.chooser import Call, call_signature
from ..launch.cuda_driver import MOST_NODES, Driver, GraphNode
from ..launch.devices import Gpus, OpenGpu
from ..table.table import Table

# Kernels with a plane of blocks for each part of k. Those that add the parts up have other names, or this
_TILED = re.compile(r"sm80_xmma_gemm_f32f32_\w+_tilesize|cutlass_80_simt_sgemm")
_ADDS_UP = "split_k_kernel"
_NOWHERE = 1 << 40  # an address: nothing is read


class CublasSums:
    """Of the cuBLAS that this process has loaded. Threads may share it."""

    def __init__(
        self,
        driver: Driver,
        devices: Gpus,
        table: Table,
        find: Callable[[], BlasLibrary | None] = loaded_library,
    ) -> None:
        self._driver, self._devices, self._find = driver, devices, find
        self._is_asked = table.order is None  # kernels of one order all sum as deep
        self._lock = threading.Lock()
        self._known: dict[tuple[int, Call], Depths | None] = {}
        self._handles: dict[int, ctypes.c_void_p] = {}  # by GPU
        self._functions: dict[str, Any] | None = None

    def allowed(self, call: Call, gpu: OpenGpu) -> Depths | None:
        """How deep sums may be beside cuBLAS's; None where that is guessed as well: where a side of C is
        narrow or k short, of a batch, and where cuBLAS does not tell."""
        gemm = call.gemm
        is_guessed = min(gemm.m, gemm.n) > NARROW and gemm.k >= LEAST_K and not gemm.is_batched
        if not (self._is_asked and is_guessed and gemm.is_float) or max(call.lds) > MAX_EXTENT:
            return None
        key = gpu.device, call_signature(call)._replace(adds_bias=False, has_epilogue=False)
        with self._lock:
            if key not in self._known:
                if len(self._known) >= MAX_PLANS:
                    self._known.clear()
                self._known[key] = self._read(key[1], gpu)
            return self._known[key]

    def _read(self, call: Call, gpu: OpenGpu) -> Depths | None:
        driver = self._driver
        try:
            with self._devices.current(gpu), driver.relaxed():
                handle, functions = self._handle(gpu.device)
                stream = driver.make_stream()
                try:
                    nodes = driver.nodes_of(stream, lambda: _enqueue(functions, handle, call, stream))
                finally:
                    driver.free_stream(stream)
        except DispatchError:  # what serves is right all the same
            return None
        splits = splits_of(nodes)
        return depths_in(call.gemm.k, splits).within(*DEFAULT_ERRORS) if splits else None

    def _handle(self, device: int) -> tuple[ctypes.c_void_p, dict[str, Any]]:
        """A handle of cuBLAS on the GPU whose context is current, which stays. Raises DispatchError."""
        if self._functions is None:
            library = self._find()
            self._functions = library.functions if library else {}
        if not self._functions:
            self._is_asked = False
            raise DispatchError("no cuBLAS is loaded")
        if device not in self._handles:
            made = ctypes.c_void_p()
            _call(self._functions, "cublasCreate_v2", ctypes.byref(made))
            _call(self._functions, "cublasSetMathMode", made, PEDANTIC_MATH)
            self._handles[device] = made
        return self._handles[device], self._functions


def splits_of(nodes: list[GraphNode]) -> int:
    """Into how many parts cuBLAS splits k, by what it would launch; 0: that is not known."""
    tiled = [one for one in nodes if _TILED.search(one.kernel) and _ADDS_UP not in one.kernel]
    if len(tiled) != 1 or len(nodes) >= MOST_NODES:
        return 0
    is_whole = tiled[0].blocks_z == 1
    return 0 if is_whole and len(nodes) > 1 else tiled[0].blocks_z


def depths_in(k: int, splits: int) -> Depths:
    """Of sums of k products in so many chains, which are added one after another."""
    return Depths(k / splits + splits - 1, k / splits**2 + splits - 1)


def _enqueue(functions: dict[str, Any], handle: Any, call: Call, stream: int) -> None:
    """As the runtime calls cuBLAS (core/blas.c): row-major, so C^T = op(B)^T op(A)^T."""
    gemm, (lda, ldb, ldc) = call.gemm, call.lds
    a, b, c = (ctypes.c_void_p(_NOWHERE * (1 + i) + at) for i, at in enumerate(call.addresses))
    alpha, beta = ctypes.c_float(1), ctypes.c_float(0)
    _call(functions, "cublasSetStream_v2", handle, ctypes.c_void_p(stream))
    workspace = ctypes.c_void_p(4 * _NOWHERE), ctypes.c_size_t(WORKSPACE_BYTES)
    _call(functions, "cublasSetWorkspace_v2", handle, *workspace)
    _call(
        functions, "cublasSgemm_v2", handle, int(gemm.trans_b), int(gemm.trans_a), gemm.n, gemm.m, gemm.k,
        ctypes.byref(alpha), b, ldb, a, lda, ctypes.byref(beta), c, ldc,
    )  # fmt: skip


def _call(functions: dict[str, Any], name: str, *arguments: Any) -> None:
    if status := functions[name](*arguments):
        raise DispatchError(f"{name} failed with status {status}")
