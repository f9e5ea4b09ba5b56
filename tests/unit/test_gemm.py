"""Shapes are read as they are written, and what is no shape is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import PARAMETER
from autotune.errors import UsageError
from autotune.gemm import LAYOUTS, MAX_EXTENT, Gemm, read_suite

SUITES = Path(__file__).resolve().parents[2] / "studies" / "suites"
EXTENTS = st.integers(0, MAX_EXTENT)
GEMMS = st.builds(Gemm, EXTENTS, EXTENTS, EXTENTS, st.booleans(), st.booleans())
SHAPE = "[[shape]]\nm = 4\nn = 5\nk = 6\n"


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


@pytest.mark.parametrize("extents", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (MAX_EXTENT + 1, 1, 1)])
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


def _suite(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_suite_holds_its_shapes_once_and_in_order(tmp_path: Path) -> None:
    text = f'{SHAPE}{SHAPE}layout = "NT"\n{SHAPE}kind = "again"\n[[shape]]\nm = 0\nn = 1\nk = 2\n'
    assert [str(g) for g in read_suite(_suite(tmp_path, text))] == ["4x5x6:NN", "4x5x6:NT", "0x1x2:NN"]


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_suites_that_ship_are_read(path: Path) -> None:
    assert len(read_suite(path)) == path.read_text(encoding="utf-8").count("[[shape]]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no"),
        ("shape = []", "holds no"),
        ("[shape]\nm = 1", r"not \[shape\]"),
        ("shape = 5", "not a list"),
        ("shape = [1]", "shape 1: expected a table"),
        ("[[shape]]\nm = 4\nn = 4\n", "shape 1: expected"),
        (SHAPE + "[[shape]]\nm = 4.0\nn = 4\nk = 4", "shape 2: expected"),
        ("[[shape]]\nm = true\nn = 4\nk = 4", "shape 1: expected"),
        ("[[shape]]\nm = '4'\nn = 4\nk = 4", "shape 1: expected"),
        (SHAPE + "layout = 'XX'", "layout 'XX'"),
        (SHAPE + "layout = ['N', 'T']", "layout"),
        ("[[shape]]\nm = -4\nn = 4\nk = 4", "shape 1: m = -4 is outside"),
        ("[[shape]\nm = 4", "write \\[\\[shape\\]\\] tables"),
    ],
)
def test_a_bad_suite_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = _suite(tmp_path, text)
    with pytest.raises(UsageError, match=message) as refused:
        read_suite(path)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.toml", ".", "binary.toml"):
        with pytest.raises(UsageError, match="suite"):
            read_suite(tmp_path / name)
