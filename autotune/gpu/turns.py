"""Processes that measure on one GPU take turns, so that none times the other's kernels.

A turn is one request to the worker: to verify and time one candidate, say. Both searches go on, each at
about half its rate, and their times are those of a GPU that runs one thing. The alternative, one lock for
a whole search, would have the second wait for hours; and neighbours that are merely noticed (NVML tells
them, whoever they are) would spoil samples that are then to be taken again.

The locks are flock's, on two files per GPU in the folder for temporary files: gone with the process that
held them, `kill -9` included. Who waits for the GPU holds the gate meanwhile, so that who had the GPU last
comes next but one: flock alone is not fair, and one of two searches would starve.

    gate ─── taken while waiting for the GPU ───┐ free again
    gpu                                          └── taken for one request ──┐ free again

Containers that share a GPU and no folder do not see each other here.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """The turns on one GPU. One thread at a time may `take` one.

    `note` is told, once, that another process uses the GPU. Where the files cannot be made there are no
    turns: that must not stop a search.
    """

    def __init__(
        self, gpu_uuid: str, note: Callable[[str], None] = lambda text: None, folder: Path | None = None
    ) -> None:
        base = (folder or Path(tempfile.gettempdir())) / f"autotune-{gpu_uuid}"
        self._files: list[int] = []
        self._note, self._is_noted = note, False
        try:
            for kind in ("gate", "gpu"):
                self._files.append(_open(base.with_suffix(f".{kind}")))
        except OSError:
            self.close()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Have the GPU to oneself among those who ask. Waits as long as others have theirs."""
        if not self._files:
            yield
            return
        gate, gpu = self._files
        self._lock(gate, gpu)
        try:
            self._lock(gpu, gpu)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            _sign(gpu)
            yield
        finally:
            fcntl.flock(gpu, fcntl.LOCK_UN)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _lock(self, file: int, signed: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._tell(os.pread(signed, 20, 0).decode(errors="replace").strip())
            fcntl.flock(file, fcntl.LOCK_EX)

    def _tell(self, holder: str) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._note(
                f"Process {holder or '(unknown)'} measures on this GPU too: the two take turns, candidate by"
                " candidate, and each takes longer."
            )


def _open(path: Path) -> int:
    """The file, made if it is not there. Another user's may be locked, if not written."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _sign(file: int) -> None:
    """Leave the process id for those who wait to read."""
    try:
        os.pwrite(file, f"{os.getpid():<19}\n".encode(), 0)
    except OSError:  # another user's file, a full disk: then nobody is named
        return
