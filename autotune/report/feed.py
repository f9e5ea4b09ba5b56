"""What is known of a database that a search is writing: kept, and made up to date when somebody asks.

It is read at most once a second, and only what is new; what follows from it is computed for at most a few
hundredths of the time, whatever is asked: a search on the same machine needs its cores."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from threading import RLock
from typing import Generic, TypeVar

from ..facts.device import limits_by_name
from ..facts.gemm import Gemm
from ..files.errors import StoreError
from ..store import Final, Follower, Latest, StudyRef, TrialRecord
from .numbers import MOST_STUDIES, StudyNumbers, StudyRecords, latest_of, read_records, shown_of
from .thinned import MOST_SHOWN, NO_TOTALS, Totals

MIN_PAUSE_S = 1.0  # between two looks at the database
MOST_SHARE = 0.05  # of the time that is spent on what follows from trials
OVERLAP = 64  # trials that are read again: PostgreSQL may commit a smaller id after a larger one

T = TypeVar("T")
Clock = Callable[[], float]


class Feed:
    """The studies of a database, of all problems or of some. Several threads may ask."""

    def __init__(
        self,
        follower: Follower,
        max_error: float | None,
        gemms: Collection[Gemm] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self._follower, self._max_error, self._gemms, self._clock = follower, max_error, gemms, clock
        self._looked_at: float | None = None
        self._fault: StoreError | None = None  # of the last look
        self._lock = RLock()
        self.version = 0  # grows with whatever is new
        self.epoch = 0  # grows where all is read again
        self._forget()

    def _forget(self) -> None:
        self._latest = Latest(0, 0, 0, frozenset())
        self._refs: dict[int, StudyRef] = {}
        self._trials: dict[int, dict[int, TrialRecord]] = {}  # by study and id
        self._totals: defaultdict[int, Totals] = defaultdict(lambda: NO_TOTALS)
        self._left_out: set[int] = set()  # older studies, of very many
        self.part = ""  # what a page says of these
        self._num_all = 0  # trials, when studies were read as a whole
        self._finals: dict[int, Final | None] = {}
        self._cublas_us: dict[int, float | None] = {}
        self._numbers: dict[int, StudyNumbers] = {}

    def studies(self) -> list[StudyNumbers]:
        """All studies with trials, by id. Raises StoreError where the database cannot be read."""
        with self._lock:
            self.look()
            return [self._numbers_of(study) for study in sorted(self._refs) if self._trials.get(study)]

    def study(self, study_id: int) -> StudyNumbers | None:
        """One of them."""
        return next((one for one in self.studies() if one.study.id == study_id), None)

    def look(self) -> int:
        """Read what is new, unless that was done a moment ago. Returns the version. After a look that failed
        the next one opens the database again and reads all of it: it may be another one. Until then the fault
        stays. Raises StoreError."""
        with self._lock:
            now = self._clock()
            if self._looked_at is None or now - self._looked_at >= MIN_PAUSE_S:
                self._looked_at = now
                try:
                    self._look()
                    self._fault = None
                except StoreError as error:
                    self._fault = error
            if self._fault is not None:
                raise self._fault
            return self.version

    def _look(self) -> None:
        if self._fault is not None:
            self._follower.reopen()
            self._reset()
        latest = self._follower.newest()
        if not self._latest.studies <= latest.studies:  # one was deleted
            self._reset()
        if latest != self._latest:
            self._read(latest)
            self._latest, self.version = latest, self.version + 1

    def _reset(self) -> None:
        self._forget()
        self.version, self.epoch = self.version + 1, self.epoch + 1

    def _read(self, latest: Latest) -> None:
        for ref in self._follower.studies_after(self._latest.study):
            if not self._gemms or ref.gemm in self._gemms:
                self._refs[ref.id] = ref
        is_first = not self._trials and len(self._refs) > MOST_STUDIES
        is_reload = is_first or latest.trial - self._latest.trial > MOST_SHOWN
        changed = self._reload() if is_reload else self._read_trials()
        if latest.baseline != self._latest.baseline or latest.final != self._latest.final:
            changed |= self._read_finals()
        for study in changed:
            self._numbers.pop(study, None)

    def _reload(self) -> set[int]:
        """All studies, of which not all trials are kept if they are very many."""
        store = self._follower
        known = self._refs.keys() | self._left_out
        summaries = [s for s in store.studies() if s.study.id in known]
        self.part = shown_of(len(summaries))
        kept = {s.study.id: s.study for s in latest_of(summaries)}
        self._left_out, self._refs = known - kept.keys(), kept
        found = {s.study.id: s.num_trials for s in summaries if s.study.id in self._refs}
        self._num_all = sum(found.values())
        for study, num_trials in found.items():
            self._finals[study] = store.final(self._refs[study], self._max_error)
            self._load(study, num_trials)
        return set(found)

    def _load(self, study: int, num_trials: int) -> None:
        ref, final = self._refs[study], self._finals[study]
        records = read_records(self._follower, ref, num_trials, self._num_all, final, None, self._max_error)
        self._trials[study] = {trial.id: trial for trial in records.trials}
        self._totals[study] = records.totals

    def _read_trials(self) -> set[int]:
        """Studies with trials that were not known."""
        changed = set()
        for study, trial in self._follower.trials_after(max(0, self._latest.trial - OVERLAP)):
            if study in self._left_out and trial.id > self._latest.trial:
                return self._reload()  # it is among the newest now
            if study not in self._refs:
                continue
            known = self._trials.setdefault(study, {})
            if trial.id not in known and trial.id > self._totals[study].last_id:
                known[trial.id] = trial
                changed.add(study)
        return changed

    def _read_finals(self) -> set[int]:
        """Studies with another final, or another time of cuBLAS. A final may take back that a trial was ok:
        its study's trials are read again."""
        changed = set()
        store = self._follower
        for study, ref in self._refs.items():
            final, baseline = store.final(ref, self._max_error), store.baseline(ref)
            is_new = final != self._finals.get(study)
            self._finals[study], self._cublas_us[study] = final, baseline.time_us if baseline else None
            if is_new:
                totals, known = self._totals[study], self._trials.get(study, {})
                self._load(study, totals.num_trials + sum(trial > totals.last_id for trial in known))
            changed.add(study)
        return changed

    def _numbers_of(self, study: int) -> StudyNumbers:
        found = self._numbers.get(study)
        if found is None:
            ref, trials = self._refs[study], sorted(self._trials[study].items())
            limits = limits_by_name(ref.environment.gpu_name)
            found_us, own = self._cublas_us.get(study), [trial for _, trial in trials]
            final, totals = self._finals.get(study), self._totals[study]
            records = StudyRecords(ref, own, final, found_us, limits, self._max_error, totals)
            found = self._numbers[study] = StudyNumbers(records)
        return found


class RateLimited(Generic[T]):
    """Something that is computed from what has a version: again only if that has changed, and so seldom that
    it takes MOST_SHARE of the time at most."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._found: tuple[int, T] | None = None
        self._not_before = 0.0
        self._lock = RLock()

    def get(self, version: int, make: Callable[[], T]) -> T:
        """What `make` returns, or returned a little while ago."""
        with self._lock:
            started = self._clock()
            found = self._found
            if found is None or (found[0] != version and started >= self._not_before):
                found = self._found = version, make()
                took_s = self._clock() - started
                self._not_before = started + took_s / MOST_SHARE
            return found[1]
