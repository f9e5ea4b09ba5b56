"""The finals of a search: each shape's best trials timed again (final.py), told and stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...facts.gemm import Gemm
from ...facts.measurement import Failure, Outcome
from ...search_policy import SearchPolicy
from ...store import Store, TrialRecord
from ...target import Target
from ..progress import FinalDone, FinalStarted, OnEvent
from ..shape import ShapeSearch
from . import final


class Finals:
    """`should_stop` is called before each final and after each look; `seconds_left` are the granted
    seconds, infinite for no limit. Finals share them in proportion to what they take by the trials of each
    shape, and by how much longer the finals before took: they have fewer finalists, or are left out."""

    def __init__(
        self,
        target: Target,
        store: Store,
        policy: SearchPolicy,
        on_event: OnEvent,
        should_stop: Callable[[], bool],
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._target, self._store, self._policy = target, store, policy
        self._on_event, self._should_stop, self._seconds_left = on_event, should_stop, seconds_left
        self._expected_s = self._taken_s = policy.renew_s  # of first looks, at first by the worker's start

    def run(self, shapes: Sequence[ShapeSearch]) -> list[Gemm]:
        """Re-rank the best trials of each shape, in a process that ran no other candidate where there is time
        to start one. Returns the shapes whose finals are left out, as there is no time."""
        due = [(shape, best) for shape in shapes if (best := self._finalists(shape))]
        looks_s = [self._look_s(shape, len(best)) for shape, best in due]
        left_out: list[Gemm] = []
        fewest_s = sum(self._look_s(shape, _fewest(len(best))) for shape, best in due)
        is_time = self._seconds_left() >= self._policy.renew_s + fewest_s
        if due and not self._should_stop() and (is_time or self._target.environment.is_recorded):
            self._target.renew()
        for number, (shape, finalists) in enumerate(due):
            if self._should_stop():
                break
            share = looks_s[number] / sum(looks_s[number:])
            num = self._num_affordable(shape, len(finalists), share)
            if num:
                left_s = self._seconds_left()
                self._run(shape, finalists[:num], left_s * (1 - share) if math.isfinite(left_s) else 0.0)
            else:
                left_out.append(shape.gemm)
        return left_out

    def _look_s(self, shape: ShapeSearch, num: int) -> float:
        return final.look_s(shape.time_usage, num, self._policy)

    def _num_affordable(self, shape: ShapeSearch, num: int, share: float) -> int:
        """How many finalists a first look may have in this share of the seconds that are left, or the fewest
        that can be compared if these seconds suffice for them, else 0."""
        left_s = self._seconds_left() * self._expected_s / self._taken_s
        least = _fewest(num)
        if self._look_s(shape, least) > left_s:
            return 0
        fewer = range(num, least, -1)
        return next((some for some in fewer if self._look_s(shape, some) <= share * left_s), least)

    def _finalists(self, shape: ShapeSearch) -> list[TrialRecord]:
        """The best trials; none if nothing is new since the last one, and that chose what obeys the
        conditions of this run."""
        best = shape.findings.finalists(self._policy.num_finalists)
        last = self._store.final(shape.study, shape.findings.max_error)
        known: set[str] = set()
        if last is not None and shape.findings.is_decided and shape.time_usage.num_new == 0:
            known = {entry.key for entry in last.entries}
        return [] if best and best[0].key in known else best

    def _run(self, shape: ShapeSearch, finalists: list[TrialRecord], kept_s: float) -> None:
        """One final; `kept_s` seconds are for the next ones."""
        self._on_event(FinalStarted(shape.gemm, len(finalists)))
        race = final.race(
            self._target,
            shape.gemm,
            finalists,
            self._policy,
            self._should_stop,
            lambda trial, failure: self._invalidate(shape, trial, failure),
            lambda: self._seconds_left() - kept_s,
        )
        if race is None:
            return
        self._expected_s += self._look_s(shape, len(finalists))
        self._taken_s += race.look_s
        if self._target.environment.is_recorded:
            race = final.as_recorded(race, finalists, shape.findings.baseline)
        self._store.set_final(shape.study, race.entries, race.baseline, race.marks)
        if (best := shape.findings.verdict) is not None:
            self._on_event(FinalDone(shape.gemm, best, race.num_tied))

    def _invalidate(self, shape: ShapeSearch, trial: TrialRecord, failure: Failure) -> None:
        """A finalist failed that was ok: it is never a finalist again, unless there was only too little
        memory for all."""
        if failure.outcome is not Outcome.OUT_OF_MEMORY:
            self._store.invalidate(shape.study, trial.key, failure)


def _fewest(num: int) -> int:
    """Of so many finalists, how many a final needs: one alone would be compared with nobody."""
    return min(2, num)
