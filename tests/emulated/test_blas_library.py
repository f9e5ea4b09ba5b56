"""The cuBLAS of a process is found, and called with the types that cublas_api.h declares: on a library that
g++ makes for the test, which keeps what it was called with."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_cases import FakeDriver, make_table

from autotune.facts.cublas_calls import WORKSPACE_BYTES
from autotune.facts.gemm import Batch, Gemm
from autotune.runtime.calls.product import Product
from autotune.runtime.choose import blas_provider
from autotune.runtime.choose.blas_provider import BlasLibrary, BlasProvider
from autotune.runtime.launch.planner import BlasEngine

SOURCE = r"""
#include <cstddef>
struct Kept {
    void* handle; int flags[5]; const float* first; int ld_first; const float* second; int ld_second;
    float* result; int ld_result; float alpha, beta; void* stream; void* workspace; size_t size; int modes[2];
};
Kept kept;
extern "C" {
Kept* what_was_kept() { return &kept; }
long long batch[4];
int cublasGetProperty(int part, int* value) { *value = part == 0 ? MAJOR : part; return 0; }
int cublasCreate_v2(void** handle) { *handle = (void*)0x7f0123456789; return 0; }
int cublasSetMathMode(void* handle, int mode) { kept.modes[0] = mode; return 0; }
int cublasSetPointerMode_v2(void* handle, int mode) { kept.modes[1] = mode; return 0; }
int cublasSetStream_v2(void* handle, void* stream) { kept.stream = stream; return 0; }
int cublasSetWorkspace_v2(void* handle, void* at, size_t size) {
    kept.workspace = at; kept.size = size; return 0;
}
#ifdef WHOLE
int cublasSgemm_v2(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                   const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
    kept = {handle, {transa, transb, m, n, k}, a, lda, b, ldb, c, ldc, *alpha, *beta,
            kept.stream, kept.workspace, kept.size, {kept.modes[0], kept.modes[1]}};
    return 0;
}
int cublasSgemmStridedBatched(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                              const float* a, int lda, long long stride_a, const float* b, int ldb,
                              long long stride_b, const float* beta, float* c, int ldc, long long stride_c,
                              int products) {
    cublasSgemm_v2(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    long long told[4] = {stride_a, stride_b, stride_c, products};
    for (int i = 0; i < 4; i++) batch[i] = told[i];
    return 0;
}
int cublasSgeam(void* handle, int transa, int transb, int m, int n, const float* alpha, const float* a,
                int lda, const float* beta, const float* b, int ldb, float* c, int ldc) {
    kept = {handle, {transa, transb, m, n, 0}, a, lda, b, ldb, c, ldc, *alpha, *beta,
            kept.stream, kept.workspace, kept.size, {kept.modes[0], kept.modes[1]}};
    return 0;
}
#endif
}
"""
_P, _I, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_float


class Kept(ctypes.Structure):
    _fields_ = [
        ("handle", _P), ("flags", _I * 5), ("first", _P), ("ld_first", _I), ("second", _P), ("ld_second", _I),
        ("result", _P), ("ld_result", _I), ("alpha", _F), ("beta", _F), ("stream", _P), ("workspace", _P),
        ("size", ctypes.c_size_t), ("modes", _I * 2),
    ]  # fmt: skip


def build(folder: Path, major: int, is_whole: bool = True) -> Path:
    """A library that is called as cuBLAS is; not `is_whole`: without a function that the runtime needs."""
    folder.mkdir()
    path, source = folder / "libcublas.so.13", folder / "cublas.cpp"
    source.write_text(SOURCE)
    options = [f"-DMAJOR={major}", *(["-DWHOLE"] if is_whole else [])]
    subprocess.run(["g++", "-shared", "-fPIC", *options, source, "-o", path], check=True, timeout=120)
    return path


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """No cuBLAS is installed, and only the library of the test counts as mapped."""
    import cuda.pathfinder

    def absent(name: str) -> None:
        raise cuda.pathfinder.DynamicLibNotFoundError("no cublas")

    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", absent)
    own = blas_provider._mapped
    monkeypatch.setattr(blas_provider, "_mapped", lambda: [x for x in own() if x.startswith(str(tmp_path))])
    blas_provider.find_library.cache_clear()
    yield
    blas_provider.find_library.cache_clear()


def test_the_library_of_this_process_is_found(tmp_path: Path) -> None:
    path = build(tmp_path / "lib", 97)
    assert blas_provider.find_library() is None  # it is there, and nobody has loaded or installed it
    ctypes.CDLL(str(path))
    blas_provider.find_library.cache_clear()
    found = blas_provider.find_library()
    assert found is not None and found.version == "97.1.2"
    assert blas_provider.find_library() is found


def test_the_version_of_what_is_loaded_is_known_without_loading_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    import cuda.pathfinder

    path = build(tmp_path / "lib", 94)
    installed = SimpleNamespace(abs_path=str(path))
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", lambda name: installed)
    early, late = BlasProvider(True), BlasProvider(True)
    assert early.loaded_version() is None and not blas_provider._mapped()
    ctypes.CDLL(str(path))
    assert early.loaded_version() is None  # asked once
    assert late.loaded_version() == "94.1.2" and BlasProvider(False).loaded_version() is None
    assert early.version == "94.1.2" == early.loaded_version()  # it serves


def test_what_is_loaded_goes_before_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    import cuda.pathfinder

    installed = SimpleNamespace(abs_path=str(build(tmp_path / "installed", 98)))
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", lambda name: installed)
    first = blas_provider.find_library()
    assert first is not None and first.version == "98.1.2"
    monkeypatch.setattr(blas_provider, "_mapped", lambda: [str(loaded)])
    loaded = build(tmp_path / "loaded", 99)
    blas_provider.find_library.cache_clear()
    second = blas_provider.find_library()
    assert second is not None and second.version == "98.1.2"  # what is no longer mapped is not loaded again
    ctypes.CDLL(str(loaded))
    blas_provider.find_library.cache_clear()
    third = blas_provider.find_library()
    assert third is not None and third.version == "99.1.2"


def test_a_library_without_what_is_needed_is_passed_over(tmp_path: Path) -> None:
    ctypes.CDLL(str(build(tmp_path / "lib", 96, is_whole=False)))
    assert len(blas_provider._mapped()) == 1
    assert blas_provider.find_library() is None


def test_arguments_have_the_types_of_the_header(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build(tmp_path / "lib", 95)))
    library.what_was_kept.restype = ctypes.POINTER(Kept)
    blas = BlasProvider(is_on=True)
    blas.library = BlasLibrary(library)
    assert blas.version == "95.1.2"
    engine = BlasEngine(FakeDriver(make_table()), blas)  # type: ignore[arg-type]
    a, b, c, workspace, stream = (0x7F12_0000_0000 + 256 * i for i in range(5))

    def kept_of(problem: Product, alpha: float, beta: float) -> Any:
        plan = engine.blas_plan(problem, engine.devices.gpu(0))
        engine.launch_all(plan, stream, (a, b, c), alpha, beta, workspace)
        return library.what_was_kept().contents

    one = Product(Gemm(5, 7, 3, False, True), (11, 13, 2**31 - 1), (8, 8, 8))
    kept = kept_of(one, np.float32(0.25), -2)
    assert kept.handle == 0x7F0123456789 and list(kept.modes) == [2, 0]
    assert (kept.stream, kept.workspace, kept.size) == (stream, workspace, WORKSPACE_BYTES)
    assert list(kept.flags) == [1, 0, 7, 5, 3] and (kept.alpha, kept.beta) == (0.25, -2.0)
    assert (kept.first, kept.ld_first, kept.second, kept.ld_second) == (b, 13, a, 11)
    assert (kept.result, kept.ld_result) == (c, 2**31 - 1)

    batch = Batch(9, 0, 2**40, 2**33)
    kept = kept_of(Product(Gemm(5, 7, 3, False, True, 9), (11, 13, 17), (8, 8, 8), batch), 1.0, 0.0)
    assert list(kept.flags) == [1, 0, 7, 5, 3] and (kept.first, kept.second, kept.result) == (b, a, c)
    assert list((ctypes.c_longlong * 4).in_dll(library, "batch")) == [2**40, 0, 2**33, 9]

    scaled = kept_of(one, 0.0, 3.5)
    assert list(scaled.flags) == [0, 0, 7, 5, 0] and (scaled.alpha, scaled.beta) == (3.5, 0)
    assert (scaled.result, scaled.ld_result, scaled.stream) == (c, 2**31 - 1, stream)
    assert (scaled.first, scaled.ld_first, scaled.second, scaled.ld_second) == (c, 2**31 - 1) * 2
