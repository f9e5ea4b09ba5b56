"""Every rung of the ladder compiles for architectures of each kind, without a spill, and fits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.gpu.instance import mismatch
from autotune.kernel import resources, rules, rungs, template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant

GEMM = Gemm(4096, 4096, 4096)
DEVICES = {limits.arch: limits for limits in KNOWN.values()}
MAX_REGISTERS = 64  # for 1024 threads


@pytest.mark.every(3)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])  # without cp.async, with it, and the latest
def test_the_ladder_compiles(arch: str, tmp_path: Path) -> None:
    limits = DEVICES[arch]
    steps = [
        s for s in rungs.steps(GEMM)
        if not isinstance(s.kernel, Config) or not rules.broken_rules(s.kernel, limits, GEMM)
    ]  # fmt: skip
    assert len(steps) == len(rungs.STEPS) - (not limits.has_async_copy)
    compiler = Compiler(arch, cache_dir=tmp_path, num_threads=1)
    compiler._run_nvrtc = cache(compiler._run_nvrtc)  # the reference kernels are entries of one text
    try:
        for step in steps:
            cubin = _compile(compiler, step)
            assert cubin.spill_bytes == cubin.stack_bytes == 0, step.name
            if isinstance(step.kernel, Config):
                spec = resources.launch_spec(step.kernel, GEMM, limits)
                assert mismatch(cubin, step.kernel, spec, limits, GEMM) == "", step.name
            else:
                assert cubin.registers <= MAX_REGISTERS, step.name
    finally:
        compiler.close()


def _compile(compiler: Compiler, step: rungs.Step) -> Cubin:
    if isinstance(step.kernel, Config):
        return compiler.compile(step.kernel, Variant())
    return compiler.compile_source(template.source(rungs.REFERENCE_FILE), entry=step.kernel.entry)
