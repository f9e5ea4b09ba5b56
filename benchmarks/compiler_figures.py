"""What to expect of GPUs that are not at hand, from the code that the compiler makes for them.

    python benchmarks/compiler_figures.py [--gpu rtx-3090 ...] [--suite studies/suites/dev.toml]
        [--measured studies/results/h200-dev-suite.json] [--jobs 2] [--out studies/results/other-gpus.json]
        [--page docs/other-gpus.md]

Needs no GPU. For each shape on each GPU a search's starting points (autotune/shipped/starting_points.py, each
mapped to the nearest point of that GPU's feasible set, as a search does) are compiled for it. Prints for
each: registers, spills, occupancy, the share of FFMA in the main loop, its length; and for the one with the
least bound (time_bounds.py): the bound, what binds, and the expected time. The error of a bound is learnt
from `--measured`, a result of vs_cublas.py: the configs timed there are compiled for its GPU, and bounds
compared with times. Expected times of other GPUs assume the same error: whether it is the same there is not
known. The tables are printed; in `--page` they replace everything after its mark.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import reports
from time_bounds import Bound, Figures, Trust, bound, figures, learn

from autotune import target_finder as targets
from autotune.cli import console
from autotune.facts.device import DeviceLimits, known_limits
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.gpu.instance import ALLOWED_SPILL_BYTES, variant
from autotune.kernel import template
from autotune.kernel.compiler import Compiler, Cubin, compiler_version
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.search.propose.seeds import seeds
from autotune.search_policy import SearchPolicy
from autotune.shipped.starting_points import StartingPoints
from autotune.suite import read_suite

GPUS = ("quadro-rtx-5000", "rtx-3090", "rtx-4090", "h200")
REPOSITORY = Path(__file__).resolve().parents[1]
MARK = "<!-- Written by benchmarks/compiler_figures.py --page: -->"
LONG_LOOP_BYTES = 48 << 10  # a main loop of 52 KB waited for instructions on an H200 (decision 0014)


@dataclass(frozen=True)
class CompiledConfig:
    """One config on one problem, as compiled."""

    figures: Figures
    bound: Bound

    @property
    def is_refused(self) -> bool:
        """Whether a search would not time it: it spills, or fewer blocks share an SM than asked for."""
        found = self.figures
        return found.spill_bytes > ALLOWED_SPILL_BYTES or found.blocks_per_sm < found.config.min_blocks


@dataclass(frozen=True)
class StartingConfigs:
    """The starting points of a shape's search on a GPU."""

    gemm: Gemm
    configs: tuple[Config, ...]


def main() -> None:
    reports.run(_run, _arguments())


def _run(args: argparse.Namespace) -> None:
    gemms = tuple(read_suite(args.suite))
    gpus = {name: known_limits(name) for name in args.gpu or GPUS}
    trust, checked = calibrate(args.measured, args.jobs)
    report: dict[str, Any] = {
        "benchmark": "compiler_figures",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "compiler": compiler_version(),
        "source_hash": template.source_hash(),
        "trust": asdict(trust) | {"measured": args.measured.name, "shapes": checked},
        "gpus": [],
    }
    starts = all_starts(gpus, gemms, args.jobs)
    for name, limits in gpus.items():
        report["gpus"].append(gpu_facts(name, limits, starts[name], trust, args.jobs))
    reports.keep(args.out, _rounded(report))
    if args.page:
        write_page(args.page, text(report))
    console.show(text(report))


def _rounded(value: Any) -> Any:
    """The same with six digits of each number: none is known better."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_page(page: Path, tables: str) -> None:
    """Puts the tables behind the mark of a page. Raises UsageError where it has none."""
    head, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise UsageError(f"{page} has no line {MARK}: put one where the tables are to begin")
    page.write_text(f"{head}{mark}\n\n{tables}\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------
# Where a search begins


def all_starts(
    gpus: dict[str, DeviceLimits], gemms: Sequence[Gemm], jobs: int
) -> dict[str, list[StartingConfigs]]:
    """Of each GPU and shape. Spaces are enumerated in other processes: each takes seconds."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = {name: [pool.submit(start, limits, g) for g in gemms] for name, limits in gpus.items()}
        return {name: [one.result() for one in those] for name, those in found.items()}


