"""What other searches on the database did, read from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..store import Claims
from .shape import ShapeSearch

POLL_S = 1.0  # between two reads


class Sharing:
    """Used by one thread, the coordinator's."""

    def __init__(
        self, claims: Claims, clock: Callable[[], float] = time.monotonic, *, divides: bool = False
    ) -> None:
        """`divides`: others search shapes of the same run, and lend their best as long as it goes on."""
        self._claims, self._clock, self._divides = claims, clock, divides
        self._latest = claims.latest()  # id of the newest trial that was read
        self._polled_s = clock()
        self._num_polls = 0

    def poll(self, shapes: Sequence[ShapeSearch]) -> bool:
        """Take in what other searches did since the last poll, unless that was just now; whether it did."""
        if not shapes or self._clock() - self._polled_s < POLL_S:
            return False
        self._num_polls += 1
        self._take_in_new_trials(shapes)
        for shape in shapes:
            shape.points.retry_away()
        waiting = self._claims.waiting(shape.study for shape in shapes)
        for shape in shapes:
            shape.line_up(point for study_id, point in waiting if study_id == shape.study.id)
        borrower = shapes[self._num_polls % len(shapes)]
        borrower.borrow_from_siblings()
        if self._divides:
            borrower.borrow_from_similar()
        self._polled_s = self._clock()
        return True

    def _take_in_new_trials(self, shapes: Sequence[ShapeSearch]) -> None:
        latest = self._claims.latest()
        new_trials = self._claims.new_trials({s.study.id: s.findings.known for s in shapes}, self._latest)
        for shape in shapes:
            shape.points.take_in([item for item in new_trials if item.study_id == shape.study.id])
        self._latest = latest
