"""autotune beside Kernel Tuner: same kernel source, same configs, same GPU, same seconds.

    python benchmarks/vs_kernel_tuner.py [--gpu 0] [--shape 1024] [--seconds 60] [--configs 10000] [--seed 0]
        [--strategies genetic_algorithm,greedy_ils,...] [--kernel-tuner-path DIR] [--out FILE.json]

Both search the same seeded subset of this GPU's feasible set, without split-K and packing: Kernel Tuner
launches one kernel per candidate. Both verify every candidate, begin without a compiled kernel (no cache of
ours, none of the driver's), and start from nothing: an empty database, no seeds but those of our sampler that
happen to lie in the subset. Each runs in a process of its own, Kernel Tuner in one per strategy
(kernel_tuner_side.py says how it is called). It times with operands in L2, so `warm` is the policy here
unless told otherwise. At the end the best of each is timed again by one judge, interleaved with the others
and cuBLAS. Prints one table, writes one JSON file.

A trial is, for both, a config that was compiled, verified and timed, each counted once; what failed on the
way is counted apart and earns nothing. Rates are over all the seconds that a contestant took, its own start
and, for ours, the final included.

Its strategies here are two that people wrote, genetic algorithm and greedy iterated local search (compared
with others by R. Schoonhoven, B. van Werkhoven, J. Batenburg, doi:10.1109/TEVC.2022.3210654), and the two
generated ones that it comes with (F.-J. Willemsen, N. van Stein, B. van Werkhoven, arXiv:2510.17899).
dual_annealing and bayes_opt need scipy and scikit-learn besides.

Kernel Tuner: pip install kernel-tuner, or unpack its wheels into a folder and pass --kernel-tuner-path. The
strategies named above need of its dependencies only python-constraint2, jsonschema (with
jsonschema-specifications, attrs, referencing, rpds-py), xmltodict, packaging, typing-extensions and numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from autotune.cli import console
from autotune.facts import stats
from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import AutotuneError, UsageError
from autotune.gpu.gpu_target import GpuTarget
from autotune.gpu.instance import is_wide
from autotune.kernel import resources, template
from autotune.kernel.config import PARAMETER, PARAMETERS, Config, Value
from autotune.kernel.feasible_set import Factor, FeasibleSet
from autotune.kernel.launch import Variant, plan
from autotune.kernel.summation_order import SummationOrder
from autotune.search import DEFAULT_SAMPLER, Options, tune
from autotune.store import Store

SIDE = Path(__file__).with_name("kernel_tuner_side.py")
# Values that the subset is drawn from: what a person would write down for a first tuning of square products,
# and few enough that a tenth or more of all combinations are in the subset: local search needs neighbours.
# Parameters that are not named keep all their values.
DOMAIN: dict[str, tuple[Value, ...]] = {
    "bm": (64, 128, 256), "bn": (64, 128, 256), "bk": (8, 16, 32), "wm": (16, 32, 64, 128),
    "wn": (16, 32, 64, 128), "tm": (4, 8, 16), "tn": (4, 8, 16), "slice_k": (1,), "stages": (2, 3, 4),
    "bursts": (1, 2), "frag_buffers": (1,), "min_blocks": (1, 2, 4), "order": ("row_snake", "col_snake"),
    "raster": ("n",), "group": (1, 8), "reduction": ("none",), "split_k": (1,), "pack_a": (0,),
    "pack_b": (0,),
}  # fmt: skip
STRATEGIES = "genetic_algorithm,greedy_ils,hybrid_vndx,adaptive_tabu_greywolf"
ON_THE_GPU = ("verify_s", "measure_s", "refine_s")
GRACE_S = 120.0  # for Kernel Tuner to start, and to finish the candidate under way


def main() -> None:
    args = _arguments()
    gemm = Gemm.parse(args.shape)
    with GpuTarget(args.gpu, policy=args.cache) as target:
        configs = subset(target.space(gemm), args.configs, args.seed)
        job = kernel_tuner_job(gemm, configs, target.limits)
        environment = target.environment
    console.note(f"{environment.gpu_name}, {gemm}: {len(configs):,} configs, {args.seconds:g} s for each")
    with as_on_the_command_line(), ProcessPoolExecutor(1, get_context("spawn")) as process:
        results = [process.submit(run_ours, args, gemm, configs).result()]
    for strategy in args.strategies.split(","):
        console.note(f"Kernel Tuner, {strategy}")
        results.append(run_kernel_tuner(args, job, configs, strategy, environment.gpu_uuid))
    cublas_us = judge(args, gemm, results)
    facts = {
        "environment": environment.to_dict(), "shape": str(gemm), "seconds": args.seconds, "seed": args.seed,
        "num_configs": len(configs), "policy": args.cache, "source_hash": template.source_hash(),
        "cublas_time_us": cublas_us, "results": results,
    }  # fmt: skip
    args.out.write_text(json.dumps(facts, indent=1, default=str), encoding="utf-8")
    console.show(table(results, cublas_us))
    console.note(f"written to {args.out}")


# ------------------------------------------------------------------------------------------------
# The configs


def subset(feasible: FeasibleSet, num: int, seed: int) -> list[Config]:
    """At most `num` configs of the feasible set within DOMAIN, drawn at random, in a fixed order."""
    within = FeasibleSet(tuple(_within_domain(factor) for factor in feasible.factors))
    if not len(within):
        raise UsageError("no feasible config has the values that the subset is drawn from; try --shape 1024")
    rng = np.random.default_rng(seed)
    numbers = rng.choice(len(within), size=min(num, len(within)), replace=False)
    return [Config.from_dict(within.point(int(number))) for number in np.sort(numbers)]


def _within_domain(factor: Factor) -> Factor:
    keep = np.ones(len(factor), dtype=bool)
    for column, (name, values) in enumerate(zip(factor.names, factor.values, strict=True)):
        if name in DOMAIN:
            codes = [code for code, value in enumerate(values) if value in DOMAIN[name]]
            keep &= np.isin(factor.codes[:, column], codes)
    return Factor(factor.names, factor.values, factor.codes[keep])


def as_feasible_set(configs: Sequence[Config]) -> FeasibleSet:
    """These configs and no others, as samplers see a space: one factor, a row for each."""
    names = tuple(PARAMETER)
    values = tuple(parameter.values for parameter in PARAMETERS)
    codes = [[v.index(getattr(c, n)) for n, v in zip(names, values, strict=True)] for c in configs]
    return FeasibleSet((Factor(names, values, np.array(codes, dtype=np.uint8)),))


# `launch.schedule` for one problem, by the compiler: Kernel Tuner gives all configs the same arguments.
_COMPILED_SCHEDULE = """
constexpr Divisor divisor_of(unsigned value) {
    unsigned bits = 0;
    while ((1ull << bits) < value) ++bits;
    return {value, static_cast<unsigned>(((1ull << (31 + bits)) + value - 1) / value), 31 + bits};
}
constexpr Schedule compiled_schedule() {
    const unsigned tiles_m = (PROBLEM_M + BM - 1) / BM, tiles_n = (PROBLEM_N + BN - 1) / BN;
    const unsigned along = IS_ALONG_M ? tiles_m : tiles_n, across = IS_ALONG_M ? tiles_n : tiles_m;
    const unsigned width = GROUP < across ? GROUP : across, last = across % width ? across % width : 1;
    return {divisor_of(tiles_m * tiles_n), divisor_of(width * along), divisor_of(width), divisor_of(last),
            static_cast<int>(across / width), IS_ALONG_M};
}
"""


def with_raster_compiled_in(source: str) -> str:
    """The kernel without the arguments behind `splits`: how blocks walk comes from macros, and all else is as
    it is where there is none of it."""
    kernel_of = re.compile(r"(\bsgemm\([^)]*\bint splits),([^)]*)\) \{")
    values = {"schedule": "compiled_schedule()"}

    def declare(found: re.Match[str]) -> str:
        arguments = (argument.strip().rsplit(maxsplit=1) for argument in found[2].split(","))
        lines = (f"constexpr {kind} {name}{{{values.get(name, '')}}};" for kind, name in arguments)
        return f"{found[1]}) {{ {' '.join(lines)}"

    changed, num_found = kernel_of.subn(declare, source)
    if num_found != 1:
        raise ValueError(f"{num_found} kernels sgemm with the argument `splits`: one was expected")
    at = changed.index('extern "C" __global__ void CLUSTER_OF')
    return changed[:at] + _COMPILED_SCHEDULE.lstrip() + changed[at:]


def kernel_tuner_job(gemm: Gemm, configs: Sequence[Config], limits: DeviceLimits) -> dict[str, Any]:
    """The configs as Kernel Tuner takes them: macros that vary as its parameters (and block_size_x, which it
    launches by), the others before the source; with each config its number of tiles and shared memory."""
    variant = Variant(gemm.trans_a, gemm.trans_b, is_wide(gemm))
    specs = [resources.launch_spec(config, gemm, limits, is_wide=is_wide(gemm)) for config in configs]
    macros = [
        template.macros(config, variant)
        | {"GROUP": spec.group, "IS_ALONG_M": int(spec.is_along_m), "PROBLEM_M": gemm.m, "PROBLEM_N": gemm.n}
        for config, spec in zip(configs, specs, strict=True)
    ]
    names = [name for name in macros[0] if len({m[name] for m in macros}) > 1]
    fixed = {name: value for name, value in macros[0].items() if name not in names}
    defines = "".join(f"#define {name} {value}\n" for name, value in fixed.items())
    return {
        "source": defines + with_raster_compiled_in(template.source()),
        "entry": template.ENTRY,
        "extents": [gemm.m, gemm.n, gemm.k],
        "is_transposed": [gemm.trans_a, gemm.trans_b],
        "lds": [gemm.lda, gemm.ldb, gemm.ldc],
        "names": [*names, "block_size_x"],
        "configs": [[*(m[name] for name in names), s.threads] for m, s in zip(macros, specs, strict=True)],
        "tiles": [plan(spec, gemm.m, gemm.n, gemm.k).tiles for spec in specs],
        "smem_bytes": [spec.smem_bytes for spec in specs],
    }


# ------------------------------------------------------------------------------------------------
# The contestants


class GivenTarget(GpuTarget):
    """A GPU on which only the given configs may be asked for."""

    configs: Sequence[Config] = ()

    def space(self, gemm: Gemm, order: SummationOrder | None = None) -> FeasibleSet:
        return as_feasible_set(self.configs)


@contextmanager
def as_on_the_command_line() -> Iterator[None]:
    """Processes started within have numpy use one thread, as `autotune` itself does (cli.main): on cores
    that are busy compiling, the search's small matrices take several threads ten times as long as one."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def run_ours(args: argparse.Namespace, gemm: Gemm, configs: Sequence[Config]) -> dict[str, Any]:
    """Our search from nothing: an empty database, an empty cache of compiled kernels."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vs-kernel-tuner-") as folder:
        cache = Path(folder) / "cache"
        with (
            GivenTarget(args.gpu, policy=args.cache, cache_dir=cache) as target,
            Store.open(Path(folder) / "trials.db") as store,
        ):
            target.configs = configs
            started_s = time.monotonic() - began_s
            options = Options(args.sampler, seconds=args.seconds - started_s, seed=args.seed)
            result = tune(target, store, [gemm], options)
    (shape,) = result.shapes
    winner = shape.final.winner if shape.final else shape.best
    own_us = shape.final.winner.time_us if shape.final else shape.best and shape.best.measurement.time_us
    return {
        "tool": "autotune", "strategy": args.sampler, "num_trials": result.num_new - shape.num_failed,
        "num_failed": shape.num_failed, "elapsed_s": started_s + result.elapsed_s, **result.ledger.to_dict(),
        "own_time_us": own_us, "config": dict(winner.point) if winner else None, "error": "",
    }  # fmt: skip


def run_kernel_tuner(
    args: argparse.Namespace, job: dict[str, Any], configs: Sequence[Config], strategy: str, gpu_uuid: str
) -> dict[str, Any]:
    """Kernel Tuner in a process of its own. If it fails, that is its result."""
    job = job | {
        "strategy": strategy, "seconds": args.seconds, "seed": args.seed, "lang": args.lang,
        "iterations": args.iterations, "path": str(args.kernel_tuner_path or ""),
    }  # fmt: skip
    # its own cache would hide compiling: what the driver makes of PTX must not come from an earlier run
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu_uuid, "CUDA_CACHE_DISABLE": "1"}
    with tempfile.TemporaryDirectory(prefix="kernel-tuner-") as folder:
        job_file, result_file = Path(folder) / "job.json", Path(folder) / "result.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, str(SIDE), str(job_file), str(result_file)]
        error = _run(command, environment, folder, args.seconds + GRACE_S)
        message = json.loads(result_file.read_text(encoding="utf-8")) if result_file.is_file() else {}
    best = message.pop("best", None)
    return {
        "tool": "kernel_tuner", "strategy": strategy, "num_trials": 0, "num_failed": 0, "elapsed_s": 0.0,
        "own_time_us": None, **message,
        "config": None if best is None else configs[best].to_dict(),
        "error": "" if message else error,
    }  # fmt: skip


def _run(command: Sequence[str], environment: dict[str, str], folder: str, timeout_s: float) -> str:
    """Runs a command there; returns the end of what it wrote to stderr. Its stdout is of no interest."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {timeout_s:g} s"
    return done.stderr.strip()[-2000:]


