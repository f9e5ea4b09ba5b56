"""Suites: TOML files that list the shapes of a search, and how often a program calls for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .entries import check_keys, items, shown, table, whole
from .errors import UsageError
from .gemm import LAYOUTS, Gemm
from .user_file import read_toml

MOST_CALLS = 10**15  # of one shape
_EXTENTS = ("m", "n", "k")
_CHOICES = ("layout", "batch", "shared", "count")
_NOTES = ("name", "kind", "notes", "cublas_us")  # for who reads the file: nothing is done with them
_HOW = "write [[shape]] tables with m, n and k"


def read_suite(path: Path) -> dict[Gemm, int | None]:
    """Read the `[[shape]]` tables (m, n, k and optionally layout, batch, shared, count) of a TOML suite file:
    each shape once, with the calls of all its tables. None, for all, where the file counts none.

    Raises UsageError, naming the file, if it cannot be read or holds anything else.
    """
    return read_toml(path, "suite", _shapes, _HOW)


def _shapes(data: dict[str, Any]) -> dict[Gemm, int | None]:
    check_keys(data, ("shape", *_NOTES), "at the top")
    tables = data.get("shape", [])
    if isinstance(tables, dict):
        raise ValueError("shape is one table, [shape], and not a list of them")
    if not items(tables, "shape"):
        raise ValueError("it holds no shape")
    shapes = [(_shape(entry, f"shape {i}"), entry.get("count")) for i, entry in enumerate(tables, 1)]
    is_counted = {count is not None for _, count in shapes}
    if len(is_counted) > 1:
        missing = next(i for i, (_, count) in enumerate(shapes, 1) if count is None)
        raise ValueError(f"shape {missing}: the key 'count' is missing, which others have")
    calls: dict[Gemm, int | None] = {}
    for gemm, count in shapes:
        calls[gemm] = None if count is None else (calls.get(gemm) or 0) + count
    return calls


def _shape(entry: Any, where: str) -> Gemm:
    """The Gemm of one `[[shape]]` table."""
    check_keys(table(entry, where), (*_EXTENTS, *_CHOICES, *_NOTES), where, required=_EXTENTS)
    numbers = {"batch": 1} | {name: entry[name] for name in (*_EXTENTS, "batch") if name in entry}
    for name, value in numbers.items():
        if type(value) is not int:
            raise ValueError(f"{where}: {name} is {shown(value)}, and not a whole number")
    layout = _one_of(LAYOUTS, entry.get("layout", "NN"), f"{where}: layout")
    if "count" in entry:
        whole(entry["count"], f"{where}: count", 1, MOST_CALLS)
    shared = _one_of(("A", "B"), entry["shared"], f"{where}: shared") if "shared" in entry else ""
    try:
        return Gemm(
            **numbers,
            trans_a=layout[0] == "T",
            trans_b=layout[1] == "T",
            shares_a=shared == "A",
            shares_b=shared == "B",
        )
    except UsageError as error:
        raise ValueError(f"{where}: {error}") from None


def _one_of(known: Sequence[str], value: Any, where: str) -> str:
    """A word in capitals, however it is written."""
    if not isinstance(value, str) or value.upper() not in known:
        raise ValueError(f"{where} {shown(value)} is none of {', '.join(known)}")
    return value.upper()
