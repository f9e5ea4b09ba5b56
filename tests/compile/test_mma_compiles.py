"""The kernel on tensor cores without warpgroups compiles for every GPU since sm_80: no spills, and the
instructions that its products are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.rules import broken_rules
from autotune.kernel.tensor_config import BF16X6, SCHEMES

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from disassembler import instructions_of

GPUS = "a100", "rtx-3090", "rtx-4090", "h200", "rtx-5090"
CONFIGS = (
    MmaConfig(),
    MmaConfig(bk=32, stages=2, promote_k=32, scheme=BF16X6),
    MmaConfig(wm=32, wn=64, pack_a=1, pack_b=1, reduction="two_pass", split_k=4),
    MmaConfig(bm=64, bn=64, wm=32, vec_a=1, vec_b=1, vec_c=1),
    MmaConfig(wm=32, scheme=BF16X6),  # 512 threads
    MmaConfig(bn=64, wm=32, flush_k=256),
)


@pytest.fixture(scope="module", params=GPUS)
def gpu(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def compiler(gpu: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    made = Compiler(KNOWN[gpu].arch, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


def compiled(compiler: Compiler, config: MmaConfig, variant: Variant) -> Cubin:
    return compiler.compile_source(template.source(MmaConfig.main_file), template.macros(config, variant))


@pytest.mark.every(len(GPUS))  # each config, and each GPU
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_nothing_is_spilled(compiler: Compiler, gpu: str, config: MmaConfig) -> None:
    layouts = LAYOUTS if config == MmaConfig() else ("NN",)
    for gemm in (Gemm.parse(f"512:{layout}") for layout in layouts):
        assert broken_rules(config, KNOWN[gpu], gemm) == ()
        cubin = compiled(compiler, config, Variant(gemm.trans_a, gemm.trans_b))
        assert cubin.spill_bytes == cubin.stack_bytes == 0
        assert config.blocks_per_sm(KNOWN[gpu], gemm, cubin.registers) >= 1


def test_what_it_may_be_compiled_for_compiles(compiler: Compiler) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("rows", "gelu_tanh", keeps=True))
    assert compiled(compiler, MmaConfig(stages=2), variant).spill_bytes == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_tile_is_so_many_products(scheme: str) -> None:
    """Of 16 of k 16 tiles of 16 x 8 of a warp: three products in two steps, or six in one."""
    with_tools = Compiler("sm_80", num_threads=1)
    code = instructions_of(compiled(with_tools, MmaConfig(scheme=scheme), Variant()).code)
    with_tools.close()
    kind = "HMMA.16816.F32.BF16" if scheme == BF16X6 else "HMMA.1688.F32.TF32"
    assert sum(kind in line for line in code) == 16 * 6
