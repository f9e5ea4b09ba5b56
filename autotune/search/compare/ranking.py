"""Which candidate of a shape is the fastest, as far as known: every candidate's time, and comparisons of the
close ones.

Trials are timed one by one, seconds or minutes apart, and the GPU drifts meanwhile: two good trials may
differ by drift alone. A comparison times two candidates in the same rounds. Its ratio corrects the time of
one of them, so that all times stay on the scale of the trials. The loser of a comparison is never the best
again. Pure: no clock, no GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...facts import stats
from ...kernel.config import Value
from ...search_policy import SearchPolicy
from ...store import ComparisonRecord


@dataclass(eq=False)
class Ranked:
    """A candidate that ran. `time_us` is its trial's, as corrected by comparisons since."""

    key: str
    point: Mapping[str, Value]
    time_us: float
    num_rounds: int = 0  # of comparisons that it was in
    has_lost: bool = False


@dataclass(eq=False)
class PairComparison:
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
    def record(self) -> ComparisonRecord:
        """As it is stored."""
        first, second = self.samples_us
        keys = (self.pair[0].key, self.pair[1].key)
        return ComparisonRecord(keys, (tuple(first), tuple(second)), self.winner)

    @property
    def ratio(self) -> float:
        """The second's time over the first's within a round: the quartile that is nearer to 1. In all rounds
        after one load of it a kernel may be slower by several percent (decision 0064)."""
        gaps = np.diff(np.log(self.samples_us), axis=0)[0]
        return float(np.exp(np.quantile(gaps, 0.25 if np.median(gaps) > 0 else 0.75)))


class Ranking:
    """All candidates of a shape that ran. The incumbent is the fastest that no comparison has beaten."""

    def __init__(self, policy: SearchPolicy) -> None:
        self._policy = policy
        self._ranked: dict[str, Ranked] = {}
        self._comparisons: dict[frozenset[str], PairComparison] = {}
        self.incumbent: Ranked | None = None
        self.is_closed = False  # no more comparisons

    def enter(self, key: str, point: Mapping[str, Value], time_us: float) -> bool:
        """Take in the result of a trial. Returns whether it is the new incumbent."""
        far = (1 + self._policy.close) ** 2  # as far again as comparisons reach, who correct times by less
        if self.incumbent is not None and time_us > far * self.incumbent.time_us:
            return False  # of very many trials most are not kept
        ranked = self._ranked[key] = Ranked(key, point, time_us)
        is_first = self.incumbent is None or time_us < self.incumbent.time_us
        if is_first:
            self.incumbent = ranked
        return is_first

    def next_comparison(self, under_way: Collection[PairComparison] = ()) -> PairComparison | None:
        """The incumbent against the closest candidate that is not compared with it; None if none is left."""
        incumbent = self.incumbent
        if incumbent is None or self.is_closed:
            return None
        limit_us = incumbent.time_us * (1 + self._policy.close)
        close = [
            e for e in self._ranked.values()
            if e.time_us <= limit_us and not e.has_lost and e is not incumbent
        ]  # fmt: skip
        for ranked in sorted(close, key=lambda e: e.time_us):
            comparison = self._comparison(incumbent.key, ranked.key)
            if not comparison.is_over and comparison not in under_way:
                return comparison
        return None

    def _comparison(self, one: str, other: str) -> PairComparison:
        pair = (self._ranked[one], self._ranked[other])
        return self._comparisons.setdefault(frozenset((one, other)), PairComparison(pair, self._policy))

    def restore(self, record: ComparisonRecord) -> list[Ranked]:
        """`take` a comparison of an earlier run; one of candidates that are unknown here is ignored."""
        if not all(key in self._ranked for key in record.keys):
            return []
        comparison = PairComparison(
            (self._ranked[record.keys[0]], self._ranked[record.keys[1]]), self._policy
        )
        self._comparisons.setdefault(frozenset(record.keys), comparison)
        return self.take(comparison, *record.samples_us)

    def take(
        self, comparison: PairComparison, first_us: tuple[float, ...], second_us: tuple[float, ...]
    ) -> list[Ranked]:
        """Add rounds to a comparison. Once it is over, returns whose time was corrected by it."""
        comparison.samples_us[0].extend(first_us)
        comparison.samples_us[1].extend(second_us)
        if not comparison.is_over:
            return []
        corrected = _correct(comparison)
        winner = comparison.winner
        if winner is not None and not comparison.pair[winner].has_lost:  # it may have lost another meanwhile
            comparison.pair[1 - winner].has_lost = True
        best = [ranked for ranked in self._ranked.values() if not ranked.has_lost]
        self.incumbent = min(best, key=lambda e: e.time_us)
        return [corrected]

    def rank(self, key: str, time_us: float | None) -> tuple[bool, float]:
        """Sorts trials: the unbeaten first, each group by time, by default a trial's own."""
        ranked = self._ranked.get(key)
        if ranked is None:
            return False, np.inf if time_us is None else time_us
        return ranked.has_lost, ranked.time_us


def _correct(comparison: PairComparison) -> Ranked:
    """Corrects the time of the less measured one, by the other's and the ratio."""
    first, second = comparison.pair
    is_second = second.num_rounds <= first.num_rounds
    if is_second:
        second.time_us = first.time_us * comparison.ratio
    else:
        first.time_us = second.time_us / comparison.ratio
    for ranked in comparison.pair:
        ranked.num_rounds += comparison.num_rounds
    return second if is_second else first
