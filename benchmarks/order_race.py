"""Tables of one summation order beside one of any order, and cuBLAS, on a suite, in the same rounds.

    python benchmarks/order_race.py --suite FILE --free FOLDER --tables FOLDER ... [--rounds 9]
        [--out NAME.json]

Launches are the runtime's own, on cold operands; the free table's is its kernel, also where it would leave
the product to cuBLAS. Told are geometric means of times, the free kernel's over that of each order, by
whether a side of C is up to 8; and, where cuBLAS has the bits of an order, its time over the order's, with
the least. Bits of all of C are compared, of the same operands.
"""

from __future__ import annotations

import argparse
import ctypes
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import reports
from contest import Arena
from table_arena import CUBLAS, Runner, TableArena

from autotune.cli import console
from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.facts.measurement import CachePolicy
from autotune.gpu.driver import check
from autotune.gpu.memory import OperandSet
from autotune.runtime.choose.chooser import Call

FREE, FEW = "free", 8  # rows or columns
PIECE_BYTES = 32 << 20  # of C, that are copied at a time


def bits_of(arena: Arena, runner: Runner, operands: OperandSet, gemm: Gemm) -> int:
    """A checksum of all of C."""
    session, left = arena.session, FLOAT_BYTES * gemm.num_results
    runner.enqueue(operands)
    check(session.driver.cuStreamSynchronize, session.stream)
    host, checksum, at = (ctypes.c_char * min(left, PIECE_BYTES))(), 0, operands.c
    while left:
        size = min(left, PIECE_BYTES)
        check(session.driver.cuMemcpyDtoH, ctypes.addressof(host), at, size)
        checksum, at, left = zlib.crc32(memoryview(host)[:size], checksum), at + size, left - size
    return checksum


def facts_of(
    arena: Arena, tables: dict[str, TableArena], gemm: Gemm, rounds: int, seed: int
) -> dict[str, Any]:
    """Picks for a packed shape, medians in us by name, and the orders whose bits cuBLAS has."""
    call, first = Call.packed(gemm), next(iter(tables.values()))
    sets, picks, runners = first.sets(call), {}, [first.cublas(call)]
    for name, table in tables.items():
        pick, runner = table.picked(call, sets)
        picks[name] = f"{pick.how} {runner.name}"
        runners.append(replace(runner, name=name))
    samples = first.race(runners, sets, rounds, seed)
    of_cublas, *others = (bits_of(arena, runner, sets[0], gemm) for runner in runners)
    same = [name for name, bits in zip(tables, others, strict=True) if bits == of_cublas]
    return {
        "shape": str(gemm), "is_narrow": min(gemm.m, gemm.n) <= FEW, "picks": picks,
        "us": {name: median(found) for name, found in samples.items()}, "same_as_cublas": same,
    }  # fmt: skip


def describe(shapes: Sequence[dict[str, Any]], orders: Sequence[str]) -> str:
    """A row for each order: means over groups of shapes, how many, and the least."""
    return "\n".join(
        reports.table(
            [
                "order",
                f"free / order, sides > {FEW}",
                f"a side <= {FEW}",
                "cuBLAS / order, where bits are equal",
            ],
            [
                [
                    order,
                    *(
                        _told([s for s in shapes if s["is_narrow"] is narrow], FREE, order)
                        for narrow in (False, True)
                    ),
                    _told([s for s in shapes if order in s["same_as_cublas"]], CUBLAS, order),
                ]
                for order in orders
            ],
        )
    )


def _told(shapes: Sequence[dict[str, Any]], other: str, order: str) -> str:
    ratios = {one["shape"]: one["us"][other] / one["us"][order] for one in shapes}
    if not ratios:
        return "-"
    least = min(ratios, key=ratios.__getitem__)
    return f"{geometric_mean(ratios.values()):.3f} ({len(ratios)}; least {ratios[least]:.3f}, {least})"


def _run(args: argparse.Namespace) -> None:
    arena = Arena(args.gpu, CachePolicy.COLD, with_torch=False)
    tables = {FREE: TableArena(arena, args.free)}
    tables |= {str(table.table.order): table for table in (TableArena(arena, path) for path in args.tables)}
    report = reports.identity(arena, "order_race", args.rounds, suite=args.suite.name)
    for gemm in reports.named_shapes((), args.suite):
        report["shapes"].append(facts_of(arena, tables, gemm, args.rounds, args.seed))
        reports.keep(args.out, report)
    for one in report["shapes"]:
        times = ", ".join(f"{name} {us:.4g}" for name, us in one["us"].items())
        console.show(f"{one['shape']}: {times} us; cuBLAS has the bits of {one['same_as_cublas'] or 'none'}")
    console.show(describe(report["shapes"], [name for name in tables if name != FREE]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--free", type=Path, required=True)
    parser.add_argument("--tables", type=Path, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    reports.run(_run, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
