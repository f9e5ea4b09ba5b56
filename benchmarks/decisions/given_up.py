"""How many trials of short kernels a search gave up after single launches, by databases of searches.

    python benchmarks/decisions/given_up.py FILE.db [more ...] [--below 20]

For each shape whose best kernel takes less than `--below` us: its trials, the shares that were cut short and
that were cut short after launches alone, the median of what stands for the time of the latter, and the share
of all trials within a tenth of the best. The time of a single launch holds some 10 to 40 us of latency.
Trials that a graph of launches cut short took longer to measure than `LAUNCHES_S`; since decision 0067, which
looks at short graphs, that is less certain.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks

import reports

from autotune.cli import console
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.measurement import CachePolicy, Measurement
from autotune.store import Store

LAUNCHES_S = 0.0008
NEAR = 1.1
HEADERS = ("shape", "best us", "trials", "cut short", "after launches", "their median us", "near the best")


def _row(name: str, measured: list[Measurement], below_us: float) -> list[str] | None:
    """What is told of a shape; None if its best kernel is slower."""
    times = np.array([found.time_us for found in measured], dtype=float)
    is_cut = np.array([found.is_cut_short for found in measured], dtype=bool)
    if is_cut.all() or times[~is_cut].min() >= below_us:
        return None
    best_us = float(times[~is_cut].min())
    is_launched = is_cut & (np.array([found.measure_s for found in measured]) < LAUNCHES_S)
    median = f"{np.median(times[is_launched]):.1f}" if is_launched.any() else "-"
    shares = (
        f"{is_cut.mean():.0%}",
        f"{is_launched.mean():.0%}",
        median,
        f"{(times < NEAR * best_us).mean():.0%}",
    )
    return [name, f"{best_us:.2f}", f"{len(times):,}", *shares]


def _run(args: argparse.Namespace) -> None:
    for path in args.files:
        rows = []
        with Store.open_existing(str(path)) as store:
            [environment, *_] = store.environments(MAX_ERROR)
            for study in store.latest_studies(environment, CachePolicy.COLD, MAX_ERROR):
                measured = [t.measurement for t in store.trials(study) if t.measurement.is_ok]
                if row := _row(str(study.gemm), [m for m in measured if m.time_us], args.below):
                    rows.append(row)
        console.show(f"{path.name}, {environment.gpu_name}")
        console.show(console.table(HEADERS, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--below", type=float, default=20.0)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
