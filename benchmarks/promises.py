"""Why programs gain less, or more, than a table promises for their products.

    python benchmarks/promises.py --table FOLDER [--only vit policy ...] [--seconds 1] [--out FILE]
    python benchmarks/promises.py --table FOLDER --settle live-any-order   by what its calls have settled
    python benchmarks/promises.py --device cpu --tiny --pairs 3            a test of this script without a GPU

What a step gains is its time plain less routed. It is the sum of these, in us of a step:

    promised    of the products that the table serves: cuBLAS's time less the table's, as it says them
    provider    cuBLAS takes longer in the program than the table says of it
    kernel      kernels take less in the program than the table says of them
    left        other products take less
    neighbours  other kernels take less, which may find their operands in L2
    host        the GPU waits less for the host

A GPU is busy as long as the union of its kernels' intervals, and each takes what it adds to those before it.
For provider and kernel it is said what L2 can explain: the same, of calls behind others that leave their
operands in L2 as far as they fit (warm), or none (cold). Where these agree with the program, and the table
does not, it is the provider's choice, or the table's model.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import program_gain
import programs
import reports
import torch
from program_race import PLAIN, ROUTED
from program_steps import Step
from programs import Place

from autotune.cli import console

PARTS = "promised", "provider", "kernel", "left", "neighbours", "host"
STATES = "warm", "cold"
NUM_TIMED = 9  # of a call in a state
AGREE = 0.05  # of their time, within which a promise for products is kept
FLUSHED_FLOATS = 1 << 26  # 256 MB: more than any L2
AHEAD_CYCLES = 400_000  # that the GPU waits, so that the host is ahead of it
Kind = Mapping[str, Any]


# ------------------------------------------------------------------------------------------------
# What is measured


def timed_alone(found: dict[str, Any], step: Step, place: Place, args: argparse.Namespace) -> None:
    """The time of each kind that a promise is of, plain and routed, warm and cold."""
    found["alone"] = [
        {side: {state: _call_us(kind, place, side, state) for state in STATES} for side in (PLAIN, ROUTED)}
        for kind in promised(found["calls"]["kinds"])
    ]


def _call_us(kind: Kind, place: Place, side: str, state: str) -> float:
    a, b = (
        _operand(kind, *extents, place.device, is_transposed=letter == "T")
        for extents, letter in zip((("m", "k"), ("k", "n")), kind["gemm"].split(":")[1][:2], strict=True)
    )
    bias = torch.randn(kind["n"], device=place.device) if kind["has_bias"] else None
    flushed = torch.empty(FLUSHED_FLOATS, device=place.device)
    add = torch.addmm if kind["batch"] == 1 else torch.baddbmm

    def multiply() -> None:
        torch.matmul(a, b) if bias is None else add(bias, a, b)

    def taken_us(*operations: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(AHEAD_CYCLES)
        begin.record()
        for one in operations:
            one()
        end.record()
        place.wait()
        return 1e3 * float(begin.elapsed_time(end))

    before = multiply if state == "warm" else flushed.zero_
    with place.routing if side == ROUTED else nullcontext():
        return statistics.median(taken_us(before, multiply) - taken_us(before) for _ in range(NUM_TIMED))


def _operand(kind: Kind, rows: str, columns: str, device: str, *, is_transposed: bool) -> Any:
    extents = [kind[rows], kind[columns]]
    stored = [kind["batch"]] * (kind["batch"] > 1) + (extents[::-1] if is_transposed else extents)
    made = torch.randn(stored, device=device)
    return made.mT if is_transposed else made


# ------------------------------------------------------------------------------------------------
# What it says


def explained(found: Mapping[str, Any]) -> dict[str, float]:
    """The parts of what a step gains, their sum, and what L2 explains of two of them by state, in us; and how
    much of the time of the products that are served their gain misses the promise by."""
    profile, kinds = found["profile"], promised(found["calls"]["kinds"])
    plain, routed = profile[PLAIN], profile[ROUTED]
    seen = {side: _products_us(profile[side]["products"], kinds) for side in (PLAIN, ROUTED)}
    cublas_us, table_us = (_sum_us(kinds, name) for name in ("cublas_us", "expected_us"))
    step_us = {side: 1e6 * statistics.median(found["eager"]["step_s"][side]) for side in (PLAIN, ROUTED)}
    left = {side: profile[side]["products_us"] - seen[side] for side in (PLAIN, ROUTED)}
    parts = {
        "promised": cublas_us - table_us,
        "provider": seen[PLAIN] - cublas_us,
        "kernel": table_us - seen[ROUTED],
        "left": left[PLAIN] - left[ROUTED],
        "neighbours": plain["others_us"] - routed["others_us"],
        "host": (step_us[PLAIN] - plain["busy_us"]) - (step_us[ROUTED] - routed["busy_us"]),
    }
    parts["gained"] = sum(parts[name] for name in PARTS)
    gain_us = seen[PLAIN] - seen[ROUTED]
    parts["missed"] = (gain_us - parts["promised"]) / seen[PLAIN] if seen[PLAIN] else 0.0
    for state in STATES if "alone" in found else ():
        alone = {
            side: sum(
                kind["num_calls"] * one[side][state] for kind, one in zip(kinds, found["alone"], strict=True)
            )
            for side in (PLAIN, ROUTED)
        }
        parts[f"provider, {state}"] = alone[PLAIN] - cublas_us
        parts[f"kernel, {state}"] = table_us - alone[ROUTED]
    return parts


def promised(kinds: Sequence[Kind]) -> list[Kind]:
    """Those that are served, whose times are known, and that a profile tells from those that are not."""
    is_known = [not kind["reason"] and kind["expected_us"] and kind["cublas_us"] for kind in kinds]
    others = {program_gain.kind_of(kind) for kind, is_one in zip(kinds, is_known, strict=True) if not is_one}
    return [kind for kind in kinds if program_gain.kind_of(kind) not in others]


def _sum_us(kinds: Iterable[Kind], name: str) -> float:
    return float(sum(kind["num_calls"] * kind[name] for kind in kinds))


def _products_us(products: Iterable[Kind], kinds: Iterable[Kind]) -> float:
    """The GPU's time of products of these kinds."""
    those = {program_gain.kind_of(kind) for kind in kinds}
    return float(sum(one["gpu_us"] for one in products if program_gain.kind_of(one) in those))


