"""How near the optimum strategies of Kernel Tuner come on recorded spaces, in its own simulation.

    python benchmarks/kernel_tuner_replay.py CACHE.t1.json.gz [...] --kernel-tuner-path DIR
        [--strategies genetic_algorithm,...] [--seeds 10] [--trials 300] [--out FILE.json.xz]

A trial is a config that it evaluates for the first time, failed ones included. A strategy that ends before
its trials keeps its best. Each line of the result: cache, strategy, seed, the numbers of trials at which it
got better, and the shares of the optimum. What `--out` has already is not run again. Its times are means of
samples, as it has them; so is its optimum.

`pip install --target DIR kernel_tuner==1.5.0`; needs no other package of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import lzma
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NO_SEARCH = frozenset({"brute_force", "nsga2", "nsga3"})  # all points in order; strategies of two objectives


def main() -> None:
    args = _arguments()
    sys.path.insert(0, str(args.kernel_tuner_path))
    from kernel_tuner.interface import strategy_map

    strategies = args.strategies.split(",") if args.strategies else sorted(strategy_map.keys() - NO_SEARCH)
    runs = json.loads(lzma.decompress(args.out.read_bytes())) if args.out and args.out.exists() else []
    done = {(run["space"], run["strategy"], run["seed"]) for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        for path in args.files:
            cache = Path(folder) / path.name.removesuffix(".gz")
            cache.write_bytes(gzip.decompress(path.read_bytes()))
            for strategy in strategies:
                space = cache.name.partition(".")[0]
                seeds = [s for s in range(args.seeds) if (space, strategy, s) not in done]
                runs.extend(_runs(cache, strategy, seeds, args.trials))
                if args.out and seeds:
                    args.out.write_bytes(lzma.compress(json.dumps(runs).encode()))


def _runs(cache: Path, strategy: str, seeds: Sequence[int], trials: int) -> Iterator[dict[str, Any]]:
    shares, started_s = [], time.process_time()
    for seed in seeds:
        try:
            better = _search(cache, strategy, seed, trials)
        except Exception as problem:  # whatever a strategy needs and lacks here is told
            print(f"{cache.name}, {strategy}: {type(problem).__name__}: {problem}"[:200], flush=True)
            return
        shares.append(better[-1][1] if better else 0.0)
        numbers, reached = ([pair[i] for pair in better] for i in (0, 1))
        yield {"space": cache.name.partition(".")[0], "strategy": strategy, "seed": seed,
               "num_trials": numbers, "shares": reached}  # fmt: skip
    spent_s = time.process_time() - started_s
    if shares:
        print(f"{cache.name}, {strategy}: {sum(shares) / len(shares):.3f}, {spent_s:.1f} s", flush=True)


def _search(cache: Path, strategy: str, seed: int, trials: int) -> list[tuple[int, float]]:
    """Number of the trial and share of the optimum, of each trial that is the best so far."""
    from kernel_tuner.interface import tune_cache

    text = json.loads(cache.read_text(encoding="utf-8"))
    times = {key: _time(result) for key, result in text["cache"].items()}
    names, optimum = text["tune_params_keys"], min(times.values())
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        results, _ = tune_cache(
            str(cache), strategy=strategy, strategy_options={"max_fevals": trials}, seed=seed, quiet=True
        )
    best, better, seen = float("inf"), [], set()
    for result in results:
        key = ",".join(str(result[name]) for name in names)
        if key in times and key not in seen:
            seen.add(key)
            if times[key] < best:
                best = times[key]
                better.append((len(seen), optimum / best))
    return better


def _time(result: dict[str, Any]) -> float:
    """Infinite for a failure."""
    return float(result["time"]) if isinstance(result["time"], int | float) else float("inf")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="caches of Kernel Tuner (T1), compressed")
    parser.add_argument("--kernel-tuner-path", type=Path, required=True, help="where pip installed it")
    parser.add_argument("--strategies", default="", help="by default all that search")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--out", type=Path, help="raw results, JSON compressed by xz")
    return parser.parse_args()


if __name__ == "__main__":
    main()
