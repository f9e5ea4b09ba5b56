"""The kernel on scaled operands without warpgroups compiles for GPUs since sm_75: no spills, and the
instructions that its products are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.kernel import template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import HalvesConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from disassembler import instructions_of

GPUS = "quadro-rtx-5000", "a100", "rtx-3090", "rtx-4090", "h200"
CONFIGS = (
    HalvesConfig(),
    HalvesConfig(bn=64, vec_c=1),
    HalvesConfig(bm=64, wm=32, depth=32, reduction="two_pass", split_k=4),
    HalvesConfig(bm=64, bn=64, wm=32, depth=32),
    HalvesConfig(bm=64, bn=64, wm=32),
)


@pytest.fixture(scope="module", params=GPUS)
def gpu(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def compiler(gpu: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    made = Compiler(KNOWN[gpu].arch, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


def compiled(compiler: Compiler, config: HalvesConfig, variant: Variant) -> Cubin:
    return compiler.compile_source(template.source(HalvesConfig.main_file), template.macros(config, variant))


@pytest.mark.every(len(GPUS))  # each config, and each GPU
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_nothing_is_spilled(compiler: Compiler, gpu: str, config: HalvesConfig) -> None:
    for gemm in (Gemm.parse(f"512:{layout}") for layout in ("NN", "TT")):  # alike but for the pass before
        assert broken_rules(config, KNOWN[gpu], gemm) == ()
        cubin = compiled(compiler, config, Variant(gemm.trans_a, gemm.trans_b))
        assert cubin.spill_bytes == cubin.stack_bytes == 0
        assert config.blocks_per_sm(KNOWN[gpu], gemm, cubin.registers) >= 1


def test_what_it_may_be_compiled_for_compiles(compiler: Compiler) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("rows", "gelu_tanh", keeps=True))
    assert compiled(compiler, HalvesConfig(), variant).spill_bytes == 0


def test_a_slice_is_so_many_products() -> None:
    """Of 16 of k 16 tiles of 16 x 8 of a warp: three products in two steps."""
    with_tools = Compiler("sm_75", num_threads=1)
    code = instructions_of(compiled(with_tools, HalvesConfig(), Variant()).code)
    with_tools.close()
    assert sum("HMMA.1688.F32" in line for line in code) == 16 * 3 * 2


def test_what_spills_is_refused() -> None:
    """Of all tiles and depths those that the estimate of registers lets through do not spill."""
    made = Compiler("sm_75", num_threads=1)
    limits = KNOWN["quadro-rtx-5000"]
    for depth in (16, 32):
        for bm, bn, wm in ((128, 64, 32), (64, 128, 32), (64, 128, 64), (128, 64, 64), (128, 128, 32)):
            config = HalvesConfig(bm, bn, wm, depth)
            if not broken_rules(config, replace(limits, smem_per_block=1 << 20), Gemm.parse("512")):
                assert compiled(made, config, Variant()).spill_bytes == 0, config
    made.close()
