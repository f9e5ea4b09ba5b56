"""Copies what one database holds into another, of either kind: SQLite or PostgreSQL.

Rows are read in pages and written a page per transaction. What is there stays, and is recognized: a trial by
its study and config, everything else by its study and the moment at which it was stored. So a merge that was
killed loses nothing and, asked again, goes on; one that is repeated adds nothing.

Values pass from driver to driver, without a record made of each; between files of SQLite trials do not even
that (attached.py). Each is checked for what its column may hold; a row that cannot be read is named and left
out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.orm import Session

from ..facts.device import Environment
from . import attached, connect, queries, rows
from .bad_rows import BadRow, BadRowError
from .columns import InvalidValue, Json, UtcDateTime
from .database import Database
from .models import (
    Base,
    BaselineRow,
    BatchTimeRow,
    BiasTimeRow,
    ComparisonRow,
    ConfigRow,
    CublasTimeRow,
    EnvironmentRow,
    FinalEntryRow,
    FinalRow,
    RunRow,
    SearchRow,
    StudyRow,
    TrialRow,
)
from .records import StudyRef

PAGE = 5_000  # rows of one transaction
_CONFIGS = ("config_id", "first_id", "second_id")
_NUL = json.dumps("\0")[1:-1]
Row = dict[str, Any]  # by column
Read = TypeVar("Read", StudyRef, Environment)
OnPage = Callable[[int, int], Any]


@dataclass
class Merged:
    """What a merge came to."""

    num_studies: int = 0
    num_new: int = 0  # trials
    num_known: int = 0  # trials of configs that the studies had
    others: dict[str, int] = field(default_factory=dict)  # new rows of other tables


class Merge:
    """From `source` into `target`; each study of it becomes the one that `study_of` finds or makes."""

    def __init__(
        self, source: Database, target: Database, study_of: Callable[[StudyRef, datetime], int]
    ) -> None:
        self._source, self._target, self._bad_rows = source, target, source.bad_rows
        self._takes_nul = target.url.get_backend_name() == "sqlite"  # in texts; PostgreSQL does not
        self._study_of = study_of
        self._ids: dict[str, dict[int, int]] = {"config_id": {}}  # there to here, by the column that refers
        self._merged = Merged()

    def run(self, on_page: OnPage) -> Merged:
        """Copy everything; `on_page` hears how many of how many trials are done. Raises StoreError."""
        self._map_studies()
        self._copy_trials(on_page)
        self._ids["baseline_id"] = self._copy(BaselineRow)
        self._copy(SearchRow)
        self._copy(ComparisonRow)
        self._copy(FinalRow, self._copy_entries)
        for model in (CublasTimeRow, BiasTimeRow, BatchTimeRow, RunRow):
            for page in self._pages(model):
                self._count(model, self._copy_page(model, page)[0])
        return self._merged

    def _copy_page(self, model: type[Base], page: Sequence[Row]) -> tuple[int, int]:
        """How many are new, of rows that have a name of their own, and how many there are."""
        with self._target.writing() as session:
            found = self._mapped(session, model, page)
            return self._insert(session, model, found), len(found)

    def _map_studies(self) -> None:
        def study(row: StudyRow, *others: Any) -> tuple[StudyRef, datetime]:
            return self._portable(row, rows.study_ref(row, *others)), row.created_at

        def environment(row: EnvironmentRow) -> tuple[int, Environment]:
            return row.id, self._portable(row, rows.environment(row))

        with self._source.reading() as session:
            studies = list(session.readable(queries.STUDIES.order_by(StudyRow.id), study))
            environments = list(session.readable(select(EnvironmentRow), environment))
        self._ids["study_id"] = {ref.id: self._study_of(ref, created_at) for ref, created_at in studies}
        with self._target.writing() as session:
            self._ids["environment_id"] = {
                number: queries.find_or_add(session, EnvironmentRow, **rows.environment_columns(one))[0]
                for number, one in environments
            }
        self._merged.num_studies = len(studies)

    def _portable(self, row: StudyRow | EnvironmentRow, read: Read) -> Read:
        """What was read of a row. Raises BadRowError for a text that the target cannot hold."""
        if not self._takes_nul and _NUL in json.dumps(asdict(read), default=str):
            raise BadRowError(type(row).__tablename__, row.id, "PostgreSQL holds no NUL")
        return read

    def _copy_trials(self, on_page: OnPage) -> None:
        with self._source.reading() as session:
            done, total = 0, session.scalar(select(func.count()).select_from(TrialRow)) or 0
        may_attach = attached.may_attach(self._source, self._target)
        for num, num_fit, num_new in self._attached_pages() if may_attach else self._fetched_pages():
            self._merged.num_new += num_new
            self._merged.num_known += num_fit - num_new
            done += num
            on_page(done, total)

    def _fetched_pages(self) -> Iterator[tuple[int, int, int]]:
        """Of each page how many trials were read, how many of them are fit, how many were new."""
        for page in _ahead(self._pages(TrialRow)):
            num_new, num_fit = self._copy_page(TrialRow, page)
            yield len(page), num_fit, num_new

    def _attached_pages(self) -> Iterator[tuple[int, int, int]]:
        """The same of two files of SQLite."""
        last = 0
        while True:
            page = f"SELECT id FROM trial WHERE id > {last} ORDER BY id LIMIT {PAGE}"
            with self._source.reading() as session:
                num, end = session.execute(text(f"SELECT count(*), max(id) FROM ({page})")).one()
            if not num:
                self._target.engine.dispose()  # else a connection would keep the file attached
                return
            within = f"trial.id > {last} AND trial.id <= {end}"
            with self._target.writing() as session:
                num_new, num_fit = self._insert_attached(session, within), num
            if num_new is None:
                num_new, num_fit = self._copy_page(TrialRow, self._read(TrialRow, within))
            yield num, num_fit, num_new
            last = end

    def _insert_attached(self, session: Session, within: str) -> int | None:
        """How many of these trials were new; None, and nothing is done, where one is not surely sound."""
        connection = session.connection()
        if not attached.attach(connection, self._source.url):
            return None
        if not attached.are_sound(connection, within, self._is_fit):
            return None
        there = {name: attached.owners(connection, name, within) for name in ("study_id", "config_id")}
        known = self._ids["config_id"]
        known.update(attached.copy_configs(connection, there["config_id"].difference(known)))
        self._map_configs(session, there["config_id"])
        if not all(ids <= self._ids[name].keys() for name, ids in there.items()):
            return None
        owned = {name: {one: self._ids[name][one] for one in ids} for name, ids in there.items()}
        return attached.copy(connection, within, owned)

    def _copy(
        self, model: type[Base], then: Callable[[Session, dict[int, int]], None] | None = None
    ) -> dict[int, int]:
        """Copy rows of studies that have no name of their own; returns their ids there and here. `then` is
        called in each transaction with those of its page."""
        ids: dict[int, int] = {}
        for page in self._pages(model):
            with self._target.writing() as session:
                connect.keep_others_out(session.connection())  # two merges at once would both add a row
                found = self._mapped(session, model, page)
                known = _known(session, model, found)
                new = [row for row in found if _row_time(row) not in known]
                self._count(model, self._insert(session, model, new))
                known = _known(session, model, found)
                these = {row["id"]: known[_row_time(row)] for row in found if _row_time(row) in known}
                if then is not None:
                    then(session, these)
            ids |= these
        return ids

    def _copy_entries(self, session: Session, finals: dict[int, int]) -> None:
        self._ids["final_id"] = finals
        entries = self._read(FinalEntryRow, f"final_id IN ({_listed(finals)})")
        self._insert(session, FinalEntryRow, self._mapped(session, FinalEntryRow, entries))

    def _count(self, model: type[Base], num_new: int) -> None:
        name = model.__tablename__
        self._merged.others[name] = self._merged.others.get(name, 0) + num_new

    # ---- reading

    def _pages(self, model: type[Base]) -> Iterator[list[Row]]:
        last = 0
        while True:
            with self._source.reading() as session:
                found = _fetched(session, model, f"id > {last} ORDER BY id LIMIT {PAGE}")
            if not found:
                return
            last = found[-1]["id"]
            yield self._valid(model, found)

    def _read(self, model: type[Base], condition: str) -> list[Row]:
        with self._source.reading() as session:
            return self._valid(model, _fetched(session, model, f"{condition} ORDER BY id"))

    def _valid(self, model: type[Base], found: Iterable[Row]) -> list[Row]:
        """Without rows that cannot be read: one by one only where a column has a value that it cannot hold,
        as most values occur in many rows."""
        names = [
            name
            for name, column in _types(model).items()
            if not all(self._is_fit(column, value) for value in {row[name] for row in found})
        ]
        return list(self._bad_rows.readable(((model, row, names) for row in found), self._checked))

    def _checked(self, model: type[Base], row: Row, names: Iterable[str]) -> Row:
        """Raises BadRowError for a value that one of these columns cannot hold."""
        for name in names:
            if not self._is_fit(_types(model)[name], row[name]):
                what = "NULL" if row[name] is None else InvalidValue.of(row[name])
                raise BadRowError(model.__tablename__, row["id"], f"{name} is {what}")
        if model is TrialRow:
            rows.outcome_of(row["id"], row["outcome"], row["time_us"])
        return row

    def _is_fit(self, column: Any, value: Any) -> bool:
        """Whether a column can hold a value as its driver has it; those of a fixed width hold words."""
        if value is None:
            return bool(column.nullable)
        is_fit = column.type.holds(value) if hasattr(column.type, "holds") else isinstance(value, str)
        return bool(is_fit) and (self._takes_nul or not isinstance(value, str) or "\0" not in value)

    # ---- writing

    def _insert(self, session: Session, model: type[Base], found: Sequence[Row]) -> int:
        """As `_insert`. A value that fits its column in SQLite and not in PostgreSQL, such as a number of 40
        bits, costs its row alone: it is sought by halves."""
        try:
            with session.begin_nested():
                return _insert(session, model, found)
        except DataError as error:
            if len(found) == 1:
                what = str(error.orig).partition("\n")[0]
                self._bad_rows.add(BadRow(model.__tablename__, found[0]["id"], what))
                return 0
            middle = len(found) // 2
            return sum(self._insert(session, model, half) for half in (found[:middle], found[middle:]))

    def _mapped(self, session: Session, model: type[Base], found: Sequence[Row]) -> list[Row]:
        """The rows with the ids of here; without those that refer to what is not there."""
        refer = [name for name in _types(model) if name in _CONFIGS or name in self._ids]
        self._map_configs(session, {row[name] for name in refer if name in _CONFIGS for row in found})
        kept = []
        for row in found:
            owned = {name: self._here(name, row[name]) for name in refer}
            lost = next((name for name, number in owned.items() if number is None and row[name]), None)
            if lost is None:
                kept.append({**row, **owned})
            else:
                what = f"{lost} {row[lost]} is not there"
                self._bad_rows.add(BadRow(model.__tablename__, row["id"], what))
        return kept

    def _here(self, name: str, number: int | None) -> int | None:
        ids = self._ids["config_id" if name in _CONFIGS else name]
        return None if number is None else ids.get(number)

    def _map_configs(self, session: Session, wanted: set[int]) -> None:
        known = self._ids["config_id"]
        found = self._read(ConfigRow, f"id IN ({_listed(wanted.difference(known))})")
        self._insert(session, ConfigRow, sorted(found, key=lambda row: str(row["key"])))
        there = {row["key"]: row["id"] for row in found}
        owned = select(ConfigRow.id, ConfigRow.key).where(ConfigRow.key.in_(there))
        known.update({there[key]: number for number, key in session.execute(owned)} if there else {})


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids)) or "NULL"


def _ahead(pages: Iterator[list[Row]]) -> Iterator[list[Row]]:
    """The same; the next one is read and checked while the database takes this one."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = reader.submit(next, pages, None)
            yield page


