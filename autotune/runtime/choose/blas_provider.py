"""cuBLAS as a provider: serves products where it is expected to be faster than every kernel of a table, and
batches that no kernel was tuned for. The core calls it (core/blas.h).

It is optional: where it is absent, broken or switched off, kernels of the table serve. It is the library that
this process has loaded already, else the one that cuda.pathfinder finds.

How deep its sums are in a product can be read off what it would launch: its call is captured, and nothing
runs. It splits k by its own rules, which the model only guesses (perf_model/sum_depths.py). A guess that is
too large keeps launches away that err no more than cuBLAS, one that is too small lets in what errs more.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...facts.cublas_calls import PEDANTIC_MATH, WORKSPACE_BYTES, ColumnMajorCall, LtHandle, LtProduct
from ...facts.gemm import MAX_EXTENT
from ...files.errors import DispatchError
from ...perf_model.model_figures import DEFAULT_ERRORS, LEAST_K, NARROW, Depths
from ..calls.product import MAX_PLANS
from .chooser import Call, Pick, call_signature

if TYPE_CHECKING:  # what launches is imported when it is needed
    from ..launch.cuda_driver import Driver, GraphNode
    from ..launch.devices import Gpus, OpenGpu
    from ..table.table import Table

_LEAST_PROOF = 256  # elements of C: by chance some have the same bits in another order
# cuBLAS's kernels with a plane of blocks for each part of k. What adds these up has other names, or this
_TILED = re.compile(r"sm80_xmma_gemm_f32f32_\w+_tilesize|cutlass_80_simt_sgemm")
_ADDS_UP = "split_k_kernel"
_ADDRESS = 1 << 40  # of operands that nothing reads
_WORKSPACE, _BIAS = 4 * _ADDRESS, 5 * _ADDRESS


class _Operands(NamedTuple):
    a: int
    b: int
    c: int


class BlasProvider:
    """cuBLAS for one dispatcher; without `is_on` it is neither located nor called."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._loaded_version: str | None = None
        self._has_looked = not is_on

    @cached_property
    def library(self) -> BlasLibrary | None:
        """Located at its first use: loading it takes time and memory."""
        if not self.is_on:
            return None
        library = find_library()
        if library is not None:
            self._loaded_version = library.version
        return library

    def loaded_version(self) -> str | None:
        """As `version`, but loads nothing: None if none was loaded at the first request, until one serves."""
        if not self._has_looked and self._loaded_version is None:
            library = loaded_library()
            self._loaded_version = None if library is None else library.version
            self._has_looked = True  # last: another thread goes by what it finds
        return self._loaded_version

    @property
    def version(self) -> str | None:
        """`13.1.0`; None where it is off or absent."""
        library = self.library
        return None if library is None else library.version

    def may_serve(self, call: Call, device: int | None = None) -> bool:
        """Whether cuBLAS can be called for this, on any GPU: its leading dimensions are `int`, and kernels
        serve products without depth."""
        return call.gemm.k > 0 and max(call.lds) <= MAX_EXTENT and self.library is not None

    def is_wanted(self, pick: Pick) -> bool:
        """Whether it should be timed beside this pick."""
        return pick.how == "modelled"

    def is_unproven(self, pick: Pick, call: Call, device: int) -> bool:
        """Whether it is wanted, and may serve once its bits are found to be a kernel's."""
        return False

    def prove(self, call: Call, device: int, has_bits: bool) -> None:
        """Keep whether all of its C had the bits of a kernel's."""

    def served(self, pick: Pick, call: Call, device: int | None = None) -> Pick:
        """A pick that names the provider that really serves."""
        if pick.provider == "autotune" or self.may_serve(call, device):
            return pick
        return replace(pick, provider="autotune", tell=partial(_instead, pick, self.library is None))

    def with_epilogue(self, pick: Pick) -> Pick:
        """As `served`, for a pick whose kernel has an epilogue: the kernel serves. cublasSgemm has none, and
        would need another pass over C."""
        return replace(pick, provider="autotune") if pick.provider == "cublas" else pick


