"""What programs of PyTorch gain by a table: unmodified FP32 programs, plain and routed in turns.

    python benchmarks/programs.py --table FOLDER [--only bert policy ...] [--own] [--seconds 4] [--out FILE]
    python benchmarks/programs.py --table FOLDER --settle live             settled on their own calls before
    python benchmarks/programs.py --table FOLDER --accuracy fp32           by kernels on tensor cores, too
    python benchmarks/programs.py --table FOLDER --host [--out FILE]       host time of a call, beside torch's
    python benchmarks/programs.py --table FOLDER --record FILE             what they call, for a search
    python benchmarks/programs.py --device cpu --tiny --pairs 3            a test of this script without a GPU

FOLDER is an exported table, imported as a package. The programs are those of `program_steps.py`: ten by
default, with `--own` five of other kinds. In one process each runs in pairs of stretches, one plain and one
routed, in random order: a stretch takes 30 ms or more, begins and ends with a GPU that has nothing to do, and
enters the routing before its clock begins. Where a step can be captured, it is captured plain and routed, and
both graphs are replayed in turns likewise. After all that each program is profiled: kernels and the GPU's
busy time of a step, plain and routed, and the gain that is attainable (`program_gain.py`).

Ratios are plain over routed: geometric means of the pairs with 95 % intervals by Student's t. Needs torch;
a program that fails, as where its package is missing, is told and left out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import program_gain
import program_host
import reports
import torch
from program_race import PLAIN, ROUTED, Side, Wait, captured, race, ratio_of
from program_steps import PROGRAMS, Program, Step

from autotune.cli import console
from autotune.files.errors import UsageError

SLOWER = 0.99  # an interval that ends below it is of a program that routing slows down
Way = Callable[..., None]  # to measure a step, into what was found of it


class Place(NamedTuple):
    """Where programs run: a device, how to wait for it, and a table's routing (None: a test without a
    GPU)."""

    device: str
    wait: Wait
    routing: Any

    def sides(self, step: Step) -> dict[str, Side]:
        around = nullcontext if self.routing is None else lambda: self.routing
        return {PLAIN: Side(step, nullcontext), ROUTED: Side(step, around)}


# ------------------------------------------------------------------------------------------------
# One program


def settled(found: dict[str, Any], step: Step, place: Place, args: argparse.Namespace) -> None:
    """Routed steps, until what is settled on their calls is settled, or for so many seconds."""
    before, begun = _num_open(place), time.perf_counter()
    with place.routing:
        step()
        while _num_open(place) > before and time.perf_counter() < begun + args.settling:
            step()
        place.wait()
    found["live"] = [state._asdict() for state in place.routing.live()]  # of all programs so far
    print(f"in {time.perf_counter() - begun:.1f} s", *place.routing.live_lines(), sep="\n", file=sys.stderr)


def _num_open(place: Place) -> int:
    return sum(not state.is_settled for state in place.routing.live())


def by_key(found: dict[str, Any], step: Step, place: Place, args: argparse.Namespace) -> None:
    """Plain and routed in turns."""
    found["eager"] = race(place.sides(step), place.wait, args.seconds, args.pairs, args.seed)


def called(found: dict[str, Any], step: Step, place: Place, args: argparse.Namespace) -> None:
    """What becomes of the products of a routed step."""
    found["calls"] = calls_of(step, place)


def raced_graphs(found: dict[str, Any], step: Step, place: Place, args: argparse.Namespace) -> None:
    """Both captured, and replayed in turns; or why a step cannot be captured."""
    replays = {}
    for name, side in place.sides(step).items():
        try:
            replays[name] = Side(captured(side, place.wait).replay, nullcontext)
        except Exception as error:  # whatever torch or the table refuses
            found["graph"] = {"refused": f"{name}: {error!r:.300}"}
            return
    found["graph"] = race(replays, place.wait, args.seconds, args.pairs, args.seed)


def profiled(found: dict[str, Any], step: Step, place: Place, args: argparse.Namespace) -> None:
    """What the GPU does, plain and routed."""
    found["profile"] = program_gain.profiled(step, place.routing, place.wait)


def calls_of(step: Step, place: Place) -> dict[str, Any]:
    """The products of a step by the reason why they were left alone ("": served), and by kind."""
    routing = place.routing
    call_counts, before = routing.call_counts(), _kinds(routing)[0]
    with routing:
        step()
        place.wait()
    num_calls, kinds = _kinds(routing)
    return {
        "tally": dict(routing.call_counts() - call_counts),
        "kinds": [_facts(kinds[name], num) for name, num in (num_calls - before).items()],
    }


def _kinds(routing: Any) -> tuple[Counter[Any], dict[Any, Any]]:
    """Calls so far by kind, whatever their leading dimensions and alignment are, and one of each, whose times
    may have been measured since."""
    num_calls, found = Counter[Any](), dict[Any, Any]()
    for kind in routing.kinds():
        name = kind.gemm, kind.has_bias, kind.reason
        num_calls[name] += kind.num_calls
        found.setdefault(name, kind)
    return num_calls, found


def _facts(kind: Any, num_calls: int) -> dict[str, Any]:
    gemm = kind.gemm
    return {
        "gemm": str(gemm), "batch": gemm.batch, "m": gemm.m, "n": gemm.n, "k": gemm.k,
        "has_bias": kind.has_bias, "reason": kind.reason, "expected_us": kind.expected_us,
        "cublas_us": kind.cublas_us, "num_calls": num_calls,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------
# All of them


def chosen(args: argparse.Namespace) -> dict[str, Program]:
    """Raises UsageError for a name of no program."""
    unknown = [name for name in args.only or () if name not in PROGRAMS]
    if unknown:
        raise UsageError(f"no program is named {', '.join(unknown)}; choose from {', '.join(PROGRAMS)}")
    names = args.only or [name for name, program in PROGRAMS.items() if program.is_own == args.own]
    return {name: PROGRAMS[name] for name in names}


def place_of(args: argparse.Namespace) -> Place:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    if args.device == "cpu":
        torch.set_num_threads(1)
        return Place("cpu", lambda: None, None)
    if args.table is None:
        raise UsageError("no table; pass --table FOLDER, or try this script with --device cpu --tiny")
    if args.settle:
        os.environ["AUTOTUNE_SETTLE"] = args.settle
    table = imported(args.table)
    if args.record is not None:
        table.record_calls(args.record)
    return Place(args.device, torch.cuda.synchronize, table.torch(accuracy=args.accuracy))


def imported(folder: Path) -> Any:
    """An exported folder, as the package that it is."""
    folder = folder.resolve()
    sys.path.insert(0, str(folder.parent))
    return importlib.import_module(folder.name)


def _run(args: argparse.Namespace) -> None:
    programs, place, report = chosen(args), place_of(args), identity(args)
    if args.record is not None:
        measure_all(programs, place, [called], report, args)
        return
    if place.routing is not None and not args.eager:
        report["host"] = program_host.measured(args.table, with_setting=args.host)
        console.show(program_host.describe(report["host"]) + "\n")
        reports.keep(args.out, report)
    if args.host:
        return
    ways: list[Way] = [by_key]
    if place.routing is not None:
        ways += [called] if args.eager else [called, raced_graphs, profiled]
    if args.settle:
        ways = [settled, *ways]
    measure_all(programs, place, ways, report, args)
    for found in report["programs"].values():
        if "profile" in found:
            found["attainable"] = program_gain.attainable(found, program_host.medians(report["host"]))
    reports.keep(args.out, report)
    console.show(describe(report["programs"]))


def measure_all(
    programs: Mapping[str, Program],
    place: Place,
    ways: Sequence[Way],
    report: dict[str, Any],
    args: argparse.Namespace,
) -> None:
    """Measure into the report, all programs one way and then the next: a failed capture, and profiling, may
    slow down what comes after them. A program that fails is told; the others are worth their time."""
    steps: dict[str, Step] = {}
    started = time.perf_counter()
    for way in ways:
        for name, program in programs.items():
            if name in report["failed"] or (way is raced_graphs and program.waits):
                continue
            try:
                steps[name] = steps.get(name) or _made(program, place, args)
                found = report["programs"].get(name, {})
                way(found, steps[name], place, args)
                report["programs"][name] = found
            except Exception as error:
                report["failed"][name] = f"{way.__name__}: {error!r:.500}"
                console.note(f"{name} failed, {report['failed'][name]}")
            reports.keep(args.out, report)
        console.note(f"{way.__name__} after {time.perf_counter() - started:.0f} s")


def _made(program: Program, place: Place, args: argparse.Namespace) -> Step:
    torch.manual_seed(args.seed)
    return program.make(place.device, **program.tiny if args.tiny else {})


def identity(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "benchmark": "programs", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__, "table": str(args.table), "seed": args.seed, "is_tiny": args.tiny,
        "settle": args.settle, "accuracy": args.accuracy,
        "programs": {}, "failed": {},
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------
# What is told


def describe(programs: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each program, and the geometric means of their ratios."""
    headers = ["program", "ms", "eager", "GPU", "kernels", "served", "left", "graph", "attainable", "reached"]
    rows = [_row(name, found) for name, found in programs.items()]
    lines = reports.table(headers, rows)
    for title in ("eager", "graph"):
        both = {name: found.get(title, {}) for name, found in programs.items()}
        ratios = {name: ratio_of(one) for name, one in both.items() if "step_s" in one}
        if ratios:
            mean = statistics.geometric_mean(ratio.mean for ratio in ratios.values())
            slower = ", ".join(name for name, ratio in ratios.items() if ratio.high < SLOWER) or "none"
            lines.append(
                f"{title}: geometric mean {mean:.3f} of {len(ratios)}; wholly below {SLOWER}: {slower}"
            )
    shares = [share for found in programs.values() if (share := reached(found)) is not None]
    if shares:
        of_all = statistics.fmean(min(share, 1.0) for share in shares)
        lines.append(f"share reached of what is attainable: {of_all:.0%} in the mean, none taken above 100%")
    graphs = {name: found.get("graph", {}) for name, found in programs.items()}
    lines += [f"{name} is not captured: {one['refused']}" for name, one in graphs.items() if "refused" in one]
    return "\n".join(lines)


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    profile, call_counts = found.get("profile"), found.get("calls", {}).get("tally", {})
    gpu = kernels = ""
    if profile:
        plain, routed = profile[PLAIN], profile[ROUTED]
        gpu = f"{plain['busy_us'] / routed['busy_us']:.3f}" if routed["busy_us"] else ""
        kernels = f"{plain['num_kernels']:.0f} -> {routed['num_kernels']:.0f}"
    share, best = reached(found), found.get("attainable")
    step_ms = 1e3 * statistics.median(found["eager"]["step_s"][PLAIN])
    return [
        name, f"{step_ms:.3f}", str(ratio_of(found["eager"])), gpu, kernels,
        str(call_counts.get("", 0)), str(sum(call_counts.values()) - call_counts.get("", 0)),
        str(ratio_of(found["graph"])) if "step_s" in found.get("graph", {}) else "none",
        f"{best['ratio']:.3f}" if best else "", "" if share is None else f"{share:.0%}",
    ]  # fmt: skip


