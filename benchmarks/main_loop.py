"""What binds the main loop of a kernel: instructions, register ports, length; compares several.

    python benchmarks/main_loop.py --shape 4096 CONFIG [CONFIG ...] [--gpu h200] [--out FILE]
    python benchmarks/main_loop.py --shape 4096 --db autotune.db [--within 1.3] [--num 60] [--out FILE]

Needs no GPU: configs ("tm=8,tn=8,...", as reports show them) are compiled and their machine code is read.
Prints for each: instructions of the loop, FFMA's share, cycles that register ports cost per instruction and
hits of the reuse cache per FFMA (ports.py), the loop's length (above 48 KB one was seen to wait for
instructions), and the share of the FMA rate that this leaves. Expected times are the bound of time_bounds.py,
with the ports' cycles added to those of issue.

With `--db`, configs are taken from the trials of a search on such a GPU, evenly over all that took up to
`--within` times as long as the fastest; and bound and expectation are compared with their times.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import reports
from compiler_figures import LONG_LOOP_BYTES
from ports import Ports, run
from sass import Code
from time_bounds import Bound, Figures, bound, figures, fp32_cores

from autotune.cli import common, console
from autotune.facts.device import DeviceLimits, known_limits
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.gpu.instance import variant
from autotune.kernel import same_code, template
from autotune.kernel.compiler import Compiler, Cubin, compiler_version
from autotune.kernel.config import Config

_CORES = 128  # of an SM that has ports as ports.py describes them, and issues no faster than it multiplies


@dataclass(frozen=True)
class Reading:
    """A compiled kernel on a problem. `ports`: of one run of the innermost main loop."""

    figures: Figures
    bound: Bound
    ports: Ports

    @property
    def stalls_per_instruction(self) -> float:
        return self.ports.stalls / self.figures.loop.instructions

    @property
    def hits_per_ffma(self) -> float:
        return self.ports.hits / self.figures.loop.kinds["ffma"]

    @property
    def slowdown(self) -> float:
        """Cycles per tile of k over those that issue alone takes."""
        return 1 + self.ports.stalls * self.figures.runs / self.figures.tile.instructions

    @property
    def rate(self) -> float:
        """Share of the FMA rate that the main loop reaches at most."""
        return self.figures.ffma_share / self.slowdown

    @property
    def expected_us(self) -> float:
        low = self.bound
        return low.packing_us + max(low.compute_us * self.slowdown, low.shared_us, low.memory_us)


@dataclass(frozen=True)
class Agreement:
    """Of modelled and measured times: Spearman's rank correlation; the geometric mean of measured over
    modelled; the factor by which single ones differ from that mean, one standard deviation of logarithms."""

    rank_correlation: float
    ratio: float
    spread: float


def agreement(modelled_us: Sequence[float], times_us: Sequence[float]) -> Agreement:
    """Two times at least. The correlation is 0 where the modelled or the measured are all alike."""
    off = np.log(np.array(times_us) / np.array(modelled_us))
    is_told = len(set(modelled_us)) > 1 and len(set(times_us)) > 1
    return Agreement(
        rank_correlation=float(np.corrcoef(_ranks(modelled_us), _ranks(times_us))[0, 1]) if is_told else 0.0,
        ratio=math.exp(off.mean()),
        spread=math.exp(off.std()),
    )


def _ranks(values: Sequence[float]) -> np.ndarray:
    """From 0; of equal values the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[where])


def read(config: Config, gemm: Gemm, limits: DeviceLimits, cubin: Cubin) -> Reading:
    """Raises UsageError where the main loop is not as the template writes it."""
    code = Code(cubin.code, template.ENTRY, limits.arch)
    found = figures(config, gemm, limits, cubin)
    return Reading(found, bound(found, gemm, limits), run(code.fma_sources(code.main_loop())))


def readings(configs: Sequence[Config], gemm: Gemm, limits: DeviceLimits, jobs: int) -> list[Reading]:
    """Raises TrialFailure for a config that does not compile, UsageError for a GPU with other ports."""
    if fp32_cores(limits) != _CORES:
        raise UsageError(
            f"register ports are modelled for SMs of {_CORES} FP32 cores; {limits.name} has "
            f"{fp32_cores(limits)}: choose another --gpu"
        )
    with closing(Compiler(limits.arch, num_threads=jobs, note=console.note)) as compiler:
        cubins = [compiler.submit(config, variant(gemm)) for config in configs]
        pairs = zip(configs, cubins, strict=True)
        return [read(config, gemm, limits, cubin.result()) for config, cubin in pairs]


def timed(path: str, gemm: Gemm, limits: DeviceLimits, within: float, most: int) -> dict[Config, float]:
    """Up to `most` configs with times in us, evenly over the ranks of all within a factor of the fastest.

    Raises UsageError where the database has no such study of today's kernel with two trials or more."""
    with common.open_existing(path) as store:
        environments = [e for e in store.environments() if e.gpu_name == limits.name]
        studies = store.latest_studies(environments[0]) if environments else []
        study = next((s for s in studies if s.gemm == gemm), None)
        if study is None or not same_code.is_same(study.source_hash, template.source_hash()):
            raise UsageError(f"{path} has no trials of this kernel for {gemm} on {limits.name}; search first")
        ranked = sorted((time_us, key) for key, time_us in store.times(study).items())
    near = [pair for pair in ranked if pair[0] <= within * ranked[0][0]]
    if len(near) < 2 or most < 2:
        raise UsageError(f"{gemm}: {len(near)} times within {within} of the best; nothing can be compared")
    picked = sorted({round(at) for at in np.linspace(0, len(near) - 1, most)})
    return {Config.parse(near[at][1]): near[at][0] for at in picked}


