"""Searches against each other: the kernels that each chose, timed side by side in one run.

    python benchmarks/vs_itself.py FIRST SECOND [...] --suite studies/suites/dev.toml [--gpu 0]
        [--instead stages=3] [--cache warm] [--rounds 45] [--loads 5] [--out studies/results/NAME.json]

FIRST, SECOND, ... are databases of searches, or JSON files of `autotune search --json`, of this script or of
vs_cublas.py. `--instead` races each one's kernels against the same with other values of parameters, where
those are legal: with one FIRST, whether a value pays. Per
shape, each one's kernel (of a database: what `export-table` would take) and cuBLAS run in interleaved rounds,
on the same operands; equal kernels run once. The kernels are loaded several times for it, as one load may
make a kernel slower by percents (decision 0064). Each ratio is the median of the ratios within rounds, with
its 95 % interval.

    the first two       how far apart are the choices of two independent searches?
    each                how far is it from the best known, which is the fastest of all that take part?

The fastest is picked by half of the rounds and held against by the other half, so that luck does not pick it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import reports
from contest import CUBLAS, OURS, Arena, Contest

from autotune.cli import common, console
from autotune.export.exporter import cut_to_chosen
from autotune.facts import stats
from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import read_policy
from autotune.files.errors import UsageError
from autotune.gpu import instance
from autotune.kernel.config import Config
from autotune.kernel.rules import broken_rules

Choices = dict[Gemm, Config]


def _run(args: argparse.Namespace) -> None:
    arena = Arena(args.gpu, read_policy(args.cache), with_torch=False)
    names = [f"{number}:{Path(source).name}" for number, source in enumerate(args.sources, 1)]
    named = reports.named_shapes(args.shape, args.suite)
    choices = {
        name: read_choices(source, arena, named) for name, source in zip(names, args.sources, strict=True)
    }
    if args.instead:
        choices = with_changed(choices, args.instead, arena.limits)
    gemms, names = named or shared(choices), list(choices)
    for gemm in gemms:  # ahead, on all cores
        for found in choices.values():
            arena.compiler.submit(found[gemm], instance.variant(gemm))
    report = reports.identity(arena, "vs_itself", args.rounds, searches=names, summary={})
    console.show(f"{arena.environment.gpu_name}, {args.cache} operands, {args.rounds} interleaved rounds")
    for gemm in gemms:
        configs = {name: found[gemm] for name, found in choices.items()}
        report["shapes"].append(
            shape_facts(arena.race_configs(gemm, configs, args.rounds, args.loads), configs, arena.limits)
        )
        console.note(line(report["shapes"][-1]))
        reports.keep(args.out, report)
    report["summary"] = summary(report["shapes"], names)
    reports.keep(args.out, report)
    console.show(text(report))


# ------------------------------------------------------------------------------------------------
# What each search chose


def read_choices(source: str, arena: Arena, gemms: Sequence[Gemm]) -> Choices:
    """The config of each shape. Raises UsageError or DispatchError where one is missing."""
    if Path(source).suffix == ".json":
        found = from_json(source)
    else:
        with common.open_existing(source) as store:
            results = arena.results(store, gemms)
        found = {shape.gemm: shape.ranked[0].config for shape in cut_to_chosen(results).shapes}
    missing = [gemm for gemm in gemms if gemm not in found]
    if missing:
        raise UsageError(f"{source} holds nothing for {', '.join(map(str, missing))}; search these first")
    return found


def from_json(path: str) -> Choices:
    """The winners in the output of `autotune search --json`, in that of this script (its best known), or in
    that of vs_cublas.py."""
    try:
        shapes = json.loads(Path(path).read_text(encoding="utf-8"))["shapes"]
        if shapes and "contestants" in shapes[0]:
            return {Gemm.parse(s["shape"]): Config.parse(s["contestants"][OURS]["detail"]) for s in shapes}
        return {
            Gemm.parse(s["shape"]): Config.from_dict(s["best_config"]) for s in shapes if s["best_config"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no result of a search ({error!r}); pass one or a database") from error


def with_changed(choices: Mapping[str, Choices], text: str, limits: DeviceLimits) -> dict[str, Choices]:
    """Each search's choices and, right after them, the same with other values."""
    found: dict[str, Choices] = {}
    for name, one in choices.items():
        found |= {name: one, f"{name} {text}": changed(one, text, limits)}
    return found


def changed(choices: Choices, text: str, limits: DeviceLimits) -> Choices:
    """The same with the values that are named, as in `stages=3`, wherever that is legal. Raises
    UsageError where the text is none of a config."""
    given = Config.parse(text).to_dict()
    values = {name: given[name] for name in (item.partition("=")[0].strip() for item in text.split(","))}
    others = {gemm: replace(config, **values) for gemm, config in choices.items()}
    return {
        gemm: choices[gemm] if broken_rules(other, limits, gemm) else other for gemm, other in others.items()
    }


def shared(choices: Mapping[str, Choices]) -> list[Gemm]:
    """Shapes that every search has. Raises UsageError where there are none."""
    common_gemms = set.intersection(*map(set, choices.values()))
    if not common_gemms:
        raise UsageError("the searches have no shape in common; name databases of the same suite")
    return sorted(common_gemms)


# ------------------------------------------------------------------------------------------------
# Figures


