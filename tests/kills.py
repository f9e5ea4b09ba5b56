"""A search in a process group of its own, killed at any moment, and what must be found afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zygote import Child, Zygote

TESTS = Path(__file__).resolve().parent
_STORED = "SELECT config.key FROM trial JOIN config ON config.id = trial.config_id ORDER BY trial.id"
Running = subprocess.Popen[bytes] | Child
_MISTOLD = """
SELECT trial.id FROM trial JOIN optuna_study ON optuna_study.study_id = trial.study_id
JOIN optuna_trial ON optuna_study_id = optuna_study.id AND optuna_trial.config_id = trial.config_id
WHERE optuna_trial.state <> CASE outcome WHEN 'ok' THEN 'COMPLETE' ELSE 'FAIL' END OR worker_id IS NOT NULL
"""
_DOUBLED = "SELECT study_id, config_id FROM trial GROUP BY study_id, config_id HAVING count(*) > 1"


class Search:
    """The same `autotune search` on the same database, once and again; see journaled_search.py.

    `delay_s` is how long a recording takes to answer. The database and the journal lie in `folder`.
    """

    _zygote: Zygote | None = None

    def __init__(
        self, folder: Path, *arguments: str | Path, delay_s: float = 0.0, **environment: str
    ) -> None:
        self.folder, self.db, self.journal = folder, folder / "trials.db", folder / "journal"
        self._options = ["--db", str(self.db), "--json", *map(str, arguments)]
        self._places = [str(self.journal), str(delay_s)]
        path = os.pathsep.join(filter(None, map(str, (TESTS.parent, TESTS, os.environ.get("PYTHONPATH")))))
        self._environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"} | environment
        self._num_lines = 0  # of the journal, from earlier runs

    def _arguments(self, more: Sequence[str]) -> list[str]:
        """Of a run: each option of `more`, all of which take a value, replaces that of the same name."""
        given, options = dict(zip(more[::2], more[1::2], strict=True)), list(self._options)
        for name, value in given.items():
            if name in options:
                options[options.index(name) + 1] = value
            else:
                options += [name, value]
        return [*self._places, "search", *options]

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Begin a run, in a new session. What it writes goes to the files `out` and `err`."""
        self._num_lines = len(self._lines())
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, TESTS / "journaled_search.py", *self._arguments(more)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def fork(self, *more: str) -> Child:
        """As `start`, from a process that has imported everything already."""
        self._num_lines = len(self._lines())
        self._zygote = self._zygote or Zygote("journaled_search", self._environment)
        return self._zygote.start(self._arguments(more), self.folder)

    def close(self) -> None:
        """Needed after `fork`."""
        if self._zygote is not None:
            self._zygote.close()

    def _lines(self) -> list[bytes]:
        """Whole lines: one may be read while it is being written."""
        written = self.journal.read_bytes() if self.journal.exists() else b""
        return written[: written.rfind(b"\n") + 1].splitlines()

    def noted(self, what: str) -> list[str]:
        """The keys that the newest run has noted as "asked", "measured" or "told"."""
        lines = map(json.loads, self._lines()[self._num_lines :])
        return [line[what] for line in lines if what in line]

    def stored(self) -> list[str]:
        """The keys of all trials, in order. The database must be whole, with each config once.

        Looks at a copy: opening the database itself would do the repair that is left to the next run.
        """
        with tempfile.TemporaryDirectory() as folder:
            for file in self.folder.glob(f"{self.db.name}*"):
                shutil.copy(file, folder)
            connection = sqlite3.connect(Path(folder) / self.db.name)
            try:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
                if ("trial",) not in tables:  # killed before it was made
                    return []
                assert connection.execute(_DOUBLED).fetchall() == []
                assert connection.execute(_MISTOLD).fetchall() == []
                keys = [key for (key,) in connection.execute(_STORED)]
            finally:
                connection.close()
        assert len(set(keys)) == len(keys)
        return keys

    def wait_until(self, process: Running, is_there: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Fails if the search ends before, or it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_there():
            assert process.poll() is None, f"the search ended by itself:\n{self.said()}"
            assert time.monotonic() < deadline, f"nothing for {timeout_s:g} s:\n{self.said()}"
            time.sleep(0.002)

    def finish(self, process: Running, timeout_s: float = 120.0) -> dict[str, Any]:
        """What a run that is left alone prints in the end."""
        try:
            code = process.wait(timeout_s)
        finally:
            if process.poll() is None:
                kill(process)
        assert code == 0, f"exit {code}:\n{self.said()}"
        if self.db.exists():  # or it went on with another's
            connection = sqlite3.connect(self.db)
            running = connection.execute("SELECT number FROM optuna_trial WHERE state = 'RUNNING'").fetchall()
            connection.close()
            assert running == [], "what was killed never was"
        facts: dict[str, Any] = json.loads((self.folder / "out").read_text(encoding="utf-8"))
        return facts

    def said(self) -> str:
        """What the newest run wrote to stdout and stderr."""
        return "".join((self.folder / name).read_text("utf-8", "replace") for name in ("out", "err"))


def default_signals() -> None:
    """As a shell starts a command in the foreground, however these tests were (nohup ignores SIGHUP)."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def kill(process: Running) -> None:
    """`kill -9` of its whole process group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def workers_of(coordinator: int) -> list[int]:
    """Processes that serve a GPU for this one, alive or orphaned: they are told whose they are."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # gone meanwhile
                continue
            if b"autotune.gpu.worker" in words and words[-2] == str(coordinator).encode():
                found.append(int(entry.name))
    return found
