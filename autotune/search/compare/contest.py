"""Who is the fastest of a shape, as far as that is known: every candidate's time, duels of the close ones.

Trials are timed one by one, seconds or minutes apart, so that the drift of the GPU is in what tells two
good ones apart. A duel times two in the same rounds. What it finds goes back into the times as a ratio, so
that all stay on the scale of the trials; who lost one is never the best again. Pure: no clock, no GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ... import stats
from ...kernel.config import Value
from ...store import DuelRecord

CLOSE = 0.05  # who is further from the best needs no duel: each trial may be off by disturbance.DRIFT_BEYOND
ERROR_RATE = 0.01  # chance that a duel names one the faster that is not
MAX_ROUNDS = 48  # two that these do not tell apart are tied


@dataclass(eq=False)
class Entrant:
    """A candidate that ran. `time_us` is its trial's, or what duels made of it since."""

    key: str
    point: Mapping[str, Value]
    time_us: float
    num_rounds: int = 0  # of duels that it was in
    is_beaten: bool = False


@dataclass(eq=False)
class Duel:
    """Two entrants; `samples_us` are theirs in the same rounds, so far."""

    entrants: tuple[Entrant, Entrant]
    samples_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def num_rounds(self) -> int:
        return len(self.samples_us[0])

    @property
    def winner(self) -> int | None:
        """0 or 1; None while that is open, or for ever."""
        return stats.faster_of(*self.samples_us, ERROR_RATE)

    @property
    def is_over(self) -> bool:
        return self.num_rounds >= MAX_ROUNDS or self.winner is not None

    @property
    def record(self) -> DuelRecord:
        """As it is stored."""
        first, second = self.samples_us
        keys = (self.entrants[0].key, self.entrants[1].key)
        return DuelRecord(keys, (tuple(first), tuple(second)), self.winner)

    @property
    def ratio(self) -> float:
        """How many times the first's time the second takes."""
        first, second = self.samples_us
        return float(np.exp(np.median(np.log(second) - np.log(first))))


class Contest:
    """The entrants of one shape. The champion is the fastest of those that no duel has beaten."""

    def __init__(self) -> None:
        self._entrants: dict[str, Entrant] = {}
        self._duels: dict[frozenset[str], Duel] = {}
        self.champion: Entrant | None = None
        self.is_closed = False  # no more duels

    def enter(self, key: str, point: Mapping[str, Value], time_us: float) -> bool:
        """Take in what came of a trial. Returns whether it is the new champion."""
        entrant = self._entrants[key] = Entrant(key, point, time_us)
        is_first = self.champion is None or time_us < self.champion.time_us
        if is_first:
            self.champion = entrant
        return is_first

    def next_duel(self, under_way: Collection[Duel] = ()) -> Duel | None:
        """The champion against whoever comes closest to it, among those it is not known to beat or to be
        tied with; None if nothing is left to decide."""
        champion = self.champion
        if champion is None or self.is_closed:
            return None
        limit_us = champion.time_us * (1 + CLOSE)
        close = [
            e for e in self._entrants.values()
            if e.time_us <= limit_us and not e.is_beaten and e is not champion
        ]  # fmt: skip
        for entrant in sorted(close, key=lambda e: e.time_us):
            duel = self._duel(champion.key, entrant.key)
            if not duel.is_over and duel not in under_way:
                return duel
        return None

    def _duel(self, one: str, other: str) -> Duel:
        pair = (self._entrants[one], self._entrants[other])
        return self._duels.setdefault(frozenset((one, other)), Duel(pair))

    def restore(self, record: DuelRecord) -> list[Entrant]:
        """`take` a duel of an earlier run, or of another search that is going on: it may be of entrants
        that are not known here, and is left out then."""
        if not all(key in self._entrants for key in record.keys):
            return []
        duel = Duel((self._entrants[record.keys[0]], self._entrants[record.keys[1]]))
        self._duels.setdefault(frozenset(record.keys), duel)
        return self.take(duel, *record.samples_us)

    def take(self, duel: Duel, first_us: tuple[float, ...], second_us: tuple[float, ...]) -> list[Entrant]:
        """Add rounds to a duel. Once it is over, returns whose time was corrected by it."""
        duel.samples_us[0].extend(first_us)
        duel.samples_us[1].extend(second_us)
        if not duel.is_over:
            return []
        corrected = _correct(duel)
        winner = duel.winner
        if winner is not None and not duel.entrants[winner].is_beaten:  # it may have lost another meanwhile
            duel.entrants[1 - winner].is_beaten = True
        unbeaten = [entrant for entrant in self._entrants.values() if not entrant.is_beaten]
        self.champion = min(unbeaten, key=lambda e: e.time_us)
        return [corrected]

    def rank(self, key: str, time_us: float | None) -> tuple[bool, float]:
        """Sorts trials: the unbeaten first, each group by time, a trial's own where nothing else is known."""
        entrant = self._entrants.get(key)
        if entrant is None:
            return False, np.inf if time_us is None else time_us
        return entrant.is_beaten, entrant.time_us


def _correct(duel: Duel) -> Entrant:
    """The time of the one of whom less is known, by the other's and the ratio."""
    first, second = duel.entrants
    is_second = second.num_rounds <= first.num_rounds
    if is_second:
        second.time_us = first.time_us * duel.ratio
    else:
        first.time_us = second.time_us / duel.ratio
    for entrant in duel.entrants:
        entrant.num_rounds += duel.num_rounds
    return second if is_second else first