def reached(found: Mapping[str, Any]) -> float | None:
    """The share of the attainable saving of time that the program has; None where next to none is."""
    best = found.get("attainable")
    if best is None or best["ratio"] < program_gain.LEAST_RATIO:
        return None
    return (1 - 1 / ratio_of(found["eager"]).mean) / (1 - 1 / float(best["ratio"]))


def add_arguments(parser: argparse.ArgumentParser, seconds: float, pairs: int) -> None:
    """Those of every race of programs, and two defaults."""
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--own", action="store_true", help="the five of other kinds instead of the ten")
    parser.add_argument("--seconds", type=float, default=seconds, help="of a program, and of its graphs")
    parser.add_argument("--pairs", type=int, default=pairs, help="how many there are at least")
    parser.add_argument(
        "--settle", choices=["live", "live-any-order"], help="AUTOTUNE_SETTLE, of all programs"
    )
    parser.add_argument("--settling", type=float, default=3.0, help="seconds of each program for that")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, which say nothing")
    parser.add_argument("--out", type=Path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, seconds=4.0, pairs=30)
    parser.add_argument("--accuracy", choices=["strict", "fp32"], help="the class of what may serve")
    parser.add_argument("--eager", action="store_true", help="no graphs, profiles nor times of calls")
    parser.add_argument(
        "--host", action="store_true", help="only the host time of a call, in several settings"
    )
    parser.add_argument("--record", type=Path, help="only record what a step of each program calls")
    reports.run(_run, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
