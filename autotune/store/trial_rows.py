"""Trials as their driver has them, made into records or lines of a table without SQLAlchemy's types and
entities, which take many times as long: this runs for each of a million.

A row that is not surely sound is left to `rows.trial_record`, which reads it, or says what is wrong with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter, ne
from typing import Any, NamedTuple, TypeVar

import numpy as np
from sqlalchemy import ColumnElement, Select, Text, case, cast, literal_column, select, type_coerce
from sqlalchemy.orm import Session
from sqlalchemy.types import NullType

from ..facts.measurement import Discarded, GpuState, Measurement, Outcome, discarded_from
from ..kernel.config import Value
from . import queries, rows
from .columns import EARLIEST, Flag, Json, Number, UtcDateTime, Whole
from .database import Transaction
from .models import ConfigRow, TrialRow
from .records import PREFIX, TrialColumns, TrialFacts, TrialRecord, TriedPoint

_FETCHED = 1000  # rows at a time
_REMEMBERED = 4096  # texts of JSON: those of most trials are alike
_MOST_CONFIGS = 400_000  # whose cells are kept in memory: other studies have them, too
_TRIAL, _CONFIG = TrialRow.__table__, ConfigRow.__table__
_COLUMNS = (*_TRIAL.c, _CONFIG.c.key, _CONFIG.c.point)
# Texts of which most trials have the same: fetched as one, and looked up as one
_TOGETHER = ("outcome", "reason", "throttle_reasons", "marks", "discarded", "origin")
_BETWEEN = "\x1f"
_IN_SQL = literal_column(f"'{_BETWEEN}'", Text)  # no variable: a statement may have few
_JOINED = _TRIAL.outerjoin(_CONFIG, _TRIAL.c.config_id == _CONFIG.c.id)


def _as_fetched(columns: Iterable[Any]) -> Select[*tuple[Any, ...]]:
    """Columns without SQLAlchemy's types."""
    texts = (cast(one, Text) if isinstance(one.type, Json) else one for one in columns)
    return select(*(type_coerce(one, NullType()) for one in texts))


_OWN = tuple(column for column in _TRIAL.c if column.name not in _TOGETHER)
_PLACES = {name: place for place, name in enumerate((*(column.name for column in _OWN), "together"))}
_TEXTS: ColumnElement[str] = cast(_TRIAL.c[_TOGETHER[0]], Text)
for _name in _TOGETHER[1:]:
    _TEXTS = _TEXTS.concat(_IN_SQL).concat(cast(_TRIAL.c[_name], Text))
_ALONE = _as_fetched((*_OWN, _TEXTS))
_ROWS = _as_fetched((*_OWN, _TEXTS, _CONFIG.c.key, _CONFIG.c.point)).select_from(_JOINED)
_CONFIGS = "SELECT id, key, CAST(point AS TEXT) FROM config WHERE id IN ({})".format
_TYPES: dict[type, set[type]] = {  # that a driver has of a column; of others text
    Number: {float}, Whole: {int}, Flag: {int, bool}, UtcDateTime: {str, datetime},
}  # fmt: skip
_FITS = {
    one.name: _TYPES.get(type(one.type), {str}) | ({type(None)} if one.nullable else set())
    for one in _COLUMNS
}
_NUMBERS, _VALUES = frozenset((int, float)), frozenset((int, float, str))
_MOMENT, _FIRST = len("2026-11-27 08:00:00.000000"), itemgetter(0)
T = TypeVar("T")
Row = Sequence[Any]
Rows = Sequence[Row]


def records(session: Transaction, *which: ColumnElement[bool]) -> Iterator[tuple[int, TrialRecord]]:
    """Trials of which all this is so, in order, each with the id of its study, a few at a time."""
    return _each(session, _ROWS, which, _records, lambda study, record: (study, record))


def tried(session: Transaction, study_id: int) -> Iterator[TriedPoint]:
    """The same of a study, as far as a search takes them up."""
    figures = (_TRIAL.c[name] for name in TriedPoint._fields[2:])
    columns = (_TRIAL.c.id, _CONFIG.c.key, _CONFIG.c.point, *figures, _TRIAL.c.outcome)
    query = _as_fetched(columns).select_from(_JOINED)
    return _each(session, query, [TrialRow.study_id == study_id], _tried, _tried_of)


