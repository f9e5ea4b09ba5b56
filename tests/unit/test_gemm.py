"""Shapes are read as they are written, and what is no shape is refused with its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import PARAMETER
from autotune.errors import UsageError
from autotune.gemm import LAYOUTS, MAX_EXTENT, Gemm

EXTENTS = st.integers(0, MAX_EXTENT)
GEMMS = st.builds(Gemm, EXTENTS, EXTENTS, EXTENTS, st.booleans(), st.booleans())


@given(GEMMS)
def test_a_shape_is_read_as_it_is_written(gemm: Gemm) -> None:
    assert Gemm.parse(str(gemm)) == gemm
    assert Gemm.parse(f" {str(gemm).lower()}\n") == gemm


@given(EXTENTS, st.sampled_from(LAYOUTS))
def test_one_number_is_a_square(size: int, layout: str) -> None:
    gemm = Gemm.parse(f"{size}:{layout}")
    assert (gemm.m, gemm.n, gemm.k, gemm.layout) == (size, size, size, layout)
    assert Gemm.parse(str(size)).layout == "NN"


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "4x5", "4x5x6x7", "4x5x", "-4", "+4", "4.0", "4e3", "0x10", "4096:", "4096:N", "4096:NNT",
     "4096:XY", "4096:NT:NT", "4x5x6 NT", "4 x 5 x 6", "٤", "4,5,6", "4_096", "9" * 5000],
)  # fmt: skip
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither SIZE nor MxNxK"):
        Gemm.parse(text)


@given(st.text())
def test_any_text_is_a_shape_or_a_usage_error(text: str) -> None:
    try:
        assert str(Gemm.parse(text)).startswith(text.strip().split(":")[0].lstrip("0") or "0")
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    "extents", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (MAX_EXTENT + 1, 1, 1), (1, 1, 1 << 99999)]
)
def test_extents_out_of_range_are_refused(extents: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="is outside 0"):
        Gemm(*extents)


@pytest.mark.parametrize("name", ["bm", "bn"])
def test_the_largest_extent_fits_int32_in_whole_tiles(name: str) -> None:
    """The kernel computes (m + BM - 1) / BM and tiles_m * BM in int."""
    for tile in PARAMETER[name].values:
        assert MAX_EXTENT + tile - 1 < 2**31
        assert -(-MAX_EXTENT // tile) * tile < 2**31


@given(GEMMS)
def test_leading_dimensions_are_those_of_packed_row_major_operands(gemm: Gemm) -> None:
    rows_a, rows_b = (gemm.k if gemm.trans_a else gemm.m), (gemm.n if gemm.trans_b else gemm.k)
    assert rows_a * gemm.lda == gemm.m * gemm.k
    assert rows_b * gemm.ldb == gemm.k * gemm.n
    assert gemm.ldc == gemm.n
    assert gemm.num_bytes == 4 * (rows_a * gemm.lda + rows_b * gemm.ldb + gemm.m * gemm.ldc)


def test_the_roofline_is_the_slower_of_both_roofs() -> None:
    square, flat = Gemm(4096, 4096, 4096), Gemm(1, 4096, 4096)
    assert square.limit_us(65.3, 4290) == pytest.approx(2 * 4096**3 / 65.3e12 * 1e6)
    assert flat.limit_us(65.3, 4290) == pytest.approx(4 * (4096 + 4096**2 + 4096) / 4290e9 * 1e6)
    assert square.tflops(square.limit_us(65.3, 4290)) == pytest.approx(65.3)
