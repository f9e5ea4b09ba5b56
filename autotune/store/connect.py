"""Opens the database, a SQLite file or one of a PostgreSQL server: the settings of every connection, and
readable errors.

Settings for SQLite, and what survives with them:

- WAL: readers (the dashboard, `autotune trials`) never wait for the search, nor it for them.
- synchronous=NORMAL: the operating system has a commit when it returns, so `kill -9` loses nothing that was
  committed. Power loss may lose the newest commits (those the system had not yet written back, typically half
  a minute) but never leaves a torn database. synchronous=FULL would save those at one fsync per trial, 5 ms
  on an ordinary disk against 0.01 ms: a tenth of the time of a search at 20 trials/s, for trials that take
  seconds to repeat.
- Writers take the write lock at BEGIN, so a second writer waits its turn (up to the timeout) and is
  thrown out in the middle, as it would be when a reader turns writer.

PostgreSQL needs no settings: its commits survive power loss, and its writers wait for rows, not for each
other. Only one process at a time makes or migrates the tables.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

from ..files.errors import EnvironmentProblem, StoreError
from ..files.wheel_libraries import POSTGRESQL, pip_install
from .columns import read_text

_IS_WRITER = "autotune_is_writer"
_RETRY_S = 0.02
_FORMS = "a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
_BACKENDS = ("sqlite", "postgresql")
_SECRETS = ("password", "passfile", "sslpassword", "oauth_client_secret")  # of the query of a URL
_LOCK_KEY = int.from_bytes(b"autotune")  # of PostgreSQL's advisory locks, which share one space per database
_SHM_BYTES = 32 * 1024  # of FILE-shm


def parse_url(path_or_url: str | Path) -> URL:
    """Of SQLite or PostgreSQL; what has no `://` is the path of a file. Raises StoreError for others."""
    if not isinstance(path_or_url, str | Path):  # a text of anything would be a file's name
        raise StoreError(f"{path_or_url!r:.60} names no database; write {_FORMS}")
    text = str(path_or_url)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise StoreError(f"{shown(text)!r} is not a database URL; write {_FORMS}") from None
    if (name := url.get_backend_name()) not in _BACKENDS:
        close = get_close_matches(name, _BACKENDS, n=1)
        expected = f"did you mean {shown(url.set(drivername=close[0]))}? Write" if close else "write"
        raise StoreError(f"{shown(url)} is neither SQLite nor PostgreSQL; {expected} {_FORMS}")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(f"{text} would keep the trials in memory and lose them; name a file")
    return url


def shown(url: str | URL) -> str:
    """A path or URL for printing: without its password, wherever in it that is."""
    if isinstance(url, str):
        if "://" not in url:
            return url
        text = url
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):  # whatever it is, a password may be in it
            return re.sub(r"(?<=://).*@", "***@", text.partition("?")[0], flags=re.DOTALL)
    return _public(url).set(password=url.password).render_as_string()


def typed(path_or_url: str) -> tuple[str, str]:
    """A database as a command line takes it, quoted; and where its password is taken from, which a screen is
    not to show: "" where there is none."""
    if "://" not in path_or_url:
        return shlex.quote(path_or_url), ""
    url = make_url(path_or_url)
    plain = _public(url)
    hint = "" if plain == url else " (with its password in PGPASSWORD or ~/.pgpass)"
    return shlex.quote(plain.render_as_string()), hint


def _public(url: URL) -> URL:
    """The same without what lets one in."""
    host = (url.host or "").rpartition("@")[2] or None  # before that stands the end of a password with an @
    query = url.difference_update_query(_SECRETS).query
    return URL.create(url.drivername, url.username, None, host, url.port, url.database, query)


def place(url: URL) -> str:
    """The name of a database in messages: its file, or the URL of a server, without the password."""
    return str(file_of(url) or shown(url))


def file_of(url: URL) -> Path | None:
    """The file behind a SQLite URL; None for a server or a `file:` URI."""
    is_file = url.get_backend_name() == "sqlite" and not (url.database or "").startswith("file:")
    return Path(url.database or "") if is_file else None


def exists(path_or_url: str | Path) -> bool:
    """Whether a database may exist: its file does, or there is a server to ask. Raises StoreError if its
    folder may not be entered, for a folder, a device or a pipe, and for a file of no bytes, which SQLite
    would take for a database."""
    file = file_of(parse_url(path_or_url))
    with _explain_names(file):
        if file is None or not file.is_file():
            _need_place(file)
            return file is None
        if file.stat().st_size or has_log(file):
            return True
    raise StoreError(f"{file} is empty: no database, and no file of another kind; name another")


@contextmanager
def _explain_names(file: Path | None) -> Iterator[None]:
    """Turn the errors of impossible file names into a StoreError. SQLite takes UTF-8 only."""
    try:
        str(file).encode()
        yield
    except PermissionError:
        raise StoreError(f"{file} lies in a folder that may not be entered; check its rights") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{str(file)[:80]!r} names no database: {reason}; choose another") from error


def connect(url: URL, timeout_s: float, mode: str = "mode=rw") -> Engine:
    """An engine whose transactions begin as described above. Nothing is opened yet. A SQLite file must exist
    (`make_file`); `mode` is how to open it, as in its URIs."""
    dumps = functools.partial(json.dumps, separators=(",", ":"), allow_nan=False)
    try:
        engine = create_engine(url, json_serializer=dumps, **_options(url, timeout_s, mode))
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StoreError(
            f"no driver for {url.drivername} ({error}); write postgresql:// and install its driver with:"
            f" {pip_install(POSTGRESQL)}, or name a SQLite file"
        ) from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
    return engine


def _options(url: URL, timeout_s: float, mode: str) -> dict[str, Any]:
    """Options that keep SQLite's connections from creating a file. Pools connect at any time. If the file has
    just been moved away, SQLite would create an empty one in its place, and remove the log beside it, with
    everything not yet copied from the log into the moved file."""
    if url.get_backend_name() != "sqlite":
        return {}
    if (file := file_of(url)) is None:
        return {"connect_args": {"timeout": timeout_s}}
    uri = f"{file.absolute().as_uri()}?{mode}"
    return {"creator": lambda: sqlite3.connect(uri, timeout_s, uri=True, check_same_thread=False)}


def _need_place(file: Path | None) -> None:
    """Raises StoreError for what is there and no file."""
    if file is not None and file.is_dir():
        raise StoreError(f"{file} is a folder; name a database file inside it")
    if file is not None and file.exists() and not file.is_file():
        raise StoreError(f"{file} is a device or a pipe; name a regular file")


def make_file(url: URL) -> None:
    """Make an empty SQLite file if there is none. Raises StoreError if no database can be there, or if there
    is the log of one that was moved away without it: SQLite would remove it."""
    file = file_of(url)
    if file is None:
        return
    with _explain_names(file):
        if not file.parent.is_dir():
            what = "it is a file; name a folder" if file.parent.exists() else "create it first"
            raise StoreError(f"no folder {file.parent} for the database {file.name}; {what}")
        _need_place(file)
        if has_log(file) and not (file.exists() and file.stat().st_size):
            log, name = log_of(file), real_file(file).name
            raise StoreError(
                f"{log.name} lies in {log.parent} without its database: {name} was moved or deleted, and its"
                " newest trials are in that log; put it back beside the log, remove the log if they may go,"
                " or name another database"
            )
        if not file.exists():
            with suppress(OSError):  # SQLite says what is wrong
                file.touch()


def check_locks(url: URL) -> None:
    """Raises StoreError if the file system has no locks: SQLite would wait for one, and name a holder."""
    file = file_of(url)
    if file is not None and (reason := _why_no_locks(real_file(file).parent)):
        raise _without_locks(file, reason)


def _why_no_locks(folder: Path) -> str:
    """What the file system says to a lock of a new file there; "" if it has locks, or no file can be made."""
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (what fails tells two things)
    except OSError:
        return ""
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _without_locks(file: Path, reason: str) -> StoreError:
    return StoreError(
        f"{file} lies on a file system without locks ({reason}), which SQLite needs; no process holds it:"
        " put the database on a local disk, mount the file system with locks, or use a PostgreSQL server"
    )


def real_file(file: Path) -> Path:
    """Where symbolic links lead: SQLite keeps its other files there, not beside the link."""
    return Path(os.path.realpath(file))


def log_of(file: Path) -> Path:
    """The file in which SQLite keeps commits that are not in the database file yet."""
    real = real_file(file)
    return real.with_name(f"{real.name}-wal")


def has_log(file: Path) -> bool:
    """Whether that log is not empty."""
    log = log_of(file)
    return log.exists() and log.stat().st_size > 0


def writer(engine: Engine) -> Engine:
    """The same engine and pool; its transactions take the write lock when they begin."""
    return engine.execution_options(**{_IS_WRITER: True})


def enter_wal(engine: Engine, timeout_s: float) -> None:
    """Switch a SQLite file to WAL. SQLite does not wait for others here, so this retries."""
    deadline = time.monotonic() + timeout_s
    while True:
        connection = engine.raw_connection()
        try:
            mode = connection.cursor().execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise OperationalError("PRAGMA journal_mode = WAL", None, error) from error
        finally:
            connection.close()
        time.sleep(_RETRY_S)
    if mode != "wal":
        raise StoreError(
            f"{engine.url.database} lies where SQLite cannot share memory between processes (a network"
            " file system?); put the database on a local disk"
        )


def keep_others_out(connection: Connection) -> None:
    """Until the transaction ends no other process makes or changes tables. SQLite has one writer."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK_KEY)))


