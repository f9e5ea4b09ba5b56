"""The calls of a program in C, made in this process: by the core's own library, on a simulated driver.

The library finds the driver and cuBLAS by name. A copy of it has another name in their place: that of a small
library whose functions are Python's."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas
from table_cases import FakeDriver, _guarded, calls_of, code_of

from autotune.runtime.launch.cuda_driver import CudaFault
from autotune.runtime.launch.planner import _blas_calls
from autotune.runtime.native import core
from autotune.runtime.native.core import CoreLibrary, TableArrays, table_struct
from autotune.runtime.table.table import Kernel, Table

NAMES = [
    re.findall(r'"(cu[A-Z]\w+|cublas\w+)"', (core.FOLDER / name).read_text(encoding="utf-8"))
    for name in ("driver.c", "loader.c", "find_blas.c")
]
STANDIN = b"libeuda.so.1"
_P, _I, _Q = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
_LOADING = {
    "cuInit": (_I,), "cuCtxGetDevice": (_P,), "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I), "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuLibraryLoadData": (_P, _P, _P, _P, _I, _P, _P, _I), "cuLibraryGetKernel": (_P, _Q, ctypes.c_char_p),
    "cuKernelGetAttribute": (_P, _I, _Q, _I), "cuKernelSetAttribute": (_I, _I, _Q, _I),
    "cuKernelGetFunction": (_P, _Q), "cublasGetProperty": (_I, _P),
}  # fmt: skip


class _Through:
    """Whatever object is in use now: what the library has found once stays."""

    def __init__(self) -> None:
        self.__dict__["of"] = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.of, name)
        return (lambda *given, **by: getattr(self.of, name)(*given, **by)) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


class PatchedCore:
    """The core for programs in C. `has_blas`: it finds a cuBLAS. `path`: of the core, unless it is ours."""

    def __init__(self, has_blas: bool, path: Path = core.FOLDER / core.LIBRARY) -> None:
        self._driver, self._blas, self._codes = _Through(), _Through(), dict[int | None, bytes]()
        folder = Path(tempfile.mkdtemp(dir=_folder().name))
        name = STANDIN.replace(b"e", b"f" if has_blas else b"g")
        names = [one for part in NAMES for one in part]
        made = "".join(
            f"static void *find_{x}(void) {{ return functions[{i}]; }}"
            f'void {x}(void) __attribute__((ifunc("find_{x}")));'
            for i, x in enumerate(names)
        )
        source, driver = f"void *functions[{len(names)}];{made}", folder / name.decode()
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name.decode()}", "-xc", "-", "-o", str(driver)]
        subprocess.run(command, input=source, text=True, check=True)
        self._standin, self._names = ctypes.CDLL(str(driver)), names
        text = path.read_bytes().replace(b"AUTOTUNE_CUBLAS\0", b"AUTOTUNE_EUBLAS\0")
        for other in (b"libcuda.so.1", *re.findall(rb"libcublas\.so[.0-9]*", text)):
            text = text.replace(other + b"\0", name.ljust(len(other), b"\0") + b"\0")
        copy = folder / "core.so"
        copy.write_bytes(text)
        self.core, self._has_blas, self._held = CoreLibrary(str(copy)), has_blas, list[Any]()

    def use(self, driver: FakeDriver, blas: FakeBlas | None) -> None:
        self._driver.__dict__["of"], self._blas.__dict__["of"] = driver, blas
        if self._held:
            return
        structs, (of_driver, _, (*of_blas, _)) = self.core.structs, NAMES
        calls = [calls_of(self._driver)]  # type: ignore[arg-type]
        found = dict(zip(of_driver, _pointers(calls[0]), strict=True))
        if blas is not None:
            calls.append(_blas_calls(structs.blas, {x: getattr(self._blas, x) for x in of_blas}))
            found |= zip(of_blas, _pointers(calls[1]), strict=True)
        own = {
            x: ctypes.CFUNCTYPE(_I, *kinds)(_guarded(getattr(self, f"_{x}"))) for x, kinds in _LOADING.items()
        }
        found |= {x: _address(function) for x, function in own.items() if blas or x[2].isupper()}
        functions = (_P * len(self._names)).in_dll(self._standin, "functions")
        for i, x in enumerate(self._names):
            functions[i] = found.get(x)
        self._held = [*calls, own]

    # What the core calls to load kernels

    def _cuInit(self, _: int) -> None: ...

    def _cuCtxGetDevice(self, at: int) -> None:
        if (device := self._driver.current_device()) is None:
            raise CudaFault("asking for the GPU", 201, "CUDA_ERROR_INVALID_CONTEXT")
        ctypes.c_int.from_address(at).value = device

    def _cuDeviceGetName(self, at: int, room: int, device: int) -> None:
        name = self._driver.device_name(device).encode() + b"\0"
        ctypes.memmove(at, name, min(room, len(name)))

    def _cuDeviceGetAttribute(self, at: int, attribute: int, device: int) -> None:
        ctypes.c_int.from_address(at).value = self._driver.compute_capability(device)[attribute - 75]

    def _cuDevicePrimaryCtxRetain(self, at: int, device: int) -> None:
        _Q.from_address(at).value = self._driver.primary_context(device)

    def _cuLibraryLoadData(self, at: int, code: int, *others: int) -> None:
        assert not any(others)
        text = self._codes.get(code) or ctypes.string_at(code) + b"\0"
        _Q.from_address(at).value = self._driver.load_library(text)

    def _cuLibraryGetKernel(self, at: int, library: int, name: bytes) -> None:
        _Q.from_address(at).value = self._driver.get_kernel(library, name.decode())

    def _cuKernelGetAttribute(self, at: int, attribute: int, kernel: int, device: int) -> None:
        facts = self._driver.kernel_facts(kernel, device, has_clusters=True)
        found = {0: facts.max_threads, 1: facts.static_smem_bytes, 4: facts.registers}
        found |= dict(zip((11, 12, 13), facts.cluster, strict=True))
        ctypes.c_int.from_address(at).value = found[attribute]

    def _cuKernelSetAttribute(self, attribute: int, value: int, kernel: int, device: int) -> None:
        assert attribute == 8
        self._driver.allow_smem(kernel, value, device)

    def _cuKernelGetFunction(self, at: int, kernel: int) -> None:
        self._driver.make_resident(kernel)
        _Q.from_address(at).value = kernel

    def _cublasGetProperty(self, part: int, at: int) -> None:
        ctypes.c_int.from_address(at).value = self._blas.version[part]

    # Its handles

    def open(self, tables: Sequence[Table], driver: FakeDriver, blas: FakeBlas | None) -> Handle:
        self.use(driver, blas)
        handle = Handle(self.core, tables, code_of)
        self._codes.update(handle.codes)
        return handle


@cache
def library(has_blas: bool) -> PatchedCore:
    """Skips where there is no gcc."""
    try:
        return PatchedCore(has_blas)
    except FileNotFoundError:
        pytest.skip("gcc is not installed")


class Handle:
    """An autotune_handle of a core for these tables, as long as this is held. `codes`: by their addresses."""

    def __init__(self, core: CoreLibrary, tables: Sequence[Table], code: Callable[[Kernel], bytes]) -> None:
        self._core, self._kept, structs = core, TableArrays(), []
        self.numbers, self.codes = core.numbers, dict[int | None, bytes]()
        for table in tables:
            of = table_struct(core.structs, table, self._kept)
            codes = [code(kernel) for kernel in {k.sha256: k for k in table.kernels}.values()]
            places = [self._kept.numbers(np.frombuffer(one, np.uint8)) for one in codes]
            self.codes |= zip(places, codes, strict=True)
            pairs = zip(places, map(len, codes), strict=True)
            of.codes = self._kept.of([core.structs.code(*pair) for pair in pairs])
            structs.append(of)
        handle = ctypes.c_void_p()
        assert not core.autotune_open_kinds(self._kept.of(structs), len(structs), ctypes.byref(handle))
        self._handle = handle.value

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._core, name)(self._handle, *arguments))

    def close(self) -> None:
        self._core.autotune_close(self._handle)


def _pointers(struct: Any) -> list[int | None]:
    return [_address(getattr(struct, name)) for name, _ in struct._fields_]


def _address(function: Callable[..., Any]) -> int | None:
    return ctypes.cast(function, _P).value  # type: ignore[arg-type]
