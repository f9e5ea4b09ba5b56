"""Frozen dataclasses that an import has for little.

For each `dataclass(frozen=True)` Python compiles six functions, one by one, which takes 0.3 to 1.3 ms. A
class of `frozen` has three of its own, compiled at once, and shares the others: it takes 45 % of that. It is
a dataclass all the same, for `fields`, `replace`, `asdict` and type checkers. A field has a default, or none;
factories are not known. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

_Class = TypeVar("_Class")
_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
_OWN = """
def __init__(self, {arguments}):
    {stored}
    {check}
def __eq__(self, other):
    if other.__class__ is self.__class__:
        return ({own},) == ({others},)
    return NotImplemented
def __hash__(self):
    return hash(({own},))
"""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, order: bool = False) -> Callable[[type[_Class]], type[_Class]]:
    """As `dataclass(frozen=True, order=order)`. A class may have a `__repr__` of its own."""

    def made(cls: type[_Class]) -> type[_Class]:
        dataclass(init=False, repr=False, eq=False)(cls)
        for name, function in (_own(cls) | _SHARED).items():
            if name not in vars(cls):
                setattr(cls, name, function)
        for name in _ORDER if order else ():
            setattr(cls, name, _comparison(cls, getattr(operator, name)))
        return cls

    return made


def _own(cls: Any) -> dict[str, Any]:
    """What makes instances of a class, and what they are compared and hashed by."""
    names = [one.name for one in fields(cls)]
    compared = [one.name for one in fields(cls) if one.compare]
    text = _OWN.format(
        arguments=", ".join(names),
        stored="; ".join(f"put(self, {name!r}, {name})" for name in names),
        check="self.__post_init__()" if hasattr(cls, "__post_init__") else "",
        own=", ".join(f"self.{name}" for name in compared),
        others=", ".join(f"other.{name}" for name in compared),
    )
    made: dict[str, Any] = {}
    exec(text, {"put": object.__setattr__}, made)
    for name, function in made.items():
        function.__qualname__ = f"{cls.__qualname__}.{name}"
    made["__init__"].__defaults__ = tuple(one.default for one in fields(cls) if one.default is not MISSING)
    made["__init__"].__annotations__ = {one.name: one.type for one in fields(cls)} | {"return": None}
    return made


def _told(self: Any) -> str:
    values = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED = {"__repr__": _told, "__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}


def _comparison(cls: Any, compare: Callable[[Any, Any], bool]) -> Callable[[Any, object], Any]:
    values = operator.attrgetter(*(one.name for one in fields(cls) if one.compare))
    return lambda self, other: (
        compare(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented
    )
