"""What `autotune source` writes compiles to the kernel of the config."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cli.one_config import source_of
from autotune.facts.gemm import Gemm
from autotune.gpu.instance import variant
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config


@pytest.mark.parametrize("shape", ["512", "512x8x64b4"])
def test_the_source_is_that_of_the_kernel(shape: str) -> None:
    gemm, config = Gemm.parse(shape), replace(Config(), split_k=4, reduction="two_pass")
    compiler = Compiler("sm_86")
    try:
        ours, written = (
            compiler.compile(config, variant(gemm)),
            compiler.compile_source(source_of(config, gemm, "")),
        )
    finally:
        compiler.close()
    assert (ours.registers, ours.spill_bytes, ours.static_smem_bytes) == (
        written.registers, written.spill_bytes, written.static_smem_bytes
    )  # fmt: skip
