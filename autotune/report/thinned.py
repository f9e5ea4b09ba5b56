"""Which of many trials pages show one by one, and what they count of all: in one pass that keeps few.

Shown are each n-th trial, those that were the best so far, the fastest, the newest of each failure and of
all. Of the others a page has the sums. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

from ..facts.measurement import Outcome
from ..store import TrialColumns

PAUSE_S = 60.0  # trials further apart were not made by one run: the time between is not counted
MOST_SHOWN = 12_000  # of all studies of a page: reading them takes seconds, and drawing them too
LEAST_SHOWN = 10  # of a study
_MOST_GROUPS = 100  # of failures, whose newest are shown
_PART_FASTEST = 8  # of what a study shows, one of so many is of its fastest
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

FailureKind = tuple[Outcome, str]  # reasons that differ in their numbers only are one kind


@lru_cache(maxsize=4096)
def failure_kind(outcome: str, reason: str) -> FailureKind:
    return Outcome(outcome), _NUMBER.sub("#", reason)


@dataclass(eq=False)
class Totals:
    """Sums over the trials of a study up to one; `elapsed_s` of those that are shown, by id."""

    last_id: int = -1
    num_ok: int = 0
    num_cut_short: int = 0
    compile_s: float = 0.0
    verify_s: float = 0.0
    measure_s: float = 0.0
    num_compiled: int = 0
    latest_at: datetime | None = None
    total_s: float = 0.0
    failures: Counter[FailureKind] = field(default_factory=Counter)
    elapsed_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def num_failed(self) -> int:
        return self.failures.total()

    @property
    def num_trials(self) -> int:
        return self.num_ok + self.num_failed


NO_TOTALS = Totals()  # where all trials are shown


def step_s(before: datetime | None, at: datetime, spent_s: float, *, is_recorded: bool) -> float:
    """Seconds of searching from the trial before. On a GPU these are the clock's, less the pauses. For a
    recording the clock would tell how fast it was replayed: there they are those of compiling, verifying and
    timing."""
    if is_recorded:
        return spent_s
    seconds = 0.0 if before is None else (at - before).total_seconds()
    return seconds if 0 < seconds <= PAUSE_S else 0.0


def share(num_trials: int, num_all: int) -> int:
    """How many trials of a study are shown, of so many on the page; all, if they are few."""
    if num_all <= MOST_SHOWN:
        return num_trials
    return min(num_trials, max(LEAST_SHOWN, num_trials * MOST_SHOWN // num_all))


def thin(
    trials: Iterable[TrialColumns],
    num_trials: int,
    most: int,
    *,
    is_recorded: bool,
    max_error: float | None,
    wanted: Sequence[int] = (),
) -> tuple[list[int], Totals]:
    """Ids of about `most` of these trials to show, and the sums of all. `wanted` are shown in any case."""
    totals, parts = Totals(), list[list[np.ndarray]]()
    latest, num = dict[FailureKind, int](), 0
    for part in trials:
        for place, failure in enumerate(part.failure, num):
            if failure is not None:
                kind = failure_kind(*failure.split(":", 1))
                totals.failures[kind] += 1
                latest[kind] = place
        figures = np.array((part.time_us, part.error_over_cublas, *part[5:8]), float)
        are_ok = np.array([failure is None for failure in part.failure])
        parts.append(
            [np.array(part.id), are_ok, np.array(part.is_cut_short, bool), part.created_at, *figures]
        )
        num += len(are_ok)
    if not num:
        return [], totals
    ids, is_ok, is_cut_short, at, times_us, errors, *steps = map(np.concatenate, zip(*parts, strict=True))
    totals.num_ok, totals.num_cut_short = int(is_ok.sum()), int((is_ok & is_cut_short).sum())
    totals.num_compiled = int((steps[0] > 0).sum())
    totals.compile_s, totals.verify_s, totals.measure_s = (float(np.cumsum(step)[-1]) for step in steps)
    is_accurate = is_ok if max_error is None else is_ok & ~(errors > max_error)
    own_us = np.where(is_accurate, times_us, np.inf)
    fastest = np.argsort(own_us, kind="stable")[: most // _PART_FASTEST + 1]
    shown: list[Any] = [
        np.arange(0, num, -(-num_trials // most)),
        np.flatnonzero(np.isin(ids, wanted)),
        np.flatnonzero(own_us < np.append(np.inf, np.minimum.accumulate(own_us)[:-1])),
        fastest[np.isfinite(own_us[fastest])],
        [latest[kind] for kind, _ in totals.failures.most_common(_MOST_GROUPS)],
        [num - 1],
    ]
    places = np.unique(np.concatenate(shown).astype(int))
    total_s = np.cumsum(np.sum(steps, axis=0) if is_recorded else _steps_s(at))
    totals.elapsed_s = dict(zip(ids[places].tolist(), total_s[places].tolist(), strict=True))
    totals.last_id, totals.total_s = int(ids[-1]), float(total_s[-1])
    totals.latest_at = at[-1].item().replace(tzinfo=UTC)
    return [*totals.elapsed_s], totals


def _steps_s(at: np.ndarray) -> np.ndarray:
    """As `step_s` counts them by the clock."""
    seconds = np.diff(at, prepend=at[:1]) / np.timedelta64(1, "s")
    return np.where((seconds > 0) & (seconds <= PAUSE_S), seconds, 0.0)
