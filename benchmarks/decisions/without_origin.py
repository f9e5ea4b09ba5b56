"""What each generator of points gave searches on GPUs: how much slower a shape's best kernel would be without
its trials (decision 0103).

    python benchmarks/decisions/without_origin.py DATABASE [DATABASE ...] [--least 40] [--out FILE.json]

A shape counts if it has so many ok trials besides those of origin `fill`. What others would have tried
instead is not known: this is the most that a generator can have given.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from autotune.search.propose.origins import FILL
from autotune.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("databases", nargs="+")
    parser.add_argument("--least", type=int, default=40)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shapes = [found for path in args.databases for found in _shapes(path) if len(found) >= args.least]
    rows = {origin: _row(origin, shapes) for origin in sorted({name for one in shapes for name, _ in one})}
    print(f"{len(shapes)} shapes\n{'without':<12}{'trials':>8}{'mean %':>9}{'worst %':>9}{'> 0.3 %':>9}")
    for origin, (trials, mean, worst, num) in sorted(rows.items(), key=lambda row: row[1][1]):
        print(f"{origin:<12}{trials:>8}{mean:>9.3f}{worst:>9.2f}{num:>9}")
    if args.out:
        names = ("trials", "mean_percent", "worst_percent", "num_over_0.3_percent")
        found = {origin: dict(zip(names, row, strict=True)) for origin, row in rows.items()}
        args.out.write_text(json.dumps({"shapes": len(shapes), "without": found}, indent=1) + "\n")


def _shapes(path: str) -> list[list[tuple[str, float]]]:
    """Of each study: origin and time of each trial that ran."""
    with Store.open_existing(path) as store:
        times = [store.timed(summary.study) for summary in store.studies()]
    return [[(origin, us) for us, origin in found.values() if origin != FILL] for found in times]


def _row(origin: str, shapes: list[list[tuple[str, float]]]) -> tuple[int, float, float, int]:
    best = defaultdict(list)
    for found in shapes:
        best["all"].append(min(us for _, us in found))
        best["others"].append(min((us for name, us in found if name != origin), default=np.nan))
    lost = 100 * (np.array(best["others"]) / np.array(best["all"]) - 1)
    num = sum(name == origin for found in shapes for name, _ in found)
    return num, round(float(np.nanmean(lost)), 4), round(float(np.nanmax(lost)), 3), int((lost > 0.3).sum())


if __name__ == "__main__":
    main()
