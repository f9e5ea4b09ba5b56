"""Checks arguments, and makes Python's numbers of others, such as NumPy's: these overflow, and neither
databases nor JSON hold them. What is invalid raises `error`.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import math
import operator
import reprlib
import sys
from collections.abc import Iterable
from numbers import Real
from typing import Any

from .errors import AutotuneError, UsageError

LARGEST = 2**31 - 1  # of a whole number: databases keep it in 32 bits


def shown(value: Any) -> str:
    """A value for a message: short, however large or nested it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # a number with more digits than Python prints
        return "an endless number"


def whole(
    name: str, value: Any, least: int = 0, most: int = LARGEST, *, error: type[AutotuneError] = UsageError
) -> int:
    """A whole number within these bounds; neither True nor False."""
    try:
        found = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = least - 1
    if not least <= found <= most:
        raise error(f"{name} is {shown(value)}, expected a whole number of {least} ... {most}")
    return found


def number(
    name: str, value: Any, least: float = 0.0, most: float = sys.float_info.max, *, is_above: bool = False
) -> float:
    """A number within these bounds, whole or not; `is_above`: more than the least. Raises
    UsageError."""
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        found = math.nan
    if not least <= found <= most or (is_above and found == least):
        low = f"more than {least:g}" if is_above else f"at least {least:g}"
        high = "and finite" if most == sys.float_info.max else f"at most {most:,}"
        raise UsageError(f"{name} is {shown(value)}, expected a number: {low}, {high}")
    return found


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts, or one. Raises UsageError."""
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for text in found:
        if not isinstance(text, str):
            raise UsageError(f"{name} is or holds {shown(text)}, expected a text or several")
    return found


def plain(value: Any) -> Any:
    """A scalar of NumPy as Python's own; all else as it is."""
    return value.item() if type(value).__module__ == "numpy" and not value.ndim else value


def flag(name: str, value: Any, *, error: type[AutotuneError] = UsageError) -> bool:
    """True or False; 0 and 1 count, too. BLAS's letters do not: any letter is true in Python."""
    if isinstance(value, bool):
        return value
    found = plain(value)
    try:
        if operator.index(found) in (0, 1):
            return bool(found)
    except TypeError:
        pass
    raise error(f"{name} is a {type(value).__name__}; pass True or False")
