"""Work for the GPU while no candidate is ready: comparisons that decide which kernel is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from ...facts import stats
from ...search_policy import SearchPolicy
from ...target import Refining, Rounds
from ..compare.ranking import PairComparison
from ..progress import Ledger
from ..shape import ShapeSearch


@dataclass(frozen=True)
class _Batch:
    """Rounds of a comparison that are under way."""

    shape: ShapeSearch
    comparison: PairComparison
    rounds: int


class ComparisonQueue:
    """Keeps a few comparisons queued after the candidates. Used by one thread, the coordinator's."""

    def __init__(self, target: Refining, ledger: Ledger, policy: SearchPolicy) -> None:
        self._target, self._ledger, self._policy = target, ledger, policy
        self._most_rounds = (1 + stats.min_rounds(policy.duel_error)) // 2
        self._open: dict[Future[Rounds], _Batch] = {}
        self._spent_s: dict[ShapeSearch, float] = {}
        self._round_s: dict[ShapeSearch, float] = {}  # seconds of the GPU per round, as of late
        self._num_batches = 0

    @property
    def futures(self) -> list[Future[Rounds]]:
        """The comparisons under way: done when `settle` has something to learn."""
        return list(self._open)

    def top_up(self, shapes: Sequence[ShapeSearch]) -> None:
        """Queue comparisons, first of the shapes whose comparisons have had the fewest GPU seconds."""
        while len(self._open) * self._policy.batch_s < self._policy.ahead_s:
            under_way = [batch.comparison for batch in self._open.values()]
            ordered = sorted(shapes, key=lambda s: self._spent_s.get(s, 0.0))
            due = ((shape, shape.findings.ranking.next_comparison(under_way)) for shape in ordered)
            shape, comparison = next((one for one in due if one[1] is not None), (None, None))
            if shape is None or comparison is None:
                return
            first, second = comparison.pair
            self._num_batches += 1
            batch = _Batch(shape, comparison, self._rounds(shape))
            pair = (first.point, second.point)
            future = self._target.compare_pair(shape.gemm, pair, batch.rounds, self._num_batches)
            self._open[future] = batch

    def _rounds(self, shape: ShapeSearch) -> int:
        """As many as fit in `batch_s`, and too few to decide: each batch loads both kernels again, and a load
        may make one slower (decision 0064). One if the time of a round is unknown."""
        round_s = self._round_s.get(shape, self._policy.batch_s)
        return max(1, min(self._most_rounds, int(self._policy.batch_s / round_s)))

    def settle(self) -> None:
        """Learn from the comparisons that are done. Raises what the target raised."""
        for future in [future for future in self._open if future.done()]:
            batch = self._open.pop(future)
            if not future.cancelled():
                self._learn(batch, future.result())

    def _learn(self, batch: _Batch, found: Rounds) -> None:
        shape, comparison = batch.shape, batch.comparison
        first_us, second_us = found.samples_us
        if not first_us or not second_us:  # wrong, or it killed the worker: earlier results are suspect
            shape.findings.ranking.is_closed = True
            return
        self._ledger.refine_s += found.seconds
        self._spent_s[shape] = self._spent_s.get(shape, 0.0) + found.seconds
        self._round_s[shape] = found.seconds / batch.rounds
        shape.refine(comparison, first_us, second_us)

    def stop(self) -> None:
        """Drop queued comparisons and learn from those under way. Undecided comparisons are forgotten."""
        for future in self._open:
            future.cancel()
        wait(self._open)
        self.settle()