def judge(args: argparse.Namespace, gemm: Gemm, results: Sequence[dict[str, Any]]) -> float | None:
    """Times the best of everyone interleaved, into `judged_time_us`; returns cuBLAS's time in us."""
    finalists = [result for result in results if result["config"] is not None]
    with GpuTarget(args.gpu, policy=args.cache) as target:
        points = [result["config"] for result in finalists]
        rounds = target.compare(gemm, points, args.rounds)
    for result, times in zip(finalists, rounds.samples_us, strict=True):
        result["judged_time_us"] = stats.median(times) if times else None  # none: its result is wrong
        result["judged_samples_us"] = times
    return rounds.baseline.time_us


# ------------------------------------------------------------------------------------------------
# Text


def table(results: Sequence[dict[str, Any]], cublas_us: float | None) -> str:
    """One line per contestant; below, how many times the other's trials per second ours makes."""
    headers = (
        "tool", "strategy", "trials", "failed", "trials/s", "GPU busy", "its figure", "judged", "vs cuBLAS",
        "",
    )  # fmt: skip
    rows = []
    for result in results:
        judged_us = result.get("judged_time_us")
        rows.append(
            (
                result["tool"], result["strategy"], result["num_trials"], result["num_failed"],
                f"{rate(result):.2f}", console.ratio_text(busy(result), "%"),
                console.time_text(result["own_time_us"]), console.time_text(judged_us),
                console.ratio_text(cublas_us / judged_us if cublas_us and judged_us else None),
                result["error"].splitlines()[-1] if result["error"] else "",
            )
        )  # fmt: skip
    text = console.table(headers, rows, right=range(2, 9))
    kernel_us = results[0].get("judged_time_us")
    for other in results[1:]:
        if rate(other) > 0:
            ratio, against = rate(results[0]) / rate(other), f"{other['tool']}, {other['strategy']}"
            text += f"\nautotune makes {ratio:.1f} times the trials per second of {against}"
            if kernel_us and other.get("judged_time_us"):
                times = other["judged_time_us"] / kernel_us
                text += f"; the best of that takes {times:.3f} times as long as ours"
    return text


