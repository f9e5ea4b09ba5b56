"""cuBLASLt is asked for the right product, by a library that plays it on host memory."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.facts.cublas_calls import TORCH_BYTES, LtCandidate
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu import cublaslt
from autotune.gpu.cublas import CublasError
from autotune.gpu.cublaslt import CublasLt
from autotune.gpu.memory import OperandSet

STREAM, WORKSPACE = 77, 0x1000
_STATUS_INVALID = 7


class FakeLt:
    """Keeps descriptors by handle, and multiplies column-major matrices where they lie."""

    def __init__(self) -> None:
        self.alive: dict[int, list] = {}
        self.answer: list[tuple[int, int]] = [(0, 0), (0, 1 << 20)]  # (status, workspace) of each candidate
        self.heuristic_status = 0
        self.rejected: set[int] = set()
        self.used: list[int] = []

    def _new(self, out, *facts):
        out._obj.value = max(self.alive, default=0) + 1
        self.alive[out._obj.value] = list(facts)
        return 0

    def _drop(self, handle):
        del self.alive[handle.value]
        return 0

    def cublasLtCreate(self, out):
        return self._new(out, "handle")

    def cublasLtMatmulDescCreate(self, out, compute, scale):
        assert compute in (68, 69) and scale == 0  # FP32, the latter pedantic
        return self._new(out, {"compute": compute})

    def cublasLtMatmulPreferenceCreate(self, out):
        return self._new(out, {})

    def cublasLtMatrixLayoutCreate(self, out, kind, rows, columns, lead):
        assert kind == 0
        assert (type(rows), type(columns), type(lead)) == (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)
        assert lead.value >= rows.value
        return self._new(out, rows.value, columns.value, lead.value, {5: 1, 6: 0})

    def cublasLtMatrixLayoutSetAttribute(self, layout, attribute, value, size):
        assert size.value == {5: 4, 6: 8}[attribute]
        self.alive[layout.value][3][attribute] = value._obj.value
        return 0

    cublasLtDestroy = cublasLtMatmulDescDestroy = cublasLtMatrixLayoutDestroy = _drop
    cublasLtMatmulPreferenceDestroy = _drop

    def cublasLtMatmulDescSetAttribute(self, desc, attribute, value, size):
        assert size.value == (8 if attribute == 8 else 4)
        self.alive[desc.value][0][attribute] = value._obj.value
        return 0

    def cublasLtMatmulPreferenceSetAttribute(self, preference, attribute, value, size):
        assert size.value == (8 if attribute == 1 else 4)
        self.alive[preference.value][0][attribute] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, handle, desc, a, b, c, d, preference, count, found, num_found):
        self.preferred = dict(self.alive[preference.value][0])
        assert self.alive[desc.value][0]["compute"] == (68 if 8 in self.alive[desc.value][0] else 69)
        assert self.alive[handle.value] == ["handle"]
        assert c is d
        for number, (status, workspace) in enumerate(self.answer[:count]):
            found[number].algo[0], found[number].status = number, status
            found[number].workspace_bytes = workspace
        num_found._obj.value = min(count, len(self.answer))
        return self.heuristic_status

    def cublasLtMatmul(self, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                       algo, workspace, workspace_bytes, stream):  # fmt: skip
        assert (stream.value, workspace.value) == (STREAM, WORKSPACE)
        assert workspace_bytes.value == self.preferred[1]
        assert (alpha._obj.value, beta._obj.value, c.value) == (1.0, 0.0, d.value)
        number = algo._obj.algo[0]
        if number in self.rejected:
            return _STATUS_INVALID
        self.used.append(number)
        flags = self.alive[desc.value][0]
        for product in range(self.alive[a_layout.value][3][5]):
            first, second = self._matrix(a, a_layout, product), self._matrix(b, b_layout, product)
            first, second = (x.T if flags[f] else x for x, f in ((first, 3), (second, 4)))
            self._matrix(c, c_layout, product)[:] = first @ second
            if flags.get(7) == 4:
                rows = self.alive[c_layout.value][0]
                bias = np.frombuffer((ctypes.c_float * rows).from_address(flags[8]), np.float32)
                self._matrix(c, c_layout, product)[:] += bias[:, None]
        return 0

    def _matrix(self, address, layout, product):
        rows, columns, lead, batch = self.alive[layout.value]
        assert product < batch[5]
        at = address.value + 4 * product * batch[6]
        flat = np.frombuffer((ctypes.c_float * (lead * columns)).from_address(at), np.float32)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4, 4 * lead), writeable=True)


@pytest.fixture
def fake():
    return FakeLt()


@pytest.fixture
def driver():
    status = type("Status", (int,), {"name": "ok"})(0)
    return SimpleNamespace(cuMemAlloc=lambda size: (status, WORKSPACE), cuMemFree=lambda address: (status,))


@pytest.fixture
def lt(driver, fake):
    return CublasLt(driver, fake, STREAM)


def test_the_record_is_as_large_as_the_librarys():
    assert ctypes.sizeof(LtCandidate) == 96


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_product_is_the_row_major_one(lt, fake, layout):
    gemm = Gemm.parse(f"5x7x3:{layout}")
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape, dtype=np.float32) for shape in ((5, 3), (3, 7)))
    stored_a = np.ascontiguousarray(a.T if gemm.trans_a else a)
    stored_b = np.ascontiguousarray(b.T if gemm.trans_b else b)
    c = np.full((5, 7), np.nan, np.float32)
    product = lt.product(gemm)
    candidate = product.candidates()[1]
    product.enqueue(candidate, OperandSet(stored_a.ctypes.data, stored_b.ctypes.data, c.ctypes.data))
    np.testing.assert_allclose(c, a @ b, rtol=1e-6)
    assert fake.used == [1] and fake.preferred == {1: cublaslt.WORKSPACE_BYTES}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bias_is_added_to_each_row_as_torch_asks_for_it(driver, fake, layout):
    """The first that the heuristic names, for addresses as these are aligned, with little workspace."""
    lt = CublasLt(driver, fake, STREAM, TORCH_BYTES)
    gemm = Gemm.parse(f"5x7x3:{layout}")
    generator = np.random.default_rng(0)
    a, b, bias = (generator.standard_normal(shape, dtype=np.float32) for shape in ((5, 3), (3, 7), 7))
    stored_a = np.ascontiguousarray(a.T if gemm.trans_a else a)
    stored_b = np.ascontiguousarray(b.T if gemm.trans_b else b)
    c = np.full((5, 7), np.nan, np.float32)
    operands = OperandSet(stored_a.ctypes.data, stored_b.ctypes.data, c.ctypes.data)
    product = lt.product(gemm, bias.ctypes.data)
    product.enqueue(product.first(operands), operands)
    np.testing.assert_allclose(c, a @ b + bias, rtol=1e-5)
    aligned = [next(n for n in (256, 128, 64, 32, 16, 8, 4) if x.ctypes.data % n == 0)
               for x in (stored_b, stored_a, c, bias)]  # fmt: skip
    assert fake.used == [0]
    assert fake.preferred == {1: 1 << 20, **dict(zip((5, 6, 7, 8), aligned, strict=True))}
    fake.answer = []
    with pytest.raises(CublasError, match="status 15"):
        product.first(operands)


@pytest.mark.parametrize("shape", ["5x7x3b4:NN", "5x7x3b4:TT:shared-a", "5x7x3b4:NT:shared-b"])
def test_a_batch_is_all_its_products(lt, shape):
    gemm = Gemm.parse(shape)
    generator = np.random.default_rng(0)
    of_a, of_b = (1 if is_shared else 4 for is_shared in (gemm.shares_a, gemm.shares_b))
    a, b = (generator.standard_normal(s, dtype=np.float32) for s in ((of_a, 5, 3), (of_b, 3, 7)))
    stored_a = np.ascontiguousarray(a.mT if gemm.trans_a else a)
    stored_b = np.ascontiguousarray(b.mT if gemm.trans_b else b)
    c = np.full((4, 5, 7), np.nan, np.float32)
    product = lt.product(gemm)
    operands = OperandSet(stored_a.ctypes.data, stored_b.ctypes.data, c.ctypes.data)
    product.enqueue(product.candidates()[0], operands)
    np.testing.assert_allclose(c, a @ b, rtol=1e-6)


def test_candidates_that_do_not_serve_are_left_out(lt, fake):
    fake.answer = [(0, 0), (15, 0), (0, cublaslt.WORKSPACE_BYTES + 1), (0, cublaslt.WORKSPACE_BYTES)]
    assert [c.algo[0] for c in lt.product(Gemm(5, 7, 3)).candidates()] == [0, 3]


def test_what_cublaslt_cannot_compute_has_no_candidates(lt, fake):
    fake.heuristic_status = 15
    assert lt.product(Gemm(5, 7, 3)).candidates() == []
    fake.heuristic_status = 7
    with pytest.raises(CublasError, match="GetHeuristic failed with status 7"):
        lt.product(Gemm(5, 7, 3)).candidates()


def test_a_refused_algorithm_is_an_error_of_its_own(lt, fake):
    fake.rejected = {0}
    product = lt.product(Gemm(5, 7, 3))
    with pytest.raises(CublasError, match="cublasLtMatmul"):
        product.enqueue(product.candidates()[0], OperandSet(1, 2, 3))


def test_nothing_stays_behind(lt, fake):
    product = lt.product(Gemm(5, 7, 3))
    product.candidates()
    product.free()
    lt.free()
    assert fake.alive == {}