def start(limits: DeviceLimits, gemm: Gemm) -> StartingConfigs:
    space, starts = feasible_set(limits, gemm), StartingPoints(targets.matrices(), limits)
    numbers = islice(seeds(space, starts(gemm)), SearchPolicy.num_seeds)
    return StartingConfigs(gemm, tuple(Config.from_dict(space.point(number)) for number in numbers))


# ------------------------------------------------------------------------------------------------
# Figures


def candidates(tasks: Sequence[tuple[Gemm, Config]], limits: DeviceLimits, jobs: int) -> list[CompiledConfig]:
    """Each config compiled and bounded. Raises TrialFailure for one that does not compile."""
    with closing(Compiler(limits.arch, num_threads=jobs, note=console.note)) as compiler:
        cubins: list[Future[Cubin]] = [compiler.submit(config, variant(gemm)) for gemm, config in tasks]
        made = []
        for (gemm, config), cubin in zip(tasks, cubins, strict=True):
            found = figures(config, gemm, limits, cubin.result())
            made.append(CompiledConfig(found, bound(found, gemm, limits)))
        return made


def calibrate(path: Path, jobs: int) -> tuple[Trust, list[dict[str, Any]]]:
    """How the bounds of the kernels that were timed compare with their times."""
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
        limits = DeviceLimits.from_dict(measured["limits"])
        ours = [(s["shape"], s["contestants"]["ours"]) for s in measured["shapes"]]
        tasks = [(Gemm.parse(shape), Config.parse(one["detail"])) for shape, one in ours]
        times = [float(one["time_us"]) for _, one in ours]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no result of vs_cublas.py ({error!r}); pass one") from error
    made = candidates(tasks, limits, jobs)
    trust = learn([one.bound.time_us for one in made], times)
    facts = [
        {"shape": str(gemm), "time_us": time, **candidate_facts(one, gemm, limits, trust)}
        for (gemm, _), time, one in zip(tasks, times, made, strict=True)
    ]
    return trust, facts


def gpu_facts(
    name: str, limits: DeviceLimits, starts: Sequence[StartingConfigs], trust: Trust, jobs: int
) -> dict[str, Any]:
    """One GPU: all that was compiled for it in short, and per shape the candidate of the least bound."""
    tasks = [(one.gemm, config) for one in starts for config in one.configs]
    made = iter(candidates(tasks, limits, jobs))
    console.note(f"{limits.name}: {len(tasks)} starting points of {len(starts)} shapes are compiled")
    shapes, everything = [], []
    for one in starts:
        those = [next(made) for _ in one.configs]
        everything += those
        best = min(
            (c for c in those if not c.is_refused), key=lambda c: (c.bound.time_us, c.bound.compute_us)
        )
        facts = {"shape": str(one.gemm), "num_legal": len(those)}
        shapes.append(facts | candidate_facts(best, one.gemm, limits, trust))
    rejected = [c for c in everything if c.is_refused]
    return {
        "gpu": name,
        "limits": limits.to_dict(),
        "num_kernels": len({c.figures.config.kernel for c in everything}),
        "num_long_loops": sum(c.figures.loop.num_bytes > LONG_LOOP_BYTES for c in everything),
        "refused": sorted({f"{c.figures.spill_bytes} bytes: {c.figures.config.kernel}" for c in rejected}),
        "shapes": shapes,
    }


def candidate_facts(one: CompiledConfig, gemm: Gemm, limits: DeviceLimits, trust: Trust) -> dict[str, Any]:
    found, low = one.figures, one.bound
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    expected_us = trust.expect_us(low.time_us)
    return {
        "config": found.config.key,
        "registers": found.registers,
        "spill_bytes": found.spill_bytes,
        "smem_bytes": found.smem_bytes,
        "threads": found.threads,
        "blocks_per_sm": found.blocks_per_sm,
        "warps_per_sm": found.warps_per_sm,
        "loop": {"bytes": found.loop.num_bytes, "runs": found.runs, **found.loop.kinds},
        "tile": {"instructions": found.tile.instructions, **found.tile.kinds},
        "ffma_share": found.ffma_share,
        "pipe_share": found.pipe_share(limits),
        "smem_bytes_per_fma": found.smem_bytes_per_fma,
        "l2_bytes_per_fma": found.l2_bytes_per_fma,
        "limit_us": limit_us,
        "bound": asdict(low) | {"time_us": low.time_us, "binds": low.binds},
        "bound_share": limit_us / low.time_us,
        "expected_us": expected_us,
        "expected_share": limit_us / expected_us,
    }


