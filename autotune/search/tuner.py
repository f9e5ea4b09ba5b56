"""The search: keeps the target busy with points worth trying, stores what comes of each, re-ranks the best.

    ask -> submit -> (compile, verify, time: the target's business) -> store -> tell -> ask ...

A trial is committed by the thread that measured it, before that measures the next and before anything
else learns of it: a search that dies loses what was under way and nothing else, however long the
coordinator was busy asking. The same call on the same store goes on where the last one ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..errors import DeviceLost, EnvironmentProblem, UsageError
from ..gemm import Gemm
from ..measurement import Measurement
from ..space import FeasibleSet
from ..stats import Patience
from ..store import Final, Store, StudyRef, TrialRecord
from ..target import Target
from . import final
from .asker import DEFAULT_SAMPLER
from .interrupt import Interrupts
from .progress import (
    Best,
    FinalDone,
    FinalStarted,
    Ledger,
    OnEvent,
    Rate,
    ShapeStarted,
    Stopping,
    TrialDone,
    ignore,
)
from .shape import Ask, ShapeSearch

_POLL_S = 0.2  # how soon Ctrl-C is noticed while a candidate takes long
_LEND_EVERY = 4  # asks of a shape between two points that another shape's best suggests
_FINAL_SHARE = 0.1  # of the seconds granted, kept for the final
_FINAL_MOST_S = 4.0  # per shape


class StopReason(StrEnum):
    """Why a search asked for no more points."""

    TRIALS = "trials"  # as many as were asked for
    SECONDS = "seconds"
    PATIENCE = "patience"  # nothing better is likely
    EXHAUSTED = "exhausted"  # every feasible point was tried
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Options:
    """How to search, and for how long.

    `trials` counts per shape, trials of earlier runs included: the same command, interrupted and run
    again, ends with as many. `seconds` counts this run on the target's clock, the final included,
    shared out fairly between shapes. With neither, each shape ends when nothing better is likely.
    """

    sampler: str = DEFAULT_SAMPLER
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    num_finalists: int = final.NUM_FINALISTS
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class ShapeResult:
    """What is known of a shape at the end, earlier runs included."""

    gemm: Gemm
    study: StudyRef
    best: TrialRecord | None  # fastest trial; None if every one failed
    final: Final | None  # the newest re-rank: its winner is the kernel to use
    cublas_us: float | None
    limit_us: float
    num_trials: int
    num_new: int
    num_failed: int


@dataclass(frozen=True)
class Result:
    """What a run came to. `is_interrupted`: the same command resumes it."""

    shapes: tuple[ShapeResult, ...]
    reason: StopReason
    num_new: int
    num_duplicates: int  # measured here, but stored by another search on this database first
    elapsed_s: float  # on the target's clock
    ledger: Ledger

    @property
    def is_interrupted(self) -> bool:
        return self.reason is StopReason.INTERRUPTED


def tune(
    target: Target,
    store: Store,
    gemms: Sequence[Gemm],
    options: Options | None = None,
    on_event: OnEvent = ignore,
) -> Result:
    """Search the best kernels for these shapes on a target.

    Called from the main thread, the first Ctrl-C ends it early: no more asking, the candidate being
    timed is finished and stored, and a result is returned; the second raises KeyboardInterrupt.
    Raises UsageError for shapes or options that cannot be, DeviceLost, EnvironmentProblem and
    StoreError; all that was measured until then is stored.
    """
    with Interrupts() as interrupts:
        return Tuner(target, store, gemms, options or Options(), on_event, interrupts).run()


@dataclass(frozen=True)
class Candidate:
    """A point under way; `measured` is the target's answer to it."""

    shape: ShapeSearch
    ask: Ask
    measured: Future[Measurement]


@dataclass(frozen=True)
class Kept:
    """What came of a candidate. `is_new`: no other search on this database was faster to store it."""

    measurement: Measurement
    is_new: bool


