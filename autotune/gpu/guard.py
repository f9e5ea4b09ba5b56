"""Detects what disturbs samples, and has them taken again. `disturbance` decides; this reads the sensors.

The reference is cuBLAS on the current problem: timed after a candidate's samples, at once if a neighbour is
busy, else so rarely that it costs at most a twentieth of the time. In a race it takes part anyway. Without
cuBLAS, only NVML reports disturbances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..facts.disturbance import PAUSES_S, Level, Repeats, marks
from ..facts.measurement import GpuState
from .nvml import Monitor

T = TypeVar("T")

NEIGHBOURS_EVERY_S = 0.1  # NVML's own samples are further apart
REFERENCE_EVERY_S = 0.2
REFERENCE_SHARE = 0.05


@dataclass(frozen=True)
class DriftReference:
    """The reference for drift. `key` names what is timed; `read` times it, in us; `level_us` is its first
    time. `is_free`: it was timed among the samples, reading it takes no time."""

    key: Hashable
    read: Callable[[], float]
    level_us: float
    is_free: bool = False


@dataclass(frozen=True)
class Guarded(Generic[T]):
    """The samples taken last, the marks of what disturbed them, and all earlier samples with their marks."""

    taken: T
    marks: tuple[str, ...] = ()
    before: tuple[tuple[T, tuple[str, ...]], ...] = ()


class Guard:
    """Watches over everything that is timed in one process. `now` and `sleep` are in seconds."""

    def __init__(
        self,
        monitor: Monitor,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monitor, self._now, self._sleep = monitor, now, sleep
        self._repeats = Repeats()
        self._levels: dict[Hashable, Level] = {}
        self._reference_due_s = self._neighbours_due_s = now()
        self._has_neighbour = False

    def take(
        self, take: Callable[[], T], state: Callable[[], GpuState], reference: DriftReference | None = None
    ) -> Guarded[T]:
        """Take samples, again while they are disturbed and repeats are worthwhile. `state` is that of the GPU
        during the samples of the last `take`."""
        before: list[tuple[T, tuple[str, ...]]] = []
        while True:
            taken = take()
            has_neighbour = self._is_neighbour_busy()
            has_drift = None if reference is None else self._has_drifted(reference, at_once=has_neighbour)
            found = marks(state().throttle_reasons, has_drift=has_drift, has_neighbour=has_neighbour)
            if not self._repeats.should_repeat(found, len(before)):
                return Guarded(taken, found, tuple(before))
            self._sleep(PAUSES_S[len(before)])
            before.append((taken, found))

    def _has_drifted(self, reference: DriftReference, *, at_once: bool) -> bool | None:
        """Whether the reference has drifted now; None if it was right lately and is not timed."""
        started_s = self._now()
        if started_s < self._reference_due_s and not (at_once or reference.is_free):
            return None
        level = self._levels.setdefault(reference.key, Level(reference.level_us))
        has_drift = level.is_drift(reference.read())
        took_s = self._now() - started_s
        pause_s = max(REFERENCE_EVERY_S, took_s / REFERENCE_SHARE)
        self._reference_due_s = started_s if has_drift else started_s + pause_s
        return has_drift

    def _is_neighbour_busy(self) -> bool:
        if self._now() >= self._neighbours_due_s:
            self._has_neighbour = bool(self._monitor.is_neighbour_busy())
            self._neighbours_due_s = self._now() + NEIGHBOURS_EVERY_S
        return self._has_neighbour
