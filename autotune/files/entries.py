"""Checks the content of a JSON or TOML file: its keys, and their values.

Every check takes `where`, the place in the file, and raises a ValueError that begins with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .arguments import LARGEST, shown

LONGEST = 100_000  # of a text, in characters


def check_keys(
    found: Mapping[str, Any], known: Collection[str], where: str, required: Collection[str] = ()
) -> None:
    """Raises ValueError if a key is unknown, with a suggestion, or a required one is missing."""
    if set(required) <= found.keys() <= set(known):
        return
    missing = [name for name in required if name not in found]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise ValueError(f"{where}: unknown key {shown(unknown[0])} ({hint(unknown[0], known)})")
    if missing:
        raise ValueError(f"{where}: the key {missing[0]!r} is missing")


def hint(name: str, known: Collection[str]) -> str:
    """The name that may have been meant, or all that are known."""
    from difflib import get_close_matches  # loads for longer than most messages take

    close = get_close_matches(name[:40], known, n=1) or get_close_matches(name[:40].lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def table(value: Any, where: str) -> dict[str, Any]:
    """A table of TOML, an object of JSON."""
    if type(value) is not dict:
        raise ValueError(f"{where}: expected a table, found {shown(value)}")
    return value


def items(value: Any, where: str, length: int | None = None) -> Sequence[Any]:
    """A list, of so many items."""
    if type(value) is not list:
        raise ValueError(f"{where}: expected a list, found {shown(value)}")
    if length is not None and len(value) != length:
        raise ValueError(f"{where}: expected {length:,} items, found {len(value):,}")
    return value


def text(value: Any, where: str) -> str:
    """A text that every database can store."""
    if type(value) is not str or len(value) > LONGEST:
        raise ValueError(f"{where}: expected a text, found {shown(value)}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where}: {shown(value)} holds invalid characters")
    return value


def whole(value: Any, where: str, least: int = 0, most: int = LARGEST) -> int:
    """A whole number within these bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where}: expected a whole number from {least} to {most:,}, found {shown(value)}")
    return value


def number(value: Any, where: str, least: float, most: float) -> float:
    """A number within these bounds; whole or not."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{where}: expected a number from {least:g} to {most:g}, found {shown(value)}")
    return float(value)
