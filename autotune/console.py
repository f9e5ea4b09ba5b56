"""What the command line writes: results to stdout, progress and errors to stderr, JSON for machines."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from .errors import AutotuneError

PERIOD_TTY_S = 0.2  # between updates of a line that is overwritten
PERIOD_LOG_S = 10.0  # between lines that stay, as in a log of CI
_GAP, _INDENT = "  ", "    "  # between columns; before what stands beneath a row


def show(text: str) -> None:
    """A result, to stdout."""
    print(text)


def show_json(data: Mapping[str, Any]) -> None:
    """The same facts for machines: one JSON object on stdout. JSON has no infinity and no NaN (the error
    of a result that holds a NaN, say): they become null."""
    print(json.dumps(_finite(data), indent=2, default=str, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def note(text: str) -> None:
    """Something to know that is not the result, to stderr."""
    print(text, file=sys.stderr, flush=True)


def fail(error: AutotuneError) -> None:
    """One line that says what is wrong and what to do next."""
    note(f"autotune: {error}")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """Aligned columns under a line of headers; columns numbered in `right` align right."""
    cells = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        aligned = (
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        return _GAP.join(aligned).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *map(line, cells[1:])])


def fitted(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """As `table`. On a terminal that is too narrow for it, what does not fit stands beneath its row."""
    cells = [[str(cell) for cell in row] for row in rows]
    whole, width = table(headers, cells, right=right), _terminal_width()
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    fits = [n for n in range(1, len(widths)) if sum(widths[:n]) + len(_GAP) * (n - 1) <= width]
    num = max(fits, default=1)
    head, line, *lines = table(headers[:num], [row[:num] for row in cells], right=right).splitlines()
    shown = [head, line]
    for text, row in zip(lines, cells, strict=True):
        rest = ", ".join(f"{name} {cell}" for name, cell in zip(headers[num:], row[num:], strict=True))
        shown += [text, *(_INDENT + part for part in wrapped(rest, width - len(_INDENT)))]
    return "\n".join(shown)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many characters, which end behind a space or a comma where they can."""
    lines = [""]
    for piece in re.findall("[^ ,]*[ ,]+|[^ ,]+", text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def _terminal_width() -> int | None:
    """Columns of the terminal that results go to; None where they go to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def counted(number: int, one: str, several: str) -> str:
    """`1 study`, `2 studies`."""
    return f"{number:,} {one if number == 1 else several}"


def duration(seconds: float) -> str:
    """`45 s`, `3:20 min` or `2:05 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02} h"


def time_text(time_us: float | None) -> str:
    """A time with four digits and a readable unit; a dash where there is none."""
    if time_us is None:
        return "-"
    value, unit = (time_us / 1e3, "ms") if time_us >= 1e4 else (time_us, "us")
    digits = max(0, 3 - len(str(int(value))) + 1)
    return f"{value:.{digits}f} {unit}"


def ratio_text(ratio: float | None, unit: str = "x") -> str:
    """`1.024x`, `79.3%`, or a dash."""
    if ratio is None:
        return "-"
    return f"{100 * ratio:.1f}%" if unit == "%" else f"{ratio:.3f}x"


class Progress:
    """One line on a terminal that is overwritten; elsewhere a line now and then."""

    def __init__(self, stream: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._is_tty = self._stream.isatty()
        self._is_quiet = is_quiet
        self._period_s = PERIOD_TTY_S if self._is_tty else PERIOD_LOG_S
        self._written_at = float("-inf") if self._is_tty else time.monotonic()
        self._is_open = False

    @property
    def is_due(self) -> bool:
        """Whether an update would be written now: ask before composing a costly text."""
        return not self._is_quiet and time.monotonic() - self._written_at >= self._period_s

    def update(self, text: str) -> None:
        if not self.is_due:
            return
        self._written_at = time.monotonic()
        if self._is_tty:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
            self._is_open = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leaves the last line standing, and the cursor below it."""
        if self._is_open:
            self._stream.write("\n")
            self._stream.flush()
            self._is_open = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