def is_same(one: URL, other: URL) -> bool:
    """Whether two URLs name one database, as far as that can be told."""
    file = identity(one)
    return one == other if file is None else file == identity(other)


def identity(url: URL) -> tuple[int, int] | None:
    """The device and inode of the database's file; None if the file is gone or the database is not a file."""
    file = file_of(url)
    if file is None or not file.exists():
        return None
    status = file.stat()
    return status.st_dev, status.st_ino


def check_identity(url: URL, opened: tuple[int, int] | None) -> None:
    """Raise StoreError if the opened file has lost its name: SQLite itself would go on writing to it, and the
    trials would be lost at the end of the process."""
    if identity(url) != opened:
        raise StoreError(
            f"{url.database} was moved, deleted or replaced while in use; put it back and run the same"
            " command again: it resumes from there"
        )


@contextmanager
def explain_errors(url: URL) -> Iterator[None]:
    """Turn any error of the database into one of ours that names the next step. Raises TypeError for what
    cannot be JSON."""
    try:
        yield
    except SQLAlchemyError as error:
        if isinstance(error, StatementError) and isinstance(error.orig, TypeError):  # what a caller gave
            raise TypeError(f"{error.orig}; give numbers, texts, and lists or dicts of them") from error
        raise explain(error, url) from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the driver's own: it cannot even read the reason
        advice = _ADVICE[sqlite3.SQLITE_CORRUPT]
        raise StoreError(f"{place(url)}: {error}; {advice}") from error


