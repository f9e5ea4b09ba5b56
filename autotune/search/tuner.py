"""The search: keeps the target busy with promising points, learns from each, chooses among the best.

    ask -> claim -> submit -> (compile, verify, time: the target's business) -> store -> tell -> ask ...

The same call on the same store goes on where the last one ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..files.errors import DeviceLost, EnvironmentProblem, UsageError
from ..kernel.feasible_set import FeasibleSet
from ..store import Claims, Store
from ..target import Preparing, Refining, Reusing, Target
from .compare.final import Finals
from .progress import Ledger, OnEvent, ShapeStarted, Stopping, StopReason, TrialDone, ignore
from .result import SearchResult, ShapeResult
from .run.interrupt import InterruptHandler
from .run.limits import Options
from .run.pipeline import Candidate, Pipeline
from .run.refine import ComparisonQueue
from .run.reuse import ReuseQueue
from .run.threads import one_thread, prompt_switching
from .same_code_trials import TakenOver, take_over
from .shape import ShapeSearch, study_of
from .sharing import Sharing


def tune(
    target: Target,
    store: Store,
    gemms: Sequence[Gemm],
    options: Options | None = None,
    on_event: OnEvent = ignore,
    interrupt_handler: InterruptHandler | None = None,
) -> SearchResult:
    """Search the best kernels for these shapes on a target.

    Called from the main thread, the first Ctrl-C, SIGTERM or SIGHUP ends it early: the candidate being timed
    is finished and stored, and a result is returned. The second Ctrl-C raises KeyboardInterrupt.
    `interrupt_handler`: entered by the caller, who goes by it too. Raises UsageError for invalid shapes or
    options, DeviceLost, EnvironmentProblem and StoreError; all measurements until then are stored.

    Until it returns, numpy's OpenBLAS takes one thread in this process, and threads of Python give way to
    each other sooner (threads.py)."""
    with (
        one_thread(),
        prompt_switching(),
        nullcontext(interrupt_handler) if interrupt_handler else InterruptHandler() as handler,
        store.claims(target.max_error) as claims,
    ):
        return Tuner(target, store, claims, gemms, options or Options(), on_event, handler).run()


class Tuner:
    """One run of a search. Use `tune`."""

    def __init__(
        self,
        target: Target,
        store: Store,
        claims: Claims,
        gemms: Sequence[Gemm],
        options: Options,
        on_event: OnEvent,
        interrupt_handler: InterruptHandler,
    ) -> None:
        if not gemms:
            raise UsageError("no shape to search; name at least one")
        self._target, self._store, self._options = target, store, options
        self._claims, self._sharing = claims, Sharing(claims, divides=self._options.part is not None)
        self._on_event, self._interrupt_handler = on_event, interrupt_handler
        self._shapes: list[ShapeSearch] = []
        gemms = tuple(dict.fromkeys(gemms))
        self._num_shapes = len(gemms)
        # Preparing a shape takes a while: threads do it ahead, while the first shapes are searched. One
        # thread would be late, four slow the search down (decision 0015). On a recording one thread does it,
        # in the order of the shapes, so that the search is reproducible.
        num_threads = 1 if target.environment.is_recorded else 2
        self._prepare_pool = ThreadPoolExecutor(num_threads, thread_name_prefix="shapes")
        self._prepared = {
            gemm: self._prepare_pool.submit(self._prepare, gemm) for gemm in gemms
        }  # of shapes not begun
        self._ledger, self._done_s = Ledger(), deque[float](maxlen=51)  # when the last few trials were done
        self._pipeline = Pipeline(target, self._ledger)
        self._comparison_queue = (
            ComparisonQueue(target, self._ledger, options.policy) if isinstance(target, Refining) else None
        )
        # Only if seconds are given: with a number of trials, each should be the most promising one.
        is_by_the_clock = options.seconds is not None and options.trials is None
        self._reuse_queue = (
            ReuseQueue(target, self._pipeline, options.policy, options.seed)
            if is_by_the_clock and isinstance(target, Reusing)
            else None
        )
        self._num_failed = 0
        self._started_s = target.now()
        self._prepared_before_s = self._prepared_s

    def run(self) -> SearchResult:
        try:
            reason = self._search()
            self._finish(reason)
        except (DeviceLost, EnvironmentProblem, KeyboardInterrupt):
            for kept in self._pipeline.stored_candidates():
                self._settle(kept)
            raise
        finally:
            self._prepare_pool.shutdown(cancel_futures=True)  # nobody uses the store after this
        self._ledger.search_s = self._elapsed_s
        self._ledger.problems_s = self._prepared_s - self._prepared_before_s
        with self._ledger.timing("final_s"):
            due = [shape for shape in self._shapes if shape.gemm not in self._options.without_final]
            should_stop, left_s = self._interrupt_handler.should_stop, self._budget_left_s
            policy, on_event = self._options.policy, self._on_event
            left_out = Finals(self._target, self._store, policy, on_event, should_stop, left_s).run(due)
        if self._interrupt_handler.is_requested:
            reason = StopReason.INTERRUPTED
        return SearchResult(
            shapes=tuple(ShapeResult.of(shape) for shape in self._shapes),
            not_started=tuple(self._prepared),
            without_final=tuple(left_out),
            reason=reason,
            num_new=self._num_new,
            elapsed_s=self._elapsed_s,
            ledger=self._ledger,
            signal=self._interrupt_handler.number,
        )

    def _start_ready(self) -> None:
        """Start one shape that is prepared; only one, so that the target has work again before the next. The
        search waits for the first; on a recording for all, so that it is reproducible."""
        if self._target.environment.is_recorded:
            ready = list(self._prepared)
        else:
            ready = [gemm for gemm, shape in self._prepared.items() if shape.done() or not self._shapes][:1]
        for gemm in ready:
            if not self._interrupt_handler.is_requested:
                self._start(gemm, self._prepared[gemm])
                del self._prepared[gemm]

    def _take_more(self) -> bool:
        """Have the shapes prepared that come to this process besides; whether there are any."""
        if self._options.part is None:
            return False
        num_ended = sum(self._options.why_enough(shape) is not None for shape in self._shapes)
        known = {*(shape.gemm for shape in self._shapes), *self._prepared}
        more = [g for g in self._options.part.more(len(known) - num_ended) if g not in known]
        self._prepared |= {gemm: self._prepare_pool.submit(self._prepare, gemm) for gemm in more}
        return bool(more)

    def _prepare(self, gemm: Gemm) -> ShapeSearch:
        """Enumerate the feasible set of a shape, read what is known of it, and time cuBLAS, for which a GPU
        must finish its current work; on its own thread, so that the search need not wait."""
        where = self._options.where.on(gemm, self._target.limits)
        space = self._target.space(gemm, where.order).where(where, gemm)
        taken_over = self._take_over(gemm, space)
        is_others = not space.is_autotune and space.on_tensor_cores is None  # as recorded
        return ShapeSearch(
            self._target, self._store, self._claims, gemm, space,
            starts=() if is_others or not self._options.policy.num_seeds else self._options.starts(gemm),
            sampler=self._options.sampler, seed=self._options.seed, policy=self._options.policy, where=where,
            taken_over=taken_over,
        )  # fmt: skip

    def _take_over(self, gemm: Gemm, space: FeasibleSet) -> TakenOver | None:
        """What an earlier compiler or kernel measured on machine code that is the same here."""
        share, seconds = self._options.same_code_share, self._options.seconds
        if not share:
            return None
        most_s = math.inf if seconds is None else share * seconds / self._num_shapes
        until_s = self._target.now() + most_s

        def is_over() -> bool:
            return self._interrupt_handler.is_requested or self._target.now() >= until_s

        study = study_of(self._store, self._target, gemm)
        return take_over(self._target, self._store, study, space, is_over=is_over)

    def _start(self, gemm: Gemm, prepared: Future[ShapeSearch]) -> None:
        with self._ledger.timing("prepare_s"):
            shape = prepared.result()
        self._shapes.append(shape)
        cublas_us, limit_us = shape.findings.baseline.time_us, shape.findings.limit_us
        known = (shape.space.num_points, shape.num_known, cublas_us, limit_us)
        self._on_event(ShapeStarted(gemm, shape.study, *known, shape.taken_over, shape.num_unfit))

    # ---- asking and learning

    def _search(self) -> StopReason:
        """Propose, submit and settle until there is a reason to stop; open points may be left over."""
        while True:
            self._start_ready()
            reason = self._top_up()
            is_idle = not self._pipeline.num_open
            if reason is not None and (reason.is_at_once or (is_idle and not self._take_more())):
                return reason
            for kept in self._pipeline.kept(self._others):
                self._settle(kept)
            with self._ledger.timing("ask_s"):
                if self._sharing.poll(self._shapes):
                    self._take_more()
            if self._comparison_queue is not None:
                self._comparison_queue.settle()
                self._comparison_queue.top_up(self._shapes)
            if self._reuse_queue is not None and self._reason_to_stop() is None:
                with self._ledger.timing("ask_s"):
                    self._reuse_queue.top_up(self._shapes)

    @property
    def _others(self) -> list[Future[Any]]:
        """The futures to wait for besides candidates."""
        shapes: list[Future[Any]] = [] if self._pipeline.num_open else list(self._prepared.values())
        return shapes + (self._comparison_queue.futures if self._comparison_queue is not None else [])

    def _top_up(self) -> StopReason | None:
        """Propose until the target has enough to do, or there is a reason to stop."""
        is_filling = self._pipeline.is_due
        while is_filling and self._pipeline.num_free:
            reason = self._reason_to_stop()
            if reason is not None:
                return reason
            enough = self._options.why_enough
            shapes = [s for s in self._shapes if enough(s) is None and not s.points.is_waiting]
            shape = min(shapes, key=self._options.weighted_share, default=None)  # who has had the least
            most = 0 if shape is None else self._most_for(shape)
            if shape is None or not most:
                return None  # the next shape is not ready, or another search has the last points
            self._submit(shape, int(min(most, self._options.num_left(shape))))
        return self._reason_to_stop()

    def _most_for(self, shape: ShapeSearch) -> int:
        """How many points to submit. With seconds, while others wait to begin, a shape has at most half of an
        even share: timing cuBLAS on these waits for the points on the GPU."""
        num_free, seconds = self._pipeline.num_free, self._options.seconds_to_search(self._shapes)
        if seconds is None or not self._prepared:
            return num_free
        share_s, num_requested = self._options.weighted_share(shape)
        has_enough = num_requested and (share_s == 0 or share_s >= seconds / (2 * self._num_shapes))
        return 0 if has_enough else self._pipeline.num_at_once

    def _submit(self, shape: ShapeSearch, num: int) -> None:
        """Submit this many points of a shape, planned together: proposing one costs hardly less."""
        is_patience_over = self._options.is_patience_over(shape)
        if is_patience_over or self._options.should_polish(self._shapes, self._elapsed_s):
            with self._ledger.timing("ask_s"):
                steps = shape.points.polish(num)
            for step in steps:
                self._pipeline.submit(shape, step)
            if steps or is_patience_over:
                return
        with self._ledger.timing("ask_s"):
            requests = shape.points.ask(num, partial(self._lend, shape))
        if not self._interrupt_handler.is_requested:
            for ask in requests:
                self._pipeline.submit(shape, ask)

    def _lend(self, shape: ShapeSearch, num_ahead: int) -> None:
        """From time to time let the shape try the best of another: less often the more it knows."""
        policy, num_requested = self._options.policy, shape.num_requested + num_ahead
        every = policy.lend_every * (1 + num_requested // policy.lend_less)
        if num_requested % every != every - 1:
            return
        is_served = self._reuse_queue is not None and self._reuse_queue.serves(shape)
        at = self._shapes.index(shape)  # suites list similar shapes next to each other: begin with the next
        for other in self._shapes[at + 1 :] + self._shapes[:at]:
            incumbent = other.findings.incumbent
            if incumbent is None or (is_served and shape.space.find(incumbent.point) is not None):
                continue  # in the second case idle seconds will try it
            if shape.lend(incumbent.key, incumbent.point):
                return

    def _settle(self, candidate: Candidate) -> None:
        """Learn from a candidate that was stored, then report it."""
        shape, ask, measurement = candidate.shape, candidate.ask, candidate.measurement
        is_best = shape.tell(ask, measurement)
        if self._reuse_queue is not None:
            self._reuse_queue.learn(candidate)
        self._ledger.add(measurement)
        self._done_s.append(self._target.now())
        self._num_failed += not measurement.is_ok
        told = TrialDone(
            gemm=shape.gemm,
            **picked(ask, "key point origin"),
            measurement=measurement,
            is_best=is_best,
            best=shape.findings.best,
            num_done=self._num_new,
            num_failed=self._num_failed,
            num_total=shape.findings.num_total,
            elapsed_s=self._elapsed_s,
            left_s=self._left_s(),
            trials_per_s=self._trials_per_s,
        )
        self._on_event(told)

    def _finish(self, reason: StopReason) -> None:
        """Drop the open points that are not being timed yet, and settle the others."""
        if self._pipeline.num_open:
            self._on_event(Stopping(reason, self._pipeline.num_open))
            self._pipeline.drop_waiting()
        while self._pipeline.num_open:
            for kept in self._pipeline.kept():
                self._settle(kept)
        if self._comparison_queue is not None:
            self._comparison_queue.stop()
        self._claims.release_all()  # the finals need none

    def _reason_to_stop(self) -> StopReason | None:
        if self._interrupt_handler.is_requested:
            return StopReason.INTERRUPTED
        if self._options.should_stop():
            return StopReason.STOPPED
        seconds = self._options.seconds_to_search(self._shapes)
        if seconds is not None and self._elapsed_s >= seconds:
            return StopReason.SECONDS
        reasons = [self._options.why_enough(shape) for shape in self._shapes]
        return None if self._prepared or None in reasons else reasons[-1]

    @property
    def _elapsed_s(self) -> float:
        return self._target.now() - self._started_s

    @property
    def _prepared_s(self) -> float:
        return self._target.prepared_s if isinstance(self._target, Preparing) else 0.0

    def _budget_left_s(self) -> float:
        """Of the seconds that were granted; below 0 once they are over."""
        seconds = self._options.seconds
        return math.inf if seconds is None else seconds - self._elapsed_s

    @property
    def _num_new(self) -> int:
        return sum(shape.time_usage.num_new for shape in self._shapes)

    @property
    def _trials_per_s(self) -> float:
        """As of late; 0 until two trials are done."""
        seconds = self._done_s[-1] - self._done_s[0] if self._done_s else 0.0
        return (len(self._done_s) - 1) / seconds if seconds > 0 else 0.0

    def _left_s(self) -> float | None:
        """Seconds until the search ends, if a limit was set and the rate is known."""
        left = []
        if self._options.seconds is not None:
            left.append(max(0.0, self._budget_left_s()))
        if self._options.trials is not None and self._trials_per_s > 0:
            missing = [max(0, self._options.trials - shape.findings.num_total) for shape in self._shapes]
            left.append(sum(missing) / self._trials_per_s)
        return min(left, default=None)
