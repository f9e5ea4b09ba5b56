"""Conditions that a user sets: on parameters (`pack_a=0`, `reduction!=two_pass`, `bm>=64`), on the workspace
of a launch, and on the order in which sums are added (summation_order.py).

One on a parameter leaves some rows of one factor of a feasible set, and the set stays a product. The
workspace depends on the shape, and on parameters of two factors (`Pairs` of feasible_set.py).
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..files.errors import UsageError
from ..files.strict import hint
from ..files.words import number, option, texts
from .config import PARAMETER, Config, Value
from .resources import workspace_of
from .scaled_config import KINDS, kind_of
from .summation_order import SummationOrder, has_order
from .tensor_config import ConfigOnTensorCores

_RELATIONS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_OF_WORDS = ("=", "!=")
_TEXT = re.compile(r"\s*(\w+)\s*(==|!=|<=|>=|=|<|>)\s*([\w.-]+)\s*")
_HOW = "write conditions as in pack_a=0,reduction!=two_pass,bm>=64 (=, !=, <, <=, >, >=)"
_DEFAULTS = {kind: kind().to_dict() for kind in KINDS}
VALUES = Config.values()
_NUM_NEAREST = 2  # numbers that are suggested
MIB = 1 << 20  # bytes
MOST_MIB = 1 << 20


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
    """Conditions that all hold; none allows every point. `max_workspace`: bytes of a launch at most; it
    counts once the conditions are `on` a shape. `order`: of all sums."""

    conditions: tuple[Condition, ...] = ()
    max_workspace: int | None = None
    shape: tuple[Gemm, DeviceLimits] | None = None
    order: SummationOrder | None = None

    @classmethod
    def parse(
        cls,
        conditions: str | Iterable[str],
        max_workspace_mib: float | None = None,
        order: str | None = None,
    ) -> Where:
        """Read conditions with commas between them, from one text or several. Raises UsageError."""
        parts = ",".join(texts(option("where"), conditions or ())).split(",")
        found = cls(tuple(dict.fromkeys(_condition(part) for part in parts if part.strip())))
        if max_workspace_mib is not None:
            most = number(option("max_workspace"), max_workspace_mib, 0, MOST_MIB)
            found = replace(found, max_workspace=int(most * MIB))
        return found if order is None else replace(found, order=SummationOrder.of_kernels(order))

    def on(self, gemm: Gemm, limits: DeviceLimits) -> Where:
        """The same for launches on this problem and GPU model."""
        is_any = self.max_workspace is None and self.order is None
        return self if is_any else replace(self, shape=(gemm, limits))

    def check(self, values: Mapping[str, Sequence[Value]]) -> None:
        """Raises UsageError for a parameter that is not among these, by name with their values, or a value
        that it never has; with what may have been meant."""
        for condition in self.conditions:
            name, relation, value = condition
            requested = f"{option('where')} {condition}"
            if name not in values:
                raise UsageError(f"{requested}: no parameter {name!r} ({hint(name, tuple(values))})")
            known = values[name]
            if relation not in _OF_WORDS:
                if any(isinstance(one, str) for one in (value, *known)):
                    raise UsageError(
                        f"{requested}: words have no order; use = or !=, and one of {_listed(known)}"
                    )
            elif value not in known:
                raise UsageError(f"{requested}: {name} is never {value} ({_nearest(value, known)})")

    def holds(self, point: Mapping[str, Value]) -> bool:
        """Whether a point obeys. A parameter that an older kernel did not have is at its default."""
        its = kind_of(point)
        values = {**_DEFAULTS[its], **point}
        is_met = all(one.name in values and one.allows(values[one.name]) for one in self.conditions)
        if self.order is not None:  # which kernels of others have not
            is_met &= point.keys() <= PARAMETER.keys() and bool(
                has_order(SimpleNamespace(**values), self.order, self.shape and self.shape[0].k)
            )
        if self.shape is None or self.max_workspace is None or not is_met:
            return is_met
        if issubclass(its, ConfigOnTensorCores):
            return bool(its.workspaces(SimpleNamespace(**values), self.shape[0]) <= self.max_workspace)
        found = workspace_of(point, *self.shape)
        return found is not None and found <= self.max_workspace

    def within(self, names: Collection[str]) -> Where:
        """The same without conditions on other parameters: a template lacks those of another."""
        return replace(self, conditions=tuple(one for one in self.conditions if one.name in names))

    def in_least_splits(self, config: Config) -> Config | None:
        """The config, or else the same kernel in the least number of splits with which it obeys; None if it
        does not in any."""
        return next((one for one in _in_splits(config) if self.holds(one.to_dict())), None)

    def __bool__(self) -> bool:
        return bool(self.conditions or self.order) or self.max_workspace is not None

    def __str__(self) -> str:
        """As `parse` reads it, less workspace and order."""
        return ",".join(map(str, self.conditions))

    @property
    def max_workspace_mib(self) -> float | None:
        return None if self.max_workspace is None else self.max_workspace / MIB

    @property
    def description(self) -> str:
        """For a message."""
        parts = [str(self)] if self.conditions else []
        if self.max_workspace is not None:
            parts.append(f"a workspace of at most {self.max_workspace_mib:g} MiB")
        return " and ".join([*parts, *([f"the order {self.order}"] if self.order else [])])

    @property
    def options(self) -> str:
        """For a command line, with a blank before each option."""
        where = f" --where {shlex.quote(str(self))}" if self.conditions else ""
        where += "" if self.max_workspace is None else f" --max-workspace {self.max_workspace_mib:g}"
        return where + (f" --order {self.order}" if self.order else "")


ANY = Where()


def _condition(text: str) -> Condition:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise UsageError(f"{option('where')} {text.strip()!r}: {_HOW}")
    name, relation, value = found.groups()
    number = re.fullmatch("-?[0-9]{1,9}", value)
    return Condition(name, "=" if relation == "==" else relation, int(value) if number else value)


def _in_splits(config: Config) -> Iterator[Config]:
    """The config, then the same kernel in all numbers of splits, if that is an argument of its launch."""
    yield config
    if config.split_k > 1 and config.reduction != "cluster":
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
