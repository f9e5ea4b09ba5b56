"""One search's part in a study that others may share: which search tries what, and the results of the others.

Each point is claimed before it is submitted. A point that another search is trying is *away*: the model
counts it as under way, and its result is taken in. Searches on the same GPU, or on the same recording, work
on one study: all its trials count, and they share its best. A search on another GPU of the kind has its own
study. A config that was slow or failed there is not tried here; one about as fast as the best here is also
tried here, since two GPUs of a model differ by a percent or two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..kernel.config import Value
from ..kernel.feasible_set import FeasibleSet
from ..search_policy import SearchPolicy
from ..store import Claims, Known, NewTrials, Requested, StudyRef
from .findings import Findings
from .propose.origins import REUSE, TRANSFER
from .propose.proposer import Proposer


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


class SharedStudy:
    """Results of others go to the proposer and to the findings of the shape."""

    def __init__(
        self,
        claims: Claims,
        study: StudyRef,
        space: FeasibleSet,
        proposer: Proposer,
        findings: Findings,
        policy: SearchPolicy,
    ) -> None:
        self._claims, self._study, self._space = claims, study, space
        self._proposer, self._findings, self._policy = proposer, findings, policy
        self._open: dict[str, Ask] = {}  # by key: what this search is at
        self._away: dict[str, Ask] = {}  # by key: what another search is at

    @property
    def open(self) -> Collection[Ask]:
        """What this search is at."""
        return self._open.values()

    @property
    def away(self) -> set[str]:
        """Keys of the points that were proposed while another search was trying them."""
        return set(self._away)

    def claim(self, requests: Sequence[Ask]) -> list[Ask]:
        """Those of these points that this search may try. The others are away, or known."""
        asks = {ask.key: ask for ask in requests}
        claimed = self._claims.claim(
            self._study,
            {key: Requested(ask.point, ask.origin) for key, ask in asks.items()},
            lambda key, found: self._is_settled(asks[key], found),
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
        """Take in the results of points that were away and that nobody tries any more. Points without a
        result are proposed next."""
        for key, found in self._claims.given_up(self._study, self._away).items():
            ask = self._away.pop(key)
            if found is not None and self._is_settled(ask, found):
                self._learn(ask, found)
            else:
                self._retry(ask)

    def _retry(self, ask: Ask) -> None:
        """What another search gave up is proposed next; what only idle moments were for may come again."""
        if ask.is_reused:
            self._proposer.forget(ask.number)
        else:
            self._proposer.ask_next(ask.number, ask.origin)

    def take_in(self, new_trials: Sequence[NewTrials]) -> None:
        """Learn from unknown trials of this study: those that are not open come from other searches."""
        not_requested = []
        for item in new_trials:
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
        if ask.origin == TRANSFER:
            return False
        best_us = self._findings.cutoff_us
        limit_us = math.inf if best_us is None else (1 + self._policy.close) * best_us
        return found.time_us > limit_us
