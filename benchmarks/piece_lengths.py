"""The share of the bandwidth that kernels reach, by the length of the pieces in which they read a large
operand.

    python benchmarks/piece_lengths.py studies/matrices/h200-nn.json.gz [more ...] [--megabytes 27]

Tiles cut the rows of A and B into pieces of as many floats as the tile has along them (0053). Prints the
operands' share of what a GPU can move in the measured times: the largest share, and the one that a tenth of
the times exceed. From matrices (write_matrix.py); for shapes with one operand of at least this many
megabytes, three times as large as the other.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import reports
from write_matrix import of_layout

from autotune.cli import console
from autotune.export.portfolio import candidates
from autotune.facts.gemm import FLOAT_BYTES, LAYOUTS
from autotune.perf_model.fit import Sample
from autotune.recording import matrix
from autotune.recording.matrix import TimeMatrix

MEGABYTES = 27.0  # half of the L2 cache of an H200
TIMES_THE_OTHER = 3
HEADER = ["along", "floats", "times", "largest", "a tenth above"]


def samples(found: TimeMatrix) -> Iterator[Sample]:
    """What was measured of all kernels."""
    for layout in LAYOUTS:
        for known in candidates(layout, (), [of_layout(found, layout)], found.limits):
            yield from (sample for sample in known.samples if not sample.deviation)


def piece(sample: Sample, least_bytes: float) -> tuple[str, int] | None:
    """Along which side the rows of the large operand lie, and how many floats of them a tile reads; None
    where no operand is large."""
    spec, gemm = sample.spec, sample.gemm
    a, b = gemm.m * gemm.k, gemm.k * gemm.n
    if max(a, b) * FLOAT_BYTES < least_bytes or max(a, b) < TIMES_THE_OTHER * min(a, b):
        return None
    if gemm.trans_a if a > b else not gemm.trans_b:
        return "m, n", spec.bm if a > b else spec.bn
    return "k", spec.bk


def shares(matrices: Sequence[TimeMatrix], least_bytes: float) -> dict[tuple[str, int], list[float]]:
    """Of the bandwidth, by side and length of pieces."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in matrices:
        for sample in samples(one):
            if (key := piece(sample, least_bytes)) is not None:
                least_us = sample.gemm.num_bytes / (one.limits.bandwidth_gbs * 1e3)
                found[key].append(least_us / sample.time_us)
    return found


def row_of(key: tuple[str, int], found: Sequence[float]) -> list[str]:
    """One line of the table."""
    return [key[0], str(key[1]), str(len(found)), f"{max(found):.2f}", f"{np.quantile(found, 0.9):.2f}"]


def _run(args: argparse.Namespace) -> None:
    found = shares([matrix.read(path) for path in args.matrices], args.megabytes * 1e6)
    rows = [row_of(key, found[key]) for key in sorted(found)]
    console.show("\n".join(reports.table(HEADER, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, default=MEGABYTES)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
