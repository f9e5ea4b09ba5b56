"""Trials of one SQLite file go into another within SQLite, which attaches the file, in a fraction of the time
that rows take through Python: those of a page in which each is surely sound. Others are left to `merging`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection
from sqlalchemy.exc import OperationalError

from ..facts.measurement import Outcome
from . import connect, read_only, trial_rows
from .columns import EARLIEST, Flag, Number, UtcDateTime, Whole
from .database import Database
from .models import TrialRow

_COLUMNS = {column.name: column for column in TrialRow.__table__.columns if column.name != "id"}
_TYPES: dict[type, str] = {
    Whole: "'integer'", Number: "'integer', 'real'", Flag: "'integer'", UtcDateTime: "'text'",
}  # fmt: skip
_INSTANT = "dddd-dd-dd dd:dd:dd.dddddd".replace("d", "[0-9]")
_WORDS = [name for name, one in _COLUMNS.items() if type(one.type) not in _TYPES and name != "samples_us"]
_SOUND = " AND ".join(
    [
        *(
            f"typeof({name}) IN ({_TYPES[type(one.type)]}" + (", 'null')" if one.nullable else ")")
            for name, one in _COLUMNS.items()
            if type(one.type) in _TYPES
        ),
        "is_cut_short IN (0, 1) AND outcome IN ({})".format(", ".join(repr(one.value) for one in Outcome)),
        "CASE WHEN time_us IS NULL THEN outcome <> 'ok' ELSE time_us > 0 AND time_us < 9e999 END",
        f"created_at GLOB '{_INSTANT}' AND created_at >= '{EARLIEST}'",
        "date(created_at) = substr(created_at, 1, 10) AND samples_us GLOB '[[]*]'",
    ]
)


def may_attach(source: Database, target: Database) -> bool:
    """Whether both are files, and SQLite may make what it needs beside the one that is read."""
    are_files = all(connect.file_of(one.url) is not None for one in (source, target))
    return are_files and read_only.may_be_written(source.url)


def attach(connection: Connection, source: URL) -> bool:
    """For as long as the connection is open; false where SQLite cannot, or another file is attached."""
    file = connect.file_of(source)
    assert file is not None
    for _, name, attached in connection.exec_driver_sql("PRAGMA database_list"):
        if name == "there":
            return Path(attached) == connect.real_file(file)
    try:
        connection.exec_driver_sql("ATTACH ? AS there", (f"{file.absolute().as_uri()}?mode=ro",))
    except OperationalError:
        return False
    return True


def are_sound(connection: Connection, within: str, is_fit: Callable[[Any, Any], bool]) -> bool:
    """Whether all trials there of which this is so can be read. `is_fit` says whether a column can hold a
    value."""
    trials = f"FROM there.trial WHERE {within}"
    query = f"SELECT count(*), total(({_SOUND}) IS 1), group_concat(samples_us) {trials}"
    num, num_sound, samples = connection.exec_driver_sql(query).one()
    words = connection.exec_driver_sql(f"SELECT DISTINCT {', '.join(_WORDS)} {trials}")
    by_column = zip(_WORDS, zip(*words, strict=True), strict=True)
    if num_sound < num or not all(is_fit(_COLUMNS[name], one) for name, some in by_column for one in {*some}):
        return False
    try:
        trial_rows.samples_in(samples, num)
    except trial_rows.UNSOUND:
        return False
    return True


def owners(connection: Connection, name: str, within: str) -> set[int]:
    """Ids in this column of these trials."""
    found = connection.exec_driver_sql(f"SELECT DISTINCT {name} FROM there.trial WHERE {within}")
    return {number for (number,) in found}


def copy_configs(connection: Connection, ids: set[int]) -> dict[int, int]:
    """The ids here, by those there, of these configs, copied where they are not known; of none if one is not
    surely sound."""
    which = f"WHERE there.id IN ({', '.join(map(str, ids)) or 'NULL'})"
    found = connection.exec_driver_sql(f"SELECT key, point FROM there.config AS there {which}").fetchall()
    try:
        for key, point in found:
            trial_rows.parts_of(key, point)
    except trial_rows.UNSOUND:
        return {}
    connection.exec_driver_sql(
        f"INSERT INTO main.config (key, point) SELECT key, point FROM there.config AS there {which}"
        " ORDER BY key ON CONFLICT DO NOTHING"
    )
    same = f"FROM there.config AS there JOIN main.config AS here ON here.key = there.key {which}"
    return dict(connection.exec_driver_sql(f"SELECT there.id, here.id {same}").fetchall())


def copy(connection: Connection, within: str, owned: Mapping[str, Mapping[int, int]]) -> int:
    """Copy these trials, but for those of configs that a study has; returns how many were new. `owned`: ids
    here by those there, by the column that refers to them."""
    joined, values = "", {name: f"trial.{name}" for name in _COLUMNS}
    for name, ids in owned.items():
        connection.exec_driver_sql(f"CREATE TEMP TABLE new_{name} (there INTEGER PRIMARY KEY, here INTEGER)")
        connection.exec_driver_sql(f"INSERT INTO new_{name} VALUES (?, ?)", [*ids.items()])
        joined += f" JOIN new_{name} ON new_{name}.there = trial.{name}"
        values[name] = f"new_{name}.here"
    added = connection.exec_driver_sql(
        f"INSERT INTO main.trial ({', '.join(values)}) SELECT {', '.join(values.values())}"
        f" FROM there.trial AS trial{joined} WHERE {within} ORDER BY trial.id ON CONFLICT DO NOTHING"
    )
    for name in owned:
        connection.exec_driver_sql(f"DROP TABLE new_{name}")
    return added.rowcount
