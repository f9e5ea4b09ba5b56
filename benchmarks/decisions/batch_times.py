"""How surely the times of strided batches are known, of cuBLAS and of kernels, and what margins come to.

    python benchmarks/decisions/batch_times.py studies/results/h200-batches-live-seed771903.json.xz [more ...]

Takes files of `any_shape.py --batches`: drawn batches with times of cuBLAS and of launches in the same
rounds. Needs no GPU. cuBLAS's times are expected from those of all other batches of the layout; those of
launches from the shipped times of kernels, of which a table has others, too: what nothing is known of is left
out. Then, for shares of the margin: how many batches kernels would serve, the geometric mean over cuBLAS of
all, how many are below 0.98 and 0.9, and the least.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks
import reports

from autotune import target_finder as targets
from autotune.cli import console
from autotune.export.portfolio import TimedCandidates, candidates
from autotune.export.wishes import Wish
from autotune.facts import stats
from autotune.facts.device import DeviceLimits, known_limits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.perf_model.cublas_model import TimedCublas
from autotune.perf_model.launches import Shapes

SHARES = (1.0, 0.5, 0.25, 0.0)
Launch = tuple[float, float, float]  # expected and measured, in us, and the error of its kernel's figures


def launches(layout: str, shapes: Sequence[dict[str, Any]], limits: DeviceLimits) -> dict[Gemm, list[Launch]]:
    """Those of each batch that were timed."""
    known = {Wish(one.config, layout, is_batched=True).id: one for one in
             candidates(layout, (), targets.matrices(), limits)}  # fmt: skip
    names = {name.split("/")[0] for shape in shapes for name in shape["pick"]["first"]} & known.keys()
    at = {name: number for number, name in enumerate(sorted(names))}
    figures, prediction = TimedCandidates.of(layout, [known[name] for name in at], limits).learned()
    found: dict[Gemm, list[Launch]] = {}
    for shape in shapes:
        gemm, pick = Gemm.parse(shape["shape"]), shape["pick"]
        (kernels, splits, times_us), _ = prediction.modelled(Shapes.in_batch(gemm))
        for name in pick["first"]:
            kernel, split_k = name.split("/")
            is_it = (kernels == at.get(kernel, -1)) & (splits == int(split_k))
            if is_it.any():
                measured = stats.median(pick["samples_us"][name])
                error = figures[at[kernel]].relative_error
                found.setdefault(gemm, []).append((float(times_us[is_it].min()), measured, error))
    return found


def told(logs: Sequence[float]) -> str:
    found = np.array(logs)
    middle = np.median(np.abs(found)) / 0.6745
    return (
        f"mean {found.mean():+.3f}, deviation {found.std():.3f}, by the median {middle:.3f}, of {len(found)}"
    )


def batches(paths: Sequence[Path]) -> Iterator[tuple[Gemm, list[Launch], float, float, float]]:
    """Each with its launches, cuBLAS's expected and measured time, and its margin for a kernel without
    error."""
    shapes = [one for path in paths for one in reports.read(path, "any_shape")["shapes"]]
    limits = known_limits("h200")
    for layout in LAYOUTS:
        own = [one for one in shapes if Gemm.parse(one["shape"]).layout == layout]
        cublas_us = {
            Gemm.parse(one["shape"]): stats.median(one["pick"]["samples_us"]["cublas"]) for one in own
        }
        timed, by_kernels = TimedCublas(cublas_us, limits), launches(layout, own, limits)
        console.show(
            f"{layout}: deviation of cuBLAS {timed.model().deviation:.3f}, of {len(cublas_us)} batches"
        )
        for gemm, one_us in cublas_us.items():
            if gemm in by_kernels:
                model = timed.model([gemm])
                expected_us, margin = model.expected_us(gemm, limits), model.margin(gemm, 0.0)
                yield gemm, by_kernels[gemm], expected_us, one_us, margin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    found = list(batches(parser.parse_args().files))
    every = [math.log(us / expected) for _, own, *_ in found for expected, us, _ in own]
    console.show(f"all launches over their modelled times: {told(every)}")
    first = [min(own) for _, own, *_ in found]
    console.show(f"the first ones: {told([math.log(us / expected) for expected, us, _ in first])}")
    console.show(f"cuBLAS: {told([math.log(us / expected) for *_, expected, us, _ in found])}")
    best = np.array([us / one[1] for one, (*_, us, _) in zip(first, found, strict=True)])
    for share in SHARES:
        served = np.array([
            expected >= one[0] * math.exp(share * margin)
            for one, (*_, expected, _, margin) in zip(first, found, strict=True)
        ])  # fmt: skip
        gains = np.where(served, best, 1.0)
        counts = (
            f"{(gains < 0.98).sum()} below 0.98, {(gains < 0.9).sum()} below 0.9, least {gains.min():.3f}"
        )
        gain = math.exp(np.log(gains).mean())
        console.show(f"{share:g} of the margin: {served.mean():.0%} served, {gain:.3f} in the mean, {counts}")
    possible = math.exp(np.log(np.maximum(best, 1)).mean())
    console.show(f"the faster of both: {possible:.3f}")


if __name__ == "__main__":
    main()
