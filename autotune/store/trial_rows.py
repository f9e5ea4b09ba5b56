"""Trials as their driver has them, made into records or lines of a table without SQLAlchemy's types and
entities, which take many times as long: this runs for each of a million.

A row that is not surely sound is left to `rows.trial_record`, which reads it, or says what is wrong with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, Text, cast, select, type_coerce
from sqlalchemy.orm import Session
from sqlalchemy.types import NullType

from ..facts.measurement import Discarded, GpuState, Measurement, Outcome, discarded_from
from ..kernel.config import Value
from . import queries, rows
from .bad_rows import BadRows
from .columns import EARLIEST, Flag, Json, Number, UtcDateTime, Whole
from .models import ConfigRow, TrialRow
from .records import PREFIX, TrialRecord, TriedPoint

_FETCHED = 1000  # rows at a time
_REMEMBERED = 4096  # texts of JSON: those of most trials are alike
_MOST_CONFIGS = 250_000  # whose cells are kept in memory: other studies have them, too
_TRIAL, _CONFIG = TrialRow.__table__, ConfigRow.__table__
_COLUMNS = (*_TRIAL.c, _CONFIG.c.key, _CONFIG.c.point)
_JOINED = _TRIAL.outerjoin(_CONFIG, _TRIAL.c.config_id == _CONFIG.c.id)
_ROWS: Any = select(
    *(type_coerce(cast(one, Text) if isinstance(one.type, Json) else one, NullType()) for one in _COLUMNS)
).select_from(_JOINED)
_TYPES: dict[type, set[type]] = {  # that a driver has of a column; of others text
    Number: {float}, Whole: {int}, Flag: {int, bool}, UtcDateTime: {str, datetime},
}  # fmt: skip
_NUMBERS, _VALUES = frozenset((int, float)), frozenset((int, float, str))
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
# Columns of which a line has not the text that the driver has, as of_row makes them
_MADE = (
    "created_at", "is_cut_short", "throttle_reasons", "marks", "discarded", "origin", "reason", "samples_us"
)  # fmt: skip
_PLACES = {column.name: place for place, column in enumerate(_COLUMNS)}
_MOMENT = len("2026-11-27 08:00:00.000000")
T = TypeVar("T")
Row = Sequence[Any]


def records(
    session: Session, bad_rows: BadRows, *which: ColumnElement[bool]
) -> Iterator[tuple[int, TrialRecord]]:
    """Trials of which all this is so, in the order they were stored, each with the id of its study. A few are
    held at a time; damaged ones are left out."""
    return _each(session, bad_rows, _ROWS, which, _record, lambda study, record: (study, record))


def tried(session: Session, bad_rows: BadRows, study_id: int) -> Iterator[TriedPoint]:
    """The same of a study, as far as a search takes them up."""
    is_countable = queries.is_countable(session.get_bind().dialect.name)
    columns = (_TRIAL.c.id, is_countable, _TRIAL.c.outcome, cast(_CONFIG.c.point, Text), _CONFIG.c.key)
    named = (_TRIAL.c[name] for name in TriedPoint._fields[2:])
    figures = (cast(one, Text) if isinstance(one.type, Json) else one for one in named)
    query = select(*(type_coerce(one, NullType()) for one in (*columns, *figures))).select_from(_JOINED)
    return _each(session, bad_rows, query, [TrialRow.study_id == study_id], _tried, _tried_of)


def _tried(row: Row) -> TriedPoint | None:
    """None if it is not surely sound."""
    _, is_countable, outcome, point, key, time_us, *figures, samples, origin = row
    try:
        config = dict(zip(*_config(key, point)[:2], strict=True))
        samples_us = samples.split(",") if len(samples) > len("[]") else ()
    except _UNSOUND:
        return None
    if not is_countable or type(origin) is not str:
        return None
    measured = (time_us if outcome == Outcome.OK else None, *figures, samples_us)
    return TriedPoint(*(key, config, *measured, origin))


def _tried_of(_: int, record: TrialRecord) -> TriedPoint:
    found = record.measurement
    return TriedPoint(
        record.key, record.point, found.time_us, found.error_over_cublas, found.compile_s, found.verify_s,
        found.measure_s, found.samples_us, record.origin,
    )  # fmt: skip


def csv_lines(
    session: Session,
    bad_rows: BadRows,
    first: Mapping[str, Any],
    names: Sequence[str],
    configs: dict[int, str],
    *which: ColumnElement[bool],
) -> Iterator[str]:
    """The same as lines of a table with columns of these names: of what is in `first`, then of what
    `TrialRecord.flat` has. `configs` remembers cells of configs, by id, for the next study."""
    line = _Lines(first, names, configs)
    return _each(session, bad_rows, _ROWS, which, line.of_row, lambda _, record: line.of_record(record))


def _each(
    session: Session,
    bad_rows: BadRows,
    rows_of: Select[*tuple[Any, ...]],
    which: Sequence[ColumnElement[bool]],
    quickly: Callable[[Row], T | None],
    of_record: Callable[[int, TrialRecord], T],
) -> Iterator[T]:
    ids = select(TrialRow.id).where(*which)  # which are sorted alone, without all that belongs to them
    query = rows_of.where(_TRIAL.c.id.in_(ids)).order_by(_TRIAL.c.id).execution_options(yield_per=_FETCHED)
    for row in session.connection().execute(query):
        made = quickly(row)
        if made is not None:
            yield made
            continue
        one = session.execute(queries.TRIALS.where(TrialRow.id == row[0]))
        yield from (of_record(row[1], record) for record in bad_rows.readable(one, rows.trial_record))


@cache
def _are_typed(types: tuple[type, ...]) -> bool:
    """Whether the columns' values have these types."""
    return all(
        found in _TYPES.get(type(column.type), {str}) or (column.nullable and found is type(None))
        for column, found in zip(_COLUMNS, types, strict=True)
    )


