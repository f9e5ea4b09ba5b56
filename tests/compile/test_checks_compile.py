"""The checking kernels compile for every architecture, without spills."""

from __future__ import annotations

import pytest
from compiled_once import of_entries

from autotune.kernel import template
from autotune.kernel.compiler import Compiler

ENTRIES = (
    *("fill_normal", "fill_operand", "shorten_operand", "reference_tiles", "compare_tiles"),
    *("compare_whole", "check_canaries"),
)


@pytest.mark.every(2)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120"])
def test_checks_compile_without_spills(arch, tmp_path):
    compiler = Compiler(arch, cache_dir=tmp_path, num_threads=1)
    try:
        cubins = of_entries(compiler, template.source("checks.cu"), ENTRIES)
    finally:
        compiler.close()
    assert [cubin.spill_bytes for cubin in cubins] == [0] * len(ENTRIES)
    assert max(cubin.static_smem_bytes for cubin in cubins) <= 48 * 1024
