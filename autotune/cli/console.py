"""What the command line writes: results to stdout, progress and errors to stderr, JSON for machines.

Colours are for terminals, and for those alone: what goes into a pipe or a file is plain."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, TextIO

import typer

from ..files import words
from ..files.errors import AutotuneError

PERIOD_TTY_S = 0.2  # between updates of a line that is overwritten
PERIOD_LOG_S = 10.0  # between lines that stay, as in a log of CI
GAP, INDENT = "  ", "    "  # between columns; before what stands beneath a row
_STYLE_MARK = f"\x1b{os.urandom(8).hex()}"  # begins what `with_style` writes: no database knows it
# Control characters but the end of a line, and those that turn the direction of text
_CONTROL_CHARACTERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_AT_ONCE = 500  # lines that are written
MIN_TEXT_WIDTH = 30  # columns that sentences can be read in


def show(text: str) -> None:
    """A result, to stdout."""
    _write(sys.stdout, f"{sanitize(text)}\n")


def sanitize(text: str) -> str:
    """The text, in which characters that steer a terminal or reorder its line are named and not obeyed: a
    database may hold any. Lines may end, and what `with_style` begins and ends is obeyed."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    pieces = text.split(_STYLE_MARK)
    return "\x1b".join(
        _CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], piece) for piece in pieces
    )


def one_line(text: str) -> str:
    """As `sanitize`, of what has no lines of its own."""
    return sanitize(text).replace("\n", "\\n")


def _write(stream: TextIO, text: str) -> None:
    """Write at once. A terminal that is gone (EIO) is written to no more: who works for it ends in order.
    Raises BrokenPipeError where nobody reads on."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        abandon(stream)
        if error.errno != errno.EIO:
            raise


def abandon(stream: TextIO) -> None:
    """Discard what a stream still holds, and all that is written to it from now on."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


def with_style(text: str, color: str = "", *, stream: TextIO | None = None) -> str:
    """Bold text, in a colour; plain where the stream (stdout) is no terminal or NO_COLOR is set."""
    terminal = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    if not terminal or os.environ.get("NO_COLOR"):
        return text
    return typer.style(sanitize(text), fg=color or None, bold=True).replace("\x1b[", f"{_STYLE_MARK}[")


def show_json(data: Mapping[str, Any]) -> None:
    """The same facts for machines: one JSON object on stdout. JSON has no infinity and no NaN (the error
    of a result that holds a NaN, say): they become null."""
    show(json.dumps(finite(data), indent=2, default=str, allow_nan=False))


def answer(facts: Mapping[str, Any], text: Callable[[], str], *, is_json: bool) -> None:
    """The result of a command: its facts for machines, or as text."""
    if is_json:
        show_json(facts)
    else:
        show(text())


