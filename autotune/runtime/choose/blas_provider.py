"""cuBLAS as a provider: serves products where it is expected to be faster than every kernel of a table, and
batches that no kernel was tuned for. The core calls it (core/blas.h).

It is optional: where it is absent, broken or switched off, kernels of the table serve. It is the library that
this process has loaded already, else the one that cuda.pathfinder finds.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from ...facts.gemm import MAX_EXTENT
from ...files.errors import DispatchError
from ..calls.product import MAX_PLANS
from .chooser import Call, Pick, call_signature

_LEAST_PROOF = 256  # elements of C: by chance some have the same bits in another order


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


# What the core calls, in the order of autotune_blas
_NAMES = (
    "cublasCreate_v2", "cublasSetMathMode", "cublasSetPointerMode_v2", "cublasSetStream_v2",
    "cublasSetWorkspace_v2", "cublasSgemm_v2", "cublasSgemmStridedBatched", "cublasSgeam",
)  # fmt: skip
_FILE = r"libcublas\.so[.\d]*$"
_MAPS = Path("/proc/self/maps")  # on Linux: the files that this process has mapped


class BlasLibrary:
    """cuBLAS in this process. Raises DispatchError without a version, AttributeError without a function."""

    def __init__(self, library: Any) -> None:
        from ...facts.gemm import read_version

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


def _opened(path: str, mode: int) -> BlasLibrary | None:
    try:
        return BlasLibrary(ctypes.CDLL(path, mode=mode))
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
