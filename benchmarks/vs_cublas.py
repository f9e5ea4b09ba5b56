"""Ours against cuBLAS, the best of cuBLASLt's candidates and torch.mm, side by side in one run.

    python benchmarks/vs_cublas.py --suite studies/suites/dev.toml --db autotune.db [--gpu 0] [--cache warm]
        [--rounds 21] [--sustained 20] [--out studies/results/NAME.json] [--svg NAME.svg]

Per shape: the best kernel that the database holds, `cublasSgemm` (pedantic FP32), the fastest of up to 32
candidates of cublasLtMatmulAlgoGetHeuristic (pedantic FP32, 64 MiB of workspace) and, where torch is
installed, torch.mm with TF32 off. Each time is the median of interleaved rounds; each ratio the median of
the ratios within rounds. Everyone works on the same operands, in one stream of one process, and is checked
against float64 before and after. `--sustained S` adds 4096^3 and 8192^3, on which each has a turn of S
seconds, with clocks and power; alone, without shapes, it takes some 9 times S. `--out` keeps raw samples with
environment and date, written after each shape.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import chart
import reports
from contest import CUBLAS, CUBLASLT, OURS, TORCH, Arena, Contest, Sustained

from autotune.cli import common, console
from autotune.facts import stats
from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import read_policy
from autotune.files.errors import UsageError

NAMES = (OURS, CUBLAS, CUBLASLT, TORCH)
TITLES = {OURS: "ours", CUBLAS: "cuBLAS", CUBLASLT: "cuBLASLt", TORCH: "torch.mm"}
SUSTAINED = (Gemm(4096, 4096, 4096), Gemm(8192, 8192, 8192))


def _run(args: argparse.Namespace) -> None:
    gemms = reports.named_shapes(args.shape, args.suite)
    lasting = SUSTAINED if args.sustained else ()
    if not gemms and not lasting:
        raise UsageError("no shape: pass --suite FILE, --shape 4096 or --sustained 20")
    with common.open_existing(args.db) as store:
        arena = Arena(args.gpu, read_policy(args.cache), with_torch=not args.no_torch)
        results = arena.results(store, {*gemms, *lasting})
    configs = {shape.gemm: shape.ranked[0].config for shape in results.shapes}
    torch = arena.torch and arena.torch.version
    report = reports.identity(
        arena, "vs_cublas", args.rounds, limits=arena.limits.to_dict(), torch=torch, means={}, sustained=[]
    )
    console.show(headline(report))
    for gemm in gemms:
        report["shapes"].append(shape_facts(arena.race(gemm, configs[gemm], args.rounds), arena.limits))
        _show_shape(report["shapes"][-1], is_first=gemm == gemms[0])
        reports.keep(args.out, report)
    if gemms:
        report["means"] = means(report["shapes"])
        console.show(means_text(report["means"]))
    for gemm in lasting:
        found = arena.sustain(gemm, configs[gemm], args.sustained, args.turns)
        report["sustained"].append(sustained_facts(found, arena.limits))
        console.show("\n" + sustained_text(report["sustained"][-1]))
        for note in found.notes:
            console.note(f"{gemm}: {note}")
        reports.keep(args.out, report)
    reports.keep(args.out, report)
    if args.svg and gemms:
        args.svg.parent.mkdir(parents=True, exist_ok=True)
        args.svg.write_text(draw(report), encoding="utf-8")


# ------------------------------------------------------------------------------------------------
# One shape


def shape_facts(contest: Contest, limits: DeviceLimits) -> dict[str, Any]:
    """A contest in figures, raw samples among them."""
    gemm = contest.gemm
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    ours = contest.contestants[OURS].samples_us
    contestants = {}
    for name, contestant in contest.contestants.items():
        time_us = stats.median(contestant.samples_us)
        accuracy = contestant.accuracy
        ratios = [them / us for them, us in zip(contestant.samples_us, ours, strict=True)]
        contestants[name] = {
            "detail": contestant.detail,
            "time_us": time_us,
            "tflops": gemm.tflops(time_us),
            "share_of_limit": limit_us / time_us,
            "ours_is_faster_by": stats.median(ratios),
            "interval": stats.median_interval(ratios),
            "max_error": accuracy and accuracy.max_error,
            "relative_error": accuracy and accuracy.relative_error,
            "share_checked": accuracy and accuracy.share,
            "samples_us": contestant.samples_us,
        }
    return {
        "shape": str(gemm),
        "limit_us": limit_us,
        "state": vars(contest.state),
        "notes": contest.notes,
        "contestants": contestants,
    }


_HEADERS = (
    "shape", *TITLES.values(), "/cuBLAS", "/cuBLASLt", "/torch", "ours lim", "cuBLAS lim",
    "max err", "cuBLAS", "rel err", "cuBLAS", "MHz", "W",
)  # fmt: skip
_WIDTHS = (20, 10, 10, 10, 10, 8, 9, 8, 8, 10, 8, 8, 8, 8, 5, 5)


def row(facts: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one shape, a dash where somebody did not take part."""
    found, state = facts["contestants"], facts["state"]

    def of(name: str, key: str) -> float | None:
        return found[name][key] if name in found else None

    return (
        facts["shape"],
        *(console.time_text(of(name, "time_us")) for name in NAMES),
        *(console.ratio_text(of(name, "ours_is_faster_by")) for name in NAMES[1:]),
        *(console.ratio_text(of(name, "share_of_limit"), "%") for name in NAMES[:2]),
        *(_error(of(name, key)) for key in ("max_error", "relative_error") for name in NAMES[:2]),
        _whole(state["sm_clock_mhz"]),
        _whole(state["power_w"]),
    )


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def line(cells: Sequence[str]) -> str:
    """One line of a table that is printed as it grows: the first cell to the left, the others right."""
    pairs = zip(cells, _WIDTHS, strict=True)
    return "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(pairs)).rstrip()


