"""Which candidate of a shape is the fastest, as far as known: every candidate's time, and duels of the close
ones.

Trials are timed one by one, seconds or minutes apart, and the GPU drifts meanwhile: two good trials may
differ by drift alone. A duel times two candidates in the same rounds. Its ratio corrects the time of one of
them, so that all times stay on the scale of the trials. The loser of a duel is never the best again. Pure: no
clock, no GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...facts import stats
from ...kernel.config import Value
from ...search_policy import SearchPolicy
from ...store import DuelRecord


@dataclass(eq=False)
class Ranked:
    """A candidate that ran. `time_us` is its trial's, as corrected by duels since."""

    key: str
    point: Mapping[str, Value]
    time_us: float
    num_rounds: int = 0  # of duels that it was in
    is_beaten: bool = False


@dataclass(eq=False)
class Duel:
    """Two candidates, paired; `samples_us` are theirs in the same rounds, so far."""

    pair: tuple[Ranked, Ranked]
    policy: SearchPolicy
    samples_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def num_rounds(self) -> int:
        return len(self.samples_us[0])

    @property
    def winner(self) -> int | None:
        """0 or 1; None while that is open, or for ever."""
        return stats.faster_of(*self.samples_us, self.policy.duel_error)

    @property
    def is_over(self) -> bool:
        return self.num_rounds >= self.policy.most_rounds or self.winner is not None

    @property
    def record(self) -> DuelRecord:
        """As it is stored."""
        first, second = self.samples_us
        keys = (self.pair[0].key, self.pair[1].key)
        return DuelRecord(keys, (tuple(first), tuple(second)), self.winner)

    @property
    def ratio(self) -> float:
        """The second's time over the first's within a round: the quartile that is nearer to 1. In all rounds
        after one load of it a kernel may be slower by several percent (decision 0064)."""
        gaps = np.diff(np.log(self.samples_us), axis=0)[0]
        return float(np.exp(np.quantile(gaps, 0.25 if np.median(gaps) > 0 else 0.75)))


class Ranking:
    """All candidates of one shape that ran. The champion is the fastest of those that no duel has beaten."""

    def __init__(self, policy: SearchPolicy) -> None:
        self._policy = policy
        self._ranked: dict[str, Ranked] = {}
        self._duels: dict[frozenset[str], Duel] = {}
        self.champion: Ranked | None = None
        self.is_closed = False  # no more duels

    def enter(self, key: str, point: Mapping[str, Value], time_us: float) -> bool:
        """Take in the result of a trial. Returns whether it is the new champion."""
        far = (1 + self._policy.close) ** 2  # as far again as duels reach, who correct times by less
        if self.champion is not None and time_us > far * self.champion.time_us:
            return False  # of very many trials most are not kept
        ranked = self._ranked[key] = Ranked(key, point, time_us)
        is_first = self.champion is None or time_us < self.champion.time_us
        if is_first:
            self.champion = ranked
        return is_first

    def next_duel(self, under_way: Collection[Duel] = ()) -> Duel | None:
        """The champion against the closest candidate whose duel with it is not over; None if nothing is left
        to decide."""
        champion = self.champion
        if champion is None or self.is_closed:
            return None
        limit_us = champion.time_us * (1 + self._policy.close)
        close = [
            e for e in self._ranked.values()
            if e.time_us <= limit_us and not e.is_beaten and e is not champion
        ]  # fmt: skip
        for ranked in sorted(close, key=lambda e: e.time_us):
            duel = self._duel(champion.key, ranked.key)
            if not duel.is_over and duel not in under_way:
                return duel
        return None

    def _duel(self, one: str, other: str) -> Duel:
        pair = (self._ranked[one], self._ranked[other])
        return self._duels.setdefault(frozenset((one, other)), Duel(pair, self._policy))

    def restore(self, record: DuelRecord) -> list[Ranked]:
        """`take` a duel of an earlier run, or of another running search; a duel of candidates that are
        unknown here is ignored."""
        if not all(key in self._ranked for key in record.keys):
            return []
        duel = Duel((self._ranked[record.keys[0]], self._ranked[record.keys[1]]), self._policy)
        self._duels.setdefault(frozenset(record.keys), duel)
        return self.take(duel, *record.samples_us)

    def take(self, duel: Duel, first_us: tuple[float, ...], second_us: tuple[float, ...]) -> list[Ranked]:
        """Add rounds to a duel. Once it is over, returns whose time was corrected by it."""
        duel.samples_us[0].extend(first_us)
        duel.samples_us[1].extend(second_us)
        if not duel.is_over:
            return []
        corrected = _correct(duel)
        winner = duel.winner
        if winner is not None and not duel.pair[winner].is_beaten:  # it may have lost another meanwhile
            duel.pair[1 - winner].is_beaten = True
        unbeaten = [ranked for ranked in self._ranked.values() if not ranked.is_beaten]
        self.champion = min(unbeaten, key=lambda e: e.time_us)
        return [corrected]

    def rank(self, key: str, time_us: float | None) -> tuple[bool, float]:
        """Sorts trials: the unbeaten first, each group by time, by default a trial's own."""
        ranked = self._ranked.get(key)
        if ranked is None:
            return False, np.inf if time_us is None else time_us
        return ranked.is_beaten, ranked.time_us


def _correct(duel: Duel) -> Ranked:
    """Corrects the time of the less measured one, by the other's and the ratio."""
    first, second = duel.pair
    is_second = second.num_rounds <= first.num_rounds
    if is_second:
        second.time_us = first.time_us * duel.ratio
    else:
        first.time_us = second.time_us / duel.ratio
    for ranked in duel.pair:
        ranked.num_rounds += duel.num_rounds
    return second if is_second else first
