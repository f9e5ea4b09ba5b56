"""How close samplers come to the optimum of recorded spaces: after how many trials, and after how long.

    python benchmarks/search_replay.py FILE [FILE ...] [--shape MxNxK] [--samplers autotune,tpe,...]
        [--seeds 20] [--trials 25,50,100,200] [--seconds 10,30,60] [--bare] [--jobs 2]
        [--out FILE.json.xz] [--svg FILE.svg]

Each file is a recording of ours or a Kernel Tuner T1 cache; each of its problems is a space. Printed are, for
every space and sampler and over all spaces, the percent of the optimum's speed that the best trial reached:
mean, its 95 % interval (bootstrap over seeds), worst seed. The optimum is the space's lowest median.

After trials, every answer is known before the next point is asked for, as with `autotune search --gpu
replay:FILE`. After seconds, as many candidates are under way as on the machine that recorded (its compiler's
threads and two), and the clock is simulated: compiling on those threads, verifying and timing one by one, as
long as each took. What deciding takes is not on that clock, but told: ms per ask. `--seconds ''` leaves this
half out, `--trials ''` the other.

A search ends once it holds the optimum. Our sampler begins with what a search of our kernel begins with, the
others with nothing; `--bare` has it begin with nothing, too.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: searches run side by side

import argparse
import json
import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from curves import Curve, Panel, draw
from replay_runs import YARDSTICKS, Job, Run, command, mean_interval, search_all

from autotune.facts.gemm import Gemm
from autotune.recording.replay import EXTRA_OPEN, ReplayTarget
from autotune.search.propose.samplers import SAMPLERS

MOST_TRIALS = 600  # of a search that is told how long, not how often: later it stays what it was
_ALL = "all spaces"
_SUBTITLE = (
    "percent of the optimum's speed that the best trial reached; bands hold the mean with 95 % (bootstrap)"
)
_COLORS = ("#0b7a75", "#9aa5b1", "#5b8def", "#d97706", "#7c3aed", "#b91c1c", "#4d7c0f")


@dataclass(frozen=True)
class Space:
    """A problem of a recording."""

    path: Path
    gemm: Gemm
    num_configs: int
    optimum_us: float
    in_flight: int

    @property
    def name(self) -> str:
        return f"{self.path.name.partition('.')[0]} {self.gemm}"


@dataclass(frozen=True)
class Axis:
    """`marks` on one axis: trials or seconds."""

    unit: str
    marks: tuple[float, ...]

    def percent(self, run: Run, mark: float) -> float:
        return (
            run.percent_after_trials(int(mark)) if self.unit == "trials" else run.percent_after_seconds(mark)
        )

    def job(self, space: Space, sampler: str, seed: int, is_bare: bool) -> Job:
        trials, seconds, in_flight = int(max(self.marks)), float("inf"), 1
        if self.unit == "seconds":
            trials, seconds, in_flight = MOST_TRIALS, max(self.marks), space.in_flight
        return Job(space.path, space.gemm, sampler, seed, trials, seconds, in_flight, is_bare)


def main() -> None:
    args = _arguments()
    spaces = [space for path in args.files for space in _spaces(path, args.shape)]
    samplers = args.samplers.split(",")
    axes = [axis for axis in (_axis("trials", args.trials), _axis("seconds", args.seconds)) if axis.marks]
    results: dict[str, list[dict[str, Any]]] = {}
    panels = []
    for axis in axes:
        runs = _run(spaces, samplers, args.seeds, axis, is_bare=args.bare, num_processes=args.jobs)
        results[axis.unit] = [_row(axis, *key, runs[key]) for key in runs]
        _print(axis, results[axis.unit])
        panels.append(_panel(axis, samplers, runs))
    if args.out:
        _write(args.out, spaces, args, results)
    if args.svg:
        title = f"Searching {len(spaces)} recorded spaces, {args.seeds} seeds each"
        args.svg.write_text(draw(title, _SUBTITLE, panels))


def _spaces(path: Path, shapes: Sequence[str]) -> list[Space]:
    target = ReplayTarget(path)
    gemms = [Gemm.parse(shape) for shape in shapes] or target.gemms
    return [
        Space(path, g, len(target.space(g)), target.optimum(g)[1], target.num_threads + EXTRA_OPEN)
        for g in gemms
    ]


def _axis(unit: str, text: str) -> Axis:
    return Axis(unit, tuple(sorted(float(mark) for mark in text.split(",") if mark)))


def _run(
    spaces: Sequence[Space],
    samplers: Sequence[str],
    num_seeds: int,
    axis: Axis,
    *,
    is_bare: bool,
    num_processes: int,
) -> dict[tuple[str, str], list[list[Run]]]:
    """By name of the space (and of all of them) and sampler: runs of each space, by seed."""
    keys = [(space, sampler) for space in spaces for sampler in samplers]
    jobs = [axis.job(space, sampler, seed, is_bare) for space, sampler in keys for seed in range(num_seeds)]
    runs = search_all(jobs, num_processes)
    found: dict[tuple[str, str], list[list[Run]]] = {}
    for space, sampler in keys:
        found[space.name, sampler] = [[next(runs) for _ in range(num_seeds)]]
        print(f"{space.name}, {sampler}: done", file=sys.stderr)
    if len(spaces) > 1:
        for sampler in samplers:
            found[_ALL, sampler] = [found[space.name, sampler][0] for space in spaces]
    return found


def _row(axis: Axis, space: str, sampler: str, runs: list[list[Run]]) -> dict[str, Any]:
    """What is told of a space and a sampler; the runs themselves where it is one space."""
    after = {}
    for mark in axis.marks:
        percents = np.array([[axis.percent(run, mark) for run in of_space] for of_space in runs])
        mean, low, high = mean_interval(percents)
        after[f"{mark:g}"] = {"mean": mean, "low": low, "high": high, "worst": float(percents.min())}
    ask_ms = float(np.mean([run.ask_ms for of_space in runs for run in of_space]))
    row = {"space": space, "sampler": sampler, "ask_ms": round(ask_ms, 2), "percent_after": after}
    if space != _ALL:
        row["runs"] = [_improvements(run) for run in runs[0]]
    return row


def _improvements(run: Run) -> dict[str, Any]:
    return {
        "seed": run.job.seed,
        "num_trials": run.num_trials,
        "seconds": [round(seconds, 3) for seconds in run.seconds],
        "best_us": run.best_us,
    }


def _print(axis: Axis, rows: Sequence[dict[str, Any]]) -> None:
    width = max(len(row["space"]) for row in rows) + 2
    marks = "".join(f"{f'{mark:g} {axis.unit}':>26}" for mark in axis.marks)
    print(f"\n{'percent of optimum after':<{width}}{'':<12}{marks}{'ms/ask':>8}")
    for row in rows:
        cells = "".join(
            f"{c['mean']:>9.2f} [{c['low']:.1f} {c['high']:.1f}] {c['worst']:5.1f}"
            for c in row["percent_after"].values()
        )
        print(f"{row['space']:<{width}}{row['sampler']:<12}{cells}{row['ask_ms']:>8.1f}")


def _panel(axis: Axis, samplers: Sequence[str], runs: dict[tuple[str, str], list[list[Run]]]) -> Panel:
    names = [name for name, _ in runs]
    whole = _ALL if _ALL in names else names[0]
    grid = np.unique(np.round(np.geomspace(1, axis.marks[-1], 40), 0 if axis.unit == "trials" else 3))
    curves = []
    for sampler, color in zip(samplers, _COLORS, strict=False):
        percents = [
            np.array([[axis.percent(run, mark) for run in of_space] for of_space in runs[whole, sampler]])
            for mark in grid
        ]
        curves.append(Curve(sampler, color, [float(x) for x in grid], [mean_interval(p) for p in percents]))
    return Panel(axis.unit if axis.unit == "trials" else "simulated seconds", axis.marks, curves)


def _write(out: Path, spaces: Sequence[Space], args: argparse.Namespace, results: dict[str, Any]) -> None:
    data = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(),
        "num_seeds": args.seeds,
        "is_bare": args.bare,
        "most_trials": MOST_TRIALS,
        "spaces": [
            {"file": s.path.name, "shape": str(s.gemm), "num_configs": s.num_configs,
             "optimum_us": s.optimum_us, "in_flight": s.in_flight}
            for s in spaces
        ],
        **results,
    }  # fmt: skip
    text = json.dumps(data).encode() + b"\n"
    out.write_bytes(lzma.compress(text) if out.suffix == ".xz" else text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="recordings of ours, or Kernel Tuner T1 caches")
    parser.add_argument("--shape", action="append", default=[], help="only this problem; repeatable")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samplers", default=",".join((*SAMPLERS, *YARDSTICKS)))
    parser.add_argument("--trials", default="25,50,100,200")
    parser.add_argument("--seconds", default="10,30,60")
    parser.add_argument("--bare", action="store_true", help="our sampler begins with nothing, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="searches side by side")
    parser.add_argument("--out", type=Path, help="raw results as JSON; compressed if it ends in .xz")
    parser.add_argument("--svg", type=Path, help="a picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