# ------------------------------------------------------------------------------------------------
# The report


def main() -> None:
    reports.run(_run, _arguments())


def _run(args: argparse.Namespace) -> None:
    limits = known_limits(args.gpu)
    report: dict[str, Any] = {
        "benchmark": "main_loop",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "compiler": compiler_version(),
        "source_hash": template.source_hash(),
        "gpu": limits.name,
        "shapes": [],
    }
    for gemm in args.shape:
        times: dict[Config, float] = {}
        if args.db:
            times = timed(args.db, gemm, limits, args.within, args.num)
        found = readings(list(times) or args.configs, gemm, limits, args.jobs)
        report["shapes"].append(shape_facts(gemm, found, times))
        console.show(text(report["shapes"][-1]))
    reports.keep(args.out, report)


def shape_facts(gemm: Gemm, found: Sequence[Reading], times: dict[Config, float]) -> dict[str, Any]:
    """`times`: of all configs in us, or none."""
    facts: dict[str, Any] = {
        "shape": str(gemm),
        "kernels": [_facts(one, times.get(one.figures.config)) for one in found],
    }
    if times:
        seen = [times[one.figures.config] for one in found]
        facts["bound"] = asdict(agreement([one.bound.time_us for one in found], seen))
        facts["expected"] = asdict(agreement([one.expected_us for one in found], seen))
    return facts


def _facts(one: Reading, time_us: float | None) -> dict[str, Any]:
    found = one.figures
    return {
        "config": found.config.key,
        "instructions": found.loop.instructions,
        **found.loop.kinds,
        "loop_bytes": found.loop.num_bytes,
        "ffma_share": round(found.ffma_share, 4),
        "stalls_per_instruction": round(one.stalls_per_instruction, 4),
        "hits_per_ffma": round(one.hits_per_ffma, 3),
        "rate": round(one.rate, 4),
        "bound_us": round(one.bound.time_us, 2),
        "expected_us": round(one.expected_us, 2),
        "time_us": time_us,
    }


_HEADERS = (
    "", "instructions", "FFMA", "other FMA pipe", "shared loads", "copies", "FFMA share", "port stalls",
    "reuse", "loop KB", "rate", "bound us", "expected us", "measured us",
)  # fmt: skip


def text(facts: dict[str, Any]) -> str:
    """In Markdown: a row per kernel, the configs behind it, and how times compare where there are any."""
    rows = [_row(number, one) for number, one in enumerate(facts["kernels"], start=1)]
    lines = [f"### {facts['shape']}", "", *reports.table(_HEADERS, rows), ""]
    lines += [f"{number}. {one['config']}" for number, one in enumerate(facts["kernels"], start=1)]
    for name in ("bound", "expected"):
        if name in facts:
            seen = Agreement(**facts[name])
            lines += [
                "",
                f"{name}: rank correlation with the times {seen.rank_correlation:.2f}; measured is "
                f"{seen.ratio:.3f} of it, and differs from that by a factor of {seen.spread:.3f}.",
            ]
    return "\n".join(lines)


def _row(number: int, one: dict[str, Any]) -> list[str]:
    long = "!" if one["loop_bytes"] > LONG_LOOP_BYTES else ""
    measured = "" if one["time_us"] is None else f"{one['time_us']:.1f}"
    return [
        str(number), str(one["instructions"]), str(one["ffma"]), str(one["fma_pipe"] - one["ffma"]),
        str(one["shared_loads"]), str(one["async_copies"] + one["global_loads"]), f"{one['ffma_share']:.1%}",
        f"{one['stalls_per_instruction']:.3f}", f"{one['hits_per_ffma']:.2f}",
        f"{one['loop_bytes'] / 1024:.0f}{long}", f"{one['rate']:.1%}", f"{one['bound_us']:.1f}",
        f"{one['expected_us']:.1f}", measured,
    ]  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="*", type=Config.parse, metavar="CONFIG")
    parser.add_argument("--shape", action="append", type=Gemm.parse, required=True, help="repeatable")
    parser.add_argument("--gpu", default="h200", help="a known GPU (default: h200)")
    parser.add_argument("--db", help="a database, of whose trials configs are taken")
    parser.add_argument("--within", type=float, default=1.3, help="of the fastest trial's time")
    parser.add_argument("--num", type=int, default=60, help="trials to take at most, per shape")
    parser.add_argument("--jobs", type=int, default=2, help="threads that compile")
    parser.add_argument("--out", type=Path, help="JSON of all that was found")
    args = parser.parse_args()
    if bool(args.configs) == bool(args.db):
        parser.error("name configs or --db, one of them")
    return args


if __name__ == "__main__":
    main()
