"""How the command line reads options: what is no number is refused in this project's words, not those of the
parser's version, and an option that takes one value is given once."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from typer.core import TyperCommand

from ..files import arguments
from ..files.arguments import LARGEST
from ..files.entries import hint
from ..files.errors import UsageError


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
