"""Draws the ladder, as `autotune ladder --json` printed it.

autotune ladder --shape 4096 --json > ladder.json
python benchmarks/ladder_picture.py ladder.json ladder.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import chart

from autotune.cli import console
from autotune.cli.ladder import CUBLAS, TUNED, headline

COLORS = {TUNED: chart.OURS, CUBLAS: chart.THEIRS}


def draw(facts: dict[str, Any]) -> str:
    """The climb as SVG."""
    rows = []
    for row in facts["steps"]:
        text = row["reason"] and "not here"
        if row["gflops"]:
            text = f"{row['gflops']:,.0f} GFLOP/s, {console.ratio_text(row['share_of_limit'], '%')}"
        bar = chart.Bar(row["share_of_limit"], text, COLORS.get(row["name"], chart.STEP))
        rows.append(chart.Row(row["name"], (bar,)))
    return chart.bar_chart("The ladder to a tuned SGEMM", headline(facts), rows, axis=" of the limit")


if __name__ == "__main__":
    source, picture = map(Path, sys.argv[1:])
    picture.write_text(draw(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
