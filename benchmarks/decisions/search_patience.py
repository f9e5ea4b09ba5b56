"""What a search without a limit reaches, and how often its patience is over too early.

    python benchmarks/decisions/search_patience.py FILE [FILE ...] [--seeds 10] [--jobs 2] [--out FILE.txt]

A recording of ours is searched as `autotune search --gpu replay:FILE --shape SHAPE` does, without seconds and
trials: the search ends when nothing better is likely. Printed are, for each space, the mean and worst percent
of the optimum's speed over the seeds, and the mean number of trials: in total and of `polish`.

A database (*.db) of searches that went on for longer is only read. Printed is, of the positions at which
`stats.Patience` was over, in how many a gain came within its horizon, beside the chance that it told; and
where each search stood when that was so for the first time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: searches run side by side

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks

from replay_runs import command

from autotune import target_finder as targets
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import is_accurate
from autotune.facts.stats import Patience, num_since_gain
from autotune.recording.replay import ReplayTarget
from autotune.search import Options, tune
from autotune.search.propose.origins import POLISH
from autotune.shipped.starting_points import StartingPoints
from autotune.store import Store, TrialRecord


@dataclass(frozen=True)
class Found:
    percent: float  # of the optimum's speed
    num_trials: int
    num_polish: int  # of these


def search(path: Path, gemm: Gemm, seed: int) -> Found:
    """One search, until nothing better is likely."""
    with tempfile.TemporaryDirectory() as folder, Store.open(str(Path(folder) / "a.db")) as store:
        target = ReplayTarget(path)
        starts = StartingPoints(targets.matrices(), target.limits)
        (shape,) = tune(target, store, [gemm], Options(seed=seed, starts=starts)).shapes
        trials = store.trials(shape.study)
    best_us = min(t.measurement.time_us for t in trials if t.measurement.is_ok and t.measurement.time_us)
    num_polish = sum(t.origin == POLISH for t in trials)
    return Found(100 * target.optimum(gemm)[1] / best_us, len(trials), num_polish)


def calibration(path: Path) -> str:
    """What came after the positions at which patience was over, in the order of each study's trials."""
    patience = Patience()
    notes: list[float] = []  # the chance, at each such position
    came: list[bool] = []
    is_step: list[bool] = []  # whether some of the next trials are of `polish`
    losses: list[float] = []  # of the best at the first such position, over the last best
    with Store.open_existing(str(path)) as store:
        studies = [summary.study for summary in store.studies()]
        searches = [sorted(store.trials(study), key=lambda trial: trial.id) for study in studies]
    for trials in searches:
        times_us = [_accurate_us(trial) for trial in trials]
        since = [num_since_gain(times_us[:done], patience.gain) for done in range(len(trials) + 1)]
        over = [done for done in range(len(trials)) if patience.is_over(times_us[:done])]
        if over:
            first = min(time_us for time_us in times_us[: over[0]] if time_us)
            losses.append(first / min(time_us for time_us in times_us if time_us) - 1)
        for done in over:
            if (end := done + patience.horizon) <= len(trials):
                notes.append(patience.chance(since[done]))
                came.append(0 in since[done + 1 : end + 1])
                is_step.append(any(trial.origin == POLISH for trial in trials[done:end]))
    before = [one for one, step in zip(came, is_step, strict=True) if not step]
    after = [one for one, step in zip(came, is_step, strict=True) if step]
    worst = ", ".join(f"{loss:.1%}" for loss in sorted(losses)[-4:])
    return (
        f"{path.name}: {len(searches)} searches; patience was over at {len(notes):,} positions: told "
        f"{mean(notes):.1%}, a gain came in {mean(came):.1%}\n"
        f"{len(before)} of these with no polish within the horizon: a gain came in {mean(before):.1%}\n"
        f"{len(after)} of these with some: a gain came in {mean(after):.1%}\n"
        f"{len(losses)} searches came so far: the best was {mean(losses):.2%} slower than at their end; "
        f"at most {worst}"
    )


def _accurate_us(trial: TrialRecord) -> float | None:
    found = trial.measurement
    return found.time_us if found.is_ok and is_accurate(found.error_over_cublas, MAX_ERROR) else None


def main() -> None:
    args = _arguments()
    lines = [f"$ {command()}"]
    lines += [calibration(path) for path in args.files if path.suffix == ".db"]
    recordings = [path for path in args.files if path.suffix != ".db"]
    if recordings:
        lines.append(f"{'':<34}{'mean':>8}{'worst':>8}{'trials':>8}{'polish':>8}")
        lines += _searched(recordings, args.seeds, args.jobs)
    text = "\n".join(lines)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


def _searched(recordings: Sequence[Path], num_seeds: int, num_processes: int) -> list[str]:
    lines: list[str] = []
    every: list[Found] = []
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        for path in recordings:
            for gemm in ReplayTarget(path).gemms:
                found = list(pool.map(search, [path] * num_seeds, [gemm] * num_seeds, range(num_seeds)))
                every += found
                lines.append(_line(f"{path.name.partition('.')[0]} {gemm}", found))
                print(lines[-1], file=sys.stderr)
    return [*lines, _line("all", every)]


def _line(name: str, found: list[Found]) -> str:
    percents = [one.percent for one in found]
    trials, polish = mean(one.num_trials for one in found), mean(one.num_polish for one in found)
    return f"{name:<34}{mean(percents):>8.2f}{min(percents):>8.2f}{trials:>8.1f}{polish:>8.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
