"""Draws README's chart from what benchmarks/vs_cublas.py measured: speed over cuBLAS, shape by shape.

    python docs/tools/speedups.py

`tests/unit/test_readme_figures.py` fails where the picture is not what this draws. The picture has a ground
of its own and two sets of colours, so that it can be read wherever it is shown.
"""

from __future__ import annotations

import json
import lzma
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "studies/results/h200-dev-225s.json.xz"
PICTURE = ROOT / "docs/speedups.svg"
TIMES = "\N{MULTIPLICATION SIGN}"
WIDTH, LEFT, RIGHT, TOP, STEP, BAR = 840, 190, 60, 64, 19, 13  # pixels, as are all lengths here
STYLE = """
.ground { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328 } .minor { fill: #57606a }
.bar { fill: #0b7a75 } .cublas { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .minor { fill: #9198a1 }
.bar { fill: #2a9d94 } .cublas { stroke: #f0f6fc }
}"""


def speedups(report: dict[str, Any]) -> dict[str, float]:
    """How many times as fast as cuBLAS each shape is, the largest first."""
    found = {s["shape"]: s["contestants"]["cublas"]["ours_is_faster_by"] for s in report["shapes"]}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def draw(report: dict[str, Any]) -> str:
    """The chart as SVG."""
    found = speedups(report)
    height = TOP + STEP * len(found) + 12
    scale = (WIDTH - LEFT - RIGHT) / max(found.values())
    named = report["environment"]
    message = f"{named['gpu_name']}, cuBLAS {named['cublas_version']}, {report['date'][:10]}; cold operands"
    line = round(LEFT + scale, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>Speed over cuBLAS on {len(found)} shapes</title><style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        '<text x="16" y="26" font-size="16" font-weight="600">Speed over cuBLAS (dashed line), FP32</text>',
        f'<text x="16" y="46" class="minor">{escape(message)}</text>',
        *(_bar(number, shape, ratio, scale) for number, (shape, ratio) in enumerate(found.items())),
        f'<line class="cublas" x1="{line}" y1="{TOP - 8}" x2="{line}" y2="{height - 10}"/>',
        "</svg>",
    ]
    return "\n".join([*parts, ""])


def _bar(number: int, shape: str, ratio: float, scale: float) -> str:
    top = TOP + STEP * number
    size, _, layout = shape.partition(":")
    label = size.replace("x", f" {TIMES} ") + ("" if layout == "NN" else f" {layout}")
    return (
        f'<text x="{LEFT - 8}" y="{top + 11}" text-anchor="end">{escape(label)}</text>'
        f'<rect class="bar" x="{LEFT}" y="{top}" width="{ratio * scale:.1f}" height="{BAR}"/>'
        f'<text x="{LEFT + ratio * scale + 6:.1f}" y="{top + 11}">{ratio:.2f}{TIMES}</text>'
    )


def read(path: Path) -> dict[str, Any]:
    """What a benchmark wrote, packed."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


if __name__ == "__main__":
    PICTURE.write_text(draw(read(DATA)), encoding="utf-8")
