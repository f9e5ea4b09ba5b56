"""`autotune time` and `autotune source`: one config by hand: how fast it is, and what it is compiled from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from .. import target_finder as targets
from ..facts import stats
from ..facts.device import DeviceLimits
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import Measurement, read_policy
from ..facts.other_problem import is_external
from ..files.errors import UsageError
from ..files.output_file import check_writable, write_file
from ..files.words import counted
from ..gpu.instance import variant
from ..kernel import template
from ..kernel.config import Config, brief
from ..kernel.excess import excess
from ..kernel.rules import RuleKind, broken_rules
from ..target import Target
from ..target_finder import limits_named
from . import common, console
from .facts_table import facts_table
from .requests import SourceRequest, TimeRequest

_COLUMNS = {
    "config": "name", "time": "time_us", "vs cuBLAS": "speedup", "95% interval": "speedup_interval",
    "TFLOP/s": "tflops", "of limit": "share_of_limit", "error": "error_over_cublas", "registers": "registers",
}  # fmt: skip
_KINDS: tuple[RuleKind, ...] = ("template", "device", "shape")  # of rules without which there is no kernel


def time_configs(request: TimeRequest, *, is_json: bool) -> None:
    """Verify configs on a problem and time them, and cuBLAS, in the same rounds. Nothing is stored. Raises
    UsageError for a config that breaks a rule or fails, EnvironmentProblem without a GPU."""
    gemm, configs = Gemm.parse(request.shape), [Config.parse(text) for text in request.config]
    gemm.need_output()
    policy, rounds = read_policy(request.cache), request.rounds
    opened = targets.open_target(request.gpu, policy, [gemm], request.max_error, note=console.note)
    with closing(opened) as target:
        if is_external(target.source_hash):
            raise UsageError(f"{request.gpu} holds kernels of another tool; `autotune space` shows them")
        for config in configs:
            _need_legal(config, target.limits, gemm, _KINDS)
        found = [_tried(target, gemm, config) for config in configs]
        timed = target.compare(gemm, [config.to_dict() for config in configs], rounds)
        kernels = [
            _facts(target, gemm, config, measured, samples, timed.baseline.samples_us)
            for config, measured, samples in zip(configs, found, timed.samples_us, strict=True)
        ]
        facts = {
            **picked(target.environment, "is_recorded"),
            "gpu": target.environment.gpu_name,
            "shape": str(gemm),
            "policy": target.policy,
            "num_rounds": rounds,
            "cublas_time_us": timed.baseline.time_us,
            "marks": timed.marks,
            "kernels": kernels,
        }
        source = common.source_text(target.environment)
    head = f"{source}, {gemm}, {facts['policy']} operands, {counted(rounds, 'interleaved round')}"
    console.answer(facts, lambda: f"{head}\n{_table(kernels, timed.baseline.time_us)}", is_json=is_json)


def _need_legal(config: Config, limits: DeviceLimits, gemm: Gemm, kinds: Sequence[RuleKind]) -> None:
    broken = broken_rules(config, limits, gemm, kinds)
    if broken:
        rules = "; ".join(
            f"{rule.id}: {rule.sentence}, here {excess(rule, config, limits, gemm)}" for rule in broken
        )
        raise UsageError(f"{config} cannot run on {limits.name} for {gemm}: {rules}")


def _tried(target: Target, gemm: Gemm, config: Config) -> Measurement:
    found = target.submit(gemm, config.to_dict(), None).result()
    if not found.is_ok:
        step = ""
        if found.outcome == "illegal" and target.environment.is_recorded:
            step = "; only a GPU times others: `autotune trials history` lists such as a search of it tried"
        raise UsageError(f"{config} on {gemm}: {found.outcome}: {found.reason}{step}")
    return found


def _facts(
    target: Target,
    gemm: Gemm,
    config: Config,
    found: Measurement,
    samples_us: Sequence[float],
    cublas_us: Sequence[float],
) -> dict[str, Any]:
    if not samples_us:
        raise UsageError(f"{config} on {gemm} gave a wrong result when it was timed; run it again")
    return {
        "config": config.to_dict(),
        **common.race(gemm, target.limits, samples_us, cublas_us),
        "time_interval_us": stats.median_interval(samples_us),
        **picked(found, "error_over_cublas registers spill_bytes smem_bytes"),
    }


def _table(kernels: Sequence[dict[str, Any]], cublas_us: float | None) -> str:
    cublas = dict.fromkeys(_COLUMNS.values()) | {"name": "cuBLAS", "time_us": cublas_us}
    named = [{**kernel, "name": brief(kernel["config"])} for kernel in kernels]
    return facts_table([*named, *([cublas] if cublas_us else [])], _COLUMNS)


# ------------------------------------------------------------------------------------------- source


def write_source(request: SourceRequest, *, is_json: bool) -> None:
    """Write the instantiated source of a config into a file, or print it. Raises UsageError for a config of
    which no kernel can be made, or a file that cannot be written."""
    config, gemm, out = Config.parse(request.config), Gemm.parse(request.shape), request.out
    gemm.need_output()
    limits = limits_named(request.gpu, note=console.note)
    _need_legal(config, limits, gemm, ("template", "shape"))
    for rule in broken_rules(config, limits, gemm, ("device",)):
        console.note(f"it compiles, but cannot run on {limits.name}: {rule.id}: {rule.sentence}")
    if out is not None:
        check_writable(out)
    path = out or Path("sgemm.cu")
    form = "" if path.suffix == ".cu" else "-x cu "  # nvcc refuses a name that does not say what it is
    options = f"-std=c++17 -arch={limits.arch} -cubin -Xptxas -v -o sgemm.cubin"
    command = f"nvcc {options} {form}{shlex.quote(str(path))}"
    content = source_of(config, gemm, command)
    if out is None and not is_json:
        console.show(content.rstrip("\n"))
        return
    if out is not None:
        write_file(out, content)
    if is_json:
        facts = {"config": config.to_dict(), "shape": str(gemm), "arch": limits.arch, "command": command}
        console.show_json({**facts, "file": out and str(out), "source": None if out else content})
    else:
        console.show(f"wrote {out}\nNext: {command}")


def source_of(config: Config, gemm: Gemm, command: str) -> str:
    """The template as one text, with the macros of a config before it."""
    defines = [f"#define {name} {value}" for name, value in template.macros(config, variant(gemm)).items()]
    launch = f"entry {template.ENTRY}; split_k={config.split_k}, raster={config.raster}, group={config.group}"
    head = f"// {config}\n// for {gemm}; {launch} are given at the launch. Compile it with:\n// {command}"
    return "\n".join([head, *defines, "", template.source()])