class ProvenBlas(BlasProvider):
    """cuBLAS beside a table of one summation order, which NVIDIA does not promise: it serves call signatures
    alone for which this process found a kernel's bits in its C (`prove`), on each GPU for itself, where
    alpha is 1 and beta 0 (core/plan.c). What it does may depend on the shape, layout, leading dimensions,
    alignment and workspace, on its version, the driver, the GPU's SMs and the environment."""

    def __init__(self, is_on: bool) -> None:
        super().__init__(is_on)
        self._found: dict[tuple[Call, int], bool] = {}

    def may_serve(self, call: Call, device: int | None = None) -> bool:
        kind = call_signature(call)
        known = tuple(self._found) if device is None else ()  # at once: another thread may settle
        devices = {on for one, on in known if one == kind} if device is None else {device}
        return any(self._found.get((kind, on)) for on in devices) and super().may_serve(call)

    def is_wanted(self, pick: Pick) -> bool:
        return pick.how == "modelled" or (pick.cublas_us or math.inf) < (pick.expected_us or 0.0)

    def is_unproven(self, pick: Pick, call: Call, device: int) -> bool:
        is_known = (call_signature(call), device) in self._found
        may_be = not is_known and call.gemm.num_results >= _LEAST_PROOF and not call.gemm.is_batched
        return may_be and self.is_wanted(pick) and super().may_serve(call)

    def prove(self, call: Call, device: int, has_bits: bool) -> None:
        if len(self._found) >= MAX_PLANS:
            self._found = {}
        self._found[call_signature(call), device] = has_bits


def _instead(pick: Pick, is_absent: bool) -> str:
    why = "is off or not there" if is_absent else "cannot be called for this"
    return f"{pick.reason}; cuBLAS {why}, and this kernel serves"


class CublasSums:
    """How deep they are in a product, of the cuBLAS that `find` gives, and with a bias of the cuBLASLt that
    `find_lt` gives, as torch calls it. Threads may share it."""

    def __init__(
        self,
        driver: Driver,
        devices: Gpus,
        table: Table,
        find: Callable[[], BlasLibrary | None],
        find_lt: Callable[[], Any],
    ) -> None:
        self._driver, self._devices, self._find, self._find_lt = driver, devices, find, find_lt
        self._is_asked = table.order is None  # kernels of one order all sum as deep
        self._lock = threading.Lock()
        self._known: dict[tuple[int, Call], Depths | None] = {}
        self._handles: dict[tuple[int, bool], Any] = {}  # by GPU, and whether of cuBLASLt; they stay

    def allowed(self, call: Call, gpu: OpenGpu) -> Depths | None:
        """How deep sums may be beside cuBLAS's; None where that is guessed as well: where a side of C is
        narrow or k short, of a batch, and where cuBLAS does not tell."""
        gemm = call.gemm
        is_guessed = min(gemm.m, gemm.n) > NARROW and gemm.k >= LEAST_K and not gemm.is_batched
        if not (self._is_asked and is_guessed and gemm.is_float) or max(call.lds) > MAX_EXTENT:
            return None
        kind = call_signature(call)._replace(has_epilogue=False)
        key = gpu.device, kind
        with self._lock:
            if key not in self._known:
                if len(self._known) >= MAX_PLANS:
                    self._known.clear()
                self._known[key] = self._read(kind, gpu)
            return self._known[key]

    def _read(self, call: Call, gpu: OpenGpu) -> Depths | None:
        driver, at = self._driver, (gpu.device, call.adds_bias)
        enqueue = _enqueue_adding if call.adds_bias else _enqueue
        try:
            with self._devices.current(gpu), driver.relaxed():
                if at not in self._handles:
                    self._handles[at] = self._lt_handle() if call.adds_bias else self._handle()
                stream = driver.make_stream()
                try:
                    nodes = driver.nodes_of(stream, lambda: enqueue(self._handles[at], call, stream))
                finally:
                    driver.free_stream(stream)
        except (DispatchError, AttributeError):  # what serves is right all the same
            return None
        splits = splits_of(nodes)
        return depths_in(call.gemm.k, splits).within(*DEFAULT_ERRORS) if splits else None

    def _handle(self) -> tuple[dict[str, Any], ctypes.c_void_p]:
        """Of the GPU whose context is current. Raises DispatchError."""
        library, made = self._find(), ctypes.c_void_p()
        if library is None:
            self._is_asked = False
            raise DispatchError("no cuBLAS is loaded")
        _call(library.functions, "cublasCreate_v2", ctypes.byref(made))
        _call(library.functions, "cublasSetMathMode", made, PEDANTIC_MATH)
        return library.functions, made

    def _lt_handle(self) -> LtHandle:
        library = self._find_lt()
        if library is None:
            raise DispatchError("no cuBLASLt is loaded")
        return LtHandle(library, _check, 0, _WORKSPACE)


