"""The points of one shape that this search tries: proposed, then claimed, so that no other search tries
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..facts.stats import Patience
from ..kernel.feasible_set import FeasibleSet
from ..search_policy import SearchPolicy
from ..target import Point, point_key
from .findings import Findings
from .propose import origins
from .propose.proposer import Proposal, Proposer, SpaceExhausted
from .shared_study import Ask, SharedStudy


class Points:
    """However a point is chosen, it comes as a proposal and is claimed here. No point comes twice."""

    def __init__(
        self,
        space: FeasibleSet,
        proposer: Proposer,
        shared: SharedStudy,
        findings: Findings,
        policy: SearchPolicy,
    ) -> None:
        self._space, self._proposer, self._shared = space, proposer, shared
        self._findings, self._policy = findings, policy
        self._num_polish_steps = 0
        self.is_polished = False  # whether nothing was left to polish, by what was known then
        self.is_exhausted = False

    def ask(self, wanted: int = 1, before_each: Callable[[int], None] = lambda num_ahead: None) -> list[Ask]:
        """Up to this many points that no other search is trying, claimed together: each claim is a
        transaction. Empty when all have been proposed; then the shape is exhausted, unless other searches are
        trying some. `before_each` may offer points; it receives the number of proposals that wait to be
        claimed."""
        requests: list[Ask] = []
        while len(requests) < wanted and (proposals := self._propose(wanted - len(requests), before_each)):
            requests += self._claim(proposals)
        return requests

    def _propose(self, wanted: int, before_each: Callable[[int], None]) -> list[Proposal]:
        proposals: list[Proposal] = []
        try:
            while len(proposals) < wanted:
                before_each(len(proposals))
                proposals.append(self._proposer.ask(wanted - len(proposals)))
        except SpaceExhausted:
            if not proposals:
                self.is_exhausted = not self._shared.away
        return proposals

    def polish(self, size: int) -> list[Ask]:
        """Untried steps, at most this many: alternately from the best point and from the best of each tile
        that is as good. The best point is mostly also the best of its tile, and then counts twice."""
        incumbent = self._findings.incumbent
        number = None if incumbent is None else self._space.find(incumbent.point)
        most = self._policy.num_climbed
        as_good = [] if number is None else [number, *self._proposer.region_bests(Patience.gain, most)]
        self._num_polish_steps += 1
        num_known = self._findings.num_known
        for at in range(len(as_good)):
            leader = as_good[(self._num_polish_steps + at) % len(as_good)]
            while steps := self._proposer.steps_from(leader, size, origins.POLISH):
                if requests := self._claim(steps):
                    return requests
        # Unless a claim told of trials of other searches: one of these may be the best now.
        self.is_polished = self._findings.num_known == num_known
        return []

    def on_result(self) -> None:
        """A result came, or a comparison corrected one: other points may be the best now, and have steps."""
        self.is_polished = False

    def pick(self, codes: np.ndarray, size: int) -> list[Ask]:
        """The most promising of these points, whose kernels are compiled; codes (q, parameters)."""
        return self._claim(self._proposer.pick(codes, size, origins.REUSE))

    def take(self, points: Iterable[Point]) -> list[Ask]:
        """All of these points, whose kernels are compiled, that are feasible here and new."""
        numbers = (self._space.find(point) for point in points)
        return self._claim(self._proposer.take((n for n in numbers if n is not None), origins.REUSE))

    def _claim(self, proposals: Sequence[Proposal]) -> list[Ask]:
        """Those of these points that no other search is trying or has tried."""
        return self._shared.claim([self._ask_of(proposal) for proposal in proposals])

    def _ask_of(self, proposal: Proposal) -> Ask:
        point = self._space.point(proposal.number)
        return Ask(proposal.number, proposal.origin, point, point_key(point))

    @property
    def num_open(self) -> int:
        """Points that are under way."""
        return len(self._shared.open)

    @property
    def num_reused_open(self) -> int:
        """Of these, those whose kernels were compiled before."""
        return sum(ask.is_reused for ask in self._shared.open)

    @property
    def is_waiting(self) -> bool:
        """Whether other searches have all remaining points: nothing can be proposed until they report."""
        return bool(self._shared.away) and self._proposer.num_not_proposed == 0
