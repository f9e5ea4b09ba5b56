"""How surely the time of a cuBLAS that adds a bias is known, and what kernels gain over it on judged shapes.

    python benchmarks/decisions/adding_doubt.py --measure adding.json.xz [--seconds 90]
        studies/results/h200-any-shape-seed*.json.xz
    python benchmarks/decisions/adding_doubt.py --times adding.json.xz studies/results/h200-any-shape-seed*.xz

The first times cublasLtMatmul with its bias epilogue, as torch calls it, on the shapes that a search draws
and then on those of these files of any_shape.py whose operands are packed, of NT and NN. Needs a GPU of the
kind of the files. The second learns what it is expected to take from the drawn shapes alone, and takes the
kernels' expected and measured times from the files. By how many deviations a kernel is expected to be faster:
how many shapes, how much faster it is in the mean, the shares below 0.98 and 0.95, and the least.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean as mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks
import reports
from any_shape import SORTS

from autotune import target_finder as targets
from autotune.cli import console
from autotune.drawn_shapes import drawn_for
from autotune.facts import stats
from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import UsageError
from autotune.perf_model import cublas_model
from autotune.perf_model.cublas_model import NUM_TIMED
from autotune.perf_model.model_figures import MARGIN
from autotune.search.cublas_times import BIAS_LAYOUTS, with_bias
from autotune.target import Cell, CellTarget

BENCHMARK, AT_ONCE = "adding_doubt", 50
KERNEL_ERROR = 0.06  # of its expected time; that of cuBLAS decides
BOUNDS = (-9.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.3, 1.6, 99.0)


def judged(paths: Sequence[Path]) -> Iterator[tuple[Gemm, float, float]]:
    """Shapes, and what their kernels were expected to take and took, in us."""
    for path in paths:
        for shape in reports.read(path, "any_shape")["shapes"]:
            pick, gemm = shape.get("pick", {}), Gemm.parse(shape["shape"])
            samples = pick.get("samples_us", {}).get(pick.get("name"))
            if samples and pick["how"] == "modelled" and shape["sort"] != SORTS[2] and with_bias([gemm]):
                yield gemm, pick["expected_us"], stats.median(samples)


def measure(out: Path, seconds: float, paths: Sequence[Path]) -> None:
    """Keeps what is timed as it goes."""
    with closing(targets.open_target("auto", CachePolicy.COLD, note=console.note)) as target:
        if not isinstance(target, CellTarget):
            raise UsageError("there is no GPU")
        report: dict[str, Any] = {
            "benchmark": BENCHMARK,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": target.environment.to_dict(),
            "drawn": [],
            "judged": [],
        }
        drawn = with_bias(drawn_for(NUM_TIMED, 0, target.limits))
        begun = time.monotonic()
        for part, gemms in (("drawn", drawn), ("judged", [one[0] for one in judged(paths)])):
            shapes = list(dict.fromkeys(gemms))
            for at in range(0, len(shapes), AT_ONCE):
                if time.monotonic() > begun + seconds:
                    break
                some = shapes[at : at + AT_ONCE]
                timed = target.fill([Cell(gemm, None, has_bias=True) for gemm in some]).result()
                report[part] += [
                    [str(gemm), round(stats.median(cell.samples_us), 3)]
                    for gemm, cell in zip(some, timed, strict=True)
                    if cell.samples_us
                ]
            reports.keep(out, report)
        console.show(f"{len(report['drawn'])} drawn and {len(report['judged'])} judged shapes were timed")


def _show(times: Path, paths: Sequence[Path]) -> None:
    report = reports.read(times, BENCHMARK)
    limits = known_limits(report["environment"]["gpu_name"])
    drawn = {Gemm.parse(text): time_us for text, time_us in report["drawn"]}
    models = {
        layout: cublas_model.learn({g: us for g, us in drawn.items() if g.layout == layout}, limits)
        for layout in BIAS_LAYOUTS
    }
    timed_us = {Gemm.parse(text): time_us for text, time_us in report["judged"]}
    found, missed = list[tuple[float, float]](), list[float]()
    for gemm, expected_us, kernel_us in judged(paths):
        if gemm in timed_us:
            model = models[gemm.layout]
            cublas_us = model.expected_us(gemm, limits)
            doubt = model.margin(gemm, KERNEL_ERROR) / MARGIN
            found.append((math.log(cublas_us / expected_us) / doubt, timed_us[gemm] / kernel_us))
            missed.append(math.log(timed_us[gemm] / cublas_us))
    deviations = ", ".join(f"{layout} {model.deviation:.3f}" for layout, model in models.items())
    error = math.sqrt(sum(x * x for x in missed) / len(missed))
    console.show(f"{len(drawn)} drawn: deviation {deviations}; {len(found)} judged: error {error:.3f}")
    rows = []
    for low, high in pairwise(BOUNDS):
        some = [gain for by, gain in found if low <= by < high]
        if some:
            shares = [f"{sum(x < least for x in some) / len(some):.1%}" for least in (0.98, 0.95)]
            cells = [f"{low:g} to {high:g}", str(len(some)), f"{mean(some):.3f}"]
            rows.append([*cells, *shares, f"{min(some):.3f}"])
    headers = ["deviations", "shapes", "over cuBLAS", "below 0.98", "below 0.95", "least"]
    console.show(console.table(headers, rows, right=range(1, len(headers))))


def _run(args: argparse.Namespace) -> None:
    if args.measure:
        measure(args.measure, args.seconds, args.reports)
    _show(args.measure or args.times, args.reports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", type=Path, nargs="+")
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--measure", type=Path)
    of.add_argument("--times", type=Path)
    parser.add_argument("--seconds", type=float, default=90)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
