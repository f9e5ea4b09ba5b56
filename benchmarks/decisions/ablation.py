"""A search of recorded spaces without one of its parts (notes 0084, 0095): mean and worst share of the
optimum, and processor time to ask.

    python benchmarks/decisions/ablation.py FILE [FILE ...] [--seeds 10] [--trials 50,150] [--out OUT.json.xz]
    python benchmarks/decisions/ablation.py --landscapes FIRST.db SECOND.db [the same]

Each file is a recording of ours or a Kernel Tuner T1 cache; landscapes are those of fake_landscapes.py, and
shares on them of the best that the databases have. What `--out` has already is not run again.
What only a GPU or a whole suite can judge (duels, reuse, polish, transfer) is not left out here.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy

import argparse
import json
import lzma
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks
import fake_landscapes
import replay_runs
from fake_landscapes import FakeSearch, Landscape
from replay_runs import Job, search

from autotune.facts.gemm import Gemm
from autotune.recording.replay import ReplayTarget
from autotune.search.propose import candidates as candidates_module
from autotune.search.propose.attempt import Attempt
from autotune.search.propose.bayesian import Model
from autotune.search.propose.candidates import Candidates
from autotune.search.propose.origins import CARRIED, FACTOR, REPAIRED
from autotune.search.propose.sum_limit import SumLimit
from autotune.search_policy import SearchPolicy

NUM_LANDSCAPES = 6
Problem = Callable[[int], tuple[list[float], float]]  # by seed: percents at the marks, milliseconds to ask
_MOVES = (REPAIRED, FACTOR, CARRIED)


def _one_view(kept: int) -> Callable[..., None]:
    begin = Model.__init__

    def begin_with_one(self: Model, *args: Any) -> None:
        begin(self, *args)
        self._views = [self._views[kept]]

    return begin_with_one


def _nothing(*args: Any) -> np.ndarray:
    return np.array([], dtype=np.int64)


def _without_moves(*names: str) -> Callable[..., dict[str, np.ndarray]]:
    moves = Candidates.moves

    def all_others(self: Candidates, *args: Any) -> dict[str, np.ndarray]:
        return {origin: points for origin, points in moves(self, *args).items() if origin not in names}

    return all_others


def _without_climbing(self: Candidates, numbers: np.ndarray) -> np.ndarray:
    """Parents are more than the few points that are climbed from."""
    return _NEIGHBOURS(self, numbers) if len(numbers) > SearchPolicy().num_climbed else _nothing()


_NEIGHBOURS = Candidates.neighbours


def _ranks(values: tuple[Any, ...]) -> np.ndarray:
    num = len(values)
    if any(isinstance(value, str) for value in values):
        return np.eye(num)[:, : num if num > 2 else num - 1]
    return np.linspace(0.0, 1.0, num)[:, None][:, : num > 1]


WITHOUT: dict[str, tuple[Any, str, Any]] = {
    "attempts": (Attempt, "is_stuck", False),
    "the view of times cut off": (Model, "__init__", _one_view(0)),
    "the view of all times": (Model, "__init__", _one_view(1)),
    "the sum limit": (SumLimit, "will_fail", lambda self, numbers: np.zeros(len(numbers), bool)),
    "ratios and powers of two": (candidates_module, "_feature_table", _ranks),
    "mixtures": (Candidates, "mixtures", _nothing),
    "moves of several parameters": (Candidates, "moves", lambda *args: {}),
    **{f"moves: {name}": (Candidates, "moves", _without_moves(name)) for name in _MOVES},
    "climbing": (Candidates, "neighbours", _without_climbing),
    "founders": (Candidates, "firsts", lambda self, ranked: np.arange(0)),
    "traits": (replay_runs, "traits_of", lambda *args: None),
}


def main() -> None:
    args = _arguments()
    marks = [int(mark) for mark in args.trials.split(",")]
    problems = _landscapes(args.landscapes, marks) if args.landscapes else _recorded(args.files, marks)
    found: dict[str, list[list[list[float]]]] = _earlier(args.out)
    print(f"{'without':<28}" + "".join(f"{mark:>14}" for mark in marks) + "   ms/ask")
    for name in args.without.split(",") if args.without else ["nothing", *WITHOUT]:
        if name in found:
            continue
        with ExitStack() as left_out:
            if name in WITHOUT:
                left_out.enter_context(patch.object(*WITHOUT[name]))
            runs = [[run(seed) for seed in range(args.seeds)] for run in problems.values()]
        percents = np.array([[shares for shares, _ in of_one] for of_one in runs])
        cells = "".join(f"{p.mean():>8.2f}{p.min():>6.1f}" for p in np.moveaxis(percents, -1, 0))
        print(f"{name:<28}{cells}{np.mean([ms for rs in runs for _, ms in rs]):>9.2f}", flush=True)
        found[name] = percents.round(3).tolist()
        if args.out:
            data = {"spaces": list(problems), "marks": marks, "without": found}
            args.out.write_bytes(lzma.compress(json.dumps(data).encode()))


def _recorded(files: Sequence[Path], marks: Sequence[int]) -> dict[str, Problem]:
    def run(path: Path, gemm: Gemm, seed: int) -> tuple[list[float], float]:
        found = search(Job(path, gemm, "autotune", seed, max(marks), float("inf"), 1, False))
        return [found.percent_after_trials(mark) for mark in marks], found.ask_ms

    known = [(path, gemm) for path in files for gemm in ReplayTarget(path).gemms]
    return {f"{path.name} {gemm}": partial(run, path, gemm) for path, gemm in known}


def _landscapes(databases: Sequence[str], marks: Sequence[int]) -> dict[str, Problem]:
    limits, read = fake_landscapes.read(databases)
    problems: dict[str, Problem] = {}
    for gemm, times in list(fake_landscapes.timed_points(read, limits).items())[:NUM_LANDSCAPES]:
        one = fake_landscapes.landscape(gemm, times, limits, SearchPolicy.num_seeds)

        def run(one: Landscape, best: float, seed: int) -> tuple[list[float], float]:
            logs, ms = fake_landscapes.search(FakeSearch(one, limits, SearchPolicy(), seed, tuple(marks)))
            return [100 * math.exp(best - log) for log in logs], ms

        problems[str(gemm)] = partial(run, one, math.log(min(times.values())))
    return problems


def _earlier(out: Path | None) -> dict[str, Any]:
    found = json.loads(lzma.decompress(out.read_bytes())) if out and out.exists() else {}
    return dict(found.get("without", {}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", help="recordings of ours, or Kernel Tuner T1 caches")
    parser.add_argument("--landscapes", nargs="*", metavar="DB", help="of searches of the same shapes")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", default="50,150,300")
    parser.add_argument("--without", default="", help="parts, by a comma; by default each")
    parser.add_argument("--out", type=Path, help="raw results, JSON compressed by xz")
    return parser.parse_args()


if __name__ == "__main__":
    main()
