"""Words of messages: what the caller passes (`max_workspace` of a function, `--max-workspace` of a command),
and numbers, and how many there are of something.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

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


def time_text(time_us: float) -> str:
    """A time with four digits and a readable unit."""
    value, unit = next((time_us / us, unit) for us, unit in _UNITS if time_us >= 10 * us or us == 1)
    digits = max(0, 4 - len(str(int(value))))
    return f"{value:.{digits}f} {unit}"


def counted(number: int, one: str, plural: str = "") -> str:
    """`1 shape`, `2,000 shapes`; `several` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else plural or one + 's'}"
