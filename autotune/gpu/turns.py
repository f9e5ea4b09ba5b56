"""Processes that measure on one GPU take turns, so that none times the other's kernels.

A turn is one request to the worker: for example, to verify and time one candidate; where nobody else waits,
it lasts while requests follow each other. Both searches go on, each at about half its rate, with times as on
a GPU that runs one kernel. The alternative, one lock for a whole
search, would make the second wait for hours. And if searches only detected each other (NVML lists all
processes on a GPU), each would disturb samples of the other, which would be taken again.

A process that takes a turn writes two process ids into the second file: its own, and its worker's as NVML
numbers it. NVML sees the workers of other searches compute, too. By these ids a process tells them from
neighbours that take no turns.

The locks are flock's, on two files per GPU in the folder for temporary files. They end with the process that
holds them, `kill -9` included. A process that waits for the GPU holds the gate meanwhile, so that the process
that had the GPU last comes next but one: flock alone is not fair, and one of two searches would starve.

    gate ─── taken while waiting for the GPU ───┐ free again
    gpu                                          └── taken for one request ──┐ free again

Containers that share a GPU and no folder do not see each other here.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

MAX_SIGNATURES = 16  # of those that took turns last
SIGNED_S = 3600.0  # later a process id may belong to another process
_AGAIN_S = 60.0  # a turn that took longer is signed again at its end
_MOST_BYTES = 4096  # of all signatures


class Signature(NamedTuple):
    """A line of the file: the process that took a turn, its worker's id as NVML numbers it (0: unknown),
    and when, in seconds since the machine started."""

    holder: int
    worker: int
    signed_s: int


class Turns:
    """The turns on one GPU. One thread at a time may `take` one. `note` is told, once, that another process
    uses the GPU. If the files cannot be made, or locked, there are no turns: that must not stop a search."""

    def __init__(
        self, gpu_uuid: str, note: Callable[[str], None] = lambda text: None, folder: Path | None = None
    ) -> None:
        self._files: list[int] = []
        self._note, self._is_reported = note, False
        self._worker = 0
        self._signed_s = 0.0
        self._is_ours = False  # whether a turn was begun and not ended
        try:
            base = (folder or Path(tempfile.gettempdir())) / f"autotune-{gpu_uuid}"
            for kind in ("gate", "gpu"):
                self._files.append(_open(base.with_suffix(f".{kind}")))
        except OSError:
            self.close()

    @contextmanager
    def take(self) -> Iterator[frozenset[int]]:
        """A turn, from `begin` to `end`."""
        try:
            yield self.begin()
        finally:
            self.end()

    def begin(self) -> frozenset[int]:
        """Have the GPU alone among the processes that take turns. Waits for the turns of others. Returns the
        workers, as NVML numbers them, of all processes that took turns lately."""
        if self._files:
            self._wait(*self._files)
        if not self._files:
            return frozenset()
        self._is_ours = True
        return frozenset(signature.worker for signature in self._sign() if signature.worker)

    def end(self) -> None:
        """Let others have the GPU. Ending a turn that was not begun, or again, does nothing."""
        if not self._is_ours or not self._files:
            return
        if time.monotonic() > self._signed_s + _AGAIN_S:
            self._sign()
        self._is_ours = False
        fcntl.flock(self._files[1], fcntl.LOCK_UN)

    @property
    def is_wanted(self) -> bool:
        """In a turn: whether another process waits for it."""
        if not self._files:
            return False
        gate = self._files[0]
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is held by who waits for the GPU
            return True
        fcntl.flock(gate, fcntl.LOCK_UN)
        return False

    def _wait(self, gate: int, gpu: int) -> None:
        try:
            self._lock(gate, gpu)
            try:
                self._lock(gpu, gpu)
            finally:
                fcntl.flock(gate, fcntl.LOCK_UN)
        except OSError as error:
            self.close()
            self._note(
                f"The folder for temporary files lies on a file system without locks ({error.strerror}):"
                " searches that share this GPU take no turns. Set TMPDIR to a folder of a local disk."
            )

    def set_worker_pid(self, pid: int | None) -> None:
        """Tell others, from this turn on, which process computes in these turns: its id by NVML, if known."""
        self._worker = pid or 0
        if self._files:
            self._sign()

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _lock(self, file: int, signed: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._tell(_read(signed)[:1])
            fcntl.flock(file, fcntl.LOCK_EX)

    def _sign(self) -> list[Signature]:
        """Write one's own signature before those of others; returns all valid ones. The GPU is locked."""
        self._signed_s = time.monotonic()
        own = Signature(os.getpid(), self._worker, int(self._signed_s))
        others = [s for s in _read(self._files[1]) if s.worker and s.worker != own.worker]
        valid = [own, *(s for s in others if 0 <= own.signed_s - s.signed_s <= SIGNED_S)][:MAX_SIGNATURES]
        written = "".join(f"{s.holder} {s.worker} {s.signed_s}\n" for s in valid).encode()
        with suppress(OSError):  # another user's file, a full disk: then no worker is named
            os.pwrite(self._files[1], written, 0)
            os.ftruncate(self._files[1], len(written))
        return valid

    def _tell(self, last: list[Signature]) -> None:
        if not self._is_reported:
            self._is_reported = True
            holder = last[0].holder if last else "(unknown)"
            self._note(
                f"Process {holder} measures on this GPU too: the two take turns, candidate by"
                " candidate, and each takes longer."
            )


def _open(path: Path) -> int:
    """The file, made if it is not there. Another user's may be locked, if not written. A link, which anybody
    may leave in such a folder, is not followed: what it leads to would be written over. Raises OSError."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # nor is a pipe waited for
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:
        opened = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{path} is no file")
    return opened


def _read(file: int) -> list[Signature]:
    """The signatures, the newest first; invalid lines are left out."""
    lines = [line.split() for line in os.pread(file, _MOST_BYTES, 0).decode(errors="replace").splitlines()]
    return [
        Signature(*map(int, words)) for words in lines if len(words) == 3 and all(map(str.isdecimal, words))
    ]
