"""A PostgreSQL server for tests: in a folder of its own, reached through a socket there, gone afterwards."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "tuner"
# Nothing is to survive the tests: no waiting for the disk.
_OPTIONS = "-c listen_addresses='' -c fsync=off -c full_page_writes=off -c max_connections=100"
_NUMBERS = itertools.count()


class Server:
    """A server in `folder`. It refuses to run as root: root runs it as `nobody`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
        self._call("initdb", "--auth=trust", f"--username={USER}", "--no-sync", "--encoding=UTF8")

    def start(self) -> None:
        log = self._folder / "log"
        self._call("pg_ctl", "-w", "-l", str(log), "-o", f"-k {self._folder} {_OPTIONS}", "start")

    def stop(self) -> None:
        """At once, as a crash does: connections break."""
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def new_database(self) -> str:
        """The URL of an empty database."""
        import psycopg

        name = f"db{next(_NUMBERS)}"
        with psycopg.connect(host=str(self._folder), user=USER, dbname="postgres", autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://{USER}:secret@/{name}?host={self._folder}"

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(_program(program)), f"--pgdata={self._folder}/data", *arguments]
        output = self._folder.with_suffix(".out")  # not a pipe: the server keeps it open
        with output.open("wb") as out:
            done = subprocess.run(
                command,
                cwd="/",
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                timeout=120,
            )
        text = output.read_text(encoding="utf-8", errors="replace")
        output.unlink()
        assert done.returncode == 0, f"{' '.join(command)}\n{text}"


@contextmanager
def running_server() -> Iterator[Server]:
    # Short, since a socket's path has 107 characters, and where `nobody` may enter: no TMPDIR of root's.
    folder = Path(tempfile.mkdtemp(prefix="autotune-pg-", dir="/tmp"))
    try:
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def missing_postgresql() -> str:
    """What of PostgreSQL is not installed here, or "" if nothing is missing."""
    missing = [name for name in ("initdb", "pg_ctl") if _program(name) is None]
    if importlib.util.find_spec("psycopg") is None:
        missing.append("psycopg")
    return f"not installed: {', '.join(missing)}" if missing else ""


def _program(name: str) -> Path | None:
    """Debian keeps the server's programs, one folder per version, out of PATH."""
    found = shutil.which(name)
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return Path(found) if found else next(iter(reversed(installed)), None)
