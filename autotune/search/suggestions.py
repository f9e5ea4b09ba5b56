"""Points that a shape should try because of results elsewhere: seeds, and the best of other shapes, of other
GPUs of the kind, or under another driver. Each is offered once, and proposed before anything else."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ..kernel.feasible_set import FeasibleSet
from ..kernel.scaled_config import AnyConfig
from ..search_policy import SearchPolicy
from ..store import Store, StudyRef
from ..target import Point
from .propose import origins
from .propose.proposer import Proposer
from .propose.seeds import seeds


class Suggestions:
    """Those to one shape. `starts`: configs that are expected to do well here, most promising first."""

    def __init__(
        self,
        store: Store,
        study: StudyRef,
        space: FeasibleSet,
        proposer: Proposer,
        policy: SearchPolicy,
        starts: Iterable[AnyConfig],
        max_error: float | None,
    ) -> None:
        self._store, self._study, self._space = store, study, space
        self._proposer, self._policy, self._max_error = proposer, policy, max_error
        self._starts = starts
        self._lent: set[str] = set()  # keys

    def begin(self) -> None:
        """Line up the starting points of a search."""
        self.borrow_from_siblings()
        found = seeds(self._space, self._starts, self._study.gemm.k)
        for number in islice(found, self._policy.num_seeds):
            self._proposer.offer(number, origins.SEED)
        self.borrow_from_similar()

    def borrow_from_similar(self) -> None:
        """Try the best of the most similar shapes here: each only once."""
        num_lenders = self._policy.num_lenders
        similar = self._store.similar_studies(self._study, num_lenders)
        self._borrow(similar, -(-self._policy.num_loans // max(1, num_lenders)))

    def line_up(self, points: Iterable[Point]) -> None:
        """Try what somebody lined up, as far as it is feasible here."""
        for point in points:
            if (number := self._space.find(point)) is not None:
                self._proposer.offer(number, origins.ENQUEUED)

    def borrow_from_siblings(self) -> None:
        """Try the best of other GPUs of the kind, or under another driver, here: each only once."""
        sibling_studies = self._store.sibling_studies(self._study)[::-1][: self._policy.num_lenders]
        self._borrow(reversed(sibling_studies), self._policy.num_loans)

    def _borrow(self, studies: Iterable[StudyRef], loans: int) -> None:
        for study in studies:
            for trial in self._store.best(study, loans, self._max_error):
                self.lend(trial.key, trial.point)

    def lend(self, key: str, point: Point) -> bool:
        """Try the best config of another shape here, or its nearest relative; each only once. Returns whether
        that gave something new to try."""
        if key in self._lent or point.keys() != set(self._space.names):
            return False
        self._lent.add(key)
        return self._proposer.offer(self._proposer.nearest(point), origins.TRANSFER)
