"""Words of messages: what the caller passes (`max_workspace` of a function, `--max-workspace` of a command),
and how many there are of something.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

_OPTIONS = {"adds": "--add", "folder": "--out", "has_dashboard": "--dashboard", "num_drawn": "--any"}
_FUNCTIONS = {"search": "autotune.tune", "export-table": "autotune.export_table"}
_is_command_line = False


def speak_as_command_line() -> None:
    """From now on messages of this process are read by somebody who typed a command."""
    global _is_command_line
    _is_command_line = True


def option(name: str) -> str:
    """A parameter of `tune`, `export_table` or `space`, as the caller knows it."""
    if not _is_command_line:
        return name
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def command(name: str, options: str = "") -> str:
    """What to run next, as the caller runs it: a command with options, or the function that it stands for."""
    return f"`autotune {name}{options}`" if _is_command_line else f"`{_FUNCTIONS[name]}`"


def counted(number: int, one: str, several: str = "") -> str:
    """`1 shape`, `2,000 shapes`; `several` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
