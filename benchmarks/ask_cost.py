"""The cost of proposing: searches shapes on a simulated GPU.

    python benchmarks/ask_cost.py [--suite studies/suites/dev.toml] [--trials 300] [--gpu h200]
        [--drawn 120] [--known 150] [--trials-drawn 150] [--profile 40] [--trial-ms 12]

Two searches: one of a suite from nothing, and one of shapes that are drawn at random, each of which begins
with known results, as `autotune search --any` begins with times of kernels found elsewhere.
`--drawn 0` leaves the second out, `--trials 0` the first.

All points that are under way are answered at once, so that as many are asked for together; with `--trial-ms`
one after the other, each after that long, as on a GPU whose compilers are fast.

Every shape has its whole feasible set and an artificial landscape of times: limits, and a bowl in each
parameter, the same for equal arguments. Nothing is compiled or timed. Prints the milliseconds per trial that
the coordinator spends on proposing, and on everything else except storing and waiting. `--profile N` also
prints the N functions that take longest.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import reports

from autotune.cli import console
from autotune.facts.device import Environment, known_limits
from autotune.facts.distribution import drawn_suite
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.kernel import feasible_set
from autotune.kernel.config import PARAMETERS
from autotune.kernel.summation_order import SummationOrder
from autotune.search import Options, tune
from autotune.search.propose.origins import FILL
from autotune.search.shape import study_of
from autotune.store import Store
from autotune.target import Baseline, Point, Rounds, point_key

CAPACITY = 22  # of 16 threads that compile
SEED = 1  # of the shapes that are drawn, and of what is known of each


class SimulatedTarget:
    """Answers at once. Times are the same in every run."""

    def __init__(self, gpu: str, trial_s: float = 0.0) -> None:
        self.limits = known_limits(gpu)
        self.environment = Environment(self.limits.name, "played", (9, 0), "0", "13.0", "13.0", "", "")
        self.policy, self.source_hash = CachePolicy.COLD, "played"
        self.max_error: float | None = None
        self.capacity = CAPACITY
        self._slopes: dict[Gemm, np.ndarray] = {}
        self._spaces: dict[Gemm, feasible_set.FeasibleSet] = {}
        self._trial_s = trial_s
        self._gpu = ThreadPoolExecutor(1)

    def space(self, gemm: Gemm, order: SummationOrder | None = None) -> feasible_set.FeasibleSet:
        if gemm not in self._spaces:
            self._spaces[gemm] = feasible_set.feasible_set(self.limits, gemm)
        return self._spaces[gemm]

    def baseline(self, gemm: Gemm) -> Baseline:
        return Baseline(None)

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        if self._trial_s:
            return self._gpu.submit(self._measured_slowly, gemm, point)
        done = Future[Measurement]()
        done.set_result(self.measured(gemm, point))
        return done

    def _measured_slowly(self, gemm: Gemm, point: Point) -> Measurement:
        time.sleep(self._trial_s)
        return self.measured(gemm, point)

    def measured(self, gemm: Gemm, point: Point) -> Measurement:
        time_us = self._time_us(gemm, point)
        samples = (time_us * 1.001, time_us, time_us * 0.999)
        return Measurement(Outcome.OK, time_us=time_us, samples_us=samples, measure_s=0.01)

    def compare(self, gemm: Gemm, points: Sequence[Point], rounds: int) -> Rounds:
        return Rounds(tuple((self._time_us(gemm, p),) * rounds for p in points), Baseline(None))

    def joules(self, gemm: Gemm, points: Sequence[Point]) -> tuple[float | None, ...]:
        return (None,) * len(points)

    def renew(self) -> None:
        pass

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._gpu.shutdown()

    def _time_us(self, gemm: Gemm, point: Point) -> float:
        if gemm not in self._slopes:
            rng = np.random.default_rng([gemm.m, gemm.n, gemm.k])
            self._slopes[gemm] = rng.random((len(PARAMETERS), 2))
        off = 0.0
        for (best, slope), parameter in zip(self._slopes[gemm], PARAMETERS, strict=True):
            place = parameter.values.index(point[parameter.name]) / max(1, len(parameter.values) - 1)
            off += 0.5 * slope * (place - best) ** 2
        return gemm.limit_us(self.limits.fma_tflops, self.limits.bandwidth_gbs) * float(np.exp(off))


def _know(target: SimulatedTarget, store: Store, gemm: Gemm, num: int) -> None:
    """Store this many results of a shape, as if kernels of other shapes had been timed on it."""
    space = target.space(gemm)
    numbers = np.random.default_rng([SEED, gemm.m, gemm.n, gemm.k]).integers(len(space), size=num)
    points = [space.point(int(number)) for number in numbers]
    trials = {point_key(point): (point, target.measured(gemm, point)) for point in points}
    store.add_trials(study_of(store, target, gemm), trials, FILL)


def _search(args: argparse.Namespace, gemms: Sequence[Gemm], known: int, trials: int) -> None:
    """Search these shapes, and print the cost."""
    profile = cProfile.Profile() if args.profile else nullcontext()
    target = SimulatedTarget(args.gpu, 1e-3 * args.trial_ms)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "played.db") as store:
        for gemm in gemms if known else ():
            _know(target, store, gemm, known)
        started_s = time.perf_counter()
        with profile:
            result = tune(target, store, gemms, Options(trials=trials))
        all_s = time.perf_counter() - started_s
    ledger, num = result.ledger, result.num_new
    store_s = 0.0 if args.trial_ms else ledger.store_s  # else another thread stores meanwhile
    other_s = ledger.search_s - ledger.ask_s - store_s - ledger.wait_s - ledger.prepare_s
    console.show(
        f"{len(gemms)} shapes, {known} known results each, {num} trials, {all_s:.1f} s; each, in ms: "
        f"ask {1e3 * ledger.ask_s / num:.2f}, tell and the rest {1e3 * other_s / num:.2f}, "
        f"store {1e3 * ledger.store_s / num:.2f}; begin a shape {1e3 * ledger.prepare_s / len(gemms):.0f}"
    )
    if isinstance(profile, cProfile.Profile):
        pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)


def _run(args: argparse.Namespace) -> None:
    if args.trials:
        _search(args, reports.named_shapes((), args.suite), 0, args.trials)
    if args.drawn:
        limits = known_limits(args.gpu)
        gemms = drawn_suite(args.drawn, SEED, limits.fma_tflops, limits.bandwidth_gbs)
        _search(args, gemms, args.known, args.trials_drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, default=Path("studies/suites/dev.toml"))
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--drawn", type=int, default=120, help="shapes that are drawn")
    parser.add_argument("--known", type=int, default=150, help="results of each that are known")
    parser.add_argument("--trials-drawn", type=int, default=150, help="trials of each")
    parser.add_argument("--trial-ms", type=float, default=0.0, help="after which one trial is answered")
    parser.add_argument("--profile", type=int, default=0)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
