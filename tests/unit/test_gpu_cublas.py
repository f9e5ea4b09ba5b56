"""cuBLAS's column-major call computes our row-major product, in every layout."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.facts.cublas_calls import ColumnMajorCall
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu import cublas
from autotune.gpu.cublas import CublasError
from autotune.gpu.memory import OperandSet


def _by_columns(flat, rows, columns, lead):
    """A column-major matrix of these extents, as cuBLAS reads memory."""
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4, 4 * lead))


@pytest.mark.parametrize("pads", [(0, 0, 0), (1, 2, 4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_column_major_call_is_the_row_major_product(layout, pads):
    gemm = Gemm.parse(f"5x7x3:{layout}")
    lds = tuple(ld + pad for ld, pad in zip((gemm.lda, gemm.ldb, gemm.ldc), pads, strict=True))
    call = ColumnMajorCall.of(gemm, lds if any(pads) else None)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in ((5, 3), (3, 7)))
    flat_a = np.pad(a.T if gemm.trans_a else a, ((0, 0), (0, pads[0]))).ravel()
    flat_b = np.pad(b.T if gemm.trans_b else b, ((0, 0), (0, pads[1]))).ravel()

    def operand(flat, is_transposed, rows, columns, lead):
        stored = _by_columns(flat, *((columns, rows) if is_transposed else (rows, columns)), lead)
        return stored.T if is_transposed else stored

    first = operand(flat_b, call.trans_first, call.rows, call.depth, call.ld_first)
    second = operand(flat_a, call.trans_second, call.depth, call.columns, call.ld_second)
    flat_c = np.zeros(gemm.m * lds[2], np.float32)
    _by_columns(flat_c, call.rows, call.columns, call.ld_result)[:] = first @ second
    np.testing.assert_allclose(flat_c.reshape(5, lds[2])[:, :7], a @ b, rtol=1e-5, atol=1e-6)


class FakeCublas:
    """Keeps what it was called with."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            return 0

        return call


@pytest.fixture
def fake():
    return FakeCublas()


@pytest.fixture
def library(fake):
    status = type("Status", (int,), {"name": "ok"})(0)
    return cublas.Cublas(SimpleNamespace(cuMemAlloc=lambda size: (status, 4096)), fake, 77)


def _plain(argument):
    """A number, an address or what a pointer points to."""
    return getattr(getattr(argument, "_obj", argument), "value", argument)


def test_a_single_product_is_cublas_sgemm(library, fake):
    library.sgemm(Gemm.parse("5x7x3:NT"), OperandSet(1000, 2000, 3000))
    name, arguments = fake.calls[-1]
    assert name == "cublasSgemm_v2"
    assert list(map(_plain, arguments[1:])) == [1, 0, 7, 5, 3, 1.0, 2000, 3, 1000, 3, 0.0, 3000, 7]


def test_a_batch_is_cublas_strided_batched(library, fake):
    """Operands change places, and their strides with them; what is shared has none."""
    library.sgemm(Gemm.parse("5x7x3b9:NT:shared-a"), OperandSet(1000, 2000, 3000))
    name, arguments = fake.calls[-1]
    assert name == "cublasSgemmStridedBatched"
    assert list(map(_plain, arguments[1:])) == [
        *(1, 0, 7, 5, 3, 1.0, 2000, 3, 21, 1000, 3, 0, 0.0, 3000, 7, 35, 9),
    ]
    strides = [arguments[at] for at in (9, 12, 16)]
    assert all(type(stride) is ctypes.c_int64 for stride in strides), "an int would pass 32 bits"


def test_leading_dimensions_satisfy_cublas_even_without_depth():
    call = ColumnMajorCall.of(Gemm(4, 6, 0))
    assert min(call.ld_first, call.ld_second, call.ld_result) >= 1


def test_an_absent_library_is_no_error(monkeypatch):
    import cuda.pathfinder

    def absent(name):
        raise cuda.pathfinder.DynamicLibNotFoundError("no cublas")

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", absent)
    assert cublas.load_library() is None


def test_a_failing_call_is_named():
    with pytest.raises(CublasError, match="cublasSgemm_v2 failed with status 13"):
        cublas.check_status(13, "cublasSgemm_v2")
