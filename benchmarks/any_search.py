"""The order of `search --any`, and the weights of an export, judged on matrices of kernels and shapes.

    python benchmarks/any_search.py studies/matrices/h200-nn.json.gz [more ...] [--seeds 12]

Prints geometric means over shapes: the best of all kernels of the matrix over the best of the available ones.

order: the first kernels of each shape in the order of search/fill.py, and with all leaders before their
relatives; chosen and judged as in portfolio_reach.py, on columns cross-validated in five folds.

further: each search has shown a fifth of its kernels, drawn at random; a quarter of what is left comes:
of all searches alike; of whole searches, in the order of a draw, of how much kernels of others beat theirs
(`beaten`), or of how far the best is from the limit (`far`). On the columns searched / held apart.

calls: a program calls for 12 shapes, by Zipf's law, of which 8 were searched. Kernels are chosen with so much
of the weight on these (none: without the calls); judged on its 8 / its 4 / six other shapes held apart.

narrow: kernels that read or write operands one float at a time, on the columns whose rows are whole fours.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import reports

from autotune.cli import console
from autotune.export import portfolio
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.relatives import relatives
from autotune.recording import matrix
from autotune.recording.matrix import TimeMatrix
from autotune.search.fill import in_order

PER_SHAPE, NUM_FOLDS, NUM_APART = (1, 2, 3, 4, 6, 12), 5, 8
SHOWN, MORE, NUM_DRAWS = 0.2, 0.25, 300
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
NUM_CALLED, NUM_SEARCHED, MOST_KERNELS = 12, 8, 64
WORST = 4.0  # times the best: the most that counts


def without(found: TimeMatrix, apart: Sequence[Gemm]) -> TimeMatrix:
    """The matrix without these columns and the rows that came from them."""
    theirs = {str(gemm) for gemm in apart}
    known = {row: facts for row, facts in found.known.items() if facts.origin not in theirs}
    cells = {key: cell for key, cell in found.cells.items() if key[0] in known and str(key[1]) not in theirs}
    left = {gemm: time_us for gemm, time_us in found.cublas_us.items() if str(gemm) not in theirs}
    return replace(found, known=known, cells=cells, cublas_us=left)


@dataclass(frozen=True)
class LayoutTimes:
    """Kernels of one layout by columns: (kernels, columns) least times in us, infinite where there is none,
    and the column whose search found each, -1 for none."""

    found: TimeMatrix
    columns: list[Gemm]
    configs: list[Config]
    times_us: np.ndarray
    origins: np.ndarray

    @classmethod
    def of(cls, found: TimeMatrix) -> LayoutTimes:
        best = found.best_us()
        columns = [gemm for gemm in found.columns if gemm in best]
        at = {gemm: i for i, gemm in enumerate(columns)}
        times = np.full((len(found.rows), len(columns)), np.inf)
        for row, cells in zip(times, found.by_row().values(), strict=True):
            for (gemm, _), cell in cells.items():
                if gemm in at:
                    row[at[gemm]] = min(row[at[gemm]], cell.time_us)
        names = {str(gemm): i for i, gemm in enumerate(columns)}
        origins = np.array([names.get(facts.origin, -1) for facts in found.known.values()])
        return cls(found, columns, [row.config for row in found.rows], times, origins)

    def reached(self, configs: Iterable[Config], columns: Sequence[int]) -> float:
        """Of the best of all kernels, by the best of these, on these columns."""
        rows = [i for i, config in enumerate(self.configs) if config in set(configs)]
        return math.exp(-self.losses(rows)[list(columns)].mean())

    def losses(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """(columns,) logarithms of the best of these kernels over the best of all."""
        least = self.times_us[rows].min(axis=0, initial=np.inf)
        losses: np.ndarray = np.minimum(np.log(least / self.times_us.min(axis=0)), math.log(WORST))
        return losses


def best_kernels(grid: LayoutTimes, column: int) -> list[Config]:
    """The kernels that the search of a column found, best first, without their relatives."""
    own = np.flatnonzero(grid.origins == column)
    configs = [grid.configs[i] for i in own[np.argsort(grid.times_us[own, column])]]
    layout = grid.columns[column].layout
    derived = {r for c in configs for r in relatives(c, layout, grid.found.limits) if r != c}
    return [config for config in configs if config not in derived]


def order(grid: LayoutTimes) -> list[list[str]]:
    """Rows of the first table."""
    layout, limits, rows = grid.columns[0].layout, grid.found.limits, []
    for per_shape in PER_SHAPE:
        reached: dict[str, list[float]] = {"in turn": [], "leaders first": []}
        for fold in range(NUM_FOLDS):
            apart = list(range(fold, len(grid.columns), NUM_FOLDS))
            own = [best_kernels(grid, i) for i in range(len(grid.columns)) if i not in apart]
            in_turn = list(in_order(layout, own, [], limits))
            first = {config.in_any_splits for configs in own for config in configs}
            known = without(grid.found, [grid.columns[i] for i in apart])
            for name, queue in (
                ("in turn", in_turn),
                ("leaders first", sorted(in_turn, key=lambda c: c not in first)),
            ):
                known_rows = {row.config.in_any_splits: row for row in known.known}
                taken = [known_rows[c] for c in queue if c in known_rows][: per_shape * len(own)]
                cells = {key: cell for key, cell in known.cells.items() if key[0] in set(taken)}
                part = replace(known, known={row: known.known[row] for row in taken}, cells=cells)
                candidates = portfolio.candidates(layout, (), [part], limits)
                chosen = set(portfolio.portfolio(layout, candidates, limits, MOST_KERNELS))
                reached[name].append(
                    grid.reached([r.config for r in taken if r.config.in_any_splits in chosen], apart)
                )
        rows.append([str(per_shape), *(f"{np.mean(values):.3f}" for values in reached.values())])
    return rows


def further(grid: LayoutTimes) -> list[list[str]]:
    """Rows of the second table."""
    limits = grid.found.limits
    limit_us = np.array([g.limit_us(limits.fma_tflops, limits.bandwidth_gbs) for g in grid.columns])
    reached: dict[str, list[tuple[float, float]]] = {}
    for seed in range(NUM_DRAWS):
        rng = np.random.default_rng(seed)
        apart = rng.permutation(len(grid.columns))[:NUM_APART]
        searched = np.setdiff1d(np.unique(grid.origins[grid.origins >= 0]), apart)
        queues = {j: rng.permutation(np.flatnonzero(grid.origins == j)) for j in searched}
        num = {j: max(1, round(SHOWN * len(queue))) for j, queue in queues.items()}
        shown = [*np.flatnonzero(grid.origins < 0), *(i for j in searched for i in queues[j][: num[j]])]
        left = {j: queues[j][num[j] :] for j in searched}
        best = grid.times_us[shown].min(axis=0)
        own = {j: grid.times_us[queues[j][: num[j]], j].min() for j in searched}
        budget = round(MORE * sum(map(len, left.values())))
        mixed = rng.permutation([i for queue in left.values() for i in queue])[:budget]
        worths = {
            "by draw": {j: rng.random() for j in left},
            "beaten": {j: own[j] / best[j] for j in left},
            "far": {j: best[j] / limit_us[j] for j in left},
        }
        whole = {name: _whole_first(left, worth)[:budget] for name, worth in worths.items()}
        for name, more in {"before": [], "all alike": list(mixed), **whole}.items():
            losses = grid.losses([*shown, *more])
            reached.setdefault(name, []).append((losses[searched].mean(), losses[apart].mean()))
    return [
        [name, *(f"{x:.4f}" for x in np.exp(-np.mean(values, axis=0)))] for name, values in reached.items()
    ]


def _whole_first(left: Mapping[int, np.ndarray], worth: Mapping[int, float]) -> list[int]:
    """What is left of all searches: all of the one that is worth most, then of the next."""
    return [i for j in sorted(left, key=worth.__getitem__, reverse=True) for i in left[j]]


def calls(grid: LayoutTimes, num_seeds: int) -> list[list[str]]:
    """Rows of the third table."""
    layout, limits = grid.columns[0].layout, grid.found.limits
    reached: dict[float, list[tuple[float, ...]]] = {weight: [] for weight in WEIGHTS}
    for seed in range(num_seeds):
        rng = random.Random(seed)
        drawn = rng.sample(range(len(grid.columns)), len(grid.columns))
        apart, searched = drawn[: NUM_CALLED - NUM_SEARCHED + 6], drawn[NUM_CALLED - NUM_SEARCHED + 6 :]
        new, others, known = apart[:-6], apart[-6:], searched[:NUM_SEARCHED]
        counts = [1000 // (i + 1) for i in range(NUM_CALLED)]
        rng.shuffle(counts)
        count = {grid.columns[i]: number for i, number in zip([*known, *new], counts, strict=True)}
        candidates = portfolio.candidates(
            layout, (), [without(grid.found, [grid.columns[i] for i in apart])], limits
        )
        for weight in WEIGHTS:
            portfolio.CALLED = weight
            chosen = portfolio.portfolio(layout, candidates, limits, MOST_KERNELS, count if weight else {})
            rows = [i for i, config in enumerate(grid.configs) if config in set(chosen)]
            losses, parts = grid.losses(rows), []
            for some in (known, new):
                parts.append(np.average(losses[some], weights=[count[grid.columns[i]] for i in some]))
            reached[weight].append((len(chosen), *parts, losses[others].mean()))
    means = {weight: np.mean(values, axis=0) for weight, values in reached.items()}
    return [[f"{w:g}", f"{m[0]:.0f}", *(f"{x:.3f}" for x in np.exp(-m[1:]))] for w, m in means.items()]


def narrow(grid: LayoutTimes) -> list[list[str]]:
    """Rows of the fourth table."""
    aligned = [i for i, g in enumerate(grid.columns) if not any(ld % 4 for ld in (g.lda, g.ldb, g.ldc))]
    rows = []
    for operands in ("a", "b", "c", "ab", "bc"):
        configs = [c for c in grid.configs if all(getattr(c, f"vec_{x}") == 1 for x in operands)]
        rows.append([" and ".join(operands.upper()), f"{grid.reached(configs, aligned):.3f}"])
    return rows


def _run(args: argparse.Namespace) -> None:
    for path in args.matrices:
        grid = LayoutTimes.of(matrix.read(path))
        console.show(f"{path}: {len(grid.configs)} kernels, {len(grid.columns)} columns")
        tables = (
            (("kernels of each shape", "in turn", "leaders first"), order(grid)),
            (("further searches", "searched", "held apart"), further(grid)),
            (
                ("weight of calls", "kernels", "called, searched", "called, new", "others"),
                calls(grid, args.seeds),
            ),
            (("narrow", "of all"), narrow(grid)),
        )
        for header, rows in tables:
            console.show("\n".join(reports.table(header, rows)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=12, help="programs that call for shapes")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
