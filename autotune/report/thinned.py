"""Which of many trials pages show one by one, and what they count of all: in one pass that keeps few.

Shown are each n-th trial, those that were the best so far, the fastest, the newest of each failure and of
all. Of the others a page has the sums. Pure."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from ..facts.measurement import Outcome, is_accurate
from ..store import CurvePoint

PAUSE_S = 60.0  # trials further apart were not made by one run: the time between is not counted
MOST_SHOWN = 12_000  # of all studies of a page: reading them takes seconds, and drawing them too
LEAST_SHOWN = 10  # of a study
_MOST_GROUPS = 100  # of failures, whose newest are shown
_PART_FASTEST = 8  # of what a study shows, one of so many is of its fastest
_OK = Outcome.OK.value
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
    trials: Iterable[CurvePoint],
    num_trials: int,
    most: int,
    *,
    is_recorded: bool,
    max_error: float | None,
    wanted: Sequence[int] = (),
) -> tuple[list[int], Totals]:
    """Ids of about `most` of these trials to show, and the sums of all. `wanted` are shown in any case."""
    totals, elapsed_s, best_us, before = Totals(), dict[int, float](), math.inf, None
    every, num_fastest, known = -(-num_trials // most), most // _PART_FASTEST + 1, set(wanted)
    fastest: list[tuple[float, int, float]] = []  # a heap: the slowest of them first
    latest: dict[FailureKind, tuple[int, float]] = {}
    num_ok = num_cut_short = num_compiled = 0
    all_compile_s = all_verify_s = all_measure_s = total_s = 0.0
    for number, one in enumerate(trials):
        trial, outcome, reason, time_us, error, is_cut_short, compile_s, verify_s, measure_s, at = one
        all_compile_s += compile_s
        all_verify_s += verify_s
        all_measure_s += measure_s
        num_compiled += compile_s > 0
        total_s += step_s(before, at, compile_s + verify_s + measure_s, is_recorded=is_recorded)
        before = at
        is_shown = number % every == 0 or trial in known
        if outcome == _OK:
            num_ok += 1
            num_cut_short += is_cut_short
            if is_accurate(error, max_error):
                is_shown |= time_us < best_us
                best_us = min(best_us, time_us)
                if len(fastest) < num_fastest:
                    heapq.heappush(fastest, (-time_us, trial, total_s))
                elif -time_us > fastest[0][0]:
                    heapq.heapreplace(fastest, (-time_us, trial, total_s))
        else:
            kind = failure_kind(outcome, reason)
            totals.failures[kind] += 1
            latest[kind] = trial, total_s
        if is_shown:
            elapsed_s[trial] = total_s
        totals.last_id = trial
    totals.num_ok, totals.num_cut_short, totals.num_compiled = num_ok, num_cut_short, num_compiled
    totals.compile_s, totals.verify_s, totals.measure_s = all_compile_s, all_verify_s, all_measure_s
    totals.total_s = total_s
    elapsed_s |= {trial: seconds for _, trial, seconds in fastest}
    elapsed_s |= dict(latest[kind] for kind, _ in totals.failures.most_common(_MOST_GROUPS))
    elapsed_s |= {totals.last_id: totals.total_s} if before else {}
    totals.elapsed_s, totals.latest_at = elapsed_s, before and before.replace(tzinfo=UTC)
    return sorted(elapsed_s), totals
