"""Whether comparisons agree with trials, by databases of searches.

    python benchmarks/decisions/duels_vs_trials.py FILE.db [more ...] [--off 0.02]

A comparison times two kernels in the same rounds, which were timed in a trial each before. Printed are the
comparisons whose ratio differs by more than `--off` from that of the trials, and the incumbents whose time,
as comparisons corrected it, differs by more from their trial: replayed with today's ranking
(search/compare/ranking.py), import sys
from the stored trials and comparisons. Decision 0064.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks

import reports

from autotune.cli import console
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.search.compare.ranking import Ranking
from autotune.search_policy import SearchPolicy
from autotune.store import ComparisonRecord, Store, StudyRef
from autotune.target import point_key


def _trials_us(store: Store, study: StudyRef) -> dict[str, float]:
    """The time of each point that ran and is accurate enough."""
    found = {}
    for trial in store.trials(study):
        measured = trial.measurement
        if measured.is_ok and measured.time_us and (measured.error_over_cublas or 0) <= MAX_ERROR:
            found[point_key(trial.point)] = measured.time_us
    return found


def _off(comparison: ComparisonRecord, trials_us: Mapping[str, float]) -> float:
    """By how much the ratio of a comparison differs from that of the trials; a logarithm."""
    gaps = np.diff(np.log(comparison.samples_us), axis=0)[0]
    first, second = (trials_us[key] for key in comparison.keys)
    return float(np.median(gaps) - np.log(second / first))


def _drift(comparisons: list[ComparisonRecord], trials_us: Mapping[str, float]) -> float:
    """The incumbent's time after all comparisons over that of its trial, less 1."""
    ranking = Ranking(SearchPolicy())
    for key, time_us in trials_us.items():
        ranking.enter(key, {}, time_us)
    for comparison in comparisons:
        ranking.restore(comparison)
    incumbent = ranking.incumbent
    return 0.0 if incumbent is None else incumbent.time_us / trials_us[incumbent.key] - 1


def _run(args: argparse.Namespace) -> None:
    offs: dict[Gemm, list[float]] = {}
    drifts = []
    for path in args.files:
        with Store.open_existing(str(path)) as store:
            [environment, *_] = store.environments(MAX_ERROR)
            for study in store.latest_studies(environment, CachePolicy.COLD, MAX_ERROR):
                trials_us = _trials_us(store, study)
                comparisons = [
                    comparison
                    for comparison in store.comparisons(study)
                    if set(comparison.keys) <= trials_us.keys()
                ]
                offs.setdefault(study.gemm, []).extend(
                    _off(comparison, trials_us) for comparison in comparisons
                )
                drifts.append((_drift(comparisons, trials_us), study.gemm, path.name))
    far = {gemm: sum(abs(off) > args.off for off in found) for gemm, found in offs.items()}
    console.show(
        f"{sum(map(len, offs.values()))} duels; {sum(far.values())} differ from their trials by more than "
        f"{args.off:.0%}, on {sum(map(bool, far.values()))} of {len(far)} shapes"
    )
    for drift, gemm, name in sorted(drifts):
        if abs(drift) > args.off:
            console.show(f"{gemm} in {name}: the incumbent's time is {drift:+.1%} off its trial's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--off", type=float, default=0.02)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
