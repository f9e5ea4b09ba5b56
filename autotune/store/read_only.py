"""Opens a read-only SQLite file, or one in a read-only folder, and reads it as it is.

SQLite in WAL mode makes files beside the database even to read it. If it cannot make them and there is no
log, the database is complete without these files, and SQLite is told that nobody changes it (`immutable`). If
there is a log that cannot be read, the newest trials would be missing or torn: such a database is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, Engine
from sqlalchemy.exc import OperationalError

from ..files.errors import StoreError
from ..files.words import option
from . import connect as _connect
from . import schema


def may_be_written(url: URL) -> bool:
    """Whether a database, its folder and the files beside it may be written; true if there is no file."""
    file = _connect.file_of(url)
    if file is None or not _connect.exists(str(file)):
        return True
    real = _connect.real_file(file)
    others = [real.with_name(f"{real.name}{end}") for end in ("-wal", "-shm")]
    paths = [real.parent, real, *(path for path in others if path.exists())]
    return all(os.access(path, os.W_OK) for path in paths)


def connect(url: URL, timeout_s: float) -> Engine:
    """An engine that only reads. Raises StoreError if the file cannot be read, has a log that cannot be read,
    or is of an older autotune."""
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        engine = _connect.connect(url, timeout_s, mode)
        try:
            with _connect.explain_errors(url), engine.connect() as connection:
                _check_version(schema.version(connection), url)
            return engine
        except StoreError as error:
            engine.dispose()
            is_last = mode.endswith("immutable=1")
            if is_last or not isinstance(error.__cause__, OperationalError):
                raise
            _need_no_log(url)
    raise AssertionError("the last mode returns or raises")


def _need_no_log(url: URL) -> None:
    """Raises StoreError if there is a log beside the file that SQLite cannot read without writing."""
    file = Path(url.database or "")
    if _connect.has_log(file):
        files = _connect.real_file(file) if file.is_symlink() else file.name
        raise StoreError(
            f"{file} may not be written, and its newest trials are in {_connect.log_of(file).name}, which"
            f" cannot be read there; copy {files}* to a folder of yours and name the copy with {option('db')}"
        )


def _check_version(version: str | None, url: URL) -> None:
    if version != schema.NEWEST:
        found = "no tables" if version is None else f"schema version {version}, older than this autotune's"
        raise StoreError(
            f"{url.database} has {found}, and may not be written; copy it to a folder of yours and name the"
            f" copy with {option('db')}"
        )
