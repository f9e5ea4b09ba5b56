"""The sources compile for every supported architecture, in every layout, without a spill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune import kernel, resources
from autotune.compiler import Compiler
from autotune.config import Config
from autotune.device import KNOWN
from autotune.gemm import LAYOUTS, Gemm
from autotune.launch import Variant
from autotune.rules import broken_rules

DEVICES = {limits.arch: limits for limits in KNOWN.values()}


@pytest.fixture(scope="module", params=DEVICES)
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    made = Compiler(request.param, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


def _default(arch: str, gemm: Gemm) -> Config:
    """The default config, or its twin that copies through registers where cp.async is missing."""
    config = Config(vec_b=1 if gemm.trans_b else 4, min_blocks=2)
    if DEVICES[arch].has_async_copy:
        return config
    return replace(config, copy_a="register", copy_b="register", stages=2)


def test_all_six_architectures_are_known() -> None:
    assert {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120"} <= set(DEVICES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_default_kernel_compiles(compiler: Compiler, layout: str) -> None:
    gemm = Gemm.parse(f"512:{layout}")
    limits, config = DEVICES[compiler.arch], _default(compiler.arch, gemm)
    assert broken_rules(config, limits, gemm) == ()
    cubin = compiler.compile(config, Variant(gemm.trans_a, gemm.trans_b))
    assert cubin.arch == compiler.arch
    assert cubin.spill_bytes == cubin.stack_bytes == 0
    assert resources.blocks_per_sm(config, limits, gemm, cubin.registers) >= config.min_blocks


def test_the_reduction_of_split_k_compiles(compiler: Compiler) -> None:
    """`sgemm_reduce` stands in every cubin; its threads must all fit whatever the registers."""
    tiles = {"bm": 16, "bn": 32, "bk": 8, "wm": 16, "wn": 32, "tm": 4, "tn": 4, "unroll_k": 4, "bursts": 1}
    copies = {"copy_a": "register", "copy_b": "register", "stages": 2}
    config = Config.from_dict(tiles | copies | {"reduction": "two_pass", "split_k": 2})
    macros = kernel.macros(config, Variant())
    cubin = compiler.compile_source(kernel.source(), macros, entry=kernel.REDUCE_ENTRY)
    assert 0 < cubin.registers <= 64
    assert cubin.spill_bytes == 0
