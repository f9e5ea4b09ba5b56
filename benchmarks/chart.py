"""Bar charts as SVG text: shares of a limit, one or several bars for each label. No dependency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 960  # pixels, as are all lengths here
LABEL_WIDTH = 200
TEXT_WIDTH = 190  # kept free to the right of a full bar
BAR, GAP = 14, 12  # height of a bar, and what separates the bars of two labels
HEAD = 84  # title, subtitle, legend
FOOTER = 30
_GRID_PERCENT = (0, 20, 40, 60, 80, 100)
_FULL = WIDTH - LABEL_WIDTH - TEXT_WIDTH

OURS, THEIRS, STEP = "#0b7a75", "#9aa5b1", "#5b8def"


@dataclass(frozen=True)
class Bar:
    """`share` of the limit (1 is all of it), drawn up to 1; None where there is nothing to draw."""

    share: float | None
    text: str
    color: str


@dataclass(frozen=True)
class Row:
    """What stands under one label."""

    label: str
    bars: tuple[Bar, ...]


def bar_chart(
    title: str, subtitle: str, rows: Sequence[Row], legend: Sequence[tuple[str, str]] = (), axis: str = ""
) -> str:
    """An SVG document. `legend` holds (name, color); `axis` says what 100 % is."""
    height = HEAD + sum(_height(row) for row in rows) + FOOTER
    bottom = height - FOOTER
    parts = [*_legend(legend), *_grid(bottom, axis)]
    top = HEAD
    for row in rows:
        parts += _row(row, top)
        top += _height(row)
    return document(WIDTH, height, title, subtitle, parts)


def document(width: int, height: int, title: str, subtitle: str, parts: Sequence[str]) -> str:
    """An SVG document of these elements under a title. Lengths in pixels."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#1f2933">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(20, 28, title, 'font-size="18" font-weight="600"'),
        _text(20, 48, subtitle, 'fill="#52606d"'),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _height(row: Row) -> int:
    return BAR * len(row.bars) + GAP


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(text)}</text>'


def _legend(legend: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], LABEL_WIDTH
    for name, color in legend:
        parts.append(f'<rect x="{x}" y="58" width="12" height="12" fill="{color}"/>')
        parts.append(_text(x + 17, 68, name))
        x += 40 + 7 * len(name)
    return parts


def _grid(bottom: int, axis: str) -> list[str]:
    parts = []
    for percent in _GRID_PERCENT:
        x = LABEL_WIDTH + _FULL * percent / 100
        parts.append(f'<line x1="{x:g}" y1="{HEAD - 6}" x2="{x:g}" y2="{bottom}" stroke="#e4e7eb"/>')
        name = f"{percent}%{axis}" if percent == 100 else f"{percent}%"
        parts.append(_text(x, bottom + 16, name, 'text-anchor="middle" fill="#52606d"'))
    return parts


def _row(row: Row, top: int) -> list[str]:
    middle = top + BAR * len(row.bars) / 2 + 4
    parts = [_text(LABEL_WIDTH - 10, middle, row.label, 'text-anchor="end"')]
    for number, bar in enumerate(row.bars):
        y, length = top + number * BAR, _FULL * min(bar.share or 0.0, 1.0)
        if length > 0:
            place = f'x="{LABEL_WIDTH}" y="{y + 1}" width="{length:.1f}" height="{BAR - 2}"'
            parts.append(f'<rect {place} fill="{bar.color}"/>')
        parts.append(_text(LABEL_WIDTH + length + 6, y + 11, bar.text, 'font-size="11"'))
    return parts
