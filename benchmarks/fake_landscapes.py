"""Searches of landscapes as large as real ones, which two searches on a GPU showed: for values of the policy.

    pip install scikit-learn
    python benchmarks/fake_landscapes.py FIRST.db SECOND.db [--shapes 8] [--seeds 5] [--trials 100,200,400]
        [--policy FILE.toml ...] [--first-seed 0] [--jobs 2]

A landscape is of one shape that each database has: the mean of 24 extremely random trees, fitted to the
logarithms of the times of all configs that any of them tried on it. It gives a time to every config that is
feasible. The shapes are the first of those whose best kernel takes more than 30 us. A search has 22 points
under way, begins with the seeds that ship, and is told times with a deviation of 0.3 %.

For the policy as it is and for each FILE, printed are the percents of the best that any of these searches
found of the landscape: mean, its 95 % interval (bootstrap over seeds) and the worst, after so many trials;
and the milliseconds of asking per trial. Trees are flat between what was timed and know nothing that was not,
so this tells which of two policies is worse, rather than how good a search is. Source of the trees:
P. Geurts, D. Ernst, L. Wehenkel, Extremely randomized trees, Machine Learning 63 (2006).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: searches run side by side

import argparse
import importlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
import reports
from replay_runs import mean_interval, starting_numbers

from autotune.cli import common, console
from autotune.facts.device import DeviceLimits, known_limits
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.kernel.config import Value
from autotune.kernel.feasible_set import FeasibleSet, feasible_set
from autotune.search.propose.candidates import Candidates
from autotune.search.propose.origins import SEED
from autotune.search.propose.proposer import Proposer
from autotune.search.propose.traits import traits_of
from autotune.search.run.pipeline import num_to_submit
from autotune.search_policy import SearchPolicy
from autotune.store import Store, StudyRef

NUM_TREES = 24
SLOWEST = 1.0  # logarithm of how many times the best time a landscape shows at most
UNDER_WAY = 22  # with 16 threads that compile
NOISE = 0.003
LEAST_US = 30.0
Timed = dict[Gemm, list[tuple[Mapping[str, Value], float]]]  # configs and their times in us, by shape


@dataclass(frozen=True)
class Landscape:
    """Of one shape. Trees: children to the left and right (-1: a leaf), features, thresholds, values."""

    gemm: Gemm
    starts: list[int]
    trees: list[tuple[list[int], list[int], list[int], list[float], list[float]]]

    def log_time(self, features: Sequence[float]) -> float:
        total = 0.0
        for left, right, feature, threshold, value in self.trees:
            at = 0
            while left[at] != -1:
                at = left[at] if features[feature[at]] <= threshold[at] else right[at]
            total += value[at]
        return total / len(self.trees)


@dataclass(frozen=True)
class FakeSearch:
    """A search of a landscape until so many trials."""

    landscape: Landscape
    limits: DeviceLimits
    policy: SearchPolicy
    seed: int
    marks: tuple[int, ...]


def read(paths: Sequence[str]) -> tuple[DeviceLimits, list[Timed]]:
    """What each database timed, and the GPU model that all of them are of. Raises UsageError."""
    found, names = [], []
    for path in paths:
        with common.open_existing(path) as store:
            environments = store.environments()
            if not environments:
                raise UsageError(f"{path} holds no kernel that ran; name a database of a search on a GPU")
            names.append(environments[0].gpu_name)
            studies = store.latest_studies(environments[0], CachePolicy.COLD)
            found.append({study.gemm: list(_timed(store, study)) for study in studies})
    if len(set(names)) > 1:
        raise UsageError(f"the databases are of {' and '.join(sorted(set(names)))}; name those of one kind")
    return known_limits(names[0]), found


def _timed(store: Store, study: StudyRef) -> Iterator[tuple[Mapping[str, Value], float]]:
    for trial in store.trials(study):
        if trial.measurement.is_ok and trial.measurement.time_us is not None:
            yield trial.point, trial.measurement.time_us


def timed_points(found: Sequence[Timed], limits: DeviceLimits) -> dict[Gemm, dict[int, float]]:
    """Of each shape that all databases have: the least time of each point, in us."""
    times: dict[Gemm, dict[int, float]] = {}
    for gemm in (gemm for gemm in found[0] if all(gemm in other for other in found)):
        trials = [pair for one in found for pair in one[gemm]]
        if not trials or min(time_us for _, time_us in trials) < LEAST_US:
            continue
        numbers = _space(limits, gemm).find_all([point for point, _ in trials])
        times[gemm] = {}
        for number, (_, time_us) in zip(numbers, trials, strict=True):
            if number is not None:
                times[gemm][number] = min(time_us, times[gemm].get(number, math.inf))
    return times


def landscape(gemm: Gemm, times_us: dict[int, float], limits: DeviceLimits, num_starts: int) -> Landscape:
    """Fit the trees, and look for so many starting points. Raises EnvironmentProblem without scikit-learn."""
    try:
        forest = importlib.import_module("sklearn.ensemble").ExtraTreesRegressor
    except ImportError as error:
        raise EnvironmentProblem(
            f"landscapes need scikit-learn ({error}); run pip install scikit-learn"
        ) from error
    space = _space(limits, gemm)
    candidates = Candidates(space, traits_of(space, gemm, limits))
    logs = np.log(list(times_us.values()))
    x = candidates.features(np.array(list(times_us), dtype=np.int64))
    fitted = forest(NUM_TREES, random_state=0).fit(x, np.minimum(logs, logs.min() + SLOWEST))
    trees = [
        (t.children_left.tolist(), t.children_right.tolist(), t.feature.tolist(), t.threshold.tolist(),
         t.value[:, 0, 0].tolist())
        for t in (one.tree_ for one in fitted.estimators_)
    ]  # fmt: skip
    return Landscape(gemm, list(starting_numbers(space, gemm, limits, num_starts)), trees)


def search(job: FakeSearch) -> tuple[list[float], float]:
    """The logarithm of the best time after so many trials each, and milliseconds of asking per trial."""
    gemm, limits = job.landscape.gemm, job.limits
    space = _space(limits, gemm)
    traits = traits_of(space, gemm, limits)
    candidates = Candidates(space, traits)
    proposer = Proposer(space, seed=job.seed, traits=traits, policy=job.policy)
    for number in job.landscape.starts[: job.policy.num_seeds]:
        proposer.offer(number, SEED)
    rng = np.random.default_rng([job.seed, 1])
    under_way: deque[int] = deque()
    best, found, asked_s = math.inf, [], 0.0
    for num_done in range(1, max(job.marks) + 1):
        started_s = perf_counter()
        for wanted in range(num_to_submit(UNDER_WAY, len(under_way)), 0, -1):
            under_way.append(proposer.ask(wanted).number)
        asked_s += perf_counter() - started_s
        number = under_way.popleft()
        log_time = job.landscape.log_time(candidates.features(np.array([number]))[0].tolist())
        proposer.tell(number, math.exp(log_time + NOISE * rng.standard_normal()))
        best = min(best, log_time)
        if num_done in job.marks:
            found.append(best)
    return found, 1e3 * asked_s / max(job.marks)


@lru_cache(maxsize=2)
def _space(limits: DeviceLimits, gemm: Gemm) -> FeasibleSet:
    return feasible_set(limits, gemm)


def _row(name: str, percents: np.ndarray, ask_ms: float) -> list[str]:
    """percents: (shapes, seeds, marks)."""
    cells = []
    for at in range(percents.shape[2]):
        mean, low, high = mean_interval(percents[:, :, at])
        cells.append(f"{mean:.2f} [{low:.2f} {high:.2f}] {percents[:, :, at].min():.1f}")
    return [name, *cells, f"{ask_ms:.2f}"]


def _run(args: argparse.Namespace) -> None:
    marks = tuple(sorted(int(mark) for mark in args.trials.split(",")))
    policies = {"as it is": SearchPolicy()} | {path.stem: SearchPolicy.read(path) for path in args.policy}
    limits, found = read(args.databases)
    times = timed_points(found, limits)
    chosen = list(times)[: args.shapes]
    if not chosen:
        raise UsageError(f"no shape of {' and '.join(args.databases)} takes more than {LEAST_US:g} us")
    num_starts = max(policy.num_seeds for policy in policies.values())
    landscapes = [landscape(gemm, times[gemm], limits, num_starts) for gemm in chosen]
    drawn = range(args.first_seed, args.first_seed + args.seeds)
    jobs = [
        FakeSearch(one, limits, policy, seed, marks)
        for one in landscapes
        for policy in policies.values()
        for seed in drawn
    ]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        done = list(pool.map(search, jobs))
    shape = (len(landscapes), len(policies), len(drawn))
    logs = np.array([found for found, _ in done]).reshape(*shape, len(marks))
    percents = 100 * np.exp(logs.min(axis=(1, 2, 3), keepdims=True) - logs)
    ask_ms = np.array([ms for _, ms in done]).reshape(shape).mean(axis=(0, 2))
    console.show(f"{len(chosen)} shapes: {', '.join(map(str, chosen))}")
    rows = [_row(name, percents[:, at], ask_ms[at]) for at, name in enumerate(policies)]
    headers = ["policy", *(f"after {mark}" for mark in marks), "ask ms"]
    console.show("\n".join(reports.table(headers, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("databases", nargs="+", metavar="DB", help="of searches of the same shapes")
    parser.add_argument("--shapes", type=int, default=8, help="at most so many")
    parser.add_argument("--seeds", type=int, default=5, help="searches of each landscape by each policy")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", default="100,200,400", help="after how many the best is told")
    parser.add_argument("--policy", type=Path, action="append", default=[], help="values that differ (TOML)")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
