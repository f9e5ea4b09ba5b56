"""Records the calls of a process where the core does not, so that the process may be killed at any moment.

FILE.d holds a file of each process: a suite in JSON (suite.py), one shape per line. Copied into exported
tables.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..facts.gemm import Gemm
from ..files.errors import DispatchError
from ..files.synced import sync, sync_folder
from ..kernel.epilogue_names import name_of
from ..kernel.launch import PLAIN, Epilogue
from .counting import CallCounts, Counted

VERSION = 2  # of the format
EVERY_S = 0.25  # between two writes: the file is less than a second old, also on a busy machine
SYNC_S = 5.0  # between two that wait for the disk: a kill loses nothing that is written, a power cut does
_AGAIN = "name a file in a folder that can be written"
_PART = re.compile(r"\.(?P<host>[A-Za-z0-9-]*)-(?P<pid>\d{1,9})-[0-9a-f]+\.json")  # half written
_HOUR_S = 3600.0
_NUM_TRIES = 3


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
            f"{_epilogue(counted.epilogue)}"
            f'"ld": [{lda}, {ldb}, {ldc}], "align": [{a}, {b}, {c}], "count": {counted.calls}}}'
        )
    lines = ",\n".join(rows)
    return f'{{"version": {VERSION}, "shape": [\n{lines}\n], "others": {others}}}\n'


def _batch(gemm: Gemm) -> str:
    shared = '"shared": "a", ' if gemm.shares_a else '"shared": "b", ' if gemm.shares_b else ""
    return f'"batch": {gemm.batch}, {shared}' if gemm.is_batched else ""


def _epilogue(epilogue: Epilogue) -> str:
    return "" if epilogue == PLAIN else f'"epilogue": "{name_of(epilogue)}", '


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", os.uname().nodename)[:64]


def _remove_left(folder: Path) -> None:
    """Remove the parts that killed processes left."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _PART.fullmatch(entry.name)
            if found and entry.is_file(follow_symlinks=False) and _is_left(entry, found):
                Path(entry).unlink()


def _is_left(part: os.DirEntry[str], named: re.Match[str]) -> bool:
    """Whether its process was killed. Of another machine it is known by its age, and where this process has
    that one's id. A living process that is taken for dead, as in another container of the same name, writes
    its part again."""
    pid = int(named["pid"])
    if named["host"] != _host() or pid == os.getpid():
        return time.time() - part.stat().st_mtime > _HOUR_S
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


class CallRecorder:
    """Records tallies. Raises DispatchError as `folder_of`."""

    def __init__(self, file: str, tallies: CallCounts) -> None:
        self.file, self._tallies, self._folder = file, tallies, folder_of(file)
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._path: Path | None = None
        self._written = self._synced = self._pid = 0  # calls that the file counts, and counts on the disk
        self._sync_due_s = 0.0
        self._has_told = False
        self._due_s = math.inf

    def begin(self) -> None:
        """Have a thread write four times a second what has changed. Not before the first plan: until then a
        process may be forked, and its children record for themselves."""
        with self._lock:
            if self._path is None:
                self._pid = os.getpid()
                self._path = self._folder / f"{_host()}-{self._pid}-{os.urandom(8).hex()}.json"
                threading.Thread(target=self._keep_writing, name="autotune-calls", daemon=True).start()

    def help(self) -> None:
        """Called with each product: write now, if the thread is late. If a program often releases the
        interpreter's lock and takes it back at once, a thread may wait for it for seconds. No product waits
        for the disk."""
        if time.monotonic() > self._due_s and not self._lock.locked():
            self._write(syncs=False)

    def end(self) -> None:
        """Write the rest. In a forked child the counts are its parent's."""
        if self._path is not None and os.getpid() == self._pid:
            self._is_ending.set()
            self._write(syncs=True)

    def _keep_writing(self) -> None:
        _remove_left(self._folder)
        while not self._is_ending.wait(EVERY_S):
            self._write(syncs=time.monotonic() >= self._sync_due_s)

    def _write(self, *, syncs: bool) -> None:
        """If this fails it is tried again later."""
        path = self._path
        assert path is not None
        with self._lock:
            now = time.monotonic()
            self._due_s = now + 2 * EVERY_S
            counts = self._tallies.counts()
            calls = sum(counted.calls for counted in counts)
            if calls == (self._synced if syncs else self._written):
                return
            try:
                _replace(path, rendered(counts).encode(), syncs=syncs)
                self._written = calls
                if syncs:
                    if not self._synced:  # the name is new
                        sync_folder(path.parent)
                    self._synced, self._sync_due_s = calls, now + SYNC_S
            except OSError as error:
                self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Once: later failures say nothing new."""
        if not self._has_told and sys.stderr is not None:
            with suppress(OSError, ValueError):  # it may be closed
                sys.stderr.write(
                    f"autotune: calls cannot be recorded in {self._folder} ({error.strerror}); make room"
                    " there, or see to its rights: they are still counted, and written once that succeeds\n"
                )
        self._has_told = True


def _replace(path: Path, content: bytes, *, syncs: bool, tries: int = _NUM_TRIES) -> None:
    """The previous state stays whole until this one is; if this one `syncs`, on the disk. Raises OSError. In
    few system calls: after each, a thread of a busy program waits for the interpreter's lock."""
    try:
        _write_part(path, content, syncs=syncs)
    except FileNotFoundError:  # the folder was removed, or the part: see _is_left
        if tries == 1:
            raise
        path.parent.mkdir(exist_ok=True)
        _replace(path, content, syncs=syncs, tries=tries - 1)


def _write_part(path: Path, content: bytes, *, syncs: bool) -> None:
    part = path.with_name(f".{path.name}")
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            while content:
                content = content[os.write(file, content) :]
            if syncs:
                sync(file)
        finally:
            os.close(file)
        part.rename(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