def facts(session: Transaction, study_id: int) -> Iterator[TrialFacts]:
    """The same, as far as files of others hold them."""
    figures = (_TRIAL.c[name] for name in TrialFacts._fields[2:])
    query = _as_fetched((_TRIAL.c.id, _CONFIG.c.key, _CONFIG.c.point, *figures)).select_from(_JOINED)
    return _each(session, query, [TrialRow.study_id == study_id], _facts, _facts_of)


def _facts(some: Rows) -> Iterable[TrialFacts]:
    _, keys, points, *figures = zip(*some, strict=True)
    found: Any = TrialFacts._make((*_configs_of(keys, points), *figures))
    _checked(found)
    _need_timed(Outcome.OK, found.outcome, found.time_us)
    _need({text[:1] + text[-1:] for text in found.samples_us} == {"[]"})
    _moments(found.created_at)
    read = found._replace(
        outcome=map(queries.OUTCOMES.__getitem__, found.outcome),
        samples_us=samples_in(",".join(found.samples_us), len(found.samples_us)),
        created_at=_moment_cells(found.created_at),
    )
    return map(TrialFacts._make, zip(*read, strict=True))


def _facts_of(_: int, record: TrialRecord) -> TrialFacts:
    figures = (getattr(record.measurement, name) for name in TrialFacts._fields[2:-1])
    items = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.point.items()]
    values = [*map(str, record.point.values())]
    return TrialFacts._make((items, values, *figures, record.created_at.isoformat()))


def _configs_of(keys: Sequence[str], points: Sequence[str]) -> list[list[Sequence[str]]]:
    """`TrialFacts.items` and `.values` of configs. Raises ValueError where one is not surely sound."""
    _need({point[:1] + point[-1:] for point in points} == {"{}"})
    (num,) = {text.count(",") + 1 for text in chain(keys, points)}
    joined = ",".join([point[1:-1] for point in points])
    _need("\\" not in joined)  # else a cell is not the value itself
    listed = joined.split(",")
    parts = [*map(_part, listed)]
    if ",".join([one[1] for one in parts]) != ",".join(keys):  # they are in another order
        for one in zip(keys, points, strict=True):
            parts_of(*one)
    columns = [one[3] for one in parts], [one[2] for one in parts]
    return [[column[at : at + num] for at in range(0, len(listed), num)] for column in columns]


def _tried(some: Rows) -> Iterable[TriedPoint]:
    _, keys, points, times_us, *figures, samples, origin, outcomes = zip(*some, strict=True)
    columns = keys, points, times_us, *figures, samples, origin, outcomes
    for name, values in zip((*TriedPoint._fields, "outcome"), columns, strict=True):
        _check(name, values)
    _need_timed(Outcome.OK, outcomes, times_us)
    read = [dict(parts_of(*one)[0]) for one in zip(keys, points, strict=True)]
    won_us = [one if outcome == Outcome.OK else None for one, outcome in zip(times_us, outcomes, strict=True)]
    counted = [range(one.count(",") + 1 if len(one) > len("[]") else 0) for one in samples]
    return map(TriedPoint._make, zip(keys, read, won_us, *figures, counted, origin, strict=True))


def _tried_of(_: int, record: TrialRecord) -> TriedPoint:
    figures = (getattr(record.measurement, name) for name in TriedPoint._fields[2:-1])
    return TriedPoint._make((record.key, record.point, *figures, record.origin))


def curve(session: Transaction, study_id: int) -> Iterator[TrialColumns]:
    """The same of a study, as far as sums and curves take them, many at a time."""
    failure = case((~queries.IS_OK, TrialRow.outcome.concat(":").concat(TrialRow.reason)))
    query = _as_fetched((_TRIAL.c.id, failure, *(_TRIAL.c[name] for name in TrialColumns._fields[2:])))
    return _each(session, query, [TrialRow.study_id == study_id], _curve, _curve_of)


def _curve(some: Rows) -> Iterator[TrialColumns]:
    found = TrialColumns(*zip(*some, strict=True))
    _checked(found)
    _need(all(one is None or one.partition(":")[0] in queries.OUTCOMES for one in {*found.failure}))
    _need_timed(None, found.failure, found.time_us)
    yield found._replace(created_at=_moments_of(found.created_at))


def _moments_of(stored: Sequence[Any]) -> np.ndarray:
    """As `_moments`, without making objects of them. Raises ValueError."""
    _need({*map(type, stored)} == {datetime} or {*map(len, stored)} == {_MOMENT})
    found = np.array([*map(str, stored)], "datetime64[us]")
    _need(found.min() >= np.datetime64(str(EARLIEST)))
    return found


