"""An A of BF16 or FP16 beside a B of FP32: tensor kernels that read it as it is, against strict FP32 and
cuBLAS, which are given the A converted before, in the same rounds.

    python benchmarks/mixed_operands.py [--shape 64x256x6144 ...] [--a-type bf16] [--seconds 10] [--rounds 31]
        [--out studies/results/NAME.json]

For each shape a search of so many seconds among strict kernels, and one among those that read A, each of
which is held to the class fp32: errors no larger than cuBLAS's on five kinds of operands. Then the best of
both race. What converting takes is not counted for those that need it. Raw samples go to `--out`, written
after each shape.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import reports

from autotune import tune
from autotune.cli import console
from autotune.facts.accuracy_class import FP32, STRICT
from autotune.facts.gemm import A_TYPES, Gemm
from autotune.gpu import GpuTarget
from autotune.kernel import templates

SHAPES = ("64x256x6144", "128x256x6144", "256x256x6144", "512x256x6144")
MOST = 3  # of each search that race


def best_points(gemm: Gemm, accuracy: str, seconds: float, db: str, gpu: str) -> list[dict[str, Any]]:
    """Of a search, the fastest first, as they were timed one by one."""
    result = tune([gemm], gpu=gpu, seconds=seconds, db=db, accuracy=accuracy, note=console.show)
    timed = [one for one in result.trials[gemm] if one.measurement.time_us]
    timed.sort(key=lambda one: one.measurement.time_us or 0)
    return [dict(one.point) for one in timed[:MOST]]


def race(gemm: Gemm, args: argparse.Namespace, db: str) -> dict[str, Any]:
    floats = Gemm(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
    strict = best_points(floats, STRICT, args.seconds, db, args.gpu)
    short = best_points(gemm, FP32, args.seconds, db, args.gpu)
    if not strict or not short:
        raise SystemExit(f"{gemm}: a search found no kernel ({len(strict)} strict, {len(short)} that read A)")
    points = [*strict, *short]
    with GpuTarget(args.gpu, accuracy=FP32, a_type=gemm.a_type) as target:
        rounds = target.compare(gemm, points, args.rounds)
        errors = [target.submit(gemm, point, None).result(120) for point in short]
    times = [median(one) if one else None for one in rounds.samples_us]
    cublas_us = median(rounds.baseline.samples_us) if rounds.baseline else None
    best_strict = min((one for one in times[: len(strict)] if one), default=None)
    place = min(range(len(strict), len(points)), key=lambda at: times[at] or float("inf"))
    return {
        "shape": str(gemm),
        "strict_us": best_strict,
        "short_us": times[place],
        "cublas_us": cublas_us,
        "over_strict": best_strict / times[place] if best_strict and times[place] else None,
        "over_cublas": cublas_us / times[place] if cublas_us and times[place] else None,
        "config": templates.read(points[place]).key,
        "strict_config": templates.read(strict[0]).key,
        "error_over_cublas": [one.error_over_cublas for one in errors],
        "outcomes": [one.outcome.value for one in errors],
        "samples_us": [list(one) for one in rounds.samples_us],
        "cublas_samples_us": list(rounds.baseline.samples_us) if rounds.baseline else [],
        "points": points,
        "failures": {str(at): str(one) for at, one in rounds.failures.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", help="repeatable")
    parser.add_argument("--a-type", default="bf16", choices=A_TYPES[1:])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each search")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "mixed_operands", "shapes": []}
    with GpuTarget(args.gpu) as target:
        report |= {"environment": target.environment.to_dict(), "seconds": args.seconds}
    with tempfile.TemporaryDirectory() as folder:
        for text in args.shape or SHAPES:
            gemm = Gemm.parse(f"{text}:a-{args.a_type}")
            found = race(gemm, args, str(Path(folder) / "mixed.db"))
            report["shapes"].append(found)
            console.show(
                f"{gemm}: {found['short_us']:.2f} us, {found['over_strict']:.2f}x strict "
                f"({found['strict_us']:.2f} us), {found['over_cublas'] or 0:.2f}x cublasSgemm; "
                f"errors over its {[round(one or 0, 2) for one in found['error_over_cublas']]}; "
                f"{found['config']}"
            )
            reports.keep(args.out, report)


if __name__ == "__main__":
    main()
