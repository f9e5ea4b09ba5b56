"""What a summation order costs, from the trials of databases: no GPU is needed.

    python benchmarks/order_cost.py h200-any-seed6.db [more ...] [--least 40]

Of each shape of at least so many trials: the best time of kernels that sum in an order, over the best of all
that a search may choose (facts/fitted.py: MAX_ERROR). Told are geometric means by kind of shape, and how
many shapes they are of; then over all shapes, and over those where both sides of C exceed 8. *always* counts
kernels that have the order whatever the shape, *here* also those that have it on the shape: chains where k
is one chunk, splits that are chunks. *like* stands for splits that are chunks (reduction=chunks), which these
searches did not know: kernels without slices and lanes along k, in one part, or in two passes and half to
twice as many parts as there are chunks. These searches looked for speed alone, so a search within an order
may find better kernels: each figure is the most that the order costs.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import reports
from sum_lengths import lengths_of

from autotune.cli import console
from autotune.facts.distribution import KINDS, signature_of_shape
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel.config import Config, threads_along_k
from autotune.kernel.summation_order import CHUNKS, SummationOrder, has_order
from autotune.store import Store

FEW = 8  # rows or columns
Has = Callable[[Config, Gemm], bool]
Times = dict[Gemm, dict[str, float]]  # us by key of a config


def always(order: SummationOrder) -> Has:
    return lambda config, gemm: bool(has_order(config, order))


def here(order: SummationOrder) -> Has:
    return lambda config, gemm: lengths_of(config, gemm) == order.lengths(gemm.k)


def like(order: SummationOrder) -> Has:
    def has(config: Config, gemm: Gemm) -> bool:
        if threads_along_k(config) > 1 or config.reduction not in ("none", "two_pass"):
            return False
        is_one = config.reduction == "none"
        chunks = len(order.lengths(gemm.k))
        return is_one or chunks / 2 <= config.split_k <= 2 * chunks

    return has


def read(paths: Iterable[Path]) -> tuple[Times, dict[Gemm, float]]:
    """All times of all shapes, and the best of those that are accurate enough."""
    times, best = Times(), dict[Gemm, float]()
    for path in paths:
        with closing(Store.open_existing(path)) as store:
            for study in (summary.study for summary in store.studies()):
                gemm = study.gemm
                times.setdefault(gemm, {}).update(store.times(study))
                accurate = store.times(study, MAX_ERROR).values()
                best[gemm] = min([best.get(gemm, math.inf), *accurate])
    return times, best


def costs(times: Times, best: dict[Gemm, float], has: Has) -> dict[Gemm, float]:
    """The best time of kernels with the order over that of all, by shape; of shapes that have both."""
    found = {}
    for gemm, by_key in times.items():
        ordered = [us for key, us in by_key.items() if has(Config.parse(key), gemm)]
        if ordered and math.isfinite(best[gemm]):
            found[gemm] = min(ordered) / best[gemm]
    return found


def row_of(name: str, found: dict[Gemm, float]) -> list[str]:
    """One line of the table."""
    groups = defaultdict[str, list[float]](list)
    for gemm, cost in found.items():
        groups[signature_of_shape(gemm)].append(cost)
    wide = [cost for gemm, cost in found.items() if min(gemm.m, gemm.n) > FEW]
    return [name, *(_mean(groups[kind]) for kind in KINDS), _mean(list(found.values())), _mean(wide)]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{math.exp(sum(map(math.log, values)) / len(values)):.3f} ({len(values)})"


def _run(args: argparse.Namespace) -> None:
    times, best = read(args.databases)
    times = {gemm: by_key for gemm, by_key in times.items() if len(by_key) >= args.least}
    if not times:
        raise UsageError(f"no shape of {args.databases[0]} has {args.least} trials; pass a smaller --least")
    console.show(f"{', '.join(path.name for path in args.databases)}: {len(times)} shapes")
    rows = [
        row_of(f"{order} {what.__name__}", costs(times, best, what(order)))
        for order in map(SummationOrder, (0, *CHUNKS))
        for what in ((always, here, like) if order.chunk else (always, here))
    ]
    header = ["order", *KINDS, "all", f"both sides > {FEW}"]
    console.show("\n".join(reports.table(header, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("databases", type=Path, nargs="+")
    parser.add_argument("--least", type=int, default=40, help="trials of a shape")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