class Tuner:
    """One run of a search. Use `tune`."""

    def __init__(
        self,
        target: Target,
        store: Store,
        gemms: Sequence[Gemm],
        options: Options,
        on_event: OnEvent,
        interrupts: Interrupts,
    ) -> None:
        _check(gemms, options)
        self._target, self._store, self._options = target, store, options
        self._on_event, self._interrupts = on_event, interrupts
        self._shapes: list[ShapeSearch] = []
        # Enumerating a space takes seconds: one thread does it ahead, while the first shapes are searched.
        self._enumerating = ThreadPoolExecutor(1, thread_name_prefix="spaces")
        self._spaces = deque(
            (gemm, self._enumerating.submit(target.space, gemm)) for gemm in dict.fromkeys(gemms)
        )
        self._open: dict[Future[Kept], Candidate] = {}  # in order of submission
        self._ledger, self._rate = Ledger(), Rate()
        self._num_failed = self._num_duplicates = 0
        self._began_s = target.now()

    def run(self) -> Result:
        try:
            reason = self._search()
            self._finish()
        except (DeviceLost, EnvironmentProblem, KeyboardInterrupt):
            self._salvage()
            raise
        finally:
            self._enumerating.shutdown(wait=False, cancel_futures=True)
        with self._ledger.timing("final_s"):
            for shape in self._shapes:
                if not self._interrupts.is_requested:
                    self._final(shape)
        if self._interrupts.is_requested:
            reason = StopReason.INTERRUPTED
        return Result(
            shapes=tuple(self._result(shape) for shape in self._shapes),
            reason=reason,
            num_new=self._num_new,
            num_duplicates=self._num_duplicates,
            elapsed_s=self._elapsed_s,
            ledger=self._ledger,
        )

    def _start_ready(self) -> None:
        """Start the shapes whose spaces are enumerated. The first is waited for; on a recording all are,
        so that the same search goes the same way."""
        is_first = not self._shapes
        while self._spaces and not self._interrupts.is_requested:
            gemm, future = self._spaces[0]
            if not (future.done() or is_first or self._target.environment.is_recorded):
                return
            self._start(gemm, future)
            self._spaces.popleft()
            is_first = False

    def _start(self, gemm: Gemm, space: Future[FeasibleSet]) -> None:
        with self._ledger.timing("prepare_s"):
            sampler, seed = self._options.sampler, self._options.seed
            shape = ShapeSearch(
                self._target, self._store, gemm, space.result(), sampler=sampler, seed=seed
            )
        self._shapes.append(shape)
        cublas_us = shape.baseline.time_us
        self._on_event(ShapeStarted(gemm, len(shape.space), shape.num_known, cublas_us, shape.limit_us))

    # ---- the pipeline

    def _search(self) -> StopReason:
        """Ask, submit and settle until there is a reason to stop; open points may be left over."""
        while True:
            self._start_ready()
            while len(self._open) < self._target.capacity:
                reason = self._reason_to_stop()
                if reason is not None and (not self._open or reason in _AT_ONCE):
                    return reason
                if reason is not None or not self._submit_next():
                    break
            if (future := self._wait()) is not None:
                self._settle(future)
            if self._interrupts.is_requested:
                return StopReason.INTERRUPTED

    def _submit_next(self) -> bool:
        """Ask for a point of the shape that has had the least of the target's time, and submit it."""
        shapes = [shape for shape in self._shapes if self._why_enough(shape) is None]
        shape = min(shapes, key=lambda s: (s.expected_spent_s, s.num_new + s.num_open), default=None)
        if shape is None:
            return False
        with self._ledger.timing("ask_s"):
            self._lend(shape)
            ask = shape.ask()
        if ask is not None:
            measured = self._target.submit(shape.gemm, ask.point, shape.cutoff_us)
            candidate, kept = Candidate(shape, ask, measured), Future[Kept]()
            self._open[kept] = candidate
            measured.add_done_callback(lambda _: self._keep(candidate, kept))
        return True

    def _keep(self, candidate: Candidate, kept: Future[Kept]) -> None:
        """Store what came of a candidate, on the thread that measured it."""
        if candidate.measured.cancelled():
            kept.cancel()
            return
        try:
            measurement = candidate.measured.result()
            with self._ledger.timing("store_s"):
                is_new = candidate.shape.keep(candidate.ask, measurement)
        except BaseException as error:  # raised where the candidate is settled
            kept.set_exception(error)
        else:
            kept.set_result(Kept(measurement, is_new))

    def _lend(self, shape: ShapeSearch) -> None:
        """Now and then, have the shape try what does best for another."""
        if (shape.num_new + shape.num_open) % _LEND_EVERY == _LEND_EVERY - 1:
            at = self._shapes.index(shape)  # suites list alike shapes side by side: begin with the next
            for other in self._shapes[at + 1 :] + self._shapes[:at]:
                key, point = other.best_key, other.best_point
                if key is not None and point is not None and shape.lend(key, point):
                    return

    def _wait(self) -> Future[Kept] | None:
        """The candidate that was submitted first among those that are done; None after a while, or when
        none is open and the next space is ready."""
        awaited: list[Future[Any]] = list(self._open) or [future for _, future in self._spaces]
        with self._ledger.timing("wait_s"):
            done, _ = wait(awaited, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        return next((future for future in self._open if future in done), None)

    def _settle(self, future: Future[Kept]) -> None:
        """Learn from a candidate that was stored, then tell of it."""
        candidate = self._open.pop(future)
        shape, ask = candidate.shape, candidate.ask
        kept = future.result()
        measurement = kept.measurement
        self._num_duplicates += not kept.is_new
        is_best = shape.tell(ask, measurement)
        self._ledger.add(measurement)
        self._rate.add(self._target.now())
        self._num_failed += not measurement.is_ok
        self._on_event(self._trial_done(shape, ask, measurement, is_best))

    def _finish(self) -> None:
        """Drop the open points that nobody has begun to time, and settle the others."""
        if not self._open:
            return
        reason = "interrupted" if self._interrupts.is_requested else "done"
        self._on_event(Stopping(reason, len(self._open)))
        for future, candidate in list(self._open.items()):
            if candidate.measured.cancel():
                candidate.shape.drop(candidate.ask)
                del self._open[future]
        while self._open:
            if (done := self._wait()) is not None:
                self._settle(done)

    def _salvage(self) -> None:
        """The target is lost or the search was ended at once: keep what was measured before."""
        for future in list(self._open):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._settle(future)

    # ---- when to stop

    def _reason_to_stop(self) -> StopReason | None:
        if self._interrupts.is_requested:
            return StopReason.INTERRUPTED
        if self._options.seconds is not None and self._elapsed_s >= self._seconds_to_search:
            return StopReason.SECONDS
        reasons = [self._why_enough(shape) for shape in self._shapes]
        return None if self._spaces or None in reasons else reasons[-1]

    def _why_enough(self, shape: ShapeSearch) -> StopReason | None:
        """Why no more points of this shape are to be asked for now, or None."""
        options = self._options
        if shape.is_exhausted:
            return StopReason.EXHAUSTED
        if options.trials is not None and shape.num_total + shape.num_open >= options.trials:
            return StopReason.TRIALS
        is_patient = options.trials is None and options.seconds is None
        if is_patient and options.patience.is_over(shape.times_us):
            return StopReason.PATIENCE
        return None

    @property
    def _seconds_to_search(self) -> float:
        seconds = self._options.seconds or 0.0
        return seconds - min(_FINAL_SHARE * seconds, _FINAL_MOST_S * len(self._shapes))

    @property
    def _elapsed_s(self) -> float:
        return self._target.now() - self._began_s

    # ---- the final

    def _final(self, shape: ShapeSearch) -> None:
        """Re-rank the best trials, unless nothing is new since they last were."""
        if shape.num_new == 0 and self._store.final(shape.study) is not None:
            return
        finalists = self._store.best(shape.study, self._options.num_finalists)
        if not finalists:
            return
        self._on_event(FinalStarted(shape.gemm, len(finalists)))
        race = final.race(self._target, shape.gemm, finalists, lambda: self._interrupts.is_requested)
        if race is None:
            return
        self._store.set_final(shape.study, race.entries, race.baseline)
        winner = race.entries[0]
        best = Best(winner.point, winner.time_us, race.baseline.time_us, shape.limit_us)
        self._on_event(FinalDone(shape.gemm, best, race.num_tied))

    # ---- what is told

    @property
    def _num_new(self) -> int:
        return sum(shape.num_new for shape in self._shapes)

    def _left_s(self) -> float | None:
        """Seconds until the search ends, if a limit was set and there is a rate to go by."""
        left = []
        if self._options.seconds is not None:
            left.append(max(0.0, self._options.seconds - self._elapsed_s))
        if self._options.trials is not None and self._rate.per_s > 0:
            missing = [max(0, self._options.trials - shape.num_total) for shape in self._shapes]
            left.append(sum(missing) / self._rate.per_s)
        return min(left, default=None)

    def _trial_done(
        self, shape: ShapeSearch, ask: Ask, measurement: Measurement, is_best: bool
    ) -> TrialDone:
        return TrialDone(
            gemm=shape.gemm,
            key=ask.key,
            point=ask.point,
            origin=ask.origin,
            measurement=measurement,
            is_best=is_best,
            best=shape.best,
            num_done=self._num_new,
            num_failed=self._num_failed,
            num_total=shape.num_total,
            elapsed_s=self._elapsed_s,
            left_s=self._left_s(),
            trials_per_s=self._rate.per_s,
        )

    def _result(self, shape: ShapeSearch) -> ShapeResult:
        best = self._store.best(shape.study)
        return ShapeResult(
            gemm=shape.gemm,
            study=shape.study,
            best=best[0] if best else None,
            final=self._store.final(shape.study),
            cublas_us=shape.baseline.time_us,
            limit_us=shape.limit_us,
            num_trials=shape.num_total,
            num_new=shape.num_new,
            num_failed=shape.num_failed,
        )


_AT_ONCE = (StopReason.INTERRUPTED, StopReason.SECONDS)  # these do not wait for open points


def _check(gemms: Sequence[Gemm], options: Options) -> None:
    if not gemms:
        raise UsageError("no shape to search; name at least one")
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials {options.trials}: at least 1")
    if options.seconds is not None and not options.seconds > 0:
        raise UsageError(f"--seconds {options.seconds}: more than 0")
