"""Column types that report what they cannot read, instead of raising.

SQLite keeps whatever is written into a column: text in a float, JSON that is cut short, bytes that are not
text. SQLAlchemy's own types raise while rows are fetched, so one such value would hide all rows behind it.
These types return `InvalidValue` in its place, and `rows` refuses only the row with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Boolean, DateTime, Double, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..facts.measurement import is_time

_SHOWN = 40  # characters of the value in a message
EARLIEST = 1970


@dataclass(frozen=True)
class InvalidValue:
    """A value that its column cannot hold; `shown` is how it begins."""

    shown: str

    @classmethod
    def of(cls, value: object) -> InvalidValue:
        text = repr(value)
        return cls(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")

    def __str__(self) -> str:
        return self.shown


class _SafeType(TypeDecorator[Any]):
    """Reads as `impl` does; values that it cannot read, or that `is_fit` refuses, become `InvalidValue`."""

    impl: type[TypeEngine[Any]] = Text

    def __init_subclass__(cls) -> None:
        cls.cache_ok = True  # SQLAlchemy asks each class itself
        super().__init_subclass__()

    def is_fit(self, value: Any) -> bool:
        return isinstance(value, str)

    def holds(self, stored: Any) -> bool:
        """Whether a value may be what its driver has of it: moments and JSON as text. Never raises."""
        if stored is None or isinstance(stored, InvalidValue):
            return False
        try:
            return self.is_fit(self.read(stored))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return False

    def read(self, stored: Any) -> Any:
        """The value of what a driver has. Raises ValueError, TypeError and RecursionError."""
        return stored

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        read = self.impl_instance.result_processor(dialect, coltype)

        def process(stored: Any) -> Any:
            if stored is None or isinstance(stored, InvalidValue):
                return stored
            try:
                value = stored if read is None else read(stored)
                return self.convert(value) if self.is_fit(value) else InvalidValue.of(stored)
            except (ValueError, TypeError, OverflowError, RecursionError):
                return InvalidValue.of(stored)

        return process

    def convert(self, value: Any) -> Any:
        return value


class Words(_SafeType):
    """Text."""


class Whole(_SafeType):
    """An integer."""

    impl = Integer

    def is_fit(self, value: Any) -> bool:
        return type(value) is int


class Number(_SafeType):
    """A float; infinity is allowed, NaN is not."""

    impl = Double

    def is_fit(self, value: Any) -> bool:
        return type(value) in (int, float) and not math.isnan(value)

    def convert(self, value: Any) -> float:
        return float(value)


class Flag(_SafeType):
    """A boolean, which SQLite keeps as 0 or 1."""

    impl = Boolean

    def is_fit(self, value: Any) -> bool:
        return value in (0, 1)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        def process(stored: Any) -> Any:  # SQLAlchemy's own reads any value as true
            if stored is None:
                return None
            return bool(stored) if self.is_fit(stored) else InvalidValue.of(stored)

        return process


class UtcDateTime(_SafeType):
    """An aware datetime, stored as naive UTC (SQLite keeps no time zone)."""

    impl = DateTime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def is_fit(self, value: Any) -> bool:
        return isinstance(value, datetime) and value.year >= EARLIEST

    def read(self, stored: Any) -> datetime:
        return datetime.fromisoformat(stored)

    def convert(self, value: Any) -> datetime:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]


class Json(_SafeType):
    """JSON of which a condition holds."""

    impl = JSON

    def __init__(self, condition: Callable[[Any], bool]) -> None:
        super().__init__()
        self.condition = condition

    def read(self, stored: Any) -> Any:
        return json.loads(stored)

    def is_fit(self, value: Any) -> bool:
        return self.condition(value)


class Document(_SafeType):
    """A JSON object as text: JSON of PostgreSQL has neither NaN nor infinity, and Optuna has."""

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return json.dumps(value)

    def convert(self, value: Any) -> dict[str, Any]:
        return dict(json.loads(value))


def _is_list_of(is_fit: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_fit, value))


def _is_dict_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(isinstance(item, types) for item in value.values())


def _is_discarded(item: Any) -> bool:
    is_one = isinstance(item, dict) and set(item) == {"samples_us", "marks"}
    return is_one and SAMPLES.is_fit(item["samples_us"]) and NAMES.is_fit(item["marks"])


def _are_times(value: Any) -> bool:
    """Whether it is a list of times: told at once of most, where each is a float and not enormous."""
    are_floats = isinstance(value, list) and {*map(type, value)} == {float}
    return (are_floats and min(value) > 0 and sum(value) < math.inf) or _is_list_of(is_time)(value)


SAMPLES = Json(_are_times)
NAMES = Json(_is_list_of(lambda item: isinstance(item, str)))
POINT = Json(_is_dict_of(int, float, str))  # parameters by name
NUMBERS = Json(_is_dict_of(int, float))  # and booleans, by name
TEXTS = Json(_is_dict_of(str))  # by name
DISCARDED = Json(_is_list_of(_is_discarded))  # measurement.Discarded


def read_text(stored: bytes) -> str | InvalidValue:
    """How SQLite's driver reads text: by default bytes that are not UTF-8 would end the fetch."""
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError:
        return InvalidValue.of(stored)
