"""Kernels from elsewhere: a GPU worker's compiler asks compile workers, by way of the database."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from ..files.errors import AutotuneError, TrialFailure
from ..kernel.compiler import CompileJob
from ..store import Build, Builds

POLL_S = 0.2
COUNT_S = 2.0  # between two looks at how many compile workers there are
AHEAD = 2  # kernels that wait, for each that is compiled: no worker waits for the next question
LONGEST_S = 120.0  # for a kernel, before it is compiled here


@dataclass
class _Wait:
    done: threading.Event = field(default_factory=threading.Event)
    build: Build | None = None


class StoreHelpers:
    """Implements `compiler.Helpers`. One thread looks for what is done, of all that wait. Use it as a context
    manager: at its end nobody waits any more."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds
        self._waits: dict[str, _Wait] = {}
        self._lock = threading.Lock()
        self._slots, self._counted_s = 0, -COUNT_S
        self._is_closed = threading.Event()
        self._polling = threading.Thread(target=self._poll_on, name="builds", daemon=True)

    def __enter__(self) -> Self:
        self._polling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._polling.join()
        self._release_all()

    @property
    def num_slots(self) -> int:
        return self._slots

    def build(self, job: CompileJob) -> bytes | None:
        """A kernel from elsewhere; None where nobody is free to make it, or the worker was lost. Raises
        TrialFailure where it does not compile."""
        with self._lock:
            if self._is_closed.is_set() or len(self._waits) >= AHEAD * self._slots:
                return None
            wait = self._waits.setdefault(job.key, _Wait())
        try:
            self._builds.ask(job.key, job.to_dict())
            wait.done.wait(LONGEST_S)
        finally:
            with self._lock:
                self._waits.pop(job.key, None)
        if wait.build is None:
            return None
        if wait.build.packed is None and wait.build.outcome:
            raise TrialFailure(wait.build.outcome, wait.build.reason)
        return wait.build.packed

    def _poll_on(self) -> None:
        while not self._is_closed.wait(POLL_S):
            with suppress(AutotuneError):  # the database is away: whoever waits compiles here in the end
                self._poll()

    def _poll(self) -> None:
        if time.monotonic() - self._counted_s >= COUNT_S:
            self._slots, self._counted_s = self._builds.num_slots(), time.monotonic()
        with self._lock:
            waits = dict(self._waits)
        if not waits:
            return
        for key, build in self._builds.found(waits).items():
            waits[key].build = build
            waits[key].done.set()
        if not self._slots:  # all compile workers were lost
            self._builds.forget(waits)
            for wait in waits.values():
                wait.done.set()

    def _release_all(self) -> None:
        with self._lock:
            waits, self._waits = self._waits, {}
        for wait in waits.values():
            wait.done.set()