def show_csv(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> None:
    """The same for spreadsheets: a header, a line for each row, lists as JSON; harmless to a terminal."""
    table = io.StringIO()
    writer = csv.DictWriter(table, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    show_lines([table.getvalue()])


def show_lines(lines: Iterable[str]) -> None:
    """Whole lines of a table."""
    clean, coming = sanitize if sys.stdout.isatty() else str, iter(lines)
    while some := "".join(islice(coming, _AT_ONCE)):
        _write(sys.stdout, clean(some))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple) else value


def finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data


def note(text: str) -> None:
    """Something to know that is not the result, to stderr."""
    _write(sys.stderr, f"{sanitize(text)}\n")


def fail(error: AutotuneError) -> None:
    """One line that says what is wrong and what to do next."""
    refuse(" ".join(str(error).split()))


def refuse(text: str) -> None:
    """The one line of an error."""
    note(f"{with_style('autotune:', 'red', stream=sys.stderr)} {text}")


def _aligned(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int]) -> str:
    cells = [list(row) for row in (headers, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        aligned = (
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        return GAP.join(aligned).rstrip()

    return "\n".join([with_style(line(cells[0])), line(["-" * w for w in widths]), *map(line, cells[1:])])


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[int] = (),
    optional: Sequence[str] = (),
    ends_in_text: bool = False,
) -> str:
    """Aligned columns under a line of headers; columns numbered in `right` align right. Where a row
    is too wide for the terminal, what does not fit stands beneath it. `optional`: columns that are left out
    where no row has anything in them. `ends_in_text`: the last column goes on in the next lines."""
    whole, terminal = [[one_line(str(cell)) for cell in row] for row in rows], _terminal_width()
    kept = [at for at, name in enumerate(headers) if name not in optional or any(r[at] != "-" for r in whole)]
    headers, cells = [headers[at] for at in kept], [[row[at] for at in kept] for row in whole]
    right = [kept.index(at) for at in right if at in kept]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    ends = list(accumulate(len(GAP) + width for width in widths))  # a gap before the first column, too
    room = (terminal or ends[-1]) - sum(ends[-2:-1])
    if ends_in_text and room >= MIN_TEXT_WIDTH:
        return _aligned(headers, [line for row in cells for line in _folded(row, room)], right)
    fits = [n for n, end in enumerate(ends, 1) if terminal is None or end - len(GAP) <= terminal]
    num = max(fits, default=1)
    if num == len(headers):
        return _aligned(headers, cells, right)
    head, line, *lines = _aligned(headers[:num], [row[:num] for row in cells], right).splitlines()
    shown = [head, line]
    for text, row in zip(lines, cells, strict=True):
        rest = ", ".join(f"{name} {cell}" for name, cell in zip(headers[num:], row[num:], strict=True))
        shown += [text, *(INDENT + part for part in wrapped(rest, (terminal or 0) - len(INDENT)))]
    return "\n".join(shown)


def _folded(row: Sequence[str], room: int) -> Iterator[Sequence[str]]:
    """A row whose last cell goes on in lines of its own."""
    first, *more = wrapped(row[-1], room)
    yield [*row[:-1], first]
    yield from ([""] * (len(row) - 1) + [part] for part in more)


def wrap_text(text: str) -> str:
    """Sentences in lines that fit the terminal; as they are where they go to a file or a pipe."""
    terminal = _terminal_width()
    return text if terminal is None else "\n".join(wrapped(text, terminal))


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
    """A time; a dash where there is none."""
    return "-" if time_us is None else words.time_text(time_us)


def seconds_text(seconds: float | None) -> str:
    """Of what takes long in all; a dash where it is unknown."""
    return "-" if seconds is None else f"{words.short(seconds)} s"


def workspace_text(num_bytes: int | None) -> str:
    """`64.0 MiB`; a dash where it is unknown."""
    if not num_bytes:
        return "-" if num_bytes is None else "0 MiB"
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 / 20 else "<0.1 MiB"


def ratio_text(ratio: float | None, unit: str = "x") -> str:
    """`1.024x`, `79.3%`, or a dash."""
    if ratio is None:
        return "-"
    return f"{100 * ratio:.1f}%" if unit == "%" else f"{ratio:.3f}x"


def fitted(parts: Sequence[str], least_first: Sequence[int], width: int) -> str:
    """The parts in their order, without as many of the least as it takes to fit. Where that is not enough,
    as many words as fit: half a number would say something else than the whole."""
    for num_dropped in range(len(least_first) + 1):
        dropped = set(least_first[:num_dropped])
        text = GAP.join(part for i, part in enumerate(parts) if i not in dropped)
        if len(text) <= width:
            return text
    words = text.split(" ")
    lengths = accumulate(len(word) + 1 for word in words)
    return " ".join(word for word, length in zip(words, lengths, strict=True) if length <= width + 1)


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

    def update(self, *parts: str, least_first: Sequence[int] = ()) -> None:
        """Show these parts side by side. Where a terminal is too narrow for them, they are left out in the
        order of `least_first`, which holds their positions; none is cut."""
        if not self.is_due:
            return
        self._written_at = time.monotonic()
        if self._is_tty:
            width = shutil.get_terminal_size().columns - 1
            _write(self._stream, f"\r\x1b[K{sanitize(fitted(parts, least_first, width))}")
            self._is_open = True
        else:
            _write(self._stream, f"{sanitize(GAP.join(parts))}\n")

    def close(self) -> None:
        """Leaves the last line standing, and the cursor below it."""
        if self._is_open:
            _write(self._stream, "\n")
            self._is_open = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
