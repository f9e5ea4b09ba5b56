"""Facts of a command as a table for people: the end of a fact's name says its unit, and that how it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..kernel.config import brief
from . import console

OF_PRODUCTS = ("vs cuBLAS", "of limit", "TFLOP/s", "workspace")  # what no other problem has


_READS: dict[str, Callable[[Any], str]] = {
    "_us": console.time_text,
    "seconds": console.seconds_text,
    "speedup": console.ratio_text,
    "ratio": console.ratio_text,
    "_cublas": console.ratio_text,
    "interval": lambda value: "-" if value is None else "{:.3f}-{:.3f}".format(*value),  # `0.981-1.024`
    "gflops": lambda value: f"{value:,.0f}" if value else "-",
    "tflops": lambda value: f"{value:.1f}" if value else "-",
    "_bytes": console.workspace_text,
}
_SHARE = partial(console.ratio_text, unit="%")


def _read(name: str) -> Callable[[Any], str] | None:
    if name.startswith("share_of_"):
        return _SHARE
    return next((read for end, read in _READS.items() if name.endswith(end)), None)


def _cell(name: str, value: Any) -> str:
    if name.endswith("config"):
        return brief(value)
    if (read := _read(name)) is not None:
        return read(value)
    is_count = isinstance(value, int) and name != "id"
    return "-" if value is None else f"{value:,}" if is_count else str(value)


def facts_table(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], optional: Sequence[str] = ()
) -> str:
    """A line for each row. `columns`: by its header the fact under it; numbers stand to the right.
    `optional`: headers that are left out where no row has anything under them."""
    rows = list(rows)
    right = [
        at
        for at, name in enumerate(columns.values())
        if _read(name) or any(isinstance(row[name], int) for row in rows)
    ]
    cells = [[_cell(name, row[name]) for name in columns.values()] for row in rows]
    return console.table(list(columns), cells, right=right, optional=optional)
