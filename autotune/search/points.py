"""The points of one shape that this search tries, and what other searches of a shared study do.

However a point is chosen, it is claimed before it is submitted. One that another search is trying is *away*:
the model counts it as under way, and its result is taken in. Searches on the same GPU, or on the same
recording, work on one study: all its trials count, and they share its best. A search on another GPU of the
kind has its own study. A config that was slow or failed there is not tried here; one about as fast as the
best here is also tried here, since two GPUs of a model differ by a percent or two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..facts.stats import Patience
from ..kernel.config import Value
from ..kernel.feasible_set import FeasibleSet
from ..search_policy import SearchPolicy
from ..store import Claims, Known, NewTrials, Requested, StudyRef
from ..target import Point, point_key
from .findings import Findings
from .propose.origins import POLISH, REUSE, TRANSFER
from .propose.proposer import Proposal, Proposer, SpaceExhausted


@dataclass(frozen=True)
class Ask:
    """A point that is about to be submitted."""

    number: int
    origin: str
    point: dict[str, Value]
    key: str

    @property
    def is_reused(self) -> bool:
        """Whether its kernel was compiled before, and it waits for an idle moment of the target."""
        return self.origin == REUSE


@dataclass(eq=False)
class Points:
    """No point comes twice. Results of others go to the proposer and to the findings of the shape."""

    _claims: Claims
    _study: StudyRef
    _space: FeasibleSet
    _proposer: Proposer
    _findings: Findings
    _policy: SearchPolicy
    _open: dict[str, Ask] = field(default_factory=dict)  # by key: what this search is at
    _away: dict[str, Ask] = field(default_factory=dict)  # by key: what another search is at
    _num_polish_steps: int = 0
    is_polished: bool = False  # whether nothing was left to polish, by what was known then
    is_exhausted: bool = False

    # ---- choosing

    def ask(self, wanted: int = 1, before_each: Callable[[int], None] = lambda num_ahead: None) -> list[Ask]:
        """Up to this many points that no other search is trying, claimed together. Empty when all have been
        proposed; then the shape is exhausted, unless other searches are trying some. `before_each` may offer
        points; it receives the number of proposals that wait to be claimed."""
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
                self.is_exhausted = not self._away
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
            while steps := self._proposer.steps_from(leader, size, POLISH):
                if requests := self._claim(steps):
                    return requests
        # Unless a claim told of trials of other searches: one of these may be the best now.
        self.is_polished = self._findings.num_known == num_known
        return []

    def pick(self, codes: np.ndarray, size: int) -> list[Ask]:
        """The most promising of these points, whose kernels are compiled; codes (q, parameters)."""
        return self._claim(self._proposer.pick(codes, size, REUSE))

    def take(self, points: Iterable[Point]) -> list[Ask]:
        """All of these points, whose kernels are compiled, that are feasible here and new."""
        numbers = (self._space.find(point) for point in points)
        return self._claim(self._proposer.take((n for n in numbers if n is not None), REUSE))

    # ---- claiming

    def _claim(self, proposals: Sequence[Proposal]) -> list[Ask]:
        """Those of these points that this search may try. The others are away, or known."""
        points = [(self._space.point(proposal.number), proposal) for proposal in proposals]
        asks = {(key := point_key(point)): Ask(p.number, p.origin, point, key) for point, p in points}
        requested = {key: Requested(ask.point, ask.origin) for key, ask in asks.items()}
        claimed = self._claims.claim(
            self._study, requested, lambda key, found: self._is_settled(asks[key], found)
        )
        owned = {key: ask for key, ask in asks.items() if key in claimed.owned}
        for key in asks.keys() - owned.keys():
            if key in claimed.known:
                self._learn(asks[key], claimed.known[key])
            else:
                self._away[key] = asks[key]
        self._open |= owned
        return list(owned.values())

    def close(self, ask: Ask) -> None:
        """This search no longer tries this point."""
        del self._open[ask.key]

    def retry_away(self) -> None:
        """Take in the results of points that were away and that nobody tries any more. Those without a result
        are proposed next, but for what only idle moments were for: that may come again."""
        for key, found in self._claims.given_up(self._study, self._away).items() if self._away else ():
            ask = self._away.pop(key)
            if found is not None and self._is_settled(ask, found):
                self._learn(ask, found)
            elif ask.is_reused:
                self._proposer.forget(ask.number)
            else:
                self._proposer.ask_next(ask.number, ask.origin)

    def take_in(self, new_trials: Sequence[NewTrials]) -> None:
        """Learn from unknown trials of this study: those that are not open come from other searches."""
        not_requested = []
        for item in new_trials:
            self.is_polished = False
            if item.key in self._open:
                continue
            ask, number = self._away.pop(item.key, None), self._space.find(item.point)
            if ask is not None:
                self._proposer.tell(ask.number, item.time_us)
            elif number is not None:
                not_requested.append((number, item.time_us))
            self._findings.count(item.key, item.point, item.time_us, item.origin)
        if not_requested:
            self._proposer.load(not_requested)

    def _learn(self, ask: Ask, found: Known) -> None:
        """Take in another search's result of a point that was proposed here."""
        self._proposer.tell(ask.number, found.time_us)
        if found.is_here:
            self._findings.count(ask.key, ask.point, found.time_us, found.origin)

    def _is_settled(self, ask: Ask, found: Known) -> bool:
        """Whether what is known of a point makes a trial here unnecessary. The best of elsewhere, if it ran
        there, is tried here in any case."""
        if found.is_here or found.time_us is None:
            return True
        best_us = self._findings.cutoff_us
        limit_us = math.inf if best_us is None else (1 + self._policy.close) * best_us
        return ask.origin != TRANSFER and found.time_us > limit_us

    # ---- what is under way

    @property
    def num_open(self) -> int:
        """Points that are under way."""
        return len(self._open)

    @property
    def num_reused_open(self) -> int:
        """Of these, those whose kernels were compiled before."""
        return sum(ask.is_reused for ask in self._open.values())

    @property
    def is_waiting(self) -> bool:
        """Whether other searches have all remaining points: nothing can be proposed until they report."""
        return bool(self._away) and self._proposer.num_not_proposed == 0