def _curve_of(_: int, record: TrialRecord) -> TrialColumns:
    found = record.measurement
    failure = None if found.is_ok else f"{found.outcome}:{found.reason}"
    figures = (getattr(found, name) for name in TrialColumns._fields[2:-1])
    at = np.datetime64(record.created_at.replace(tzinfo=None))
    return TrialColumns(*map(np.array, zip((record.id, failure, *figures, at), strict=True)))


def csv_lines(
    session: Transaction,
    first: Mapping[str, Any],
    names: Sequence[str],
    configs: dict[int, str],
    *which: ColumnElement[bool],
) -> Iterator[str]:
    """The same as lines of a table with columns of these names: of what is in `first`, then of what
    `TrialRecord.flat` has. `configs` remembers cells of configs, by id, for the next study."""
    lines = _Lines(session, first, names, configs)
    return _each(session, _ALONE, which, lines.of_rows, lambda _, record: lines.of_record(record))


def _each(
    session: Transaction,
    rows_of: Select[*tuple[Any, ...]],
    which: Sequence[ColumnElement[bool]],
    quickly: Callable[[Rows], Iterable[T]],
    of_record: Callable[[int, TrialRecord], T],
) -> Iterator[T]:
    """What is made of rows: by `quickly` of many at a time, which raises where one is not surely sound."""
    ids = select(TrialRow.id).where(*which)  # which are sorted alone, without all that belongs to them
    query = rows_of.where(_TRIAL.c.id.in_(ids)).order_by(_TRIAL.c.id).execution_options(yield_per=_FETCHED)

    def slowly(row: Row) -> Iterator[T]:
        for found in session.readable(queries.TRIALS.where(TrialRow.id == row[0]), rows.trial_of_study):
            yield of_record(*found)

    for some in _fetched(session, query):
        yield from _made(some, quickly, slowly)


def _fetched(session: Session, query: Select[*tuple[Any, ...]]) -> Iterator[Rows]:
    """So many at a time, as tuples: SQLAlchemy makes objects of them."""
    result = session.connection().execute(query)
    return iter(lambda: result.cursor_strategy.fetchmany(result, result.cursor, _FETCHED), [])


def _made(
    some: Rows, quickly: Callable[[Rows], Iterable[T]], slowly: Callable[[Row], Iterable[T]]
) -> list[T]:
    """Where a row is not surely sound, halves are tried, down to the row itself."""
    try:
        return list(quickly(some))
    except UNSOUND:
        if len(some) == 1:
            return list(slowly(some[0]))
    half = len(some) // 2
    return _made(some[:half], quickly, slowly) + _made(some[half:], quickly, slowly)


class _Parts(dict[str, tuple[tuple[str, Value], str, str, str]]):
    """What a part of a config's JSON, such as `"bm":64`, says: name and value, the same part of its key, a
    cell of the value, and the part as JSON is written elsewhere."""

    def __missing__(self, part: str) -> tuple[tuple[str, Value], str, str, str]:
        """Raises ValueError for what is no such part."""
        ((name, value),) = json.loads(f"{{{part}}}").items()
        if type(value) not in _VALUES:
            raise ValueError(part)
        if len(self) > _REMEMBERED:
            self.clear()
        item = f"{json.dumps(name)}: {json.dumps(value)}"
        self[part] = (name, value), f"{name}={value}", _cell(value), item
        return self[part]


_part = _Parts().__getitem__


def parts_of(key: str, point: str) -> tuple[Sequence[tuple[str, Value]], Sequence[str]]:
    """Names and values of a config, and cells. Raises ValueError for a point that is not the key's."""
    _need(point[:1] + point[-1:] == "{}")
    pairs, parts, cells, _ = zip(*map(_part, point[1:-1].split(",")), strict=True)
    _need(_is_key(key, parts))
    return pairs, cells


def _is_key(key: str, parts: Sequence[str]) -> bool:
    """Whether a key has these parts, mostly in the order that was seen last."""
    in_order = _orders.get(len(parts))
    if in_order is not None and ",".join(in_order(parts)) == key:
        return True
    named = key.split(",")
    if sorted(named) != sorted(parts):
        return False
    if 1 < len(parts) < _REMEMBERED:
        _orders[len(parts)] = itemgetter(*map(parts.index, named))
    return True


_orders: dict[int, Callable[[Sequence[str]], tuple[str, ...]]] = {}


