"""Records the calls of a process where the core does not, so that the process may be killed at any moment.

FILE.d holds a file of each process: a suite in JSON (suite.py), one shape per line. Copied into exported
tables.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import DispatchError
from ..gemm import Gemm
from .counting import CallCounts, Counted

VERSION = 1  # of the format
EVERY_S = 0.25  # between two writes: the file is less than a second old, also on a busy machine
_AGAIN = "name a file in a folder that can be written"


def folder_of(file: str) -> Path:
    """The folder in which the calls of a file are recorded; created if needed. Raises DispatchError if it
    cannot be written."""
    folder = Path(f"{file}.d")
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or error
        raise DispatchError(f"calls cannot be recorded in {folder}: {reason}; {_AGAIN}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DispatchError(f"calls cannot be recorded in {folder}: it may not be written; {_AGAIN}")
    return folder


def recorded_elsewhere() -> DispatchError:
    return DispatchError(
        "calls are recorded into another file already (record_calls or AUTOTUNE_RECORD); record into one"
    )


def rendered(counts: Iterable[Counted]) -> str:
    """The text of a file."""
    rows, others = [], 0
    for counted in counts:
        if counted.gemm is None:
            others += counted.calls
            continue
        gemm, (lda, ldb, ldc), (a, b, c) = counted.gemm, counted.lds, counted.alignment
        rows.append(
            f'{{"m": {gemm.m}, "n": {gemm.n}, "k": {gemm.k}, "layout": "{gemm.layout}", {_batch(gemm)}'
            f'"ld": [{lda}, {ldb}, {ldc}], "align": [{a}, {b}, {c}], "count": {counted.calls}}}'
        )
    lines = ",\n".join(rows)
    return f'{{"version": {VERSION}, "shape": [\n{lines}\n], "others": {others}}}\n'


def _batch(gemm: Gemm) -> str:
    shared = '"shared": "a", ' if gemm.shares_a else '"shared": "b", ' if gemm.shares_b else ""
    return f'"batch": {gemm.batch}, {shared}' if gemm.is_batched else ""


class CallRecorder:
    """Records tallies. Raises DispatchError as `folder_of`."""

    def __init__(self, file: str, tallies: CallCounts) -> None:
        self.file, self._tallies, self._folder = file, tallies, folder_of(file)
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._path: Path | None = None
        self._written = self._pid = 0
        self._due_s = math.inf

    def begin(self) -> None:
        """Have a thread write four times a second what has changed. Not before the first plan: until then a
        process may be forked, and its children record for themselves."""
        with self._lock:
            if self._path is None:
                self._pid = os.getpid()
                host = re.sub(r"[^A-Za-z0-9-]", "-", os.uname().nodename)[:64]
                self._path = self._folder / f"{host}-{self._pid}-{os.urandom(8).hex()}.json"
                threading.Thread(target=self._keep_writing, name="autotune-calls", daemon=True).start()

    def help(self) -> None:
        """Called with each product: write now, if the thread is late. If a program often releases the
        interpreter's lock and takes it back at once, a thread may wait for it for seconds."""
        if time.monotonic() > self._due_s:
            self._write()

    def end(self) -> None:
        """Write the rest. In a forked child the counts are its parent's."""
        if self._path is not None and os.getpid() == self._pid:
            self._is_ending.set()
            self._write()

    def _keep_writing(self) -> None:
        while not self._is_ending.wait(EVERY_S):
            self._write()

    def _write(self) -> None:
        """If this fails it is tried again later: the previous state stays whole until then."""
        path = self._path
        assert path is not None
        with self._lock:
            self._due_s = time.monotonic() + 2 * EVERY_S
            counts = self._tallies.counts()
            calls = sum(counted.calls for counted in counts)
            if calls == self._written:
                return
            if self._replace(path, rendered(counts).encode()):
                self._written = calls

    @staticmethod
    def _replace(path: Path, content: bytes) -> bool:
        """In few system calls: after each, a thread of a busy program waits for the interpreter's lock."""
        part = path.with_name(f".{path.name}")
        try:
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                is_whole = os.write(file, content) == len(content)
            finally:
                os.close(file)
            if is_whole:
                part.rename(path)
            return is_whole
        except FileNotFoundError:  # the folder was removed
            with suppress(OSError):
                path.parent.mkdir()
                return CallRecorder._replace(path, content)
        except OSError:
            with suppress(OSError):
                part.unlink()
        return False