def rate(result: dict[str, Any]) -> float:
    """Configs compiled, verified and timed, per second of all that it took."""
    return float(result["num_trials"] / result["elapsed_s"]) if result["elapsed_s"] > 0 else 0.0


def busy(result: dict[str, Any]) -> float | None:
    """The share of its time in which candidates were verified or timed."""
    spent_s = sum(result.get(name, 0.0) for name in ON_THE_GPU)
    return float(spent_s / result["elapsed_s"]) if result["elapsed_s"] > 0 else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="0", help="index or UUID")
    parser.add_argument("--shape", default="1024")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each contestant, start included")
    parser.add_argument("--configs", type=int, default=10000, help="size of the subset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampler", default=DEFAULT_SAMPLER, help="ours")
    parser.add_argument("--strategies", default=STRATEGIES, help="Kernel Tuner's")
    parser.add_argument("--lang", default="nvcuda", choices=("nvcuda", "cupy"), help="Kernel Tuner's backend")
    parser.add_argument("--iterations", type=int, default=7, help="Kernel Tuner's launches per candidate")
    parser.add_argument("--cache", type=CachePolicy, default=CachePolicy.WARM, choices=list(CachePolicy))
    parser.add_argument("--rounds", type=int, default=31, help="of the judge")
    parser.add_argument("--kernel-tuner-path", type=Path, help="folder that holds the package kernel_tuner")
    parser.add_argument("--out", type=Path, default=Path("vs_kernel_tuner.json"))
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except AutotuneError as problem:
        console.fail(problem)
        sys.exit(problem.exit_code)
