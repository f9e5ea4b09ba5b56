"""How the command line reads options: what is no number is refused in this project's words, not those of the
parser's version, and an option that takes one value is given once."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any, dataclass_transform, get_type_hints

import typer
from typer.core import TyperCommand

from ..facts.keywords import keywords_of
from ..files import words as checks
from ..files.errors import UsageError
from ..files.strict import hint
from ..files.words import LARGEST
from .ctrl_c import interrupt_in_order

_CSV = "Print a table for spreadsheets: comma-separated values."
# What a command may take besides its own options.
SWITCHES = {
    "is_json": Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")],
    "is_csv": Annotated[bool, typer.Option("--csv", help=_CSV)],
    "is_quiet": Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")],
}


@dataclass_transform(frozen_default=True)
class CommandRecord:
    """What a command is given: a frozen dataclass, whose fields are options and arguments."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


REQUIRED: Any = MISSING  # an option without a default
Reads = Callable[[str], dict[str, Any]]  # what Typer is told of an option of this name, besides its help


def option(
    help: str, default: Any = REQUIRED, read: Reads | None = None, *, flag: str = "", metavar: str = ""
) -> Any:
    """A field of a record that is an option: `--name-of-the-field`, or `flag`."""
    return _field(typer.Option, help, default, read, flag, metavar)


def keyword(
    kind: Any, name: str, read: Reads | None = None, *, flag: str = "", metavar: str = "", more: str = ""
) -> Any:
    """An option that is a keyword of `tune` or another function, as facts/keywords.py declares it; `more`:
    what its help says besides."""
    declared = keywords_of(kind)[name]
    names = {other: f"--{other.replace('_', '-')}" for other in keywords_of(kind)} | {"none": "0"}
    default = list(declared.default) if isinstance(declared.default, tuple) else declared.default
    return option(
        declared.shown(names).removesuffix(".") + f"{more}.", default, read, flag=flag, metavar=metavar
    )


def argument(help: str, default: Any = REQUIRED, read: Reads | None = None, *, metavar: str = "") -> Any:
    """A field of a record that is an argument."""
    return _field(typer.Argument, help, default, read, "", metavar)


def _field(kind: Any, help: str, default: Any, read: Reads | None, flag: str, metavar: str) -> Any:
    def declared(field: str) -> Any:
        name = flag or f"--{field.replace('_', '-')}"
        details = {"help": help, **(read(name) if read else {}), **({"metavar": metavar} if metavar else {})}
        return kind(*([flag] if flag else []), **details)

    given = {"default_factory": default.copy} if isinstance(default, list) else {"default": default}
    return field(**given, metadata={"declared": declared})


def words(*known: str) -> Reads:
    """Offers these words to a shell."""
    complete = {"autocompletion": lambda incomplete: [word for word in known if word.startswith(incomplete)]}
    return lambda name: complete


def known_gpus(name: str) -> dict[str, Any]:
    """Offers the GPU models that are known."""

    def kinds(incomplete: str) -> Iterator[str]:
        from ..facts.device import KNOWN

        return (name for name in ("auto", *KNOWN) if name.startswith(incomplete))

    return {"autocompletion": kinds}


def _reading(metavar: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """Defaults are read, too, and are no texts."""
    return {"metavar": metavar, "parser": lambda value: read(value) if isinstance(value, str) else value}


def whole(least: int = 0, most: int = LARGEST, *, name: str = "") -> Reads:
    """A whole number within these bounds."""

    def reads(flag: str) -> dict[str, Any]:
        def read(text: str) -> int:
            is_number = re.fullmatch(r"[+-]?\d{1,99}", text.strip(), re.ASCII)
            return checks.whole(name or flag, int(text) if is_number else text, least, most)

        return _reading("INTEGER", read)

    return reads


def number(least: float = 0.0, most: float = sys.float_info.max, *, is_above: bool = False) -> Reads:
    """A number within these bounds."""

    def reads(flag: str) -> dict[str, Any]:
        def read(text: str) -> float:
            try:
                value: float | str = float(text)
            except ValueError:
                value = text
            return checks.number(flag, value, least, most, is_above=is_above)

        return _reading("NUMBER", read)

    return reads


def limit() -> Reads:
    """A number, or 0 for None: no limit."""

    def reads(flag: str) -> dict[str, Any]:
        read = number()(flag)["parser"]
        return _reading("NUMBER", lambda text: read(text) or None)

    return reads


def one_of(*known: str) -> Reads:
    """One of these words."""

    def reads(flag: str) -> dict[str, Any]:
        def read(text: str) -> str:
            if text not in known:
                raise UsageError(f"{flag} is {text!r} ({hint(text, known)})")
            return text

        return _reading(f"[{'|'.join(known)}]", read)

    return reads


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
    group: typer.Typer, runs: str, record: Any, switches: str = "json", *, name: str = "", **settings: Any
) -> None:
    """Adds a command to a group: its options are the fields of a record, and the record's docstring is its
    help, with examples at its end. `runs`: what is called with the record, `run` of the module `search`, or
    another as `one_config:time_configs`. `switches`: what else it is given, `is_json` by `json`."""
    module, _, function = runs.partition(":")
    switch_names = [f"is_{one}" for one in switches.split()]

    def command(**given: Any) -> None:
        interrupt_in_order()
        switched = {one: given.pop(one) for one in switch_names}
        if switched.get("is_csv") and switched["is_json"]:
            raise UsageError("--csv and --json: ask for one of them")
        getattr(import_module(f"{__package__}.{module}"), function or "run")(record(**given), **switched)

    hints = get_type_hints(record)
    own = {one.name: Annotated[hints[one.name], one.metadata["declared"](one.name)] for one in fields(record)}
    own |= {one: SWITCHES[one] for one in switch_names}
    defaults = {one.name: _default(one) for one in fields(record)} | dict.fromkeys(switch_names, False)
    text, _, examples = inspect.cleandoc(record.__doc__).partition("\n\nExamples:\n")
    command.__name__, command.__doc__, command.__annotations__ = name or function or module, text, own
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(one, Parameter.KEYWORD_ONLY, default=defaults[one], annotation=own[one]) for one in own]
    )
    below = examples_below(*inspect.cleandoc(examples).splitlines())
    group.command(command.__name__, cls=Command, epilog=below, **settings)(command)


def _default(one: Field[Any]) -> Any:
    if one.default is not MISSING:
        return one.default
    return Parameter.empty if one.default_factory is MISSING else one.default_factory()


def examples_below(*lines: str) -> str:
    """What stands below the options of a command, line for line."""
    return "\n".join(["\b", "Examples:", *(f"  autotune {line}" for line in lines)])
