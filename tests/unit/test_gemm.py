"""Shapes are read as they are written, and what is no shape is refused with its place."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.gemm import LAYOUTS, MAX_BATCH, MAX_EXTENT, SINGLE, Gemm
from autotune.files.errors import UsageError
from autotune.kernel.config import PARAMETER

EXTENTS = st.integers(0, MAX_EXTENT)
FLAGS = (st.booleans(), st.booleans())
SINGLES = st.builds(Gemm, EXTENTS, EXTENTS, EXTENTS, *FLAGS)
SHARED = st.sampled_from([(False, False), (True, False), (False, True)])  # A, B
BATCHES = st.builds(
    lambda single, batch, shared: replace(single, batch=batch, shares_a=shared[0], shares_b=shared[1]),
    *(SINGLES, st.integers(2, MAX_BATCH), SHARED),
)
GEMMS = SINGLES | BATCHES


@given(GEMMS)
def test_a_shape_is_read_as_it_is_written(gemm: Gemm) -> None:
    assert Gemm.parse(str(gemm)) == gemm
    assert Gemm.parse(f" {str(gemm).lower()}\n") == gemm
    assert shlex.quote(str(gemm)) == str(gemm)  # no shell takes any of it for its own


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("64b1", "64x64x64:NN"),
        ("64b8", "64x64x64b8:NN"),
        ("1x2x3B4:tn", "1x2x3b4:TN"),
        ("64b8:shared-a", "64x64x64b8:NN:shared-a"),
        ("1x2x3b4:NT:SHARED-B", "1x2x3b4:NT:shared-b"),
    ],
)
def test_a_batch_stands_behind_the_extents(text: str, written: str) -> None:
    assert str(Gemm.parse(text)) == written


def test_a_single_product_is_written_without_a_batch() -> None:
    assert str(Gemm(1, 2, 3, True, False, batch=1)) == "1x2x3:TN"


@given(EXTENTS, st.sampled_from(LAYOUTS))
def test_one_number_is_a_square(size: int, layout: str) -> None:
    gemm = Gemm.parse(f"{size}:{layout}")
    assert (gemm.m, gemm.n, gemm.k, gemm.layout) == (size, size, size, layout)
    assert Gemm.parse(str(size)).layout == "NN"


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "4x5", "4x5x6x7", "4x5x", "-4", "+4", "4.0", "4e3", "0x10", "4096:", "4096:N", "4096:NNT",
     "4096:XY", "4096b", "4096b-1", "4096b2b2", "b2", "4096:NTb2", "4096b2:shared", "4096b2:shared-c",
     "4096b2:shared-ab", "4096b2:shared-a:NT", "4096:NT:NT", "4x5x6 NT", "4 x 5 x 6",
     "٤", "4,5,6", "4_096", "9" * 5000],
)  # fmt: skip
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither SIZE nor MxNxK"):
        Gemm.parse(text)


@given(st.text())
def test_any_text_is_a_shape_or_a_usage_error(text: str) -> None:
    try:
        extents = re.split("[bB:]", text.strip())[0]
        assert str(Gemm.parse(text)).startswith(extents.lstrip("0") or "0")
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    "extents", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (MAX_EXTENT + 1, 1, 1), (1, 1, 1 << 99999)]
)
def test_extents_out_of_range_are_refused(extents: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="expected a whole number of 0"):
        Gemm(*extents)


@pytest.mark.parametrize("batch", [-1, 0, MAX_BATCH + 1, 1 << 9999])
def test_batches_out_of_range_are_refused(batch: int) -> None:
    with pytest.raises(UsageError, match="expected a whole number of 1"):
        Gemm(1, 1, 1, batch=batch)


def test_sharing_that_means_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="a single product shares no operand"):
        Gemm.parse("64:shared-a")
    with pytest.raises(UsageError, match="are all the same"):
        Gemm(1, 1, 1, batch=2, shares_a=True, shares_b=True)


@pytest.mark.parametrize("name", ["bm", "bn"])
def test_the_largest_extent_fits_int32_in_whole_tiles(name: str) -> None:
    """The kernel computes (m + BM - 1) / BM and tiles_m * BM in int."""
    for tile in PARAMETER[name].values:
        assert MAX_EXTENT + tile - 1 < 2**31
        assert -(-MAX_EXTENT // tile) * tile < 2**31


@given(SINGLES)
def test_leading_dimensions_are_those_of_packed_row_major_operands(gemm: Gemm) -> None:
    rows_a, rows_b = (gemm.k if gemm.trans_a else gemm.m), (gemm.n if gemm.trans_b else gemm.k)
    assert rows_a * gemm.lda == gemm.m * gemm.k
    assert rows_b * gemm.ldb == gemm.k * gemm.n
    assert gemm.ldc == gemm.n
    assert gemm.num_bytes == 4 * (rows_a * gemm.lda + rows_b * gemm.ldb + gemm.m * gemm.ldc)


@given(BATCHES)
def test_a_batch_is_its_products_with_what_they_share_once(gemm: Gemm) -> None:
    single = replace(gemm, batch=1, shares_a=False, shares_b=False)
    assert gemm.flops == gemm.batch * single.flops
    assert gemm.num_results == gemm.batch * gemm.m * gemm.n
    shares = (gemm.shares_a, gemm.shares_b, False)
    for whole, one, is_shared in zip(gemm.operand_bytes, single.operand_bytes, shares, strict=True):
        assert whole == (one if is_shared else gemm.batch * one)
    assert gemm.num_bytes == sum(gemm.operand_bytes)
    products, *strides = gemm.strides
    assert products == gemm.batch
    for stride, one, is_shared in zip(strides, single.operand_bytes, shares, strict=True):
        assert 4 * stride == (0 if is_shared else one)
    assert single.strides == SINGLE


def test_the_roofline_is_the_slower_of_both_roofs() -> None:
    square, flat = Gemm(4096, 4096, 4096), Gemm(1, 4096, 4096)
    assert square.limit_us(65.3, 4290) == pytest.approx(2 * 4096**3 / 65.3e12 * 1e6)
    assert flat.limit_us(65.3, 4290) == pytest.approx(4 * (4096 + 4096**2 + 4096) / 4290e9 * 1e6)
    assert square.tflops(square.limit_us(65.3, 4290)) == pytest.approx(65.3)
    batch = Gemm(1, 4096, 4096, batch=8, shares_b=True)
    assert batch.limit_us(65.3, 4290) == pytest.approx(4 * (8 * 4096 + 4096**2 + 8 * 4096) / 4290e9 * 1e6)