def splits_of(nodes: list[GraphNode]) -> int:
    """Into how many parts cuBLAS splits k, by what it would launch. 0: that is not known, as its kernels have
    other names, or one part is not all that it launches."""
    from ..launch.cuda_driver import MOST_NODES

    tiled = [one for one in nodes if _TILED.search(one.kernel) and _ADDS_UP not in one.kernel]
    if len(tiled) != 1 or len(nodes) >= MOST_NODES:
        return 0
    is_whole = tiled[0].blocks_z == 1
    return 0 if is_whole and len(nodes) > 1 else tiled[0].blocks_z


def depths_in(k: int, splits: int) -> Depths:
    """Of sums of k products in so many chains, which are added one after another."""
    return Depths(k / splits + splits - 1, k / splits**2 + splits - 1)


def _operands(call: Call) -> _Operands:
    return _Operands(*(_ADDRESS * (1 + i) + at for i, at in enumerate(call.addresses)))


def _enqueue(made: tuple[dict[str, Any], ctypes.c_void_p], call: Call, stream: int) -> None:
    """As the runtime calls cuBLAS (core/blas.c)."""
    functions, handle = made
    cublas, operands = ColumnMajorCall.of(call.gemm, call.lds), _operands(call)
    a, b, c = map(ctypes.c_void_p, operands)
    alpha, beta = ctypes.c_float(1), ctypes.c_float(0)
    _call(functions, "cublasSetStream_v2", handle, ctypes.c_void_p(stream))
    workspace = ctypes.c_void_p(_WORKSPACE), ctypes.c_size_t(WORKSPACE_BYTES)
    _call(functions, "cublasSetWorkspace_v2", handle, *workspace)
    _call(
        functions, "cublasSgemm_v2", handle, *cublas[:5], ctypes.byref(alpha), b, cublas.ld_first,
        a, cublas.ld_second, ctypes.byref(beta), c, cublas.ld_result,
    )  # fmt: skip


def _enqueue_adding(lt: LtHandle, call: Call, stream: int) -> None:
    """As torch calls cuBLASLt, with a bias."""
    lt.stream, operands = stream, _operands(call)
    product = LtProduct(lt, ColumnMajorCall.of(call.gemm, call.lds), _BIAS)
    try:
        product.enqueue(product.first(operands), operands)
    finally:
        product.free()


def _call(functions: dict[str, Any], name: str, *arguments: Any) -> None:
    _check(functions[name](*arguments), name)


# What the core calls, in the order of autotune_blas
_NAMES = (
    "cublasCreate_v2", "cublasSetMathMode", "cublasSetPointerMode_v2", "cublasSetStream_v2",
    "cublasSetWorkspace_v2", "cublasSgemm_v2", "cublasSgemmStridedBatched", "cublasSgeam",
)  # fmt: skip
_MAPS = Path("/proc/self/maps")  # on Linux: the files that this process has mapped


class BlasLibrary:
    """cuBLAS in this process. Raises DispatchError without a version, AttributeError without a function."""

    def __init__(self, library: Any) -> None:
        from ...facts.cublas_calls import read_version

        self.version = read_version(library, _check)
        self.functions = {name: getattr(library, name) for name in _NAMES}


def _check(status: int, call: str) -> None:
    if status != 0:
        raise DispatchError(f"{call} failed with status {status}")


@cache
def find_library() -> BlasLibrary | None:
    """The cuBLAS of this process, loaded or else installed; None if none can be used."""
    loaded = loaded_library()
    if loaded is not None:
        return loaded
    from ...files import wheel_libraries

    path = wheel_libraries.load("cublas")
    return _opened(path, ctypes.DEFAULT_MODE) if path else None


def loaded_library() -> BlasLibrary | None:
    """The cuBLAS that this process has loaded, if any can be used."""
    opened = (_opened(path, os.RTLD_NOLOAD | os.RTLD_NOW) for path in _mapped())
    return next((library for library in opened if library is not None), None)


def loaded_lt() -> ctypes.CDLL | None:
    """The cuBLASLt that this process has loaded, if any."""
    for path in _mapped("cublasLt"):
        with suppress(OSError):
            return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return None


def _opened(path: str, mode: int) -> BlasLibrary | None:
    try:
        return BlasLibrary(ctypes.CDLL(path, mode=mode))
    except (OSError, AttributeError, DispatchError):  # not there, too old, broken
        return None


def _mapped(name: str = "cublas") -> list[str]:
    """The files of a library as this process has mapped them."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[-1] for line in lines)  # address, rights, offset, device, inode, path
    is_it = re.compile(rf"(.*/)?lib{name}\.so[.\d]*").fullmatch
    return list(dict.fromkeys(path for path in paths if is_it(path)))
