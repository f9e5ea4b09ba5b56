"""`autotune doctor`: findings with a next step, on any machine."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from autotune.store import Store

from .runner import REPOSITORY, run


def findings(*arguments: str | Path, code: int = 0, **environment: str) -> dict[str, dict[str, str]]:
    done = run("doctor", *arguments, "--json", code=code, **environment)
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_everything_is_looked_at(tmp_path: Path) -> None:
    found = findings("--db", tmp_path / "new.db")
    assert found["python"]["state"] == found["compiler"]["state"] == found["kernel"]["state"] == "ok"
    assert {"gpu", "cublas", "cache", "recorded spaces", "database"} < found.keys()
    assert all(f["next_step"] for f in found.values() if f["state"] != "ok")
    assert list(tmp_path.iterdir()) == []  # looking makes no database


def test_a_missing_compiler_is_told_with_what_needs_it(tmp_path: Path) -> None:
    found = findings("--db", tmp_path / "new.db", CC="/no/compiler")["C++ compiler"]
    assert found["state"] == "missing"
    assert "ziglang" in found["next_step"] and "autotune explain" in found["next_step"]


def test_a_driver_that_sees_no_gpu_is_missing_not_broken(tmp_path: Path) -> None:
    gpu = findings("--db", tmp_path / "new.db", CUDA_VISIBLE_DEVICES="")["gpu"]
    assert gpu["state"] == "missing"
    assert "recorded space" in gpu["next_step"]


def test_a_variable_that_forces_tf32_is_told_of(tmp_path: Path) -> None:
    db = tmp_path / "new.db"
    message = {value: findings("--db", db, NVIDIA_TF32_OVERRIDE=value)["fp32"] for value in "01"}
    assert message["0"]["state"] == "ok" and message["1"]["state"] == "missing"
    assert "TF32" in message["1"]["detail"] and "unset NVIDIA_TF32_OVERRIDE" in message["1"]["next_step"]


def test_the_database_is_counted(tmp_path: Path) -> None:
    Store.open(tmp_path / "some.db").close()
    assert "0 trials in 0 studies" in findings("--db", tmp_path / "some.db")["database"]["detail"]


def test_damaged_rows_are_named(tmp_path: Path, recording: Path) -> None:
    db = tmp_path / "some.db"
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", db, "--trials", "3", "--quiet")
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE baseline SET samples_us = 7")
    done = run("doctor", "--db", db)
    assert "3 trials in 1 study" in done.stdout
    assert "damaged and left out: baseline" in done.stderr and "samples_us is 7" in done.stderr


def test_what_is_broken_gives_exit_code_3(tmp_path: Path) -> None:
    bad = tmp_path / "notes.txt"
    bad.write_text("no database at all" * 100, encoding="utf-8")
    found = findings("--db", bad, code=3)
    assert found["database"]["state"] == "broken"
    assert found["compiler"]["state"] == "ok"  # the others were looked at all the same
    done = run("doctor", "--db", bad, code=3)
    assert "What to do:" in done.stdout
    assert "database" in done.stderr


NO_HOME = """
import os, pwd, sys
for name in ("HOME", "XDG_CACHE_HOME", "AUTOTUNE_CACHE"):
    os.environ.pop(name, None)
def unknown(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = unknown
from autotune.cli import app
app.main()
"""


def test_a_cache_that_others_may_write_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    cache = findings(AUTOTUNE_CACHE=str(tmp_path))["cache"]
    assert cache["state"] == "missing" and cache["detail"].endswith("it may be written by other users")
    assert cache["next_step"] == "remove it, or name another with AUTOTUNE_CACHE"


def test_a_user_without_a_home_is_told_to_name_a_cache() -> None:
    """As in a container that was given a user's number, and no name."""
    done = subprocess.run(
        [sys.executable, "-c", NO_HOME, "doctor", "--json"], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    (cache,) = (found for found in json.loads(done.stdout)["findings"] if found["name"] == "cache")
    assert (cache["state"], cache["next_step"]) == ("missing", "set AUTOTUNE_CACHE to a folder of yours")
