"""What is known of one shape: its trials in their order, the leader, and the results of comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..facts.measurement import Measurement, is_accurate
from ..kernel.config import Value
from ..kernel.where import Where
from ..store import Final, Store, StudyRef, TrialRecord, TriedPoint
from ..target import Baseline
from .compare.ranking import Ranked, Ranking
from .progress import Best
from .propose.origins import FILL


class Keys:
    """Keys of which 64 bits are kept: a sixth of the memory, and one in 10^13 is taken for another."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, key: str) -> None:
        self._hashes.add(hash(key))

    def __contains__(self, key: object) -> bool:
        return hash(key) in self._hashes


@dataclass(eq=False)
class Findings:
    """Of one study, whoever made its trials. Those whose error is more than `max_error` times cuBLAS's cannot
    win (None: any may). Those that do not obey `where` are known, and no more than that."""

    _store: Store
    _study: StudyRef
    baseline: Baseline
    limit_us: float | None
    max_error: float | None
    ranking: Ranking
    _where: Where
    # Times of the searched trials, in their order (None: failed), and of kernels found on other shapes if one
    # was the best so far: the others say nothing about the progress of a search.
    times_us: list[float | None] = field(default_factory=list)
    known: Keys = field(default_factory=Keys)  # of all trials
    num_known: int = 0  # of these, trials that obey

    def time_of(self, measurement: Measurement | TriedPoint) -> float | None:
        """None for a trial that cannot win: a failure, or one stored under a looser limit on its error."""
        is_fine = measurement.is_ok and is_accurate(measurement.error_over_cublas, self.max_error)
        return measurement.time_us if is_fine else None

    def count(self, key: str, point: Mapping[str, Value], time_us: float | None, origin: str) -> bool:
        """Take in a trial; None for one that cannot win. Returns whether it is the best so far."""
        self.known.add(key)
        if self._where and not self._where.holds(point):
            return False
        self.num_known += 1
        is_best = time_us is not None and self.ranking.enter(key, point, time_us)
        if is_best or origin != FILL:
            self.times_us.append(time_us)
        return is_best

    @property
    def incumbent(self) -> Ranked | None:
        """The fastest of those that no comparison has beaten; None while all have failed."""
        return self.ranking.incumbent

    @property
    def cutoff_us(self) -> float | None:
        """The incumbent's time, which a candidate must not exceed by much."""
        return None if self.incumbent is None else self.incumbent.time_us

    def finalists(self, num: int) -> list[TrialRecord]:
        """The best trials: those that no comparison has beaten first, by time as comparisons corrected it."""
        close = self._fastest(4 * num)  # comparisons may have moved them
        return sorted(close, key=lambda trial: self.ranking.rank(trial.key, trial.measurement.time_us))[:num]

    @property
    def num_total(self) -> int:
        """Trials that searches of this shape made, those of earlier runs included."""
        return len(self.times_us)

    @property
    def num_failed(self) -> int:
        return sum(time_us is None for time_us in self.times_us)

    @property
    def best(self) -> Best | None:
        """The fastest so far, as far as decided; None while all have failed."""
        if self.incumbent is None:
            return None
        return Best(self.incumbent.point, self.incumbent.time_us, self.baseline.time_us, self.limit_us)

    @property
    def verdict(self) -> Best | None:
        """The report on its best kernel: the winner of the final, against cuBLAS in the same rounds; before a
        final the fastest trial, against cuBLAS as it was timed at the start. None while all have failed."""
        final, cublas_us = self.final, self.baseline.time_us
        if final is not None:
            beside_us = final.baseline.time_us if final.baseline else cublas_us
            return Best(final.winner.point, final.winner.time_us, beside_us, self.limit_us)
        if (fastest := self.fastest) is None or fastest.measurement.time_us is None:
            return None
        return Best(fastest.point, fastest.measurement.time_us, cublas_us, self.limit_us)

    @property
    def fastest(self) -> TrialRecord | None:
        """The fastest trial; None while all have failed."""
        return next(iter(self._fastest(1)), None)

    @property
    def excluded(self) -> TrialRecord | None:
        """The fastest trial of all, if it does not obey."""
        fastest = self._store.best(self._study, 1, self.max_error)
        return next((trial for trial in fastest if not self._where.holds(trial.point)), None)

    @property
    def final(self) -> Final | None:
        """The newest final, as far as its entries obey."""
        return self._store.final(self._study, self.max_error, self._where)

    @property
    def is_decided(self) -> bool:
        """Whether the newest final of the study, under whatever conditions, chose what obeys; then `trials
        best` and an export take that, too."""
        final = self._store.final(self._study, self.max_error)
        return final is not None and self._where.holds(final.winner.point)

    def _fastest(self, num: int) -> list[TrialRecord]:
        return self._store.best(self._study, num, self.max_error, where=self._where)
