"""Conditions that a user sets on parameters: `pack_a=0`, `reduction!=two_pass`, `bm>=64`.

Each is about one parameter: it leaves some rows of one factor of a feasible set, and the set stays a product.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..entries import hint
from ..errors import UsageError
from .config import PARAMETER, Config, Value

_RELATIONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OF_WORDS = ("=", "!=")
_TEXT = re.compile(r"\s*(\w+)\s*(==|!=|<=|>=|=|<|>)\s*([\w.-]+)\s*")
_HOW = "write conditions as in pack_a=0,reduction!=two_pass,bm>=64 (=, !=, <, <=, >, >=)"
_DEFAULTS = Config().to_dict()
VALUES: dict[str, tuple[Value, ...]] = {name: parameter.values for name, parameter in PARAMETER.items()}
_NUM_NEAREST = 2  # numbers that are suggested


class Condition(NamedTuple):
    """One relation between a parameter and a value."""

    name: str
    relation: str
    value: Value

    def allows(self, value: Value) -> bool:
        """Whether a parameter may have this value. Words and numbers differ, and have no order."""
        if type(value) is not type(self.value):
            return self.relation == "!="
        return bool(_RELATIONS[self.relation](value, self.value))

    def __str__(self) -> str:
        return f"{self.name}{self.relation}{self.value}"


@dataclass(frozen=True)
class Where:
    """Conditions that all hold; none allows every point."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, texts: str | Iterable[str]) -> Where:
        """Read conditions with commas between them, from one text or several. Raises UsageError."""
        parts = ",".join([texts] if isinstance(texts, str) else texts).split(",")
        return cls(tuple(dict.fromkeys(_condition(part) for part in parts if part.strip())))

    def check(self, values: Mapping[str, Sequence[Value]]) -> None:
        """Raises UsageError for a parameter that is not among these, by name with their values, or a value
        that it never has; with what may have been meant."""
        for condition in self.conditions:
            name, relation, value = condition
            if name not in values:
                raise UsageError(f"--where {condition}: no parameter {name!r} ({hint(name, tuple(values))})")
            known = values[name]
            if relation not in _OF_WORDS:
                if any(isinstance(one, str) for one in (value, *known)):
                    raise UsageError(
                        f"--where {condition}: words have no order; use = or !=, and one of {_listed(known)}"
                    )
            elif value not in known:
                raise UsageError(f"--where {condition}: {name} is never {value} ({_nearest(value, known)})")

    def holds(self, point: Mapping[str, Value]) -> bool:
        """Whether a point obeys. A parameter that an older kernel did not have is at its default."""
        values = {**_DEFAULTS, **point}
        return all(one.name in values and one.allows(values[one.name]) for one in self.conditions)

    def in_least_splits(self, config: Config) -> Config | None:
        """The config, or else the same kernel in the least number of splits with which it obeys; None if it
        does not in any."""
        return next((one for one in _in_splits(config) if self.holds(one.to_dict())), None)

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __str__(self) -> str:
        """As `parse` reads it."""
        return ",".join(map(str, self.conditions))


ANY = Where()


def _condition(text: str) -> Condition:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise UsageError(f"--where {text.strip()!r}: {_HOW}")
    name, relation, value = found.groups()
    number = re.fullmatch("-?[0-9]{1,9}", value)
    return Condition(name, "=" if relation == "==" else relation, int(value) if number else value)


def _in_splits(config: Config) -> Iterator[Config]:
    """The config, then the same kernel in all numbers of splits, if that is an argument of its launch."""
    yield config
    if config.reduction not in ("none", "cluster"):
        splits = [value for value in PARAMETER["split_k"].values if isinstance(value, int) and value > 1]
        yield from (replace(config, split_k=num) for num in splits)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _nearest(value: Value, known: Sequence[Value]) -> str:
    numbers = [one for one in known if isinstance(one, int)]
    if isinstance(value, int) and len(numbers) > _NUM_NEAREST:
        near = sorted(sorted(numbers, key=lambda one: abs(one - value))[:_NUM_NEAREST])
        return f"did you mean {' or '.join(map(str, near))}?"
    return hint(str(value), [str(one) for one in known])
