"""One search of a recorded space after another, in this process or several, without a store and a final.

A run remembers each improvement: after how many trials, after how many simulated seconds, and to what time.
"""

from __future__ import annotations

import bisect
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
from tpe_proposer import TpeProposer

from autotune import target_finder as targets
from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.kernel.feasible_set import FeasibleSet
from autotune.recording.recorded_space import cubin_key
from autotune.recording.replay import ReplayTarget
from autotune.search.propose.origins import SEED
from autotune.search.propose.proposer import Proposer, SpaceExhausted
from autotune.search.propose.samplers import DEFAULT_SAMPLER, SAMPLERS, make_proposer
from autotune.search.propose.seeds import seeds
from autotune.search.propose.traits import traits_of
from autotune.search.run.pipeline import num_to_submit
from autotune.search_policy import SearchPolicy
from autotune.shipped.starting_points import StartingPoints

YARDSTICKS = ("tpe-bare",)  # beside what a search may be told to use
RESAMPLES = 2000  # of the bootstrap


@dataclass(frozen=True)
class Job:
    """What to search, and how long: until so many trials, so many simulated seconds, or the optimum.

    `in_flight`: candidates under way while the next is decided on; 1 is to know every answer. `is_bare`:
    our sampler begins with nothing, not with the points that a search of our kernel begins with.
    """

    path: Path
    gemm: Gemm
    sampler: str
    seed: int
    trials: int
    seconds: float
    in_flight: int
    is_bare: bool


@dataclass(frozen=True)
class Run:
    """What came of a job. Improvements, and the state at the end, in the order of time."""

    job: Job
    optimum_us: float
    num_trials: list[int]
    seconds: list[float]
    best_us: list[float]
    ask_ms: float  # mean

    def percent_after_trials(self, count: int) -> float:
        """Of the optimum's speed, by the best of the first so many trials."""
        return self._percent(bisect.bisect_right(self.num_trials, count))

    def percent_after_seconds(self, seconds: float) -> float:
        """Of the optimum's speed, by the best that was known after so many simulated seconds."""
        return self._percent(bisect.bisect_right(self.seconds, seconds))

    def _percent(self, num_improvements: int) -> float:
        return 100 * self.optimum_us / self.best_us[num_improvements - 1] if num_improvements else 0.0


def _proposer(space: FeasibleSet, job: Job, limits: DeviceLimits) -> Proposer:
    """As a search makes it; or Optuna's TPE alone, as a yardstick."""
    if job.sampler in SAMPLERS:
        return make_proposer(space, job.sampler, job.seed, traits_of(space, job.gemm, limits))
    return TpeProposer(space, seed=job.seed)


@lru_cache(maxsize=2)
def _starts(limits: DeviceLimits) -> StartingPoints:
    return StartingPoints(targets.matrices(), limits)


@lru_cache(maxsize=2)
def _target(path: Path) -> ReplayTarget:
    return ReplayTarget(path)


def starting_numbers(
    space: FeasibleSet, gemm: Gemm, limits: DeviceLimits, most: int = SearchPolicy.num_seeds
) -> Iterator[int]:
    """The first points that a search of our kernel begins with, by what ships."""
    return islice(seeds(space, _starts(limits)(gemm)), most)


def search(job: Job) -> Run:
    """Search once."""
    target = _target(job.path)
    space, pipeline = target.space(job.gemm), target.pipeline()
    _, optimum_us = target.optimum(job.gemm)
    proposer = _proposer(space, job, target.limits)
    if job.sampler == DEFAULT_SAMPLER and not job.is_bare:
        for number in starting_numbers(space, job.gemm, target.limits):
            proposer.offer(number, SEED)
    run = Run(job, optimum_us, [], [], [], 0.0)
    under_way: dict[int, tuple[int, float | None]] = {}  # by number in the pipeline: point, time
    best_us, num_done, num_requested, asked_s = math.inf, 0, 0, 0.0
    while num_done < job.trials and pipeline.now_s < job.seconds and best_us > optimum_us:
        for wanted in range(num_to_submit(job.in_flight, len(under_way)), 0, -1):
            started_s = perf_counter()
            try:
                number = proposer.ask(wanted).number
            except SpaceExhausted:
                break
            asked_s += perf_counter() - started_s
            num_requested += 1
            point = space.point(number)
            found = target.look_up(job.gemm, point, best_us if math.isfinite(best_us) else None)
            run_s = found.verify_s + found.measure_s
            in_line = pipeline.submit(cubin_key(point, job.gemm), found.compile_s, run_s)
            under_way[in_line] = (number, found.time_us if found.is_ok else None)
        if not under_way:
            break
        number, time_us = under_way.pop(pipeline.finish_next())
        proposer.tell(number, time_us)
        num_done += 1
        if time_us is not None and time_us < best_us:
            best_us = time_us
            run.num_trials.append(num_done)
            run.seconds.append(pipeline.now_s)
            run.best_us.append(time_us)
    ask_ms = 1e3 * asked_s / max(num_requested, 1)
    return Run(job, optimum_us, run.num_trials, run.seconds, run.best_us, ask_ms)


def search_all(jobs: Sequence[Job], num_processes: int) -> Iterator[Run]:
    """The runs in the order of their jobs."""
    if num_processes == 1:
        yield from map(search, jobs)
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(search, jobs)


def command() -> str:
    """How this script was called, without the folders of this machine."""
    called = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *called])


def mean_interval(percents: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """The mean over spaces and seeds, and its interval by the percentile bootstrap; shape (spaces, seeds).

    Seeds are drawn with replacement within each space: what varies is the search, the spaces are given.
    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), 13.3.
    """
    rng = np.random.default_rng(0)
    picks = rng.integers(percents.shape[1], size=(RESAMPLES, *percents.shape))
    means = np.take_along_axis(percents[None], picks, axis=2).mean(axis=(1, 2))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(percents.mean()), float(low), float(high)
