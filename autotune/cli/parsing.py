"""How the command line reads options: what is no number is refused in this project's words, not those of the
parser's version, and an option that takes one value is given once."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..files import arguments
from ..files.arguments import LARGEST
from ..files.entries import hint
from ..files.errors import UsageError
from .ctrl_c import interrupt_in_order

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
SWITCHES = {"is_json": Json, "is_quiet": Quiet}  # what a command may take besides its own options


def _declared(metavar: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """What `typer.Option` is told. Defaults are read, too, and are no texts."""
    return {"metavar": metavar, "parser": lambda value: read(value) if isinstance(value, str) else value}


def whole(name: str, least: int = 0, most: int = LARGEST, *, metavar: str = "INTEGER") -> dict[str, Any]:
    """An option, or an argument, that is a whole number within these bounds."""

    def read(text: str) -> int:
        is_number = re.fullmatch(r"[+-]?\d{1,99}", text.strip(), re.ASCII)
        return arguments.whole(name, int(text) if is_number else text, least, most)

    return _declared(metavar, read)


def number(
    name: str, least: float = 0.0, most: float = sys.float_info.max, *, is_above: bool = False, unit: str = ""
) -> dict[str, Any]:
    """An option that is a number within these bounds."""

    def read(text: str) -> float:
        try:
            value: float | str = float(text)
        except ValueError:
            value = text
        return arguments.number(name, value, least, most, is_above=is_above)

    return _declared(unit or "NUMBER", read)


def limit(name: str) -> dict[str, Any]:
    """An option that is a number, or 0 for None: no limit."""
    read = number(name)["parser"]
    return _declared("NUMBER", lambda text: read(text) or None)


def one_of(name: str, words: Sequence[str]) -> dict[str, Any]:
    """An option that is one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise UsageError(f"{name} is {text!r} ({hint(text, words)})")
        return text

    return _declared(f"[{'|'.join(words)}]", read)


class Command(TyperCommand):
    """A command. An option that does not add up is refused where it is given twice: the last would win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            if not ctx.resilient_parsing:
                self._need_once(self.make_parser(ctx).parse_args(args=list(args))[2])
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # for the hint at `--help`
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    @staticmethod
    def _need_once(given: Sequence[Any]) -> None:
        for option, count in Counter(map(id, given)).items():
            parameter = next(one for one in given if id(one) == option)
            is_switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
            if count > 1 and not (getattr(parameter, "multiple", True) or is_switch):
                name = max(parameter.opts, key=len)
                raise UsageError(f"{name} is given {count} times, and takes one value; give it once")


def declare(
    group: typer.Typer,
    runs: str,
    record: Any,
    *examples: str,
    name: str = "",
    switches: Sequence[str] = ("is_json",),
    **settings: Any,
) -> None:
    """Adds a command to a group: its options are the fields of a record, as they are annotated, and the
    record's docstring is its help. `runs` is the function that is called with the record: `run` of the module
    `search`, or another as `one_config:time_configs`. `switches`: what else it is given, by name.
    """
    module, _, function = runs.partition(":")

    def command(**given: Any) -> None:
        interrupt_in_order()
        beside = {switch: given.pop(switch) for switch in switches}
        getattr(import_module(f"{__package__}.{module}"), function or "run")(record(**given), **beside)

    kinds = get_type_hints(record, include_extras=True) | {switch: SWITCHES[switch] for switch in switches}
    own = {one.name: _default(one) for one in fields(record)} | dict.fromkeys(switches, False)
    command.__name__, command.__doc__, command.__annotations__ = name or module, record.__doc__, kinds
    parameters = [
        Parameter(one, Parameter.KEYWORD_ONLY, default=default, annotation=kinds[one])
        for one, default in own.items()
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    group.command(name or module, cls=Command, epilog=below(*examples), **settings)(command)


def _default(one: Field[Any]) -> Any:
    if one.default is not MISSING:
        return one.default
    return Parameter.empty if one.default_factory is MISSING else one.default_factory()


def below(*examples: str) -> str:
    """What stands below the options of a command, line for line."""
    return "\n".join(["\b", "Examples:", *(f"  autotune {line}" for line in examples)])
