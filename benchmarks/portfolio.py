"""How far so many kernels reach on shapes that they were not chosen for.

    python benchmarks/portfolio.py h200-nn.json.gz [more.json.gz ...] [--sizes 8,16,32,64] [--folds 5]

Of each matrix (record_matrix.py) the columns are held apart in folds. Kernels are chosen on the columns of
all other folds, without those that a search of a column held apart found, and without relatives of these.
Told is the geometric mean, over columns held apart, of the best of all rows over the best of the chosen:
their share of what is known to be possible; and over cuBLAS. All of it supposes that the best of them is
picked.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matrix
import numpy as np
import reports
from matrix import Matrix, Row
from numpy.typing import NDArray

from autotune.cli import console
from autotune.errors import UsageError
from autotune.gemm import Gemm

FAR = 4.0  # times the best of a column: what a kernel is taken to need where it may not run
KINDS = ("one side up to 8", "one side up to 64", "deep k", "the rest")
_FEW, _SOME, _DEEP = 8, 64, 16


def kind_of(gemm: Gemm) -> str:
    """The kind of shape, by what is hard about it."""
    short = min(gemm.m, gemm.n)
    if short <= _FEW:
        return KINDS[0]
    if short <= _SOME:
        return KINDS[1]
    return KINDS[2] if gemm.k >= _DEEP * max(gemm.m, gemm.n) else KINDS[3]


def regrets(found: Matrix) -> tuple[list[Row], list[Gemm], NDArray[np.float64]]:
    """Rows, the columns that any row has a time on, and log(time / best of the column) of each pair."""
    rows, best = found.rows, found.best_us()
    columns = [gemm for gemm in found.columns if gemm in best]
    table = np.full((len(rows), len(columns)), np.log(FAR))
    row_at, column_at = ({key: i for i, key in enumerate(keys)} for keys in (rows, columns))
    for (row, gemm), time_us in found.times().items():
        table[row_at[row], column_at[gemm]] = min(np.log(time_us / best[gemm]), np.log(FAR))
    return rows, columns, table


def choose(table: NDArray[np.float64], allowed: Sequence[int], most: int) -> list[int]:
    """Rows, at most so many, each the one that lowers the mean regret of the columns the most."""
    chosen: list[int] = []
    reached = np.full(table.shape[1], np.log(FAR))
    while len(chosen) < min(most, len(allowed)):
        means = [np.minimum(reached, table[row]).mean() for row in allowed]
        best = int(np.argmin(means))
        if means[best] >= reached.mean():
            break
        chosen.append(allowed[best])
        reached = np.minimum(reached, table[allowed[best]])
    return chosen


def held_apart(found: Matrix, size: int, num_folds: int) -> dict[Gemm, float]:
    """Of each column: log of what the chosen need over the best, chosen without it and its kernels."""
    rows, columns, table = regrets(found)
    regret: dict[Gemm, float] = {}
    for fold in range(num_folds):
        test = [i for i in range(len(columns)) if i % num_folds == fold]
        train = [i for i in range(len(columns)) if i % num_folds != fold]
        theirs = {str(columns[i]) for i in test}
        allowed = [i for i, row in enumerate(rows) if found.known[row].origin not in theirs]
        chosen = choose(table[:, train], allowed, size)
        regret |= {columns[i]: float(table[chosen, i].min(initial=np.log(FAR))) for i in test}
    return regret


def share(regret: dict[Gemm, float], gemms: Sequence[Gemm]) -> float | None:
    """Geometric mean of the shares of the best; None without columns."""
    return float(np.exp(-np.mean([regret[gemm] for gemm in gemms]))) if gemms else None


def over_cublas(found: Matrix, regret: dict[Gemm, float]) -> float | None:
    """Geometric mean of cuBLAS's time over that of the chosen; None where cuBLAS is absent."""
    best = found.best_us()
    logs = [np.log(base / best[g]) - regret[g] for g in regret if (base := found.cublas_us[g])]
    return float(np.exp(np.mean(logs))) if logs else None


def _run(args: argparse.Namespace) -> None:
    sizes = [int(size) for size in args.sizes.split(",")]
    for path in args.matrices:
        found = matrix.read(path)
        gemms = list(found.best_us())
        if len(gemms) < args.folds:
            raise UsageError(
                f"{path} has times on {len(gemms)} columns only; record more, or pass fewer --folds"
            )
        rows = []
        for size in sizes:
            regret = held_apart(found, size, args.folds)
            by_kind = [share(regret, [g for g in gemms if kind_of(g) == kind]) for kind in KINDS]
            cells = [share(regret, gemms), *by_kind, over_cublas(found, regret)]
            rows.append([str(size), *("-" if cell is None else f"{cell:.3f}" for cell in cells)])
        console.show(f"{path}: {len(found.rows)} kernels, {len(gemms)} columns, {found.environment.gpu_name}")
        console.show("\n".join(reports.table(["kernels", "share", *KINDS, "/cuBLAS"], rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    parser.add_argument("--sizes", default="8,16,32,64,128")
    parser.add_argument("--folds", type=int, default=5)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