@cache
def _types(model: type[Base]) -> dict[str, Any]:
    """Columns by name."""
    return {column.name: column for column in model.__table__.columns}


def _fetched(session: Session, model: type[Base], condition: str, **bound: Any) -> list[Row]:
    """Rows as their driver has them, but for moments, as SQLAlchemy writes them, and JSON, which are text."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    shown = [
        f'"{name}"::text' if isinstance(column.type, Json) and not is_sqlite else f'"{name}"'
        for name, column in _types(model).items()
    ]
    query = f'SELECT {", ".join(shown)} FROM "{model.__tablename__}" WHERE {condition}'
    names = list(_types(model))
    moments = [name for name in names if isinstance(_types(model)[name].type, UtcDateTime)]
    found = [dict(zip(names, row, strict=True)) for row in session.execute(text(query), bound)]
    for row in found if moments else ():
        row.update({name: _as_written(row[name]) for name in moments if row[name]})
    return found


def _as_written(timestamp: Any) -> Any:
    """`2026-11-27 08:00:00.000000`, also of what others wrote with a T; as it is where it is no moment."""
    with suppress(ValueError, TypeError):
        timestamp = datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
        return timestamp.replace(tzinfo=None).isoformat(" ", "microseconds")
    return timestamp


def _insert(session: Session, model: type[Base], found: Sequence[Row]) -> int:
    """Insert rows but for those that a unique name is known of; returns how many were new."""
    if not found:
        return 0
    names = [name for name in _types(model) if name != "id"]
    listed, table = ", ".join(f'"{name}"' for name in names), f'"{model.__tablename__}"'
    connection, end = session.connection(), "ON CONFLICT DO NOTHING"
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(names))
        query = f"INSERT INTO {table} ({listed}) VALUES ({marks}) {end}"
        return connection.exec_driver_sql(query, list(map(itemgetter(*names), found))).rowcount
    connection.exec_driver_sql(
        f"CREATE TEMP TABLE incoming ON COMMIT DROP AS SELECT {listed} FROM {table} WITH NO DATA"
    )
    _stream(connection, f"COPY incoming ({listed}) FROM STDIN", map(itemgetter(*names), found))
    query = f"INSERT INTO {table} ({listed}) SELECT {listed} FROM incoming {end}"
    num_new = connection.exec_driver_sql(query).rowcount
    connection.exec_driver_sql("DROP TABLE incoming")
    return num_new


def _stream(connection: Connection, command: str, found: Iterable[tuple[Any, ...]]) -> None:
    """Send rows to PostgreSQL, which takes them so in half the time of an INSERT."""
    driver, errors = connection.connection.driver_connection, connection.dialect.dbapi
    assert driver is not None and errors is not None
    try:
        with driver.cursor() as cursor, cursor.copy(command) as copy:
            for row in found:
                copy.write_row(row)
    except errors.Error as error:
        raise DBAPIError.instance(command, None, error, errors.Error) from error


def _row_time(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row of a study is recognized by."""
    return (*(row.get(name) for name in ("study_id", "first_id", "second_id")), row["created_at"])


def _known(session: Session, model: type[Base], found: Sequence[Row]) -> dict[tuple[Any, ...], int]:
    """The ids of rows of the same studies and time, by what they are recognized by."""
    if not found:
        return {}
    studies = _listed({row["study_id"] for row in found})
    moments = [row["created_at"] for row in found]
    within = "created_at BETWEEN CAST(:first AS timestamp) AND CAST(:last AS timestamp)"
    if session.get_bind().dialect.name == "sqlite":  # which compares texts
        within = "replace(created_at, 'T', ' ') BETWEEN :first AND :last"
    query = f"study_id IN ({studies}) AND {within}"
    there = _fetched(session, model, query, first=min(moments), last=max(moments))
    return {_row_time(row): row["id"] for row in there}