def is_away(error: BaseException | None) -> bool:
    """Whether an error says that a server is away, or broke the connection, so that a retry may succeed."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = getattr(error.orig, "sqlstate", None)
    is_lost = isinstance(error, OperationalError | InterfaceError) and state is None
    return error.connection_invalidated or is_lost or state in _PASSING


def is_conflict(error: BaseException | None) -> bool:
    """Whether a server rolled this transaction back, since it was in the way of another one."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


# Of PostgreSQL: two transactions that wait for each other, or change the same; connection failure, shutdown,
# crash, start-up, too many connections. https://www.postgresql.org/docs/current/errcodes-appendix.html
_CONFLICTS = {"40001", "40P01"}
_PASSING = {"08000", "08001", "08003", "08006", "57P01", "57P02", "57P03", "53300", *_CONFLICTS}


def explain(error: SQLAlchemyError, url: URL) -> StoreError | EnvironmentProblem:
    """What this error means and what to do about it; a full disk is this machine's, whoever wrote to it."""
    where = shown(url)
    if not isinstance(error, DBAPIError) or not isinstance(error.orig, sqlite3.Error):
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        if isinstance(error, DataError):
            return StoreError(f"{where}: {reason}; a server stores no such value: give another")
        if isinstance(error, IntegrityError):
            return StoreError(f"{where}: {reason}; {_ADVICE[sqlite3.SQLITE_CONSTRAINT]}")
        advice = "check that the server runs and lets this user in, then run"
        if is_conflict(error):
            advice = "other processes write the same rows; run"
        return StoreError(f"{where}: {reason}; {advice} the same command again: it resumes")
    where = url.database or where
    code = _code(error.orig)
    if code in _OF_LOCKS and (reason := _why_no_locks(real_file(Path(where)).parent)):
        return _without_locks(Path(where), reason)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        holder = lock_holder(Path(where))
        return StoreError(f"{where} is locked by {holder}; wait for it or end it, then run this again")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(Path(where)):
        code = sqlite3.SQLITE_FULL  # SQLite says so only when it was about to write a page
    if code == sqlite3.SQLITE_FULL:
        return EnvironmentProblem(
            f"{where}: the disk is full; free some space on the disk and run the same command again:"
            " it resumes"
        )
    advice = _ADVICE.get(code, "run this again; if it comes back, check the file with PRAGMA integrity_check")
    return StoreError(f"{where}: {error.orig}; {advice}")