def _need(is_so: object) -> None:
    """Raises ValueError."""
    if not is_so:
        raise ValueError("not surely sound")


def _checked(columns: TrialColumns | TrialFacts) -> None:
    for name, values in columns._asdict().items():
        _check(name, values)


def _check(name: str, values: Sequence[Any]) -> None:
    """Raises ValueError where a column may not have these."""
    _need(name not in _FITS or _FITS[name].issuperset(map(type, values)))
    if name in _TOOK_S:
        _need(min(values) >= 0 and max(values) < rows.LONGEST_S and sum(values) < math.inf)
    elif name == "time_us":
        _need_times([time_us for time_us in values if time_us is not None])
    elif name == "outcome":
        _need(queries.OUTCOMES.keys() >= {*values})
    elif name == "is_cut_short":
        _need({0, 1} >= {*values})
    elif name in _MAY_BE_NAN:
        _need(not any(map(ne, values, values)))


_TOOK_S = {"compile_s", "verify_s", "measure_s"}
_MAY_BE_NAN = {"error_ratio", "error_over_cublas", "power_w"}


def _need_timed(ok: str | None, outcomes: Sequence[Any], times: Sequence[Any]) -> None:
    """Raises ValueError for an ok trial without a time."""
    _need((ok, type(None)) not in {*zip(outcomes, map(type, times), strict=True)})


def _need_times(values: Sequence[float]) -> None:
    _need(not values or (min(values) > 0 and sum(values) < math.inf))  # a sum with NaN is NaN


class _Checked(NamedTuple):
    """Rows that are sound, by column, and what their texts say."""

    columns: Mapping[str, Sequence[Any]]
    texts: Sequence[_Texts]
    samples: Sequence[Sequence[float]]
    moments: Sequence[datetime]  # naive UTC

    @classmethod
    def of(cls, some: Rows) -> _Checked:
        """A column at a time, as a step for each of its values takes longer than all else. Raises ValueError
        and others of UNSOUND where a row is not surely sound."""
        columns = dict(zip(_PLACES, zip(*some, strict=True), strict=False))
        for name, values in columns.items():
            _check(name, values)
        texts, samples = [*map(_texts_of, columns["together"])], columns["samples_us"]
        _need_timed(Outcome.OK, [one.outcome for one in texts], columns["time_us"])
        _need({text[:1] + text[-1:] for text in samples} == {"[]"})
        found = samples_in(",".join(samples), len(samples))
        return cls(columns, texts, found, _moments(columns["created_at"]))


def samples_in(listed: str, num: int) -> Sequence[Sequence[float]]:
    """What so many lists of JSON hold, which begin and end as such, with commas between. Raises UNSOUND."""
    found = json.loads(f"[{listed}]")
    times = [*chain.from_iterable(found)]
    _need(len(found) == num and _NUMBERS.issuperset(map(type, times)))
    _need_times(times)
    return found  # type: ignore[no-any-return]


def _moments(stored: Sequence[Any]) -> Sequence[datetime]:
    """Of what a driver has: moments, or the text of them."""
    if {*map(type, stored)} == {datetime}:
        return stored
    _need({*map(len, stored)} == {_MOMENT})
    found = [*map(datetime.fromisoformat, stored)]
    _need(min(found).year >= EARLIEST)
    return found


UNSOUND = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def _records(some: Rows) -> Iterator[tuple[int, TrialRecord]]:
    _, texts, samples, moments = _Checked.of(some)
    for row, said, samples_us, at in zip(some, texts, samples, moments, strict=True):
        (
            trial, study, _, time_us, _, is_cut_short, *figures,
            clock, memory, power_w, celsius, _, _, key, point,
        ) = row  # fmt: skip
        state = _filled(GpuState, clock, memory, power_w, celsius, said.throttle_reasons)
        timed = said.outcome, said.reason, time_us, tuple(samples_us), bool(is_cut_short)
        measured = _filled(Measurement, *timed, *figures, state, said.marks, said.discarded)
        tried = trial, key, dict(parts_of(key, point)[0]), measured, said.origin, at.replace(tzinfo=UTC)
        yield study, _filled(TrialRecord, *tried)


def _filled(cls: Any, *values: Any) -> Any:
    """An instance of a frozen dataclass with these values, whose constructor would set them one by one."""
    made = object.__new__(cls)
    vars(made).update(zip(_fields_of(cls), values, strict=True))
    return made


