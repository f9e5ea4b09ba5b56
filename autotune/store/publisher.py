"""Follows a search: a thread that copies its trials for Optuna's dashboard from time to time.

A copy costs this process about 0.6 ms per trial, and others the database's write lock for 16 ms per
transaction. The thread rests after each pass, so that it takes at most DUTY of the time: if trials come
faster, the dashboard lags behind. The rest is copied when the search is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ..files.errors import EnvironmentProblem, StoreError
from .optuna_mirror import Mirror
from .records import StudyRef
from .repository import Store

DUTY = 0.02  # of the time that a search takes
LEAST_REST_S = 5.0  # users of a dashboard do not refresh it more often


class Publisher:
    """While entered, copies the trials of the studies that `follow` names. Nothing is copied after it exits,
    so `publish` the rest then."""

    def __init__(self, store: Store) -> None:
        self._mirror = Mirror(store)
        self._studies: dict[int, StudyRef] = {}
        self._is_awake, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def follow(self, study: StudyRef) -> None:
        """Copy this study, too, from now on."""
        self._studies[study.id] = study
        self._is_awake.set()

    def finish(self, studies: Iterable[StudyRef]) -> int:
        """Stop following and copy the rest; returns the number of these trials. Raises StoreError."""
        self._stop()
        return self._mirror.copy(studies)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._mirror.close()

    def _stop(self) -> None:
        self._is_over.set()
        self._is_awake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._is_awake.clear()
            self._rest(max(LEAST_REST_S, self._copy() / DUTY))

    def _copy(self) -> float:
        """One pass; returns the seconds of this process that it took, without those of opening. A failure is
        retried in the next pass: a search does not end because of its copy."""
        began_s = time.thread_time()
        try:
            self._mirror.open()
            began_s = time.thread_time()
            self._mirror.copy(list(self._studies.values()), self._is_over.is_set)
        except (StoreError, EnvironmentProblem):  # a full disk is the latter
            self._mirror.close()
        return time.thread_time() - began_s

    def _rest(self, seconds: float) -> None:
        """A new study is shown at once: its first copy is empty and costs almost nothing."""
        known = set(self._studies)
        deadline = time.monotonic() + seconds
        while not self._is_over.is_set() and (left_s := deadline - time.monotonic()) > 0:
            if self._is_awake.wait(left_s) and set(self._studies) - known:
                return
            self._is_awake.clear()
