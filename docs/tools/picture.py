"""Draws a terminal session as SVG: `python docs/tools/picture.py SESSION.txt docs/search.svg`.

The input is what `script` or a copy of the terminal holds: lines that begin with `$ ` are commands, all
others output, shown as they are. Nothing is invented here: run a real search and paste what it printed.
A line that was overwritten (carriage return) counts by its last state. Needs rich (`pip install rich`).
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 128
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WEB_FONT = re.compile(r"@font-face \{[^}]*\}\s*")
_FIGURE = re.compile(r"\d[\d,.]*(?=\s?(?:us|ms|x|trials/s|TFLOP/s)\b|%)")


def styled(line: str) -> Text:
    """A command in bold, figures that carry a unit in colour."""
    text = Text(_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]))
    if line.startswith("$ "):
        text.stylize("bold green", 0, 2)
        text.stylize("bold", 2)
    else:
        text.highlight_regex(_FIGURE.pattern, "cyan")
    return text


def draw(session: str, title: str) -> str:
    """The SVG of a session."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in session.rstrip("\n").split("\n"):
        console.print(styled(line), soft_wrap=False, overflow="fold")
    svg = console.export_svg(title=title)
    return _WEB_FONT.sub("", svg)  # a picture fetches nothing: the reader's own monospace font serves


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    # newline="": a carriage return inside a line is an overwritten state, not the end of a line
    with source.open(encoding="utf-8", newline="") as file:
        session = file.read().replace("\r\n", "\n")
    target.write_text(draw(session, "autotune"), encoding="utf-8")


if __name__ == "__main__":
    main()
