"""Words of messages: what the caller passes (`max_workspace` of a function, `--max-workspace` of a command),
and numbers, and how many there are of something.

And checks of arguments, which make Python's numbers of others, such as NumPy's: these overflow, and neither
databases nor JSON hold them. What is invalid raises `error`.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
import sys
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from .errors import AutotuneError, UsageError

_OPTIONS = {"adds": "--add", "folder": "--out", "num_drawn": "--any"}
_FUNCTIONS = {"search": "autotune.tune", "export-table": "autotune.export_table"}
_UNITS = ((1e6, "s"), (1e3, "ms"), (1, "us"))
_is_command_line = False


def use_command_line_words() -> None:
    """From now on messages of this process are read by somebody who typed a command."""
    global _is_command_line
    _is_command_line = True


def is_command_line() -> bool:
    return _is_command_line


def option(name: str) -> str:
    """A parameter of `tune`, `export_table` or `space`, as the caller knows it."""
    if not _is_command_line:
        return name
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def command(name: str, options: str = "") -> str:
    """What to run next, as the caller runs it: a command with options, or the function that it stands for."""
    return f"`autotune {name}{options}`" if _is_command_line else f"`{_FUNCTIONS[name]}`"


def short(value: float, digits: int = 4) -> str:
    """A number to so many digits, and to its last whole one: `0.0123`, `12.35`, `53,030`."""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def few(names: Iterable[object], most: int = 3) -> str:
    """The first few, and how many more there are: `a, b, c and 4 more`."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return f"{', '.join(map(str, every[:most]))}{more}"


def time_text(time_us: float) -> str:
    """A time with four digits and a readable unit."""
    value, unit = next((time_us / us, unit) for us, unit in _UNITS if time_us >= 10 * us or us == 1)
    digits = max(0, 4 - len(str(int(value))))
    return f"{value:.{digits}f} {unit}"


def counted(number: int, one: str, plural: str = "") -> str:
    """`1 shape`, `2,000 shapes`; `several` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else plural or one + 's'}"


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
    """A number within these bounds, whole or not; `is_above`: more than the least. Raises UsageError."""
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        found = math.nan
    if not least <= found <= most or (is_above and found == least):
        low = f"more than {least:g}" if is_above else f"at least {least:g}"
        highs = {sys.float_info.max: ", and finite", math.inf: ""}
        high = highs.get(most, f", at most {most:,}")
        raise UsageError(f"{name} is {shown(value)}, expected a number: {low}{high}")
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


def chosen(
    name: str, value: Any, allowed: Sequence[str], default: str, variable: str, *, error: type[AutotuneError]
) -> Any:
    """One of the allowed texts: what was passed, else what a variable of the environment says, or else the
    default."""
    found = ((os.environ.get(variable) if variable else "") or default) if value is None else value
    return one_of(variable if value is None else name, found, allowed, error=error)


def one_of(name: str, value: Any, allowed: Sequence[str], *, error: type[AutotuneError] = UsageError) -> Any:
    """One of the allowed texts."""
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise error(f"{name} is {shown(value)}; say {', '.join(others)} or {last}")
    return value
