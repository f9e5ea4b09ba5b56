"""Trials as their driver has them, made into records without SQLAlchemy's types and entities, which take six
times as long: this runs for each of a million.

A row that is not surely sound is left to `rows.trial_record`, which reads it, or says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, select, type_coerce
from sqlalchemy.orm import Session
from sqlalchemy.types import NullType

from . import queries, rows
from .bad_rows import BadRowError, BadRows
from .columns import Flag, Json, Number, UtcDateTime, Whole
from .models import ConfigRow, TrialRow
from .records import TrialRecord

_FETCHED = 1000  # rows at a time
_REMEMBERED = 4096  # texts of JSON: those of most trials are alike
_COLUMNS = (*TrialRow.__table__.c, ConfigRow.__table__.c.key, ConfigRow.__table__.c.point)
_ROWS: Any = select(
    *(type_coerce(cast(one, Text) if isinstance(one.type, Json) else one, NullType()) for one in _COLUMNS)
).join_from(TrialRow, ConfigRow, TrialRow.config_id == ConfigRow.id, isouter=True)
_TYPES: dict[type, set[type]] = {  # that a driver has of a column; of others text
    Number: {float}, Whole: {int}, Flag: {int, bool}, UtcDateTime: {str, datetime},
}  # fmt: skip
_IS_FIT: dict[str, Callable[[Any], bool]] = {
    column.name: column.type.is_fit for column in _COLUMNS if hasattr(column.type, "is_fit")
}
_VALUES = frozenset((int, float, str))  # of parameters
_MOMENT = len("2026-11-27 08:00:00.000000")


def records(
    session: Session, bad_rows: BadRows, *which: ColumnElement[bool]
) -> Iterator[tuple[int, TrialRecord]]:
    """Trials of which all this is so, in the order they were stored, each with the id of its study. A few are
    held at a time; damaged ones are left out."""
    ids = select(TrialRow.id).where(*which)  # which are sorted alone, without all that belongs to them
    query = _ROWS.where(TrialRow.id.in_(ids)).order_by(TrialRow.id).execution_options(yield_per=_FETCHED)
    for row in session.execute(query):
        record = _record(row) if _are_typed(tuple(map(type, row))) else None
        if record is None:
            one = session.execute(queries.TRIALS.where(TrialRow.id == row[0]))
            record = next(bad_rows.readable(one, rows.trial_record), None)
        if record is not None:
            yield row[1], record


@cache
def _are_typed(types: tuple[type, ...]) -> bool:
    """Whether the columns' values have these types."""
    return all(
        found in _TYPES.get(type(column.type), {str}) or (column.nullable and found is type(None))
        for column, found in zip(_COLUMNS, types, strict=True)
    )


def _record(row: Sequence[Any]) -> TrialRecord | None:
    """None if it is not surely sound."""
    number, _, _, outcome, reason, time_us, samples, is_cut, *facts, origin, stored_at, key, config = row
    *facts, throttle, marks, discarded = facts
    try:
        at = datetime.fromisoformat(stored_at) if type(stored_at) is str else stored_at
        point, samples_us = json.loads(config), json.loads(samples)
        spelled = config[1:-1].replace('"', "").replace(", ", ",").replace(": ", ":").replace(":", "=")
        named = set(spelled.split(","))
        if (
            named != set(key.split(",")) or len(named) != len(point)
            or not _VALUES.issuperset(map(type, point.values()))
            or not _IS_FIT["samples_us"](samples_us)
            or is_cut not in (0, 1)
            or not _IS_FIT["created_at"](at) or (at is not stored_at and len(stored_at) != _MOMENT)
            or not all(value == value for value in facts)  # NaN
        ):  # fmt: skip
            return None
        lists = _read("throttle_reasons", throttle), _read("marks", marks), _read("discarded", discarded)
        took = number, outcome, reason, time_us, samples_us, bool(is_cut)
        measured = rows.measurement(*took, *facts, *lists)
    except (ValueError, TypeError, AttributeError, RecursionError, BadRowError):
        return None
    return TrialRecord(number, key, point, measured, origin, at.replace(tzinfo=UTC))


@lru_cache(_REMEMBERED)
def _read(name: str, text: str) -> Any:
    """Raises ValueError."""
    found = json.loads(text)
    if not _IS_FIT[name](found):
        raise ValueError(text)
    return found