def shape_facts(contest: Contest, configs: Mapping[str, Config], limits: Any) -> dict[str, Any]:
    """One shape: who took how long, against the best known, and the second against the first."""
    samples = {name: contest.contestants[_runner(name, configs)].samples_us for name in configs}
    cublas_us = contest.contestants[CUBLAS].samples_us
    best = min(samples, key=lambda name: stats.median(samples[name][::2]))
    names = list(configs)
    return {
        "shape": str(contest.gemm),
        "limit_us": contest.gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs),
        "state": vars(contest.state),
        "best": best,
        "best_config": configs[best].to_dict(),
        "cublas": {"time_us": stats.median(cublas_us), "samples_us": cublas_us},
        "second_over_first": ratio(samples[names[1]], samples[names[0]]) if len(names) > 1 else None,
        "is_same": len(set(configs.values())) == 1,
        "searches": {
            name: {
                "config": configs[name].key,
                "time_us": stats.median(samples[name]),
                "over_best": ratio(samples[name][1::2], samples[best][1::2]),
                "over_cublas": ratio(samples[name], cublas_us),
                "samples_us": samples[name],
            }
            for name in configs
        },
    }


def _runner(name: str, configs: Mapping[str, Config]) -> str:
    """Under which name this one's config took part: of equal ones the first."""
    return next(other for other, config in configs.items() if config == configs[name])


def ratio(times: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Of times within rounds: its median, with the 95 % interval."""
    ratios = [a / b for a, b in zip(times, others, strict=True)]
    return {"median": stats.median(ratios), "interval": stats.median_interval(ratios)}


def summary(shapes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The largest difference of the first two, and of each from the best known."""
    pairs = [
        (abs(s["second_over_first"]["median"] - 1), s["shape"]) for s in shapes if s["second_over_first"]
    ]
    difference, where = max(pairs, default=(None, None))
    losses = {}
    for name in names:
        loss, shape = max((s["searches"][name]["over_best"]["median"] - 1, s["shape"]) for s in shapes)
        losses[name] = {"largest_loss": loss, "shape": shape}
    return {
        "num_shapes": len(shapes),
        "num_same": sum(s["is_same"] for s in shapes),
        "largest_difference": difference,
        "mean_second_over_first": _mean_of_pairs(shapes),
        "shape": where,
        "searches": losses,
    }


def _mean_of_pairs(shapes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The geometric mean over shapes of the second's time over the first's, with its 95 % interval."""
    ratios = [s["second_over_first"]["median"] for s in shapes if s["second_over_first"]]
    return stats.mean_ratio(ratios, [1.0] * len(ratios))._asdict() if len(ratios) > 1 else None


# ------------------------------------------------------------------------------------------------
# Text


def line(facts: Mapping[str, Any]) -> str:
    times = (console.time_text(found["time_us"]) for found in facts["searches"].values())
    return f"{facts['shape']}: {', '.join(times)}"


def text(report: Mapping[str, Any]) -> str:
    """A line per shape, then the worst of all."""
    shapes, found = report["shapes"], report["summary"]
    names = report["searches"]
    headers = ["shape", *names, "second / first", "95% interval", *(f"{n} / best" for n in names)]
    body = console.table(headers, [_row(s) for s in shapes], right=range(1, len(headers)))
    lines = [f"{found['num_same']} of {found['num_shapes']} shapes got the same kernel from everyone."]
    if found["largest_difference"] is not None:
        lines.append(
            f"The first two differ by {found['largest_difference']:.2%} at most, on {found['shape']}."
        )
    if (mean := found["mean_second_over_first"]) is not None:
        lines.append(
            "The second took {mean:.4f} times as long as the first ({low:.4f}-{high:.4f}).".format(**mean)
        )
    lines += [
        f"{name} is {loss['largest_loss']:.2%} from the best known at most, on {loss['shape']}."
        for name, loss in found["searches"].items()
    ]
    return "\n".join([body, "", *lines])


def _row(facts: Mapping[str, Any]) -> list[object]:
    searches, pair = facts["searches"].values(), facts["second_over_first"]
    return [
        facts["shape"],
        *(console.time_text(found["time_us"]) for found in searches),
        "-" if pair is None else f"{pair['median']:.4f}",
        "-" if pair is None else "{:.4f}-{:.4f}".format(*pair["interval"]),
        *(f"{found['over_best']['median']:.4f}" for found in searches),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", metavar="SEARCH", help="a database, or JSON of a search")
    parser.add_argument("--suite", type=Path, help="a TOML file of [[shape]] tables")
    parser.add_argument("--shape", action="append", help="4096, 4096x128x4096 or 4096:NT; repeatable")
    parser.add_argument("--instead", metavar="VALUES", help="race them with these values, too: stages=3")
    parser.add_argument("--gpu", default="auto", help="a GPU: its index, UUID or auto")
    parser.add_argument("--cache", default="cold", choices=("cold", "warm"))
    parser.add_argument("--rounds", type=int, default=45, help="interleaved rounds: samples of each")
    parser.add_argument("--loads", type=int, default=5, help="loads of each kernel; the rounds share them")
    parser.add_argument("--out", type=Path, help="JSON with raw samples")
    return parser.parse_args()


if __name__ == "__main__":
    reports.run(_run, _arguments())
