"""Several searches on one database: who tries what, and what the others found out.

Each point is claimed before it is submitted. A point that another search is at is *away*: the model counts it
as under way, and what comes of it is taken in. Searches on the same GPU, or on the same recording, work on
one study: all its trials count, and the best of them is everybody's. A search on another GPU of the kind has
a study of its own. What was slow or failed there is not tried here; what was about as fast as the best here
is tried here, too, since two GPUs of a kind differ by a percent or two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..kernel.config import Value
from ..kernel.feasible_set import FeasibleSet
from ..search_policy import SearchPolicy
from ..store import Claims, Known, News, StudyRef
from .propose.origins import TRANSFER
from .propose.proposer import Proposer

POLL_S = 1.0  # between two looks at what others did


@dataclass(frozen=True)
class Ask:
    """A point that is about to be submitted."""

    number: int
    origin: str
    point: dict[str, Value]
    key: str


class Counting(Protocol):
    """Whoever counts the trials of one shape."""

    @property
    def cutoff_us(self) -> float | None:
        """The best time so far; None while there is none."""
        ...

    def count(self, key: str, point: Mapping[str, Value], time_us: float | None) -> bool:
        """Take in a trial of this study; None for a failure."""
        ...


class SharedStudy:
    """One search's part in a study that others may work on, too."""

    def __init__(
        self, claims: Claims, study: StudyRef, space: FeasibleSet, proposer: Proposer, policy: SearchPolicy
    ) -> None:
        self._claims, self._study, self._space, self._proposer = claims, study, space, proposer
        self._policy = policy
        self._open: set[str] = set()  # keys of what this search is at
        self._away: dict[str, Ask] = {}  # by key: what another search is at
        self.known: set[str] = set()  # keys of all trials that were counted

    @property
    def away(self) -> set[str]:
        """Keys of the points that were asked for while another search was at them."""
        return set(self._away)

    def claim(self, asks: Sequence[Ask], shape: Counting) -> list[Ask]:
        """Those of these points that are this search's to try. The others are away, or known."""
        claimed = self._claims.claim(self._study, [ask.key for ask in asks])
        ours = []
        for ask in asks:
            found = claimed.known.get(ask.key)
            if found is not None and self._is_settled(ask, found, shape):
                self._learn(ask, found, shape)
            elif ask.key in claimed.ours:
                ours.append(ask)
            else:
                self._away[ask.key] = ask
        keys = {ask.key for ask in ours}
        self._claims.release(self._study, claimed.ours - keys)
        self._open |= keys
        return ours

    def close(self, ask: Ask) -> None:
        """This search is no longer at a point."""
        self._open.discard(ask.key)

    def claim_again(self, keys: Collection[str], shape: Counting) -> None:
        """Points that were away, and that nobody is at any more: learn what came of them. What nothing came
        of is asked for next."""
        claimed = self._claims.claim(self._study, keys)
        self._claims.release(self._study, claimed.ours)
        for key in claimed.ours | claimed.known.keys():
            ask, found = self._away.pop(key), claimed.known.get(key)
            if found is not None and self._is_settled(ask, found, shape):
                self._learn(ask, found, shape)
            else:
                self._proposer.forget(ask.number)
                self._proposer.offer(ask.number, ask.origin)

    def take_in(self, news: Sequence[News], shape: Counting) -> None:
        """Learn from trials of this study. Those that are not known were another search's."""
        unasked = []
        for item in news:
            if item.key in self.known or item.key in self._open:
                continue
            ask, number = self._away.pop(item.key, None), self._space.find(item.point)
            if ask is not None:
                self._proposer.tell(ask.number, item.time_us)
            elif number is not None:
                unasked.append((number, item.time_us))
            shape.count(item.key, item.point, item.time_us)
        if unasked:
            self._proposer.load(unasked)

    def _learn(self, ask: Ask, found: Known, shape: Counting) -> None:
        """Take in what another search found out of a point that was asked for."""
        self._proposer.tell(ask.number, found.time_us)
        if found.is_here:
            shape.count(ask.key, ask.point, found.time_us)

    def _is_settled(self, ask: Ask, found: Known, shape: Counting) -> bool:
        """Whether a point need not be tried here after what is known of it. What did best elsewhere is lent
        to be tried here, whatever is known."""
        if found.is_here or ask.origin == TRANSFER:
            return found.is_here
        best_us = shape.cutoff_us
        limit_us = math.inf if best_us is None else (1 + self._policy.close) * best_us
        return found.time_us is None or found.time_us > limit_us


class Sharer(Counting, Protocol):
    """One shape under search."""

    study: StudyRef
    shared: SharedStudy

    def borrow_from_twins(self) -> None:
        """Have the best of other GPUs of the kind tried here, once each."""
        ...


class Sharing:
    """Looks now and then at what other searches did. Used by one thread, the coordinator's."""

    def __init__(self, claims: Claims, clock: Callable[[], float] = time.monotonic) -> None:
        self._claims, self._clock = claims, clock
        self._newest = claims.newest()  # id of the newest trial that was looked at
        self._polled_s = clock()
        self._num_polls = 0

    def poll(self, shapes: Sequence[Sharer]) -> None:
        """Take in what other searches did since the last poll, unless that was just now."""
        if not shapes or self._clock() - self._polled_s < POLL_S:
            return
        self._num_polls += 1
        self._take_in_news(shapes)
        self._ask_for_what_is_away(shapes)
        shapes[self._num_polls % len(shapes)].borrow_from_twins()
        self._polled_s = self._clock()

    def _take_in_news(self, shapes: Sequence[Sharer]) -> None:
        news = self._claims.news([shape.study for shape in shapes], self._newest)
        for shape in shapes:
            shape.shared.take_in([item for item in news if item.study_id == shape.study.id], shape)
        self._newest = max([self._newest, *(item.trial_id for item in news)])

    def _ask_for_what_is_away(self, shapes: Sequence[Sharer]) -> None:
        waiting = {shape.study: shape for shape in shapes if shape.shared.away}
        held = self._claims.held_elsewhere(waiting)
        for study, shape in waiting.items():
            shape.shared.claim_again(shape.shared.away - held[study], shape)
