"""Curves with bands as SVG text: how something grows along a logarithmic axis. No dependency."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from chart import document

WIDTH, HEIGHT = 480, 340  # pixels of one panel, as are all lengths here
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 92, 48  # margins of a panel; title and legend stand at the top
FLOOR, CEILING = 80.0, 100.0  # percent: what is below is not told apart
_GRID = (80, 85, 90, 95, 99, 100)


@dataclass(frozen=True)
class Curve:
    """`bands[i]` is (mean, low, high) in percent at x[i]."""

    name: str
    color: str
    x: Sequence[float]
    bands: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Panel:
    """Curves over one axis, from its first x to its last mark."""

    axis: str
    marks: Sequence[float]
    curves: Sequence[Curve]


def draw(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """An SVG document, panels side by side."""
    parts: list[str] = []
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *_panel(panel), "</g>"]
    return document(WIDTH * len(panels), HEIGHT, title, subtitle, parts)


def _panel(panel: Panel) -> list[str]:
    first, last = min(curve.x[0] for curve in panel.curves), max(curve.x[-1] for curve in panel.curves)
    span = math.log(last / first) or 1.0

    def at_x(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(x / first) / span

    parts = []
    for percent in _GRID:
        y = _at_y(percent)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{percent}%", 'text-anchor="end" fill="#52606d"'))
    for mark in [first, *panel.marks]:
        parts.append(
            _text(at_x(mark), HEIGHT - BOTTOM + 18, f"{mark:g}", 'text-anchor="middle" fill="#52606d"')
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 10, panel.axis, 'text-anchor="middle" fill="#52606d"'))
    x = float(LEFT)
    for curve in panel.curves:
        parts += [*_curve(curve, at_x), f'<rect x="{x}" y="62" width="12" height="12" fill="{curve.color}"/>']
        parts.append(_text(x + 17, 72, curve.name))
        x += 40 + 7 * len(curve.name)
    return parts


def _curve(curve: Curve, at_x: Callable[[float], float]) -> list[str]:
    xs = [at_x(x) for x in curve.x]
    upper = [(x, _at_y(high)) for x, (_, _, high) in zip(xs, curve.bands, strict=True)]
    lower = [(x, _at_y(low)) for x, (_, low, _) in zip(xs, curve.bands, strict=True)]
    line = [(x, _at_y(mean)) for x, (mean, _, _) in zip(xs, curve.bands, strict=True)]
    return [
        f'<polygon points="{_points(upper + lower[::-1])}" fill="{curve.color}" fill-opacity="0.18"/>',
        f'<polyline points="{_points(line)}" fill="none" stroke="{curve.color}" stroke-width="2"/>',
    ]


def _at_y(percent: float) -> float:
    share = (min(max(percent, FLOOR), CEILING) - FLOOR) / (CEILING - FLOOR)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