class _Parts(dict[str, tuple[str, Value, str, str]]):
    """What a part of a config's JSON, such as `"bm":64`, says: name, value, the same part of its key, and a
    cell of the value."""

    def __missing__(self, part: str) -> tuple[str, Value, str, str]:
        """Raises ValueError for what is no such part."""
        ((name, value),) = json.loads(f"{{{part}}}").items()
        if type(value) not in _VALUES:
            raise ValueError(part)
        if len(self) > _REMEMBERED:
            self.clear()
        self[part] = name, value, f"{name}={value}", _cell(value)
        return self[part]


_part = _Parts().__getitem__


def _config(key: str, point: str) -> tuple[Sequence[str], Sequence[Value], Sequence[str]]:
    """Names, values and their cells. Raises ValueError for a point that is not the key's."""
    names, values, parts, cells = zip(*map(_part, point[1:-1].split(",")), strict=True)
    if {*parts} != {*key.split(",")} or point[:1] + point[-1:] != "{}":
        raise ValueError(point)
    return names, values, cells


def _checked(row: Row) -> tuple[Sequence[float], datetime] | None:
    """Samples, and when it was stored; None for a row that is not surely sound. Raises ValueError."""
    if not _are_typed(tuple(map(type, row))):
        return None
    outcome, _, time_us, samples, is_cut, error, other = row[3:10]
    found, took_s, stored_at = json.loads(samples), row[14:17], row[25]
    is_odd = outcome == Outcome.OK if time_us is None else not 0 < time_us < math.inf
    if (
        is_odd or outcome not in _OUTCOMES or is_cut not in (0, 1) or type(found) is not list
        or (found and not (_NUMBERS.issuperset(map(type, found)) and 0 < min(found) <= max(found) < math.inf))
        or not all(0 <= seconds < rows.LONGEST_S for seconds in took_s)
        or error != error or other != other or row[19] != row[19]  # NaN
    ):  # fmt: skip
        return None
    if type(stored_at) is datetime:
        return found, stored_at.replace(tzinfo=UTC)
    at = datetime.fromisoformat(stored_at + "+00:00")
    return (found, at) if len(stored_at) == _MOMENT and at.year >= EARLIEST else None


_UNSOUND = (ValueError, TypeError, AttributeError, RecursionError)


