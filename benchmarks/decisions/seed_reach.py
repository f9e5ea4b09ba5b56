r"""How good the first so many seeds of a search are, on shapes that were held apart.

    python benchmarks/decisions/seed_reach.py [studies/matrices/h200-nn.json.gz ...] [--sizes 1,4,8,16,32] \
        [--folds 5]

The columns of matrices (all that ship, where none is named) are held apart in folds. What a search would
begin with on each is told by the others (autotune/shipped/starting_points.py), one for each tile and way to
split k. Told are, by layout, the mean and the tenth percentile over columns held apart: what the best kernel
of the matrix costs over what the best of the first so many seeds does. A launch whose sums are too deep costs
more than its time (autotune/perf_model/sum_depths.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks

import reports
from write_matrix import of_layout

from autotune import target_finder as targets
from autotune.cli import console
from autotune.export.portfolio import Costs, TimedCandidates, candidates
from autotune.facts.gemm import LAYOUTS
from autotune.recording import matrix
from autotune.recording.matrix import TimeMatrix
from autotune.search.propose.seeds import one_per_tile


def reaches(found: TimeMatrix, layout: str, sizes: list[int], num_folds: int) -> np.ndarray:
    """(columns, sizes) shares of the speed of the best kernel."""
    known = candidates(layout, (), [of_layout(found, layout)], found.limits)
    whole = Costs(TimedCandidates.of(layout, known, found.limits))
    at = {candidate.config: number for number, candidate in enumerate(known)}
    shares = []
    for fold in range(num_folds):
        apart = whole.timed[fold::num_folds]
        left = [one for candidate in known if (one := candidate.without(apart)) is not None]
        costs = Costs(TimedCandidates.of(layout, left, found.limits))
        for gemm in apart:
            truth = whole.on(gemm)
            seeds = [at[config.in_any_splits] for config in one_per_tile(costs.ranked(gemm))]
            shares.append([truth.min() / truth[seeds[:size]].min() for size in sizes])
    return np.array(shares)


def _run(args: argparse.Namespace) -> None:
    sizes = [int(size) for size in args.sizes.split(",")]
    found = [matrix.read(path) for path in args.matrices] if args.matrices else targets.matrices()
    rows = []
    for one in found:
        for layout in LAYOUTS:
            if any(row.layout == layout for row in one.known):
                shares = reaches(one, layout, sizes, args.folds)
                figures = [f"{np.mean(s):.3f} ({np.quantile(s, 0.1):.2f})" for s in shares.T]
                rows.append([one.limits.name, layout, str(len(shares)), *figures])
    console.show("\n".join(reports.table(["GPU", "layout", "columns", *map(str, sizes)], rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="*", type=Path)
    parser.add_argument("--sizes", default="1,4,8,16,32")
    parser.add_argument("--folds", type=int, default=5)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
