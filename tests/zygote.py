"""Starts the same program again and again by forking a process that has imported it: a tenth of the time.

`Zygote()` is the pytest side. The other runs as `python zygote.py MODULE`: for each line of stdin, a JSON
object, it answers with one line: {"start": {...}} with the new process's id, {"poll": PID} with its exit
code as subprocess tells it, or null while it runs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Child:
    """A forked process, with what the tests use of subprocess.Popen."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote, self.pid = zygote, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        """Sleeps until the process has ended: to ask every few milliseconds costs two processes time."""
        if self.returncode is None:
            descriptor = os.pidfd_open(self.pid)  # until the zygote is asked, not even an ended one is gone
            try:
                select.select([descriptor], (), (), timeout_s)
            finally:
                os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
        return code


class Zygote:
    """Runs `main(*arguments)` of a module, each time in a session of its own. Close it to end it. Threads may
    share it."""

    def __init__(self, module: str, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *options, __file__, module], env=dict(environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self._lock = threading.Lock()  # a question and its answer belong together

    def start(self, arguments: list[Any], folder: Path) -> Child:
        """What it writes goes to the files `out` and `err` of a folder."""
        request = {"arguments": arguments, "folder": str(folder)}
        return Child(self, self.ask({"start": request}))

    def ask(self, request: object) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with self._lock:
            stdin.write(json.dumps(request) + "\n")
            return json.loads(stdout.readline())

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


def _start(module: Any, request: dict[str, Any]) -> int:
    ready, is_single = os.pipe()
    pid = os.fork()
    if pid:
        os.close(is_single)
        os.read(ready, 1)  # until it is the leader of a group: a test may kill it at once, by the group
        os.close(ready)
        return pid
    os.setsid()
    os.close(ready)
    os.close(is_single)
    sources = [os.open(os.devnull, os.O_RDONLY)]
    for name in ("out", "err"):
        path = Path(request["folder"]) / name
        sources.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    for number, source in enumerate(sources):
        os.dup2(source, number)
    module.main(*request["arguments"])  # never returns: it exits
    raise SystemExit("main returned")


def _poll(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main(module: Any) -> None:
    gc.freeze()  # a process that looks through all that is loaded when it ends copies it first
    for line in sys.stdin:
        match json.loads(line):
            case {"start": request}:
                answer = _start(module, request)
            case {"poll": pid}:
                answer = _poll(pid)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(importlib.import_module(sys.argv[1]))
