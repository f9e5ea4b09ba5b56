"""Charts are well-formed SVG whose bars are as long as their shares."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import chart
from chart import Bar, Row

SVG = "{http://www.w3.org/2000/svg}"
FULL = chart.WIDTH - chart.LABEL_WIDTH - chart.TEXT_WIDTH


def _drawn(rows: list[Row], **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(chart.bar_chart("a < b & c", "2 > 1", rows, **options))


def _bars(root: ElementTree.Element) -> list[tuple[float, str]]:
    rects = [r for r in root.iter(f"{SVG}rect") if r.get("x") == str(chart.LABEL_WIDTH)]
    return [(float(r.get("width")), r.get("fill")) for r in rects]


def test_lengths_are_shares_and_never_leave_the_axis() -> None:
    bars = tuple(Bar(share, "text", "#123456") for share in (0.5, 1.0, 1.3, 0.0, None))
    root = _drawn([Row("one", bars)])
    assert _bars(root) == [(pytest.approx(length, abs=0.1), "#123456") for length in (FULL / 2, FULL, FULL)]
    assert [t.text for t in root.iter(f"{SVG}text")].count("text") == 5


def test_text_is_escaped_and_everything_is_inside() -> None:
    bars = (Bar(0.9, "51,234 GFLOP/s, 78.4%", "#000"), Bar(0.1, "x", "#111"))
    rows = [Row(f"<{i}>", bars) for i in range(30)]
    root = _drawn(rows, legend=(("ours", "#000"), ("cuBLAS", "#111")), axis=" of the limit")
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert "a < b & c" in texts
    assert {"<0>", "<29>", "ours", "cuBLAS", "100% of the limit"} <= set(texts)
    height = float(root.get("height"))
    for element in root.iter():
        for name in ("y", "y1", "y2"):
            assert 0 <= float(element.get(name, 0)) <= height
    assert not re.search(r"nan|inf", ElementTree.tostring(root, encoding="unicode"))


def test_nothing_to_draw_is_an_empty_chart() -> None:
    assert _bars(_drawn([])) == []
