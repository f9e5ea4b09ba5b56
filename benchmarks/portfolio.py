"""How far so many kernels reach on shapes that they were not chosen for, and what of that the model picks.

    python benchmarks/portfolio.py studies/matrices/h200-nn.json.gz [more ...] [--sizes 16,32,64] [--folds 5]

Of each matrix (record_matrix.py) the columns are held apart in folds. Kernels are chosen on the columns of
all other folds (export/portfolio.py), without those that a search of a column held apart found, and without
relatives of these; the model that picks among them knows no other column either. Told are geometric means
over columns held apart. chosen: the best of all rows over the best of the chosen; by kind of shape, too.
picked: the best of the chosen over what the model picks; of four: over the best of the first four. /cuBLAS:
cuBLAS over what the model picks, the least of these, and the share of those below 0.98. by cuBLAS: the share
of columns that go to cuBLAS where that is a provider, and then the same three figures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import reports

from autotune.cli import console
from autotune.errors import UsageError
from autotune.export import portfolio
from autotune.export.figures import error_of
from autotune.gemm import Gemm
from autotune.kernel.relatives import stand_in
from autotune.kernel.resources import residency
from autotune.models import cublas_model
from autotune.models.launches import Shapes
from autotune.recording import matrix
from autotune.recording.matrix import MatrixRow, TimeMatrix

KINDS = ("one side up to 8", "one side up to 64", "deep k", "the rest")
NUM_FIRST = 4
SLOWER = 0.98  # than cuBLAS
_FEW, _SOME, _DEEP = 8, 64, 16


def kind_of(gemm: Gemm) -> str:
    """The kind of shape, by what is hard about it."""
    short = min(gemm.m, gemm.n)
    if short <= _FEW:
        return KINDS[0]
    if short <= _SOME:
        return KINDS[1]
    return KINDS[2] if gemm.k >= _DEEP * max(gemm.m, gemm.n) else KINDS[3]


@dataclass(frozen=True)
class Judged:
    """One column held apart: times in us, infinite where no chosen kernel serves it."""

    gemm: Gemm
    best_us: float  # of all rows
    chosen_us: float  # the best of the chosen
    picked_us: float
    first_us: float  # the best of the first four
    cublas_us: float | None
    served_us: float  # picked, or cuBLAS where that is the provider


def without(found: TimeMatrix, apart: Sequence[Gemm]) -> TimeMatrix:
    """The matrix without these columns and the rows that came from them."""
    theirs = {str(gemm) for gemm in apart}
    known = {row: facts for row, facts in found.known.items() if facts.origin not in theirs}
    cells = {key: cell for key, cell in found.cells.items() if key[0] in known and str(key[1]) not in theirs}
    left = {gemm: time_us for gemm, time_us in found.cublas_us.items() if str(gemm) not in theirs}
    return replace(found, known=known, cells=cells, cublas_us=left)


def judge(found: TimeMatrix, apart: Sequence[Gemm], size: int) -> list[Judged]:
    """These columns, of one layout, served by at most `size` kernels that were chosen without them."""
    layout, best = apart[0].layout, found.best_us()
    known = portfolio.candidates(layout, (), [without(found, apart)], found.limits)
    chosen = set(portfolio.portfolio(layout, known, found.limits, size))
    taken = [candidate for candidate in known if candidate.config in chosen]
    rows = [MatrixRow(layout, candidate.config) for candidate in taken]
    blocks = [
        residency(row.config, found.limits, stand_in(layout), found.known[row].registers) for row in rows
    ]
    figures, forecast = portfolio.learned(layout, taken, found.limits, blocks)
    errors = [error_of(one, candidate.samples) for one, candidate in zip(figures, taken, strict=True)]
    times_us = {gemm: us for gemm, us in found.cublas_us.items() if us and gemm not in set(apart)}
    cublas = cublas_model.learn(times_us, found.limits)
    by_row = found.by_row()
    judged = []
    for gemm in apart:
        expected = forecast.expected(Shapes.of(gemm))
        order = np.argsort(expected.time_us, kind="stable")
        # a number of splits may be there twice
        launches = dict.fromkeys((int(expected.kernel[at]), int(expected.split_k[at])) for at in order)
        cells = [by_row[rows[kernel]].get((gemm, split_k)) for kernel, split_k in launches]
        # one launch of what is clearly too slow tells hardly more than that
        times = [cell.time_us for cell in cells if cell is not None]
        every = [cell.time_us for row in rows for (at, _), cell in by_row[row].items() if at == gemm]
        least = min(every, default=math.inf)
        picked, first = (times[0], min(times[:NUM_FIRST])) if times else (math.inf, math.inf)
        cublas_us = found.cublas_us[gemm]
        margin = cublas.margin(errors[int(expected.kernel[order[0]])])
        is_kernels = cublas.expected_us(gemm, found.limits) >= expected.time_us[order[0]] * math.exp(margin)
        served = picked if is_kernels or not cublas_us else cublas_us
        judged.append(Judged(gemm, best[gemm], least, picked, first, cublas_us, served))
    return judged


def held_apart(found: TimeMatrix, size: int, num_folds: int) -> list[Judged]:
    """All columns, each judged without those of its fold."""
    best = found.best_us()
    columns = [gemm for gemm in found.columns if gemm in best]
    folds = [columns[fold::num_folds] for fold in range(num_folds)]
    return [one for apart in folds for one in judge(found, apart, size)]


def mean(ratios: Sequence[float]) -> float | None:
    """Geometric; None without any, 0 where one is 0: no chosen kernel serves that column."""
    if not all(ratios):
        return 0.0
    return math.exp(float(np.mean(np.log(ratios)))) if ratios else None


def row_of(size: int, judged: Sequence[Judged]) -> list[str]:
    """One line of the table."""
    chosen = mean([one.best_us / one.chosen_us for one in judged])
    kinds = [mean([x.best_us / x.chosen_us for x in judged if kind_of(x.gemm) == kind]) for kind in KINDS]
    picked = mean([one.chosen_us / one.picked_us for one in judged])
    first = mean([one.chosen_us / one.first_us for one in judged])
    over = [one.cublas_us / one.picked_us for one in judged if one.cublas_us]
    served = [one.cublas_us / one.served_us for one in judged if one.cublas_us]
    slower = [sum(ratio < SLOWER for ratio in ratios) / max(1, len(ratios)) for ratios in (over, served)]
    shares = sum(one.served_us == one.cublas_us for one in judged) / len(judged)
    numbers = [chosen, *kinds, picked, first, mean(over), min(over, default=None), slower[0]]
    numbers += [shares, mean(served), min(served, default=None), slower[1]]
    return [str(size), *("-" if number is None else f"{number:.3f}" for number in numbers)]


def _run(args: argparse.Namespace) -> None:
    for path in args.matrices:
        found = matrix.read(path)
        if len(found.best_us()) < args.folds:
            raise UsageError(
                f"{path} has times on {len(found.best_us())} columns only; record more, or pass fewer --folds"
            )
        sizes = [int(size) for size in args.sizes.split(",")]
        rows = [row_of(size, held_apart(found, size, args.folds)) for size in sizes]
        console.show(
            f"{path}: {len(found.rows)} kernels, {len(found.best_us())} columns, {found.environment.gpu_name}"
        )
        header = ["kernels", "chosen", *KINDS, "picked", "of four", "/cuBLAS", "worst", "slower"]
        header += ["by cuBLAS", "/cuBLAS", "worst", "slower"]
        console.show("\n".join(reports.table(header, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    parser.add_argument("--sizes", default="16,32,64")
    parser.add_argument("--folds", type=int, default=5)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
