"""A table on the shapes of a suite, tuned or not: what it serves against cuBLAS, in the same rounds.

    python benchmarks/on_suite.py --table FOLDER --suite studies/suites/moe-routers.toml
        [--gpu 0] [--rounds 11] [--also-m 5 10 20 300 ...] [--accuracy fp32] [--out NAME.json]

Launches are the runtime's own, on cold operands. Where the table picks cuBLAS the ratio as served is 1, and
that of its kernel is told beside it. `--also-m` adds each other shape of the suite (n, k, layout) with these
m, which nobody tuned. Shapes are grouped by m; ratios are geometric means, cuBLAS's time over ours. With
`--accuracy` calls ask for that class, and what they would be served without it runs in the same rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import reports
from contest import Arena
from table_arena import CUBLAS, TableArena

from autotune.cli import console
from autotune.facts.accuracy_class import CLASSES, STRICT
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.runtime.choose.chooser import Call

BOUNDS = (1, 32, 512)  # of the groups of m


def with_others(gemms: Sequence[Gemm], others: Iterable[int]) -> list[Gemm]:
    """These shapes, and each as often as there is another m; each once."""
    return list(dict.fromkeys([*gemms, *(replace(gemm, m=m) for m in others for gemm in gemms)]))


def facts_of(
    tables: TableArena, strict: TableArena | None, gemm: Gemm, rounds: int, seed: int
) -> dict[str, Any]:
    """The pick for a packed shape, and samples of it, of cuBLAS and of the strict pick."""
    call = Call.packed(gemm)
    sets = tables.sets(call)
    pick, picked = tables.picked(call, sets)
    beside = [] if strict is None else [replace(strict.picked(call, sets)[1], name=STRICT)]
    samples = tables.race([picked, tables.cublas(call), *beside], sets, rounds, seed)
    ours, cublas = samples[picked.name], samples[CUBLAS]
    kernel = median(b / a for a, b in zip(ours, cublas, strict=True))
    over_strict = [median(b / a for a, b in zip(ours, samples[one.name], strict=True)) for one in beside]
    return {
        "shape": str(gemm), "m": gemm.m, "how": pick.how, "provider": pick.provider, "kernel": picked.name,
        "by_kernel": kernel, "served": kernel if pick.provider == "autotune" else 1.0,
        "ours_us": median(ours), "cublas_us": median(cublas),
        **{f"over_{STRICT}": ratio for ratio in over_strict},
        "samples_us": {
            "ours": [round(x, 3) for x in ours], "cublas": [round(x, 3) for x in cublas],
            **{one.name: [round(x, 3) for x in samples[one.name]] for one in beside},
        },
    }  # fmt: skip


def describe(shapes: Sequence[dict[str, Any]]) -> str:
    """A row for each group of m, of the tuned shapes and of the others."""
    groups: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for one in sorted(shapes, key=lambda one: one["m"]):
        place = next((number for number, bound in enumerate(BOUNDS) if one["m"] <= bound), len(BOUNDS))
        groups.setdefault((place, one["how"] != "exact"), []).append(one)
    rows = []
    for (place, is_other), group in groups.items():
        worst = min(group, key=lambda one: one["served"])
        rows.append([
            f"m <= {BOUNDS[place]}" if place < len(BOUNDS) else f"m > {BOUNDS[-1]}",
            "others" if is_other else "tuned",
            str(len(group)),
            f"{geometric_mean(one['served'] for one in group):.3f}",
            f"{worst['served']:.3f} ({worst['shape']})",
            str(sum(one["provider"] == CUBLAS for one in group)),
        ])  # fmt: skip
    return "\n".join(reports.table(["m", "", "shapes", "served", "least", "left to cuBLAS"], rows))


def beside_strict(shapes: Sequence[dict[str, Any]]) -> str:
    """What a class gives over the strict one, and where it gives least."""
    ratios = {one["shape"]: one[f"over_{STRICT}"] for one in shapes}
    least = sorted(ratios, key=ratios.__getitem__)[:3]
    return (
        f"over strict {geometric_mean(ratios.values()):.3f}, over cuBLAS "
        f"{geometric_mean(one['served'] for one in shapes):.3f}; least over strict: "
        + ", ".join(f"{ratios[name]:.3f} ({name})" for name in least)
    )


def _run(args: argparse.Namespace) -> None:
    arena = Arena(args.gpu, CachePolicy.COLD, with_torch=False)
    tables = TableArena(arena, args.table, args.accuracy)
    strict = None if args.accuracy == STRICT else TableArena(arena, args.table)
    head = {"suite": args.suite.name, "accuracy": args.accuracy, "shapes": []}
    report = reports.identity(arena, "on_suite", args.rounds) | head
    for gemm in with_others(reports.named_shapes((), args.suite), args.also_m):
        report["shapes"].append(facts_of(tables, strict, gemm, args.rounds, args.seed))
        if args.out:
            reports.keep(args.out, report)
    console.show(describe(report["shapes"]))
    if strict:
        console.show(beside_strict(report["shapes"]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--also-m", type=int, nargs="*", default=())
    parser.add_argument("--accuracy", choices=CLASSES, default=STRICT, help="the class that calls ask for")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    reports.run(_run, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