def describe(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each program, and how many promises are kept."""
    explains = {name: one["explained"] for name, one in found.items() if "explained" in one}
    by_state = [f"{part}, {state}" for part in ("provider", "kernel") for state in STATES]
    headers = ["program", "gained us", *PARTS, *by_state, "missed"]
    rows = [
        [
            name,
            *(f"{one.get(part, 0.0):.1f}" for part in ("gained", *PARTS, *by_state)),
            f"{one['missed']:.1%}",
        ]
        for name, one in explains.items()
    ]
    num_kept = sum(abs(one["missed"]) <= AGREE for one in explains.values())
    text = f"of {len(explains)} promises {num_kept} are kept within {AGREE:.0%} of the products' time"
    return "\n".join([*reports.table(headers, rows), text])


def _run(args: argparse.Namespace) -> None:
    chosen, place = programs.chosen(args), programs.place_of(args)
    report = programs.identity(args) | {"benchmark": "promises"}
    ways = [programs.by_key, programs.profiled]
    if place.routing is not None:
        ways = [programs.settled] * bool(args.settle) + [
            programs.by_key,
            programs.called,
            timed_alone,
            programs.profiled,
        ]
    programs.measure_all(chosen, place, ways, report, args)
    for found in report["programs"].values():
        if {"calls", "profile", "eager"} <= found.keys():
            found["explained"] = explained(found)
    reports.keep(args.out, report)
    console.show(describe(report["programs"]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    programs.add_arguments(parser, seconds=1.0, pairs=10)
    parser.set_defaults(record=None, accuracy=None)
    reports.run(_run, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
