"""Frozen dataclasses from JSON and back, with nothing taken on trust.

Every field must be there, none may be unknown, every value must have the declared type. No value is
converted, but that a whole number may stand for a float. Copied into exported tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_CONTAINERS: dict[Any, type] = {tuple: list, dict: dict}  # declared -> as JSON has it


class Misfit(ValueError):
    """A value does not fit its declaration; the message says where and how."""


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def read(declared: Any, value: Any, where: str) -> Any:
    """`value` (from JSON) as `declared`: a dataclass, tuple, dict, union or plain type.

    Raises Misfit, naming the place as a path such as `kernels[3].spec.bm`.
    """
    if is_dataclass(declared):
        return _read_record(declared, value, where)
    if isinstance(declared, UnionType):
        return _read_union(get_args(declared), value, where)
    origin = get_origin(declared)
    if origin in _CONTAINERS:
        _require(type(value) is _CONTAINERS[origin], where, _name(declared), value)
        reader: Callable[..., Any] = _read_tuple if origin is tuple else _read_dict
        return reader(get_args(declared), value, where)
    if declared is float and type(value) is int:
        return float(value)
    _require(type(value) is declared, where, _name(declared), value)
    _require(declared is not float or math.isfinite(value), where, "a finite number", value)
    return value


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", str(declared))


def _require(is_right: bool, where: str, expected: str, value: Any) -> None:
    if not is_right:
        raise Misfit(f"{where} is {str(value)[:60]!r}, expected {expected}")


def _read_record(cls: Any, value: Any, where: str) -> Any:
    _require(type(value) is dict, where, f"an object ({cls.__name__})", value)
    names = [f.name for f in fields(cls)]
    missing = [name for name in names if name not in value]
    unknown = [name for name in value if name not in names]
    if missing or unknown:
        fault = f"lacks the field {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        raise Misfit(f"{where} {fault}")
    hints = _hints(cls)
    return cls(**{name: read(hints[name], value[name], f"{where}.{name}") for name in names})


def _read_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in choices:
        return None
    rest = [choice for choice in choices if choice is not NoneType]
    exact = [choice for choice in rest if type(value) is choice]
    if len(rest) > 1 and not exact:
        _require(False, where, " or ".join(map(_name, rest)), value)
    return read((exact or rest)[0], value, where)


def _read_tuple(items: tuple[Any, ...], value: list[Any], where: str) -> tuple[Any, ...]:
    if items[-1] is Ellipsis:
        items = items[:1] * len(value)
    _require(len(items) == len(value), where, f"{len(items)} items", value)
    pairs = enumerate(zip(items, value, strict=True))
    return tuple(read(declared, item, f"{where}[{i}]") for i, (declared, item) in pairs)


def _read_dict(types: tuple[Any, ...], value: dict[str, Any], where: str) -> dict[str, Any]:
    return {key: read(types[1], item, f"{where}[{key!r}]") for key, item in value.items()}


def parse(text: str) -> Any:
    """JSON without what JSON does not have: doubled keys, NaN, Infinity. Raises Misfit."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Misfit(f"not JSON ({error})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Misfit("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> Any:
    raise Misfit(f"{name} is not a JSON number")