def _record(row: Row) -> tuple[int, TrialRecord] | None:
    """None if it is not surely sound."""
    try:
        if (checked := _checked(row)) is None:
            return None
        samples_us, at = checked
        point = dict(zip(*_config(*row[26:])[:2], strict=True))
        throttle, marks, discarded = _names(row[21]), _names(row[22]), _discarded(row[23])
    except _UNSOUND:
        return None
    figures = *row[8:17], _filled(GpuState, *row[17:21], throttle)
    timed = _OUTCOMES[row[3]], row[4], row[5], tuple(samples_us), bool(row[7])
    measured = _filled(Measurement, *timed, *figures, marks, discarded)
    return row[1], _filled(TrialRecord, row[0], row[26], point, measured, row[24], at)


def _filled(cls: Any, *values: Any) -> Any:
    """An instance of a frozen dataclass with these values, whose constructor would set them one by one."""
    made = object.__new__(cls)
    vars(made).update(zip(_names_of(cls), values, strict=True))
    return made


@cache
def _names_of(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


@lru_cache(_REMEMBERED)
def _names(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    return tuple(_fit("marks", json.loads(text)))


@lru_cache(_REMEMBERED)
def _discarded(text: str) -> tuple[Discarded, ...]:
    """Raises ValueError."""
    return tuple(map(discarded_from, _fit("discarded", json.loads(text))))


def _fit(name: str, found: Any) -> Any:
    if not getattr(TrialRow, name).type.is_fit(found):
        raise ValueError(name)
    return found


class _Lines:
    """Lines of a table with columns of these names; those of `first` have the same value in each."""

    def __init__(self, first: Mapping[str, Any], names: Sequence[str], configs: dict[int, str]) -> None:
        self._first, self._names, self._configs = first, names, configs
        self._parameters = tuple(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
        facts = [name for name in names if name not in first and not name.startswith(PREFIX)]
        made = dict(zip(_MADE, range(len(_COLUMNS), len(_COLUMNS) + len(_MADE)), strict=True))
        places = [made.get(name, _PLACES[name]) for name in facts]
        head = ",".join(map(_cell, first.values())).replace("{", "{{").replace("}", "}}")
        self._layout = cache(partial(_layout, head, places, [_PLACES[name] for name in facts]))

    def of_record(self, record: TrialRecord) -> str:
        cells = {**self._first, **record.flat()}
        return ",".join(_cell(cells.get(name)) for name in self._names) + "\n"

    def of_row(self, row: Row) -> str | None:
        """None if it is not surely sound."""
        try:
            if (checked := _checked(row)) is None:
                return None
            _names(row[21]), _names(row[22]), _discarded(row[23])
            config = self._configs.get(row[2]) or self._config(row)
        except _UNSOUND:
            return None
        made = (
            checked[1].isoformat(),
            bool(row[7]),
            *map(_quoted, row[21:25]),
            _quoted(row[4]),
            f'"{row[6]}"' if "," in row[6] else row[6],
        )
        return self._layout(tuple(map(type, row))).format(*row, *made, config)

    def _config(self, row: Row) -> str:
        names, _, cells = _config(*row[26:])
        if names != self._parameters:
            known = dict(zip(names, cells, strict=True))
            cells = [known.get(name, "") for name in self._parameters]
        text = ",".join(cells)
        if len(self._configs) < _MOST_CONFIGS:
            self._configs[row[2]] = text
        return text


def _layout(head: str, places: Sequence[int], columns: Sequence[int], types: Sequence[type]) -> str:
    """Of lines of rows with values of these types: where one is NULL, nothing stands."""
    cells = (
        "" if types[own] is type(None) else f"{{{place}}}" for place, own in zip(places, columns, strict=True)
    )
    return ",".join([head, *cells, f"{{{len(_COLUMNS) + len(_MADE)}}}\n"])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _quoted(json.dumps(value) if isinstance(value, list | tuple) else str(value))


@lru_cache(_REMEMBERED)
def _quoted(text: str) -> str:
    """As a cell of a table."""
    is_plain = not any(mark in text for mark in ',"\r\n')
    return text if is_plain else '"' + text.replace('"', '""') + '"'
