"""How close `autotune search` comes to the optimum of a recorded space, read from its own JSON.

    python benchmarks/search_cli.py FILE [--shape MxNxK] [--trials 100,200] [--seeds 20] [--sampler autotune]
        [--jobs 2] [--out FILE.json]

FILE is a recording of ours or a Kernel Tuner T1 cache. For each of its problems, number of trials and seed it
runs, in an empty folder and with a database of its own,

    autotune search --gpu replay:FILE --shape SHAPE --trials N --seed S --sampler SAMPLER --json --quiet

and reads `best_time_us`, `optimum_time_us`, `num_trials` and `elapsed_s` (simulated). Printed are percent of
the optimum's speed (mean over seeds, its 95 % interval by the bootstrap, worst seed) and the seconds of the
slowest. `--out` keeps what was read of each run. Fails if a search stopped before N trials with configs left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from replay_runs import command, mean_interval

from autotune.facts.gemm import Gemm
from autotune.recording.replay import ReplayTarget

FIELDS = ("shape", "seed", "num_trials", "best_time_us", "optimum_time_us", "elapsed_s", "wall_s", "stopped")


@dataclass(frozen=True)
class SearchCommand:
    """One command."""

    path: Path
    gemm: Gemm
    trials: int
    seed: int
    sampler: str

    @property
    def arguments(self) -> list[str]:
        return [
            "search", "--gpu", f"replay:{self.path}", "--shape", str(self.gemm), "--trials", str(self.trials),
            "--seed", str(self.seed), "--sampler", self.sampler, "--json", "--quiet",
        ]  # fmt: skip


def main() -> None:
    args = _arguments()
    path = args.file.resolve()
    gemms = [Gemm.parse(shape) for shape in args.shape] or ReplayTarget(path).gemms
    counts = [int(count) for count in args.trials.split(",")]
    searches = [
        SearchCommand(path, gemm, count, seed, args.sampler)
        for gemm in gemms for count in counts for seed in range(args.seeds)
    ]  # fmt: skip
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(_run, searches))
    print(f"{path.name}, {args.sampler}, {args.seeds} seeds")
    print(f"{'shape':<22}{'trials':>7}{'mean %':>9}{'95 % interval':>16}{'worst %':>9}{'most s':>9}")
    for gemm in gemms:
        for count in counts:
            pairs = zip(searches, found, strict=True)
            _print(gemm, count, [facts for s, facts in pairs if (s.gemm, s.trials) == (gemm, count)])
    if args.out:
        args.out.write_text(json.dumps(_data(path, found), indent=1) + "\n")


def _run(search: SearchCommand) -> dict[str, Any]:
    """What the command printed, as far as it is kept. Raises SystemExit where it failed or fell short."""
    package = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *search.arguments],
            cwd=folder, env=environment, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(search.arguments)} failed: {done.stderr.strip()}")
    facts = json.loads(done.stdout)
    if facts["num_trials"] != search.trials and facts["stopped"] != "exhausted":
        sys.exit(f"{' '.join(search.arguments)} made {facts['num_trials']} trials: {facts['stopped']}")
    return {"trials": search.trials, **{name: facts[name] for name in FIELDS}}


def _print(gemm: Gemm, count: int, found: Sequence[dict[str, Any]]) -> None:
    percents = np.array([[100 * facts["optimum_time_us"] / facts["best_time_us"] for facts in found]])
    mean, low, high = mean_interval(percents)
    most_s = max(facts["elapsed_s"] for facts in found)
    interval = f"{low:.2f} - {high:.2f}"
    print(f"{gemm!s:<22}{count:>7}{mean:>9.2f}{interval:>16}{percents.min():>9.2f}{most_s:>9.1f}")


def _data(path: Path, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(),
        "file": path.name,
        "runs": found,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a recording of ours, or a Kernel Tuner T1 cache")
    parser.add_argument("--shape", action="append", default=[], help="only this problem; repeatable")
    parser.add_argument("--trials", default="100,200")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sampler", default="autotune")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="searches side by side")
    parser.add_argument("--out", type=Path, help="what was read of each run, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
