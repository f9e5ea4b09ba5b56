"""What an option of the compiler gives: winners of searches against the same configs compiled with it.

    python benchmarks/decisions/compiler_option.py SEARCH [...] --option=-maxrregcount=255
        [--gpu 0] [--rounds 15] [--loads 3] [--out studies/results/NAME.json]

SEARCH is what vs_itself.py reads. Both builds of a winner run in interleaved rounds on the same operands,
after each of several loads, as one load may make a kernel slower by percents (decision 0064). A ratio is the
median of those within rounds: time with the option over time without. *Where faster*: even rounds choose the
build, odd ones judge it, as if finalists were compiled both ways. Equal machine code is not raced: its ratio
is 1 by definition.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the libraries of benchmarks

import reports
from contest import Arena, Build
from vs_itself import ratio, read_choices

from autotune.cli import console
from autotune.facts import stats
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.gpu import instance
from autotune.kernel import identity, same_code, template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant


def _with_option(compiler: Compiler, option: str, config: Config, variant: Variant) -> Cubin:
    name = identity.of(same_code.kept_as(template.source_hash()), config, variant)
    source = template.source() + identity.declaration(name)
    return compiler.compile_source(source, template.macros(config, variant), name=name, options=(option,))


def _race(arena: Arena, gemm: Gemm, config: Config, builds: Sequence[Build], args: Any) -> list[list[float]]:
    """Samples in us of each build."""
    samples: list[list[float]] = [[] for _ in builds]
    with arena.prepared(gemm) as prepared:
        for _ in range(args.loads):
            with ExitStack() as stack:
                pairs = []
                for arena.compiled in builds:
                    pairs.append(stack.enter_context(arena.owned(gemm, config)))
                for contestant, workspace in pairs:
                    arena.check(contestant, prepared, workspace)
                arena.time(prepared, [contestant for contestant, _ in pairs], -(-args.rounds // args.loads))
                for (contestant, _), found in zip(pairs, samples, strict=True):
                    found += contestant.samples_us
    return samples


def _shape(arena: Arena, gemm: Gemm, config: Config, builds: Sequence[Build], args: Any) -> dict[str, Any]:
    cubins = [build(config, instance.variant(gemm)) for build in builds]
    found: dict[str, Any] = {
        "shape": str(gemm),
        "config": config.key,
        "registers": [cubin.registers for cubin in cubins],
        "spill_bytes": [cubin.spill_bytes for cubin in cubins],
        "is_same_code": cubins[0].code == cubins[1].code,
        "ratio": {"median": 1.0, "interval": [1.0, 1.0]},
        "judged": 1.0,
    }
    if not found["is_same_code"]:
        samples = _race(arena, gemm, config, builds, args)
        found |= {"samples_us": samples, "ratio": ratio(samples[1], samples[0])}
        is_taken = ratio(samples[1][::2], samples[0][::2])["median"] < 1
        found["judged"] = ratio(samples[1][1::2], samples[0][1::2])["median"] if is_taken else 1.0
    return found


def _line(found: dict[str, Any]) -> str:
    median, (low, high) = found["ratio"]["median"], found["ratio"]["interval"]
    registers = " -> ".join(map(str, found["registers"]))
    same = ", same code" if found["is_same_code"] else ""
    return f"{found['shape']}: {median:.4f} [{low:.4f} {high:.4f}], {registers} registers{same}"


def _run(args: argparse.Namespace) -> None:
    arena = Arena(args.gpu, CachePolicy.COLD, with_torch=False)
    builds: list[Build] = [arena.compiled, partial(_with_option, arena.compiler, args.option)]
    winners = {gemm: c for source in args.sources for gemm, c in read_choices(source, arena, []).items()}
    report = reports.identity(arena, "compiler_option", args.rounds, option=args.option, summary={})
    for gemm, config in winners.items():
        report["shapes"].append(_shape(arena, gemm, config, builds, args))
        console.show(_line(report["shapes"][-1]))
    shapes = report["shapes"]
    report["summary"] = {
        "num_shapes": len(shapes),
        "num_other_code": sum(not found["is_same_code"] for found in shapes),
        "always": _mean([found["ratio"]["median"] for found in shapes]),
        "where_faster": _mean([found["judged"] for found in shapes]),
    }
    reports.keep(args.out, report)
    console.show(json.dumps(report["summary"], indent=1))


def _mean(ratios: list[float]) -> dict[str, float]:
    return stats.mean_ratio(ratios, [1.0] * len(ratios))._asdict()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", metavar="SEARCH", help="a database, or JSON of a search")
    parser.add_argument("--option", required=True, help="of NVRTC, such as -maxrregcount=255")
    parser.add_argument("--gpu", default="auto", help="a GPU: its index, UUID or auto")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds: samples of each")
    parser.add_argument("--loads", type=int, default=3, help="loads of each kernel; the rounds share them")
    parser.add_argument("--out", type=Path, help="JSON with raw samples")
    return parser.parse_args()


if __name__ == "__main__":
    reports.run(_run, _arguments())
