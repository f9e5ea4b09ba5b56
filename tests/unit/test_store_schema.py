"""Tables and migrations agree, older databases open, and no other database is taken for ours."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, create_engine, inspect, text
from store_cases import H200, add, failed, ok, study_of

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.files.errors import StoreError
from autotune.store import Store, connect, schema
from autotune.store.models import Base
from autotune.store.repository import DEFAULT_TIMEOUT_S
from autotune.store.schema import NEWEST, VERSION_TABLE

DATA = Path(__file__).resolve().parents[1] / "data"
VERSION_8 = DATA / "store_schema_0008.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a trial, and with tables of Optuna's own storage beside ours."""
    path = tmp_path / "autotune.db"
    with Store.open(path) as store:
        add(store, study_of(store), 0, ok(1.0))
    beside = optuna.storages.RDBStorage(f"sqlite:///{path}")
    beside.remove_session()
    beside.engine.dispose()
    return path


def _is_ours(_object: Any, name: str | None, kind: str, is_reflected: bool, _other: Any) -> bool:
    return kind != "table" or not is_reflected or name in Base.metadata.tables


def _differences(connection: Connection) -> list[Any]:
    options = {"include_object": _is_ours, "version_table": VERSION_TABLE, "compare_type": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)


def _connect(path: Path) -> Any:
    return create_engine(f"sqlite:///{path}").connect()


@pytest.fixture
def migrated(url: str | Path) -> Iterator[Connection]:
    """A database of the oldest version, brought to the newest. On a server its tables are
    made as SQLite describes those of the file."""
    old, parsed = MetaData(), connect.parse_url(url)
    if (file := connect.file_of(parsed)) is not None:
        shutil.copy(VERSION_8, file)
    engine = connect.connect(parsed, DEFAULT_TIMEOUT_S)
    with engine.connect() as connection:
        if file is None:
            with _connect(VERSION_8) as oldest:
                old.reflect(oldest)
                oldest.engine.dispose()
            for column in (c for table in old.tables.values() for c in table.c):
                column.type, column.server_default = column.type.as_generic(), None
            old.create_all(connection)
            connection.execute(old.tables[VERSION_TABLE].insert().values(version_num="0008"))
        schema.migrate(connection)
        yield connection
    engine.dispose()


def test_models_and_migrations_make_the_same_tables(
    migrated: Connection, tmp_path: Path, url: str | Path
) -> None:
    """On SQLite also what compare_metadata does not look at: a new database is never migrated."""
    assert set(inspect(migrated).get_table_names()) == {*Base.metadata.tables, VERSION_TABLE}
    assert _differences(migrated) == []
    assert schema.version(migrated) == NEWEST
    if migrated.dialect.name != "sqlite":
        return
    with Store.open(tmp_path / "new.db"), _connect(tmp_path / "new.db") as new:
        ours, theirs = inspect(new), inspect(migrated)
        assert set(ours.get_table_names()) == set(theirs.get_table_names())
        for table in ours.get_table_names():
            assert ours.get_check_constraints(table) == theirs.get_check_constraints(table)
            assert ours.get_pk_constraint(table) == theirs.get_pk_constraint(table)
            for get in ("get_foreign_keys", "get_indexes", "get_unique_constraints"):
                assert sorted(map(str, getattr(ours, get)(table))) == sorted(
                    map(str, getattr(theirs, get)(table))
                )
            columns = [
                {c["name"]: (str(c["type"]), c["nullable"], c["primary_key"]) for c in i.get_columns(table)}
                for i in (ours, theirs)
            ]
            assert columns[0] == columns[1]
        new.engine.dispose()


def test_a_new_database_is_not_migrated(url: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "migrate", lambda connection: pytest.fail("its tables are made at once"))
    with Store.open(url) as store:
        assert add(store, study_of(store), 0, ok(1.0)) == 1
        with store._database.reading() as session:
            assert schema.version(session.connection()) == NEWEST
            assert _differences(session.connection()) == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE trial ADD COLUMN mood TEXT",
        "ALTER TABLE trial DROP COLUMN power_w",
        "DROP TABLE final_entry",
        "DROP INDEX ix_baseline_study_id",
    ],
)
def test_a_forgotten_migration_would_be_noticed(path: Path, change: str) -> None:
    with _connect(path) as connection:
        connection.execute(text(change))
        assert _differences(connection)
        connection.rollback()
        connection.engine.dispose()


def test_versions_of_autotune_and_of_optuna_do_not_meet(path: Path) -> None:
    with _connect(path) as connection:
        ours = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
        theirs = connection.scalar(text("SELECT version_num FROM alembic_version"))
        connection.engine.dispose()
    assert (ours, theirs[:1]) == (NEWEST, "v")


def test_a_database_of_schema_8_opens(tmp_path: Path) -> None:
    """The file was written by schema version 1, brought to 8 by its migrations, and is never written anew."""
    path = Path(shutil.copy(VERSION_8, tmp_path / "autotune.db"))
    with Store.open(path) as store:
        (summary,) = store.studies()
        study = summary.study
        assert (study.environment, study.gemm) == (H200, Gemm(4096, 4096, 4096))
        assert summary.counts == {Outcome.OK: 2, Outcome.FAULTED: 1}
        assert [t.measurement for t in store.trials(study)] == [ok(5.0), failed(), ok(3.0)]
        assert [t.origin for t in store.trials(study)] == ["seed", "tpe", "random"]
        final = store.final(study)
        assert final is not None
        assert [(e.rank, e.is_tied, e.samples_us) for e in final.entries] == [
            (1, True, (3.0, 3.125)),
            (2, False, (5.0, 5.125)),
        ]
        assert final.baseline == store.baseline(study)
        assert store.cublas_us(study) == 4.0
        assert add(store, study, 9, ok(2.0)) == 4


def test_a_migrated_database_takes_batches_beside_what_it_holds(tmp_path: Path) -> None:
    """Everything that refers to its tables still does, and is held to them."""
    path = Path(shutil.copy(VERSION_8, tmp_path / "autotune.db"))
    with Store.open(path) as store:
        (before,) = (summary.study for summary in store.studies())
        batches = [replace(before.gemm, batch=8), replace(before.gemm, batch=8, shares_b=True)]
        studies = [study_of(store, gemm) for gemm in (before.gemm, *batches)]
        assert studies[0] == before
        assert [add(store, study, 9, ok(1.0)) for study in studies] == [4, 5, 6]
    with Store.open(path) as store:
        assert [summary.study.gemm for summary in store.studies()] == [before.gemm, *batches]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            connection.execute("UPDATE study SET shares_b = 0 WHERE id = ?", [studies[-1].id])


def test_foreign_keys_are_heeded_again_after_a_migration(tmp_path: Path) -> None:
    path = Path(shutil.copy(VERSION_8, tmp_path / "autotune.db"))
    with Store.open(path) as store:
        (summary,) = store.studies()
        with pytest.raises(StoreError, match="does not fit what is stored"):
            add(store, replace(summary.study, id=99), 5, ok(1.0))


@pytest.mark.parametrize(
    ("revision", "told"),
    [("0999", "newer than .*update autotune"), ("0007", "older than 0008, .*search into another file")],
)
def test_a_database_of_another_version_is_left_alone(path: Path, revision: str, told: str) -> None:
    with _connect(path) as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))
        connection.commit()
        connection.engine.dispose()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"schema version {revision}, {told}"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_database_of_another_application_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "places.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmark (url TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"another application \(bookmark, .*name another file"):
        Store.open(path)
    assert path.read_bytes() == before
