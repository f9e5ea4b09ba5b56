"""What disturbs a sample, and what to do then: only decisions, no sensor. `gpu.guard` carries them out.

A mark names what was detected while samples were taken:

    passing     drift                   the reference's time is off its recent median by over
                                        DRIFT_THRESHOLD
                neighbour               another process computed on this GPU, and may have disturbed it
                hw_slowdown, hw_power_brake, hw_thermal_slowdown, sw_thermal_slowdown
    standing    sw_power_cap, sync_boost
                neighbour_unfelt        another process computed, but at another time: the reference took as
                                        long as it lately does

Searches that take turns on a GPU are no neighbours (`gpu.turns`).
Passing ones are worth a repeat: they may be over in a moment. Standing ones are not: a large product holds
an H200 at its power limit for as long as it runs; they are reported, and pairing samples in time cancels
them. Clocks that a user has set (`applications_clocks`, `display_clocks`) disturb nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from statistics import median

DRIFT, NEIGHBOUR, NEIGHBOUR_UNFELT = "drift", "neighbour", "neighbour_unfelt"
PASSING = frozenset(
    {DRIFT, NEIGHBOUR, "hw_slowdown", "hw_power_brake", "hw_thermal_slowdown", "sw_thermal_slowdown"}
)
PERSISTENT = frozenset({"sw_power_cap", "sync_boost", NEIGHBOUR_UNFELT})

DRIFT_THRESHOLD = 0.03  # of the reference's level: several times what its readings scatter by in quiet
LEVEL_READINGS = 15  # a lasting change is the new level once it makes up most of these
_WEIGHT_OF_FIRST = LEVEL_READINGS // 2  # what a level begins with was several samples, too
MAX_REPEATS = 2  # of one candidate
PAUSES_S = (0.05, 0.2)  # pause before each, for transient disturbances
MOST_CREDIT, START_CREDIT, CREDIT_STEP = 20.0, 10.0, 0.25


def marks(throttle_reasons: Iterable[str], *, has_drift: bool | None, has_neighbour: bool) -> tuple[str, ...]:
    """The marks of samples, in alphabetical order. `has_drift` is None if no reference was read."""
    found = set(throttle_reasons) & (PASSING | PERSISTENT)
    if has_drift:
        found.add(DRIFT)
    if has_neighbour:
        found.add(NEIGHBOUR_UNFELT if has_drift is False else NEIGHBOUR)
    return tuple(sorted(found))


def is_passing(found: Collection[str]) -> bool:
    """Whether any of these marks is of a disturbance that may be over in a moment."""
    return not PASSING.isdisjoint(found)


class Level:
    """The recent time of a reference: the median of its last readings."""

    def __init__(self, reading_us: float) -> None:
        self._readings: deque[float] = deque([reading_us] * _WEIGHT_OF_FIRST, LEVEL_READINGS)

    @property
    def time_us(self) -> float:
        return median(self._readings)

    def is_drift(self, reading_us: float) -> bool:
        """Whether a new reading deviates from the earlier ones, in either direction."""
        before_us = self.time_us
        self._readings.append(reading_us)
        return abs(reading_us / before_us - 1) > DRIFT_THRESHOLD


@dataclass
class Repeats:
    """How often disturbed samples may be taken again: MAX_REPEATS times for one candidate, and over all
    candidates no more than the credit of the undisturbed ones (and START_CREDIT). So a GPU that is never
    quiet costs a search at most a quarter of its time, not two thirds."""

    credit: float = field(default=START_CREDIT)

    def should_repeat(self, found: Collection[str], num_repeats: int) -> bool:
        """Whether to repeat samples with these marks, of a candidate repeated so often. Counts the answer."""
        if not is_passing(found):
            self.credit = min(MOST_CREDIT, self.credit + CREDIT_STEP)
            return False
        if num_repeats >= MAX_REPEATS or self.credit < 1:
            return False
        self.credit -= 1
        return True
