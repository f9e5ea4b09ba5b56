"""What can be wrong with a database: each time a StoreError that names the place and the next step."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError
from store_cases import add, integrity, ok, study_of

from autotune.files.errors import EnvironmentProblem, StoreError
from autotune.store import Store, connect
from autotune.store.connect import log_of


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no folder .*nowhere for the database a\.db; create it"):
        Store.open(tmp_path / "nowhere" / "a.db")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"no folder .*file for the database a\.db; it is a file"):
        Store.open(tmp_path / "file" / "a.db")


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    for opened in (Store.open, Store.open_existing):
        with pytest.raises(StoreError, match="is a folder; name a database file"):
            opened(tmp_path)
        with pytest.raises(StoreError, match="is a device or a pipe; name a regular file"):
            opened("/dev/null")


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_system_without_locks_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "lockf", _no_locks)
    with pytest.raises(StoreError, match=r"without locks \(No locks available\).*no process holds it: put"):
        Store.open(tmp_path / "autotune.db")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR_LOCK])
def test_a_lock_that_a_file_system_lacks_is_held_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """SQLite calls the database locked, or the disk damaged."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    url, rejected = connect.parse_url(tmp_path / "autotune.db"), OperationalError("BEGIN", None, error)
    assert "without locks" not in str(connect.explain(rejected, url))
    monkeypatch.setattr(fcntl, "lockf", _no_locks)
    text = str(connect.explain(rejected, url))
    assert "without locks" in text and "another process" not in text and "disk failed" not in text


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_that_would_be_lost(url: str) -> None:
    with pytest.raises(StoreError, match=r"in memory .*name a file"):
        Store.open(url)


@pytest.mark.parametrize("url", ["://", "sqlite//x://y z"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(
        StoreError, match=r"not a database URL; write a path, sqlite:///PATH or postgresql://"
    ):
        Store.open(url)


def test_a_database_without_its_driver() -> None:
    with pytest.raises(StoreError, match=r"no driver for postgresql\+nonesuch .*pip install 'psycopg\["):
        Store.open("postgresql+nonesuch://host/db")


@pytest.mark.parametrize(
    "content", [b"# a text file, long enough to hold a header\n" * 9, bytes(4096)[1:] + b"x"]
)
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"notes\.txt: .*no autotune database: name another file"):
        Store.open(path)
    assert path.read_bytes() == content


def _filled(path: Path) -> None:
    with Store.open(path) as store:
        study = study_of(store)
        for number in range(100):
            add(store, study, number, ok(1.0 + number))


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    _filled(path)
    content = bytearray(path.read_bytes())
    content[8192 : len(content) // 2] = os.urandom(len(content) // 2 - 8192)
    path.write_bytes(content)
    assert integrity(path) != "ok"
    with (
        pytest.raises(StoreError, match=r"malformed; the file is damaged: .*\.recover"),
        Store.open(path) as store,
    ):
        for summary in store.studies():
            store.trials(summary.study)


def test_a_file_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    _filled(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match="damaged"), Store.open(path) as store:
        for summary in store.studies():
            store.trials(summary.study)


def test_a_database_that_may_not_be_written(tmp_path: Path) -> None:
    _filled(tmp_path / "autotune.db")
    with Store.open(tmp_path / "autotune.db"):  # keeps the log alive: a reader cannot make one
        url = f"sqlite:///file:{tmp_path}/autotune.db?mode=ro&uri=true"
        with Store.open(url) as store:
            (summary,) = store.studies()
            with pytest.raises(StoreError, match=r"readonly database; check that .* may be written"):
                add(store, summary.study, 100, ok(1.0))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=r"unable to open .*its folder exists and may be written"):
        Store.open(tmp_path / "autotune.db")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can make files")
def test_a_folder_in_which_no_file_can_be_made() -> None:
    with pytest.raises(StoreError, match=r"unable to open .*its folder exists and may be written"):
        Store.open("/proc/autotune.db")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Every SQLite database ends where it is now: the next page that it needs is one too many."""

    def limit(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the pages there are, if more

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


def test_a_full_disk_stops_writing_and_loses_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "autotune.db"
    _filled(path)
    request.getfixturevalue("full_disk")
    with Store.open(path) as store:
        study = study_of(store)
        with pytest.raises(EnvironmentProblem, match=r"full; free some space .*run the same command again"):
            for number in range(100, 1000):
                add(store, study, number, ok(1.0))
        num_kept = len(store.trials(study))
        assert num_kept >= 100
    with Store.open(path) as store:
        assert len(store.trials(study)) == num_kept
    assert integrity(path) == "ok"


@pytest.mark.parametrize("fate", ["moved", "deleted", "replaced"])
def test_a_database_that_vanishes_during_a_search(tmp_path: Path, fate: str) -> None:
    path = tmp_path / "autotune.db"
    with Store.open(path) as store:
        study = study_of(store)
        add(store, study, 0, ok(1.0))
        if fate == "deleted":
            path.unlink()
        else:
            path.rename(tmp_path / "moved.db")
        if fate == "replaced":
            path.write_bytes(b"")
        with pytest.raises(StoreError, match=r"autotune\.db was moved, deleted or replaced .*put it back"):
            add(store, study, 1, ok(1.0))
        with pytest.raises(StoreError, match="put it back"):
            store.trials(study)


def test_no_connection_makes_a_file_where_a_database_was_moved_away(tmp_path: Path) -> None:
    """SQLite would remove the log beside it, and with it all that is not in the file yet."""
    path, away = tmp_path / "autotune.db", tmp_path / "away.db"
    with Store.open(path) as store:
        add(store, study_of(store), 0, ok(1.0))
        engine = store._database.engine
        path.rename(away)
        with ExitStack() as connections, pytest.raises(OperationalError, match="unable to open"):
            for _ in range(5):  # more than the pool holds by now
                connections.enter_context(engine.connect())
        assert not path.exists()
    assert log_of(path).stat().st_size > 0
    away.rename(path)
    with Store.open(path) as store:
        assert len(store.trials(study_of(store))) == 1


@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
def test_a_log_without_its_database_is_kept(tmp_path: Path, is_link: bool) -> None:
    """Whether the file was named, or a link to it: the log lies beside the file."""
    path, away, named = tmp_path / "autotune.db", tmp_path / "away.db", tmp_path / "autotune.db"
    if is_link:
        (tmp_path / "links").mkdir()
        named = tmp_path / "links" / "named.db"
        named.symlink_to(path)
    with Store.open(named) as store:
        add(store, study_of(store), 0, ok(1.0))
        path.rename(away)
        for content in (None, b""):
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(
                StoreError, match=r"autotune\.db-wal lies in .* without its database: .* put it back"
            ):
                Store.open(named)
    away.rename(path)
    with Store.open(path) as store:
        assert len(store.trials(study_of(store))) == 1


def test_a_study_that_was_deleted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "autotune.db") as store:
        study = study_of(store)
        connection = sqlite3.connect(tmp_path / "autotune.db")
        connection.execute("DELETE FROM study")
        connection.commit()
        connection.close()
        with pytest.raises(StoreError, match="its study may have been deleted: run the same command again"):
            add(store, study, 0, ok(1.0))
