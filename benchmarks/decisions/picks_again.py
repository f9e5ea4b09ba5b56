"""What the model of this code would have picked on judged shapes, by the times that were kept (0116).

    python benchmarks/decisions/picks_again.py h200-any-seed6.db studies/results/h200-any-shape-reference-*.xz

Takes a database (studies/databases/README.md) and reports of `any_shape.py` with their part `reference`. Of a
report's table those kernels count that the database knows; they are modelled from its times and the shipped
ones. A launch that was not raced has its glance's time, times what raced ones took over theirs. Prints pick
over the best accurate launch, and over the shape's own best, mean and tenth percentile; and, for each margin
in deviations of both expected times, the share left to cuBLAS, the mean as served, the total of all times,
and the least; MARGIN is that of `sgemm`, and ROUTED_SHARE of it that of routed products.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean as mean
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks
import reports
from any_shape_figures import is_accurate, tenth

from autotune.cli import console
from autotune.export.figures import error_of, times_of_cublas
from autotune.export.from_store import read_results
from autotune.export.portfolio import TimedCandidates, TimedKernel, candidates
from autotune.export.tuned import TunedResults, spread
from autotune.export.wishes import Wish
from autotune.facts import stats
from autotune.facts.device import known_limits
from autotune.facts.fitted import number
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.perf_model import cublas_model
from autotune.perf_model.launches import Shapes
from autotune.perf_model.model_figures import MARGIN, excess_depth, slower_by
from autotune.perf_model.sum_depths import Sums, allowed_depths
from autotune.recording.matrix import TimeMatrix
from autotune.search.propose.origins import FILL, TRANSFERRED
from autotune.store import Store
from autotune.target_finder import matrices

CAUTION = 0.5  # core/choice.c
MARGINS = (1.7, MARGIN, 1.3, 1.0, MARGIN * number("ROUTED_SHARE"), 0.5, 0.0)


class Picked(NamedTuple):
    """One judged shape; times in us. `doubt`: the deviation of both expected times."""

    time_us: float
    best_us: float
    own_us: float
    cublas_us: float
    expected_us: float
    expected_cublas_us: float
    doubt: float

    def served(self, margin: float) -> float:
        """Over cuBLAS, which serves unless the kernel is expected to be faster by so many deviations."""
        is_by_cublas = self.expected_cublas_us < self.expected_us * math.exp(margin * self.doubt)
        return 1.0 if is_by_cublas else self.cublas_us / self.time_us


def picked(results: TunedResults, shipped: Sequence[TimeMatrix], judged: Sequence[Any]) -> Iterator[Picked]:
    """Of all shapes of these reports that have a reference."""
    modelled = spread(one.gemm for one in results.shapes if not one.gemm.is_batched)
    single = [one for one in results.shapes if one.gemm in modelled]
    cublas = times_of_cublas(results, shipped)
    for layout in LAYOUTS:
        known = {
            Wish(one.config, layout).id: one for one in candidates(layout, single, shipped, results.limits)
        }
        model = cublas_model.learn(cublas[layout].times_us, results.limits)
        for report in judged:
            shapes = [s for s in report["shapes"] if "samples_us" in s.get("reference", ())]
            names = {name.partition("/")[0] for s in shapes for name in s["reference"]["glances_us"]}
            here = {name: one for name, one in known.items() if name in names}
            own = [s for s in shapes if Gemm.parse(s["shape"]).layout == layout]
            yield from _of_layout(layout, here, own, model, results)


def _of_layout(
    layout: str, known: dict[str, TimedKernel], shapes: Any, model: cublas_model.CublasModel, results: Any
) -> Iterator[Picked]:
    kernels, numbers = list(known.values()), {name: i for i, name in enumerate(known)}
    figures, prediction = TimedCandidates.of(layout, kernels, results.limits).learned()
    errors = np.array([error_of(one, k.samples) for one, k in zip(figures, kernels, strict=True)])
    sums = Sums.of([kernel.config for kernel in kernels])
    for shape in shapes:
        facts, gemm = shape["reference"], Gemm.parse(shape["shape"])
        raced = {name: stats.median(times) for name, times in facts["samples_us"].items()}
        glances = facts["glances_us"]
        by = math.exp(stats.median([math.log(raced[x] / glances[x]) for x in raced if x in glances]))
        times_us = {x: raced.get(x, us * by) for x, us in glances.items()} | raced
        launches = {}
        for name, time_us in times_us.items():
            kernel, _, splits = name.partition("/")
            if kernel in numbers:
                launches[numbers[kernel], int(splits)] = time_us
        accurate = {x: us for x, us in raced.items() if is_accurate(facts.get("errors", {}), x)}
        ours = [us for x, us in accurate.items() if x.partition("/")[0] in numbers] or [*launches.values()]
        if not ours:
            continue
        allowed = allowed_depths(gemm, results.limits.num_sms)
        splits_from = sums.accurate_splits(max(gemm.k, 1), allowed)
        found = prediction.expected(Shapes.of(gemm, tuple(shape["lds"])), splits_from)
        depths = sums.take(found.kernel).depths(found.split_k, gemm)
        careful = found.time_us * (1 + CAUTION * errors[found.kernel])
        for at in np.argsort(careful * slower_by(excess_depth(depths, allowed)), kind="stable").tolist():
            time_us = launches.get((int(found.kernel[at]), int(found.split_k[at])))
            if time_us is not None:
                doubt = model.margin(gemm, errors[found.kernel[at]]) / MARGIN
                best_us, expected = min(ours), model.expected_us(gemm, results.limits)
                own_us = min(best_us, accurate.get("alone", math.inf))
                yield Picked(time_us, best_us, own_us, raced["cublas"], found.time_us[at], expected, doubt)
                break


def _run(args: argparse.Namespace) -> None:
    with Store.open_existing(args.db) as store:
        environment = store.environments()[0]
        limits = known_limits(environment.gpu_name)
        results = read_results(store, environment, limits, drawn_origin=FILL, foreign_origins=TRANSFERRED)
    found = list(picked(results, matrices(), [reports.read(path, "any_shape") for path in args.reports]))
    of_best, of_own = [x.best_us / x.time_us for x in found], [x.own_us / x.time_us for x in found]
    console.show(
        f"{len(found)} shapes: pick over the table's best {mean(of_best):.4f}, tenth percentile "
        f"{tenth(of_best):.3f}; over the shape's own best {mean(of_own):.4f}, {tenth(of_own):.3f}"
    )
    for margin in MARGINS:
        served = [one.served(margin) for one in found]
        left = sum(x == 1.0 for x in served) / len(served)
        slower, far = (sum(x < most for x in served) for most in (0.98, 0.95))
        total = sum(one.cublas_us for one in found) / sum(
            one.cublas_us / x for one, x in zip(found, served, strict=True)
        )
        least = ", ".join(f"{x:.3f}" for x in sorted(served)[:3])
        console.show(
            f"margin {margin:g}: {left:.1%} left to cuBLAS, served {mean(served):.3f} times cuBLAS (of the "
            f"total {total:.3f}), {slower} below 0.98, {far} below 0.95, least {least}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db", type=Path)
    parser.add_argument("reports", type=Path, nargs="+")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