# What SQLite makes of a lock that is refused
_OF_LOCKS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_PERM)
_ADVICE = {
    sqlite3.SQLITE_NOTADB: "this is no autotune database: name another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a copy, or save what is left with"
    " `sqlite3 FILE .recover | sqlite3 NEW_FILE`",
    sqlite3.SQLITE_READONLY: "check that the file and its folder may be written, which even reading needs,"
    " and that the file was not moved or deleted meanwhile; or work on a copy",
    sqlite3.SQLITE_CANTOPEN: "check that it may be read, and that its folder exists and may be written",
    sqlite3.SQLITE_PERM: "check that the file and its folder may be written",
    sqlite3.SQLITE_CONSTRAINT: "the record does not fit what is stored; its study may have been deleted:"
    " run the same command again",
    sqlite3.SQLITE_IOERR: "the disk failed: check its space and health, and that it is a local disk",
}


def _is_full(file: Path) -> bool:
    """Whether the disk has no room for the index of the log, which even a reader makes."""
    with suppress(OSError):
        usage = shutil.disk_usage(file.parent)
        return usage.total > 0 and usage.free < _SHM_BYTES  # /proc has no bytes at all
    return False


def lock_holder(file: Path) -> str:
    """The process that holds a write lock, if /proc/locks shows it. The files are not opened for this:
    closing them again would drop this process's own locks."""
    try:
        real = real_file(file)
        files = [real, real.with_name(f"{real.name}-shm")]
        numbers = {str(f.stat().st_ino) for f in files if f.exists()}
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return "another process"
    for line in lines:  # 1: POSIX  ADVISORY  WRITE 4711 08:01:123456 120 120
        fields = line.split()
        if fields[1] == "POSIX" and fields[3] == "WRITE" and fields[5].split(":")[-1] in numbers:
            return f"process {fields[4]}"
    return "another process"


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code: the extended one less its upper bytes."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _on_connect(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # Python's driver begins no transaction by itself: see _on_begin
    connection.text_factory = read_text
    for pragma in ("foreign_keys = ON", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: Connection) -> None:
    is_writer = connection.get_execution_options().get(_IS_WRITER, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")