def _show_shape(facts: dict[str, Any], *, is_first: bool) -> None:
    if is_first:
        console.show(line(_HEADERS))
    console.show(line(row(facts)))
    for note in facts["notes"]:
        console.note(f"{facts['shape']}: {note}")


# ------------------------------------------------------------------------------------------------
# All shapes


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(fmean(logs)) if logs else None


def means(shapes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means over the shapes in which a contestant took part, and the worst shape."""
    found = {name: [s for s in shapes if name in s["contestants"]] for name in NAMES}
    result: dict[str, Any] = {}
    for name in NAMES:
        taken = [(s["contestants"][name], s["shape"]) for s in found[name]]
        if not taken:
            continue
        worst, shape = min((facts["ours_is_faster_by"], shape) for facts, shape in taken)
        result[name] = {
            "num_shapes": len(taken),
            "share_of_limit": geometric_mean(facts["share_of_limit"] for facts, _ in taken),
            "ours_is_faster_by": geometric_mean(facts["ours_is_faster_by"] for facts, _ in taken),
            "worst": worst,
            "worst_shape": shape,
        }
    return result


def means_text(found: dict[str, Any]) -> str:
    """Geometric means as a table."""
    rows = [
        (
            TITLES[name],
            facts["num_shapes"],
            console.ratio_text(facts["share_of_limit"], "%"),
            *(
                ("", "", "")
                if name == OURS
                else (
                    console.ratio_text(facts["ours_is_faster_by"]),
                    console.ratio_text(facts["worst"]),
                    facts["worst_shape"],
                )
            ),
        )
        for name, facts in found.items()
    ]
    headers = ("geometric mean", "shapes", "of limit", "ours is faster by", "at worst", "on")
    return "\n" + console.table(headers, rows, right=(1, 2, 3, 4))


def headline(report: dict[str, Any]) -> str:
    """What was measured, on what, how and when."""
    where = report["environment"]
    return (
        f"{where['gpu_name']}, driver {where['driver_version']}, cuBLAS {where['cublas_version']}, "
        f"{report['torch'] or 'no torch'}; {report['policy']} operands, {report['num_rounds']} interleaved "
        f"rounds, {report['date']}"
    )


def draw(report: dict[str, Any]) -> str:
    """Every shape, percent of the limit, ours and cuBLAS."""
    colors = {OURS: chart.OURS, CUBLAS: chart.THEIRS}
    rows = []
    for facts in report["shapes"]:
        bars = []
        for name, color in colors.items():
            found = facts["contestants"][name]
            text = console.ratio_text(found["share_of_limit"], "%")
            if name == OURS:
                text += f", {facts['contestants'][CUBLAS]['ours_is_faster_by']:.2f}x cuBLAS"
            bars.append(chart.Bar(found["share_of_limit"], text, color))
        rows.append(chart.Row(facts["shape"], tuple(bars)))
    legend = [(TITLES[name], color) for name, color in colors.items()]
    return chart.bar_chart("FP32 matrix products", headline(report), rows, legend, " of the limit")


# ------------------------------------------------------------------------------------------------
# For seconds


def sustained_facts(sustained: Sustained, limits: DeviceLimits) -> dict[str, Any]:
    """Each contestant over all its turns, and the spells they consist of."""
    gemm = sustained.gemm
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    result: dict[str, Any] = {"shape": str(gemm), "limit_us": limit_us, "notes": sustained.notes}
    result["contestants"] = {}
    for name, spells_by_turn in sustained.spells.items():
        spells = [spell for turn in spells_by_turn for spell in turn]
        launches = sum(spell.num_launches for spell in spells)
        seconds = sum(spell.time_us * spell.num_launches for spell in spells) / 1e6
        time_us = seconds * 1e6 / launches
        power_w = _mean(spell.state.power_w for spell in spells)
        result["contestants"][name] = {
            "detail": sustained.details[name],
            "seconds": seconds,
            "num_turns": len(spells_by_turn),
            "time_us": time_us,
            "tflops": gemm.tflops(time_us),
            "share_of_limit": limit_us / time_us,
            "sm_clock_mhz": _median(spell.state.sm_clock_mhz for spell in spells),
            "power_w": power_w,
            "joules_per_tflop": power_w and power_w / gemm.tflops(time_us),
            "temperature_c": _median(spell.state.temperature_c for spell in spells),
            "throttle_reasons": sorted({r for spell in spells for r in spell.state.throttle_reasons}),
            "spells": [
                [(s.time_us, s.num_launches, s.state.sm_clock_mhz, s.state.power_w) for s in turn]
                for turn in spells_by_turn
            ],
        }
    kernel_us = result["contestants"][OURS]["time_us"]
    for facts in result["contestants"].values():
        facts["ours_is_faster_by"] = facts["time_us"] / kernel_us
    return result


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def sustained_text(facts: dict[str, Any]) -> str:
    """One shape for seconds, as a table."""
    rows = [
        (
            TITLES[name],
            f"{found['seconds']:.1f} s",
            f"{found['tflops']:.2f}",
            "" if name == OURS else console.ratio_text(found["ours_is_faster_by"]),
            console.ratio_text(found["share_of_limit"], "%"),
            _whole(found["sm_clock_mhz"]),
            _whole(found["power_w"]),
            "-" if found["joules_per_tflop"] is None else f"{found['joules_per_tflop']:.2f}",
            _whole(found["temperature_c"]),
            ", ".join(found["throttle_reasons"]) or "-",
        )
        for name, found in facts["contestants"].items()
    ]
    headers = (
        facts["shape"], "for", "TFLOP/s", "ours is faster by", "of limit", "MHz", "W", "J/TFLOP", "degrees C",
        "throttled by",
    )  # fmt: skip
    return console.table(headers, rows, right=range(1, 9))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, help="a TOML file of [[shape]] tables")
    parser.add_argument("--shape", action="append", help="4096, 4096x128x4096 or 4096:NT; repeatable")
    parser.add_argument("--db", default="autotune.db", help="where the search kept its trials")
    parser.add_argument("--gpu", default="auto", help="a GPU: its index, UUID or auto")
    parser.add_argument("--cache", default="cold", choices=("cold", "warm"))
    parser.add_argument("--rounds", type=int, default=21, help="interleaved rounds: samples of each")
    parser.add_argument("--no-torch", action="store_true", help="leave out torch.mm")
    parser.add_argument("--sustained", type=float, metavar="S", help="4096^3, 8192^3: turns of S seconds")
    parser.add_argument("--turns", type=int, default=1, help="turns of each with --sustained")
    parser.add_argument("--out", type=Path, help="JSON with raw samples")
    parser.add_argument("--svg", type=Path, help="picture: every shape, percent of the limit")
    return parser.parse_args()


if __name__ == "__main__":
    reports.run(_run, _arguments())
