"""A database that may not be written is read as it is. Modes mean nothing to root: mounts do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from sandbox import ROOT, autotune, small_disk
from store_cases import add, ok, study_of

from autotune.store import Store

NO_LANE = 65534


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.db"
    with Store.open(path) as store:
        add(store, study_of(store), 0, ok(7.0))
    return path


@pytest.fixture
def public_db(db: Path) -> Iterator[Path]:
    """Where everybody may look: pytest keeps its own folders to their owner."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copy(db, folder))


def copy(*files: Path) -> str:
    return " && ".join(f"cp {file} ." for file in files)


def test_a_disk_that_may_not_be_written(db: Path) -> None:
    script = f"mount -o remount,ro . && {autotune('trials', 'best', '--db', db.name)}; echo exit $?"
    done = small_disk("size=4m", "sh", "-c", script, before=copy(db))
    assert "7.000 us" in done.stdout and done.stdout.endswith("exit 0\n"), done.stderr


@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
def test_a_log_that_cannot_be_read_is_told(db: Path, tmp_path: Path, is_link: bool) -> None:
    """Its trials would be missing: better none than yesterday's. It lies where a link leads."""
    folder = tmp_path / "copied"
    folder.mkdir()
    with Store.open(db) as store:
        add(store, study_of(store), 1, ok(3.0))
        for file in (
            db,
            db.with_name(f"{db.name}-wal"),
        ):  # as somebody copied it, without the index of the log
            shutil.copy(file, folder)
    files = sorted(folder.iterdir())
    assert files[1].stat().st_size
    name = str(tmp_path / "link.db") if is_link else db.name
    script = f"mount -o remount,ro . && {autotune('trials', 'best', '--db', name)}; echo exit $?"
    link = f" && ln -s $PWD/{db.name} {name}" if is_link else ""
    done = small_disk("size=4m", "sh", "-c", script, before=copy(*files) + link)
    assert done.stdout == "exit 5\n"
    assert "its newest trials are in tuned.db-wal, which cannot be read there; copy " in done.stderr
    assert ("/tuned.db*" in done.stderr) == is_link


def test_a_search_still_says_that_it_cannot_write(db: Path) -> None:
    search = autotune("search", "--gpu", "auto", "--shape", "1024", "--trials", "1", "--db", db.name)
    done = small_disk(
        "size=4m", "sh", "-c", f"mount -o remount,ro . && {search}; echo exit $?", before=copy(db)
    )
    assert done.stdout.endswith("exit 5\n") and "may be written" in done.stderr


def test_an_older_database_that_cannot_be_migrated(db: Path) -> None:
    connection = sqlite3.connect(db)
    connection.execute("UPDATE autotune_alembic_version SET version_num = '0009'")
    connection.commit()
    connection.close()
    script = f"mount -o remount,ro . && {autotune('trials', 'best', '--db', db.name)}; echo exit $?"
    done = small_disk("size=4m", "sh", "-c", script, before=copy(db))
    assert done.stdout == "exit 5\n"
    assert "schema version 0009, older than this autotune's, and may not be written; copy it" in done.stderr


@pytest.mark.every(3)
@pytest.mark.parametrize(("of_folder", "of_file"), [(0o555, 0o644), (0o777, 0o444), (0o555, 0o444)])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "while a search writes"])
def test_another_user(public_db: Path, of_folder: int, of_file: int, is_open: bool) -> None:
    """Reads in a process that is nobody's: this one's rights are root's, or the owner's."""
    if os.geteuid() != 0:
        pytest.skip("only root may run a command as another user")
    db = public_db
    with Store.open(db) if is_open else nullcontext() as store:
        if isinstance(store, Store):
            add(store, study_of(store), 1, ok(3.0))
        for file in db.parent.glob("tuned.db*"):
            file.chmod(of_file)
        db.parent.chmod(of_folder)
        code = (
            "import sys; from pathlib import Path; from autotune.store import Store;"
            "store = Store.open(Path(sys.argv[1]), is_read_only=True);"
            "print(store.best(store.studies()[0].study)[0].measurement.time_us); store.close()"
        )
        # The interpreter may lie where only root may look: it has begun before its rights go.
        drop = f"import os; import autotune.store.repository; os.setgid({NO_LANE}); os.setuid({NO_LANE});"
        done = subprocess.run(
            [sys.executable, "-c", drop + code, db], capture_output=True, text=True, cwd="/",
            env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=120,
        )  # fmt: skip
        db.parent.chmod(0o755)
    assert done.stdout == ("3.0\n" if is_open else "7.0\n"), done.stderr
