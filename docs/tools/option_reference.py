"""Writes docs/manual/options.md, every option of every command as the command line declares it.

    python docs/tools/option_reference.py

`tests/unit/test_docs.py` fails where the page is not what this writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from autotune.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "manual/options.md"
HEAD = """# Options

Every option of every command, as `autotune COMMAND --help` shows it: `python docs/tools/option_reference.py`
writes this page from what the command line declares.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in _commands(app, "autotune"))])


def _commands(group: typer.Typer, name: str) -> Iterator[tuple[str, Any]]:
    """Commands of a group and of the groups in it, with their names in full."""
    for command in group.registered_commands:
        yield f"{name} {command.name or command.callback.__name__}", command  # type: ignore[union-attr]
    for below in group.registered_groups:
        yield from _commands(below.typer_instance, f"{name} {below.name}")  # type: ignore[arg-type]


def _section(name: str, command: Any) -> str:
    text = inspect.cleandoc(command.callback.__doc__ or "")
    examples = (command.epilog or "").replace("\b\nExamples:\n", "").replace("\n  ", "\n    ")
    lines = [f"## {name}", "", text, "", "| option | default | |", "|---|---|---|", *_rows(command.callback)]
    return "\n".join([*lines, "", *(["  " + examples, ""] if examples else [])])


def _rows(callback: Callable[..., Any]) -> Iterator[str]:
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, info = get_args(hints[name])
        default = "" if _is_empty(parameter.default) else f"`{_text(parameter.default)}`"
        cells = (_name(name, kind, info), default, f"{info.help}{_bounds(info)}")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _name(name: str, kind: Any, info: OptionInfo | ArgumentInfo) -> str:
    """An option with what it takes, an argument by its name."""
    if isinstance(info, ArgumentInfo):
        return f"`{info.metavar or name.upper()}`"
    declared = [flag for flag in (info.default, *(info.param_decls or ())) if isinstance(flag, str)]
    flag = declared[0] if declared else f"--{name.replace('_', '-')}"
    return f"`{flag}`" if kind is bool else f"`{flag} {info.metavar or _type(kind)}`"


def _type(kind: Any) -> str:
    """`NUMBER`, `PATH`, `TEXT`, or the words to choose from."""
    inner = next((part for part in (kind, *get_args(kind)) if isinstance(part, type)), str)
    if issubclass(inner, Enum):
        return "|".join(str(member.value) for member in inner)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(inner, "TEXT")


def _is_empty(default: object) -> bool:
    return default is inspect.Parameter.empty or default is None or default is False or default == []


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _bounds(info: OptionInfo | ArgumentInfo) -> str:
    """What a number may be, in a sentence of its own."""
    words = [f"{word} {limit}" for word, limit in (("at least", info.min), ("at most", info.max)) if limit]
    return f" {' and '.join(words).capitalize()}." if words else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
