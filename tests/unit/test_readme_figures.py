"""README is short, and its figures and its chart are those of committed measurements."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import geometric_mean

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs/tools"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import speedups
from any_shape_figures import Against

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_TIMES = rf"([\d.]+){speedups.TIMES}"
_ROW = re.compile(
    rf"^\| \[(\d+) .*?\]\((\S+)\) \(([\d-]+)\) \| \**{_TIMES}\** \({_TIMES}, {_TIMES}\)", re.MULTILINE
)
ROWS = _ROW.findall(README)


def test_a_reader_is_through_in_minutes() -> None:
    assert README.count("\n") <= 120
    assert len(README.split()) <= 800


def test_the_first_program_is_eight_lines_on_the_first_screen() -> None:
    before, _, rest = README.partition("```python\n")
    program = [line for line in rest.partition("```")[0].splitlines() if line]
    assert before.count("\n") < 8
    assert len(program) <= 8


def _speeds(report: dict) -> list[float]:
    """Of every shape over cuBLAS: as tuned, or as a table serves what was not tuned."""
    if report["benchmark"] == "any_shape":
        return [Against.of(shape).served for shape in report["shapes"]]
    return list(speedups.speedups(report).values())


def test_there_are_four_rows() -> None:
    assert len(ROWS) == 4


@pytest.mark.parametrize(("count", "file", "date", "mean", "least", "most"), ROWS, ids=lambda text: text[:16])
def test_a_row_is_what_was_measured(
    count: str, file: str, date: str, mean: str, least: str, most: str
) -> None:
    report = speedups.read(ROOT / file)
    found = _speeds(report)
    environment, dates = report.get("environment"), [report.get("date", "")]
    if report["benchmark"] == "any_shape":
        environment, dates = report["gpu"], [session["date"] for session in report["sessions"]]
    assert "H200" in str(environment)
    assert len(found) == int(count) and any(one.startswith(date) for one in dates)
    message = [(mean, geometric_mean(found)), (least, min(found)), (most, max(found))]
    assert [text for text, value in message if f"{value:.{len(text.partition('.')[2])}f}" != text] == []


def test_the_chart_is_drawn_from_what_was_measured() -> None:
    assert speedups.PICTURE.read_text(encoding="utf-8") == speedups.draw(speedups.read(speedups.DATA))
