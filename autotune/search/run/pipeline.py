"""Points under way on a target, from submission until they are stored.

The thread on which the target settles a trial also commits it, in the order of settling, before anything
else learns of it and before the next is settled. A GPU has its own thread for this (`gpu.gpu_queue`). While
that thread commits one trial, the GPU finishes the next and goes on with the one after it, and no other. So a
search that dies loses at most

- one measurement that came in, the one that is being committed,
- one that waits for that commit,
- and what the GPU is on, whose measurement nobody asks for before that commit is through,

however long the coordinator was busy asking. A recording settles at once, on the coordinator's thread, and
continues when the trial is committed: it can lose only that one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from ...facts.measurement import Measurement
from ...target import Reusing, Target
from ..points import Ask
from ..progress import Ledger
from ..shape import ShapeSearch

_POLL_S = 0.2  # how soon Ctrl-C is noticed during a long candidate
_AT_ONCE = 5  # this part of the target's places is filled at once: asked for together, points cost less each


def num_to_submit(capacity: int, num_taken: int) -> int:
    """How many of a target's places to fill now: none before a part of them is free, then all that are."""
    num_free = capacity - num_taken
    return num_free if num_free >= _num_at_once(capacity) else 0


def _num_at_once(capacity: int) -> int:
    return max(1, capacity // _AT_ONCE)


@dataclass(frozen=True)
class Candidate:
    """A point under way; `measured` is the target's answer to it."""

    shape: ShapeSearch
    ask: Ask
    measured: Future[Measurement]

    @property
    def measurement(self) -> Measurement:
        """Of one that is done."""
        return self.measured.result()


class Pipeline:
    """At most as many candidates as keep the target busy. Used by one thread, the coordinator's."""

    def __init__(self, target: Target, ledger: Ledger) -> None:
        self._target, self._ledger = target, ledger
        self._open: dict[Future[Candidate], Candidate] = {}  # in order of submission

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_free(self) -> int:
        """How many more candidates keep the target's compiler busy."""
        return max(0, self._target.capacity - self._num_taken)

    @property
    def num_at_once(self) -> int:
        """The least number of candidates that are submitted together, if so many are wanted."""
        return min(self.num_free, _num_at_once(self._target.capacity))

    @property
    def is_due(self) -> bool:
        """Whether it is time to submit candidates, until no place is free."""
        return num_to_submit(self._target.capacity, self._num_taken) > 0

    @property
    def _num_taken(self) -> int:
        return len(self._open) - len(self.reused)

    @property
    def reused(self) -> list[Candidate]:
        """Those that wait for an idle moment, with kernels that were compiled before."""
        return [candidate for candidate in self._open.values() if candidate.ask.is_reused]

    def submit(self, shape: ShapeSearch, ask: Ask) -> None:
        """A point whose kernel was compiled before waits for an idle moment."""
        idle = self._target if ask.is_reused and isinstance(self._target, Reusing) else None
        submit = self._target.submit if idle is None else idle.submit_compiled
        candidate = Candidate(shape, ask, submit(shape.gemm, ask.point, shape.findings.cutoff_us))
        kept = Future[Candidate]()
        self._open[kept] = candidate
        candidate.measured.add_done_callback(lambda _: self._keep(candidate, kept))

    def _keep(self, candidate: Candidate, kept: Future[Candidate]) -> None:
        """Store the result of a candidate, on the thread that settles it."""
        if candidate.measured.cancelled():
            kept.cancel()
            return
        try:
            measurement = candidate.measurement
            with self._ledger.timing("store_s"):
                candidate.shape.keep(candidate.ask, measurement)
        except BaseException as error:  # raised where the candidate is settled
            kept.set_exception(error)
        else:
            kept.set_result(candidate)

    def kept(self, others: Sequence[Future[Any]] = ()) -> Iterator[Candidate]:
        """Wait a while for a candidate or one of `others`; returns all candidates that are stored by then, in
        order of submission. Raises what the target or the store did."""
        waiting: list[Future[Any]] = [*self._open, *others]
        with self._ledger.timing("wait_s"):
            if waiting:
                wait(waiting, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            else:
                time.sleep(_POLL_S)
        for future in [future for future in self._open if future.done()]:
            del self._open[future]
            yield future.result()

    def drop_waiting(self) -> None:
        """Drop the candidates that are not being timed yet."""
        for future, candidate in list(self._open.items()):
            if candidate.measured.cancel():
                candidate.shape.points.close(candidate.ask)
                del self._open[future]

    def stored_candidates(self) -> Iterator[Candidate]:
        """The candidates stored before the target was lost or the search was ended at once. Does not wait."""
        for future in list(self._open):
            if future.done() and not future.cancelled() and future.exception() is None:
                del self._open[future]
                yield future.result()
