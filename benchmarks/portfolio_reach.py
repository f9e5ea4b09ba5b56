"""How well a given number of kernels serves shapes that they were not chosen for, and how well the model
picks among them.

    python benchmarks/portfolio_reach.py studies/matrices/h200-nn.json.gz [more ...]
        [--sizes 16,32,64] [--folds 5]

Of each matrix (write_matrix.py) the columns are left out by folds, as in an export
(autotune/export/held_out.py). Prints geometric means over the columns left out. chosen: the best of all rows
over the best of the chosen; by kind of shape, too. picked: the best of the chosen over what the model picks;
of four: over the best of the first four. /cuBLAS: cuBLAS over what the model picks, the least of these, and
the share of those below 0.98. by cuBLAS: the share of columns that go to cuBLAS where that is a provider, and
then the same three figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import reports
from write_matrix import of_layout

from autotune.cli import console
from autotune.export.held_out import Evaluation, figures_of, held_out, mean_ratio
from autotune.export.portfolio import candidates
from autotune.facts.distribution import KINDS, signature_of_shape
from autotune.facts.gemm import LAYOUTS
from autotune.files.errors import UsageError
from autotune.recording import matrix
from autotune.recording.matrix import TimeMatrix


def held_apart(found: TimeMatrix, size: int, num_folds: int) -> list[Evaluation]:
    """All columns of a matrix, each judged without those of its fold, with at most `size` kernels per
    layout."""
    evaluated = []
    for layout in LAYOUTS:
        known = candidates(layout, (), [of_layout(found, layout)], found.limits)
        cublas_us = {gemm: us for gemm, us in found.cublas_us.items() if us and gemm.layout == layout}
        evaluated += held_out(known, cublas_us, found.limits, size, num_folds=num_folds)
    return evaluated


def row_of(size: int, evaluated: Sequence[Evaluation]) -> list[str]:
    """One line of the table."""
    figures = figures_of(evaluated)[-1]
    kinds = [
        mean_ratio((x.best_us, x.chosen_us) for x in some) if some else None
        for some in ([x for x in evaluated if signature_of_shape(x.gemm) == kind] for kind in KINDS)
    ]
    numbers = [figures.portfolio, *kinds, figures.pick, figures.first]
    if figures.cublas is None:
        return _texts(size, [*numbers, *[None] * 7])
    known = [(one.cublas_us, one) for one in evaluated if one.cublas_us]
    worst = min(cublas_us / one.picked_us for cublas_us, one in known)
    worst_served = min(cublas_us / one.served_us for cublas_us, one in known)
    beside = figures.cublas
    numbers += [beside.kernels, worst, beside.kernels_slower]
    return _texts(size, [*numbers, beside.by_cublas, beside.served, worst_served, beside.served_slower])


def _texts(size: int, numbers: Sequence[float | None]) -> list[str]:
    return [str(size), *("-" if number is None else f"{number:.3f}" for number in numbers)]


def _run(args: argparse.Namespace) -> None:
    for path in args.matrices:
        found = matrix.read(path)
        sizes = [int(size) for size in args.sizes.split(",")]
        evaluated = {size: held_apart(found, size, args.folds) for size in sizes}
        if not all(evaluated.values()):
            raise UsageError(
                f"{path} has times on {len(found.best_us())} columns only; record more, or pass fewer --folds"
            )
        rows = [row_of(size, of_size) for size, of_size in evaluated.items()]
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
