"""What it costs to propose: a suite is searched on a GPU that is played, and answers at once.

    python benchmarks/ask_cost.py [--suite studies/suites/dev.toml] [--trials 300] [--gpu h200] [--profile 40]

Every shape has its whole feasible set and a landscape of times that is made up: limits, and a bowl in each
parameter, the same for equal arguments. Nothing is compiled or timed. Told are the milliseconds per trial
that the coordinator spends on asking, and on all else but storing and waiting. `--profile N` prints the N
functions that take longest instead.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import reports

from autotune.cli import common, console
from autotune.device import Environment, known_limits
from autotune.gemm import Gemm
from autotune.kernel import feasible_set
from autotune.kernel.config import PARAMETERS
from autotune.measurement import CachePolicy, Measurement, Outcome
from autotune.search import Options, tune
from autotune.store import Store
from autotune.target import Baseline, Point, Rounds

CAPACITY = 22  # of 16 threads that compile
NUM_CODES = 32  # at most, of a parameter


class PlayedTarget:
    """Answers at once. Times are the same in every run."""

    def __init__(self, gpu: str) -> None:
        self.limits = known_limits(gpu)
        self.environment = Environment(self.limits.name, "played", (9, 0), "0", "13.0", "13.0", "", "")
        self.policy, self.source_hash, self.max_error = CachePolicy.COLD, "played", None
        self.capacity = CAPACITY
        self._slopes: dict[Gemm, np.ndarray] = {}

    def space(self, gemm: Gemm) -> feasible_set.FeasibleSet:
        return feasible_set.feasible_set(self.limits, gemm)

    def baseline(self, gemm: Gemm) -> Baseline:
        return Baseline(None)

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        time_us = self._time_us(gemm, point)
        done = Future[Measurement]()
        samples = (time_us * 1.001, time_us, time_us * 0.999)
        done.set_result(Measurement(Outcome.OK, time_us=time_us, samples_us=samples, measure_s=0.01))
        return done

    def compare(self, gemm: Gemm, points: list[Point], rounds: int) -> Rounds:
        return Rounds(tuple((self._time_us(gemm, p),) * rounds for p in points), Baseline(None))

    def joules(self, gemm: Gemm, points: list[Point]) -> tuple[None, ...]:
        return (None,) * len(points)

    def renew(self) -> None:
        pass

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        pass

    def _time_us(self, gemm: Gemm, point: Point) -> float:
        if gemm not in self._slopes:
            rng = np.random.default_rng([gemm.m, gemm.n, gemm.k])
            self._slopes[gemm] = rng.random((len(PARAMETERS), 2))
        off = 0.0
        for (best, slope), parameter in zip(self._slopes[gemm], PARAMETERS, strict=True):
            place = parameter.values.index(point[parameter.name]) / max(1, len(parameter.values) - 1)
            off += 0.5 * slope * (place - best) ** 2
        return gemm.limit_us(self.limits.fma_tflops, self.limits.bandwidth_gbs) * float(np.exp(off))


def _run(args: argparse.Namespace) -> None:
    gemms = common.read_shapes((), args.suite)
    profile = cProfile.Profile() if args.profile else None
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "played.db") as store:
        began_s = time.perf_counter()
        if profile:
            profile.enable()
        result = tune(PlayedTarget(args.gpu), store, gemms, Options(trials=args.trials))
        if profile:
            profile.disable()
        all_s = time.perf_counter() - began_s
    ledger, num = result.ledger, result.num_new
    other_s = ledger.search_s - ledger.ask_s - ledger.store_s - ledger.wait_s - ledger.prepare_s
    console.show(
        f"{len(gemms)} shapes, {num} trials, {all_s:.1f} s; each, in ms: ask {1e3 * ledger.ask_s / num:.2f}, "
        f"tell and the rest {1e3 * other_s / num:.2f}, store {1e3 * ledger.store_s / num:.2f}"
    )
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, default=Path("studies/suites/dev.toml"))
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--profile", type=int, default=0)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
