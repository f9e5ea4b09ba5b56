"""The finals of a search: each shape's best trials timed again (final.py), told and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...facts.measurement import Failure, Outcome
from ...search_policy import SearchPolicy
from ...store import Store, TrialRecord
from ...target import Target
from ..progress import FinalDone, FinalStarted, OnEvent
from ..shape import ShapeSearch
from . import final


class Finals:
    """`should_stop` is called before each final and after each look; `seconds_left` are the granted
    seconds, None for no limit: finals share them, and skip what they have no time for."""

    def __init__(
        self,
        target: Target,
        store: Store,
        policy: SearchPolicy,
        on_event: OnEvent,
        should_stop: Callable[[], bool],
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._target, self._store, self._policy = target, store, policy
        self._on_event, self._should_stop, self._seconds_left = on_event, should_stop, seconds_left

    def run(self, shapes: Sequence[ShapeSearch]) -> None:
        """Re-rank the best trials of each shape, in a process that ran no other candidate."""
        due = [(shape, best) for shape in shapes if (best := self._finalists(shape))]
        if due and not self._should_stop():
            self._target.renew()
        for number, (shape, finalists) in enumerate(due):
            if not self._should_stop():
                self._run(shape, finalists, self._has_seconds(1 / (len(due) - number)))

    def _has_seconds(self, share: float) -> Callable[[float], bool]:
        """Whether the final that begins now has this many seconds left of its share of the remaining ones."""
        left_s = self._seconds_left()
        if left_s is None:
            return lambda seconds: True
        end_s = left_s * (1 - share)

        def has_seconds(seconds: float) -> bool:
            now_s = self._seconds_left()
            assert now_s is not None
            return now_s - seconds >= max(0.0, end_s)

        return has_seconds

    def _finalists(self, shape: ShapeSearch) -> list[TrialRecord]:
        """The best trials; none if nothing is new since the last one, and that chose what obeys the
        conditions of this run."""
        best = shape.findings.finalists(self._policy.num_finalists)
        last = self._store.final(shape.study, shape.findings.max_error)
        known: set[str] = set()
        if last is not None and shape.findings.is_decided and shape.time_usage.num_new == 0:
            known = {entry.key for entry in last.entries}
        return [] if best and best[0].key in known else best

    def _run(
        self, shape: ShapeSearch, finalists: list[TrialRecord], has_seconds: Callable[[float], bool]
    ) -> None:
        self._on_event(FinalStarted(shape.gemm, len(finalists)))
        race = final.race(
            self._target,
            shape.gemm,
            finalists,
            self._policy,
            self._should_stop,
            lambda trial, failure: self._invalidate(shape, trial, failure),
            has_seconds,
        )
        if race is None:
            return
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
