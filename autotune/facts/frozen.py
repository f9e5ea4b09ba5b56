"""Frozen dataclasses that are cheap to import.

For each `dataclass(frozen=True)` Python compiles six functions, one by one, which takes 0.3 to 1.3 ms. A
class of `frozen` compiles one, two more when an instance is first compared or hashed, and shares the others:
a third of that. It is still a dataclass for `fields`, `replace`, `asdict` and type checkers. A field may have
a default; factories are not supported. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

_Class = TypeVar("_Class")
_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
_INIT_SOURCE = """
def __init__(self, {arguments}):
    {stored}
    {check}
"""
_COMPARE_SOURCE = """
def __eq__(self, other):
    if other.__class__ is self.__class__:
        return ({own},) == ({others},)
    return NotImplemented
def __hash__(self):
    return hash(({own},))
"""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, order: bool = False) -> Callable[[type[_Class]], type[_Class]]:
    """As `dataclass(frozen=True, order=order)`. A class may have its own `__repr__`."""

    def made(cls: type[_Class]) -> type[_Class]:
        dataclass(init=False, repr=False, eq=False)(cls)
        for name, function in (_maker(cls) | _first_comparisons(cls) | _SHARED).items():
            if name not in vars(cls):
                setattr(cls, name, function)
        for name in _ORDER if order else ():
            setattr(cls, name, _comparison(cls, getattr(operator, name)))
        return cls

    return made


def _maker(cls: Any) -> dict[str, Any]:
    """The constructor of a class."""
    names = [one.name for one in fields(cls)]
    text = _INIT_SOURCE.format(
        arguments=", ".join(names),
        stored="; ".join(f"put(self, {name!r}, {name})" for name in names),
        check="self.__post_init__()" if hasattr(cls, "__post_init__") else "",
    )
    made = _compiled(cls, text)
    made["__init__"].__defaults__ = tuple(one.default for one in fields(cls) if one.default is not MISSING)
    made["__init__"].__annotations__ = {one.name: one.type for one in fields(cls)} | {"return": None}
    return made


def _first_comparisons(cls: Any) -> dict[str, Any]:
    """The functions that first compare or hash instances, and compile those for later use."""

    def compile_both() -> None:
        compared = [one.name for one in fields(cls) if one.compare]
        own, others = (", ".join(f"{who}.{name}" for name in compared) for who in ("self", "other"))
        for name, function in _compiled(cls, _COMPARE_SOURCE.format(own=own, others=others)).items():
            setattr(cls, name, function)

    def equal(self: Any, other: object) -> Any:
        compile_both()
        return cls.__eq__(self, other)

    def hashed(self: Any) -> Any:
        compile_both()
        return cls.__hash__(self)

    return {"__eq__": equal, "__hash__": hashed}


def _compiled(cls: Any, text: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(text, {"put": object.__setattr__}, made)
    for name, function in made.items():
        function.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _describe(self: Any) -> str:
    values = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED = {"__repr__": _describe, "__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}


def _comparison(cls: Any, compare: Callable[[Any, Any], bool]) -> Callable[[Any, object], Any]:
    values = operator.attrgetter(*(one.name for one in fields(cls) if one.compare))
    return lambda self, other: (
        compare(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented
    )


def picked(record: Any, names: str) -> dict[str, Any]:
    """Some fields of any record, by name: `names` holds them with spaces between."""
    return {name: getattr(record, name) for name in names.split()}
