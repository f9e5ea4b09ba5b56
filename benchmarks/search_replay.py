"""How close samplers come to the optimum of a recorded space, and after how many trials.

    python benchmarks/search_replay.py FILE [--shape MxNxK] [--seeds 20] [--samplers autotune,random,tpe]
        [--trials 25,50,100,200] [--in-flight 1]

Prints, per sampler, the percent of the optimum's speed that the best trial reached: the mean over
seeds with its 95 % interval (Student's t), and the worst seed. Searches start from nothing; a trial's
time is the median of its recorded samples, cut short where the search would cut it. `--in-flight`
decides with that many answers outstanding, as on a GPU that compiles ahead. Writes nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import deque
from pathlib import Path

import numpy as np

from autotune.gemm import Gemm
from autotune.replay import ReplayTarget
from autotune.search.asker import SAMPLERS, Asker, SpaceExhausted

# Student's t, 97.5 % quantile by degrees of freedom; the next smaller listed is used, the wider interval.
_T_QUANTILES = {2: 4.30, 4: 2.78, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05, 39: 2.02}


def main() -> None:
    args = _arguments()
    target = ReplayTarget(args.file)
    gemm = Gemm.parse(args.shape) if args.shape else target.gemms[0]
    counts = [int(count) for count in args.trials.split(",")]
    _, optimum_us = target.optimum(gemm)
    print(f"{args.file.name}: {gemm}, {len(target.space(gemm)):,} configs, {args.seeds} seeds, "
          f"{args.in_flight} in flight, optimum {optimum_us:.1f} us")  # fmt: skip
    print(f"{'percent of optimum after':<26}" + "".join(f"{count:>22}" for count in counts), " ms/ask")
    for sampler in args.samplers.split(","):
        began = time.perf_counter()
        seeds = range(args.seeds)
        best_us = [_best_after(target, gemm, sampler, s, counts, args.in_flight) for s in seeds]
        ask_ms = (time.perf_counter() - began) * 1e3 / (args.seeds * max(counts))
        print(f"{sampler:<26}" + "".join(_cell(column) for column in 100 * optimum_us / np.array(best_us).T)
              + f"{ask_ms:>9.1f}", flush=True)  # fmt: skip


def _best_after(
    target: ReplayTarget, gemm: Gemm, sampler: str, seed: int, counts: list[int], in_flight: int
) -> list[float]:
    """Time in us of the best trial after so many asked for; shape (counts,)."""
    space = target.space(gemm)
    asker = Asker(space, sampler, seed)
    open_points: deque[tuple[int, float | None]] = deque()
    best_us, history = math.inf, []
    for _ in range(max(counts)):
        try:
            number = asker.ask().number
        except SpaceExhausted:
            break
        cutoff_us = best_us if math.isfinite(best_us) else None
        measured = target.submit(gemm, space.point(number), cutoff_us).result()
        open_points.append((number, measured.time_us))
        if len(open_points) == in_flight:
            asker.tell(*open_points.popleft())
        best_us = min(best_us, measured.time_us or math.inf)
        history.append(best_us)
    return [history[min(count, len(history)) - 1] for count in counts]


def _cell(percents: np.ndarray) -> str:
    """Mean, half the width of its interval, worst."""
    quantile = min((t for freedom, t in _T_QUANTILES.items() if freedom < len(percents)), default=12.71)
    half = quantile * percents.std(ddof=1) / math.sqrt(len(percents)) if len(percents) > 1 else math.nan
    return f"{percents.mean():>8.2f} ±{half:5.2f} ({percents.min():.1f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a recording of ours, or a Kernel Tuner T1 cache")
    parser.add_argument("--shape", help="one of the recorded problems; the first without it")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--trials", default="25,50,100,200")
    parser.add_argument("--in-flight", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
