"""The kernels that check results, executed on the host: the checker itself is held against numpy."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from autotune.facts import accuracy_class
from autotune.facts.gemm import Gemm
from autotune.gpu import memory, verification
from autotune.gpu.verification import RawFindings
from autotune.kernel import template

HERE = Path(__file__).parent
LIBRARY = ("-std=c++20", "-O1", "-g", "-Wall", "-Werror", "-Wno-unknown-pragmas")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


@pytest.fixture(scope="session")
def checks(builder):
    source = template.kernel_dir() / "checks.cu"
    flags = (*LIBRARY, f'-DCHECKS_SOURCE="{source}"')
    return ctypes.CDLL(str(builder.library(HERE / "checks_host.cpp", [source], flags)))


def _pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def _operands(gemm, seed=0):
    """op(A) (products, m, k) and op(B) (products, k, n); of one product alone, what all share."""
    generator = np.random.default_rng(seed)
    products_a, products_b = (1 if is_shared else gemm.batch for is_shared in (gemm.shares_a, gemm.shares_b))
    a = generator.standard_normal((products_a, gemm.m, gemm.k), dtype=np.float32)
    b = generator.standard_normal((products_b, gemm.k, gemm.n), dtype=np.float32)
    return a, b


class Reference:
    """Operands as stored, reference and findings of one problem, on the host."""

    def __init__(self, checks, gemm, tiles=None):
        self.checks, self.gemm = checks, gemm
        self.a, self.b = _operands(gemm)
        self.tiles = tiles or verification.choose_tiles(gemm, 10**6, 0)
        exact = self.a.astype(np.float64) @ self.b  # (products, m, n)
        sizes = np.abs(self.a.astype(np.float64)) @ np.abs(self.b)
        self.exact, self.sizes = (x if gemm.is_batched else x[0] for x in (exact, sizes))
        self.numbers = np.array(self.tiles, np.int32)
        self.products = np.full((len(self.tiles), 64, 64), np.nan)
        self.magnitudes = np.full((len(self.tiles), 64, 64), np.nan, np.float32)
        stored_a = np.ascontiguousarray(self.a.mT if gemm.trans_a else self.a)
        stored_b = np.ascontiguousarray(self.b.mT if gemm.trans_b else self.b)
        strides = gemm.strides
        checks.host_reference(
            *(len(self.tiles), gemm.m, gemm.n, gemm.k),
            *(_pointer(stored_a), *verification._strides(gemm.lda, gemm.trans_a, strides.stride_a)),
            *(_pointer(stored_b), *verification._strides(gemm.ldb, gemm.trans_b, strides.stride_b)),
            *map(_pointer, (self.numbers, self.products, self.magnitudes)),
        )

    def compare(self, c, gamma=None):
        raw = RawFindings()
        gamma = ctypes.c_double(accuracy_class.gamma(self.gemm.k) if gamma is None else gamma)
        c = np.ascontiguousarray(c, np.float32)
        self.checks.host_compare_tiles(
            *(len(self.tiles), self.gemm.m, self.gemm.n, _pointer(c)),
            *map(_pointer, (self.numbers, self.products, self.magnitudes)),
            *(gamma, ctypes.byref(raw)),
        )
        self.norm = raw.squares**0.5
        return verification.ratio_of(raw.worst), verification.locate(self.gemm, self.tiles, raw.worst)


SINGLE = ["70x130x33:NN", "70x130x33:NT", "70x130x33:TN", "70x130x33:TT", "64x64x16", "1x1x1", "5x3x1:TT"]
BATCHES = ["70x130x33b3:NN", "65x5x9b4:NT", "5x70x9b2:TN:shared-a", "66x67x9b3:TT:shared-b", "4x3x2b50"]
SHAPES = [*SINGLE, *BATCHES]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_the_float64_product(checks, shape):
    gemm = Gemm.parse(shape)
    reference = Reference(checks, gemm)
    rows_of, columns = -(-gemm.m // 64), -(-gemm.n // 64)
    exact, sizes = (x.reshape(gemm.batch, gemm.m, gemm.n) for x in (reference.exact, reference.sizes))
    for slot, tile in enumerate(reference.tiles):
        product, row, column = tile // columns // rows_of, tile // columns % rows_of, tile % columns
        rows = slice(row * 64, min(row * 64 + 64, gemm.m))
        cols = slice(column * 64, min(column * 64 + 64, gemm.n))
        inside = np.s_[slot, : rows.stop - rows.start, : cols.stop - cols.start]
        np.testing.assert_allclose(reference.products[inside], exact[product, rows, cols], rtol=0, atol=1e-12)
        np.testing.assert_allclose(reference.magnitudes[inside], sizes[product, rows, cols], rtol=1e-5)
    assert len(reference.tiles) == gemm.batch * rows_of * columns
    assert np.isfinite(reference.products).all()  # beyond the edges: zeros


@pytest.mark.parametrize("shape", SHAPES)
def test_a_right_result_passes_and_one_wrong_element_is_found_where_it_is(checks, shape):
    gemm = Gemm.parse(shape)
    reference = Reference(checks, gemm)
    c = reference.exact.astype(np.float32)
    assert 0 <= reference.compare(c)[0] <= 1
    for place in {(0, 0), (gemm.m - 1, gemm.n - 1), (gemm.m // 2, gemm.n // 3)}:
        for product in {0, gemm.batch // 2, gemm.batch - 1}:
            wrong, expected = c.copy(), (product, *place) if gemm.is_batched else place
            wrong[expected] += 0.5
            ratio, at = reference.compare(wrong)
            assert ratio > 1
            assert at == expected


def test_the_ratio_is_the_difference_over_the_bound(checks):
    gemm = Gemm(40, 50, 60)
    reference = Reference(checks, gemm)
    c = reference.exact.astype(np.float32)
    c[7, 9] = reference.exact[7, 9] + 1.0
    size = reference.sizes[7, 9]
    assert reference.compare(c, gamma=0.01)[0] == pytest.approx(1.0 / (0.01 * size), rel=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_norm_of_the_error_is_that_of_all_differences(checks, shape):
    gemm = Gemm.parse(shape)
    reference = Reference(checks, gemm)
    c = reference.exact.astype(np.float32)
    c[..., -1, 0] += 3.0
    reference.compare(c)
    assert reference.norm == pytest.approx(np.linalg.norm(c - reference.exact), rel=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_infinitely_wrong(checks, value):
    gemm = Gemm(40, 50, 6)
    reference = Reference(checks, gemm)
    c = reference.exact.astype(np.float32)
    c[39, 49] = value
    assert reference.compare(c) == (verification._LARGEST_FLOAT, (39, 49))


def test_only_chosen_tiles_are_compared(checks):
    reference = Reference(checks, Gemm(130, 130, 9), tiles=[0, 8])
    c = reference.exact.astype(np.float32)
    c[70, 70] = 1e6  # in tile 4
    assert reference.compare(c)[0] <= 1
    assert reference.norm < 1e-3
    c[129, 129] = 1e6
    assert reference.compare(c)[1] == (129, 129)


def test_k_of_zero_wants_exact_zeros(checks):
    reference = Reference(checks, Gemm(10, 10, 0))
    c = np.zeros((10, 10), np.float32)
    assert reference.compare(c)[0] == 0
    c[3, 4] = 1e-30
    assert reference.compare(c) == (verification._LARGEST_FLOAT, (3, 4))


def _compare_whole(checks, c, other, tolerance):
    raw = RawFindings()
    pointer = ctypes.c_void_p(0) if other is None else _pointer(other)
    checks.host_compare_whole(
        3, _pointer(c), pointer, ctypes.c_uint64(c.size), ctypes.c_double(tolerance), ctypes.byref(raw)
    )
    return raw.num_nonfinite, verification.ratio_of(raw.worst_to_other)


def test_all_of_c_is_searched_and_compared(checks):
    c = np.linspace(-1, 1, 1001, dtype=np.float32)
    assert _compare_whole(checks, c, None, 1.0) == (0, 0.0)
    assert _compare_whole(checks, c, c.copy(), 0.0) == (0, 0.0)
    other = c.copy()
    other[1000] += 0.25
    assert _compare_whole(checks, c, other, 0.125) == (0, 2.0)
    c[[0, 500]] = np.nan, np.inf
    assert _compare_whole(checks, c, None, 1.0)[0] == 2


@pytest.mark.parametrize("corrupted", [None, 0, 1, 2, 3])
def test_every_canary_is_checked_to_its_last_word(checks, corrupted):
    layout = memory.lay_out((12, 20, 4))
    words = np.full(layout.num_bytes // 4, memory.CANARY_WORD, np.uint32)
    for region in layout.operands:
        words[region.offset // 4 : region.end // 4] = 0
    if corrupted is not None:
        canary = layout.canaries[corrupted]
        words[canary.offset // 4] = words[canary.end // 4 - 1] = 7
    canaries = memory.canary_list(words.ctypes.data, layout.canaries)
    raw = RawFindings()
    checks.host_check_canaries(len(layout.canaries), canaries, 10, memory.CANARY_WORD, ctypes.byref(raw))
    assert (raw.num_corrupted, raw.last_damaged) == ((0, 0) if corrupted is None else (2, 10 + corrupted + 1))


def test_operands_are_normal_bounded_and_repeat_with_their_seed(checks):
    def fill(seed, blocks=2, count=100_000):
        out = np.zeros(count, np.float32)
        checks.host_fill(blocks, _pointer(out), ctypes.c_uint64(count), ctypes.c_uint64(seed))
        return out

    numbers = fill(0)
    assert abs(numbers.mean()) < 0.02
    assert abs(numbers.std() - 1) < 0.02
    assert abs((numbers**4).mean() - 3) < 0.15
    assert 3.5 < np.abs(numbers).max() <= verification.LARGEST_NORMAL
    assert np.unique(numbers).size > 99_000
    assert np.array_equal(numbers, fill(0, blocks=1))
    assert abs(np.corrcoef(numbers, fill(1))[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