# ------------------------------------------------------------------------------------------------
# Text, in Markdown


_HEADERS = (
    "shape", "block tile", "thread tile", "registers", "warps/SM", "FFMA", "loop KB", "idle", "binds",
    "bound", "expected",
)  # fmt: skip


_SUMMARY_HEADERS = ("GPU", "kernels compiled", "refused: they spill", "bound", "expected")


def text(report: dict[str, Any]) -> str:
    """A summary of what was learnt on the measured GPU, then a table per GPU."""
    trust = report["trust"]
    lines = [
        f"Kernel source {report['source_hash'][:12]}, {report['compiler']}, {report['date'][:10]}.",
        "",
        *reports.table(_SUMMARY_HEADERS, [_summary_row(gpu) for gpu in report["gpus"]]),
        "",
        "### How far bounds are missed where times are known",
        "",
        f"{trust['measured']}: measured over bound {trust['ratio']:.2f} in the geometric mean of "
        f"{trust['num_shapes']} shapes, {trust['worst']:.2f} at worst.",
        f"Fitted: time = {trust['fixed_us']:.1f} us + bound / {trust['reached']:.2f}, off by a factor of "
        f"{trust['spread']:.2f} (one standard deviation), {trust['most']:.2f} at most.",
        "",
        *reports.table(
            ("shape", "measured", "bound", "measured / bound", "fitted / measured"),
            [_measured_row(facts) for facts in trust["shapes"]],
        ),
    ]
    for gpu in report["gpus"]:
        lines += ["", *_gpu_text(gpu)]
    return "\n".join(lines)


def _summary_row(gpu: dict[str, Any]) -> tuple[str, ...]:
    return (
        gpu["limits"]["name"],
        str(gpu["num_kernels"]),
        str(len(gpu["refused"])),
        f"{_mean(facts['bound_share'] for facts in gpu['shapes']):.0%}",
        f"{_mean(facts['expected_share'] for facts in gpu['shapes']):.0%}",
    )


def _mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _measured_row(facts: dict[str, Any]) -> tuple[str, ...]:
    time, low = facts["time_us"], facts["bound"]["time_us"]
    return (
        facts["shape"], f"{time:.1f} us", f"{low:.1f} us", f"{time / low:.2f}",
        f"{facts['expected_us'] / time:.2f}",
    )  # fmt: skip


def _gpu_text(gpu: dict[str, Any]) -> list[str]:
    limits, rows = gpu["limits"], gpu["shapes"]
    major, minor = limits["compute_capability"]
    return [
        f"### {limits['name']} (sm_{major}{minor}, {limits['num_sms']} SMs, {limits['fma_tflops']} TFLOP/s, "
        f"{limits['bandwidth_gbs']:.0f} GB/s)",
        "",
        f"{gpu['num_kernels']} kernels compiled; {len(gpu['refused'])} spill and would be refused, "
        f"{gpu['num_long_loops']} have a main loop above {LONG_LOOP_BYTES >> 10} KB.",
        "",
        *reports.table(_HEADERS, [_row(facts) for facts in rows]),
    ]


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    c = Config.parse(facts["config"])
    splits = "" if c.reduction == "none" else f" /{c.split_k}"
    return (
        facts["shape"],
        f"{c.bm}x{c.bn}x{c.bk}{splits}",
        f"{c.tm}x{c.tn}",
        str(facts["registers"]),
        str(facts["warps_per_sm"]),
        f"{facts['ffma_share']:.1%}",
        f"{facts['loop']['bytes'] / 1024:.0f}",
        f"{facts['bound']['wave_loss']:.0%}",
        facts["bound"]["binds"],
        f"{facts['bound_share']:.0%}",
        f"{facts['expected_share']:.0%}",
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gpu", action="append", help=f"a known GPU; repeatable (default: {', '.join(GPUS)})"
    )
    parser.add_argument("--suite", type=Path, default=REPOSITORY / "studies/suites/dev.toml")
    parser.add_argument(
        "--measured", type=Path, default=REPOSITORY / "studies/results/h200-dev-suite.json",
        help="JSON of vs_cublas.py",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="processes that enumerate spaces, and compile")
    parser.add_argument("--out", type=Path, help="JSON of all that was found")
    parser.add_argument("--page", type=Path, help="a page of Markdown whose tables are to be replaced")
    return parser.parse_args()


if __name__ == "__main__":
    main()
