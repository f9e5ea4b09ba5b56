"""What rounds on the way from a sum to C is the same in every kernel: the compiler fuses nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_compiler_figures import compiler  # noqa: F401  # a fixture

from autotune.kernel import template
from autotune.kernel.config import Config
from autotune.kernel.launch import BIASES, PLAIN, Epilogue, Variant

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sass

SMALL = Config(bm=16, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, stages=2, bursts=1, unroll_k=4, min_blocks=1,
               copy_a="register", copy_b="register")  # fmt: skip


@pytest.mark.every(3)
def test_a_bias_is_never_added_by_the_instruction_that_scales(compiler):  # noqa: F811
    """Else alpha * AB + bias would be rounded once where a thread stores its sums, and twice elsewhere."""

    def num_fmas(epilogue: Epilogue) -> int:
        cubin = compiler.compile(SMALL, Variant(epilogue=epilogue))
        return sass.Code(cubin.code, template.ENTRY, compiler.arch).count().kinds["ffma"]

    assert {num_fmas(Epilogue(bias)) for bias in BIASES} == {num_fmas(PLAIN)}