@cache
def _fields_of(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


class _Texts(NamedTuple):
    outcome: Outcome
    reason: str
    throttle_reasons: tuple[str, ...]
    marks: tuple[str, ...]
    discarded: tuple[Discarded, ...]
    origin: str
    cells: Sequence[str]


@lru_cache(_REMEMBERED)
def _texts_of(together: str) -> _Texts:
    """Raises ValueError, LookupError, AttributeError."""
    texts = outcome, reason, throttle, marks, discarded, origin = together.split(_BETWEEN)
    reasons, disturbances = (tuple(_fit("marks", text)) for text in (throttle, marks))
    repeated = tuple(map(discarded_from, _fit("discarded", discarded)))
    cells = [*map(_quoted, texts)]
    return _Texts(queries.OUTCOMES[outcome], reason, reasons, disturbances, repeated, origin, cells)


def _fit(name: str, text: str) -> Any:
    found = json.loads(text)
    if not getattr(TrialRow, name).type.is_fit(found):
        raise ValueError(name)
    return found


class _Lines:
    """Lines of a table with columns of these names; those of `first` have the same value in each."""

    def __init__(
        self, session: Session, first: Mapping[str, Any], names: Sequence[str], configs: dict[int, str]
    ) -> None:
        self._session, self._first, self._names, self._configs = session, first, names, configs
        self._parameters = tuple(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
        facts = (name for name in names if name not in first and not name.startswith(PREFIX))
        self._facts = [(name, _MADE.get(name, _plain_cells)) for name in facts]
        self._places: dict[tuple[str, ...], Sequence[int]] = {}
        head = ",".join(map(_cell, first.values())).replace("%", "%%")
        self._line = ",".join([head, *["%s"] * (len(self._facts) + 1)]).__mod__

    def of_record(self, record: TrialRecord) -> str:
        cells = {**self._first, **record.flat()}
        return ",".join(_cell(cells.get(name)) for name in self._names) + "\n"

    def of_rows(self, some: Rows) -> Iterable[str]:
        columns, texts, *_ = _Checked.of(some)
        told = dict(zip(_TOGETHER, zip(*(one.cells for one in texts), strict=True), strict=True))
        cells = (told[name] if name in told else made(columns[name]) for name, made in self._facts)
        return map(self._line, zip(*cells, self._config_cells(columns["config_id"]), strict=True))

    def _config_cells(self, ids: Sequence[int]) -> list[str]:
        """With the end of the line."""
        missing = {*ids}.difference(self._configs)  # `-` would walk through all that are known
        if missing and len(self._configs) > _MOST_CONFIGS:
            self._configs.clear()
            missing = {*ids}
        query = _CONFIGS(",".join(map(str, missing)) or "NULL")
        for found, key, point in self._session.connection().exec_driver_sql(query).fetchall():
            pairs, cells = parts_of(key, point)
            if (names := tuple(map(_FIRST, pairs))) != self._parameters:
                cells = [*map((*cells, "").__getitem__, self._places_in(names))]
            self._configs[found] = ",".join(cells) + "\n"
        return [*map(self._configs.__getitem__, ids)]

    def _places_in(self, names: tuple[str, ...]) -> Sequence[int]:
        """For each parameter of the table its place among these, behind them if it is not there."""
        if names not in self._places:
            self._places[names] = [(*names, name).index(name) for name in self._parameters]
        return self._places[names]


def _plain_cells(values: Sequence[Any]) -> Sequence[Any]:
    return ["" if value is None else value for value in values] if None in values else values


def _moment_cells(stored: Sequence[Any]) -> list[str]:
    """As `datetime.isoformat` writes them."""
    texts = "\n".join(map(str, stored)).replace(".000000", "").replace(" ", "T")
    return [text + "+00:00" for text in texts.split("\n")]


_MADE: dict[str, Callable[[Sequence[Any]], Iterable[Any]]] = {
    "created_at": _moment_cells,
    "is_cut_short": lambda values: map(bool, values),
    "samples_us": lambda values: [f'"{text}"' if "," in text else text for text in values],
    "code_hash": lambda values: map(_cell, values),
}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _quoted(json.dumps(value) if isinstance(value, list | tuple) else str(value))


@lru_cache(_REMEMBERED)
def _quoted(text: str) -> str:
    """As a cell of a table."""
    is_plain = not any(mark in text for mark in ',"\r\n')
    return text if is_plain else '"' + text.replace('"', '""') + '"'
