"""The kernel on tensor cores compiles as it is meant to: no spills, twelve instructions of theirs a tile."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import A_TYPES, LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel import tensor_config as tensor
from autotune.kernel.compiler import Compiler
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.tensor_config import BF16X6, TensorConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sass
from disassembler import instructions_of

UNALIGNED = {"vec_a": 1, "vec_b": 1, "vec_c": 1}
CONFIGS = (
    TensorConfig(),
    TensorConfig(bn=64, loaders=1),
    TensorConfig(loaders=1, promote_k=16),
    TensorConfig(pack_a=1, pack_b=1, reduction="two_pass", split_k=4),
    TensorConfig(scheme=BF16X6, flush_k=0),
    TensorConfig(scheme=BF16X6, bn=64, loaders=1, stages=4, ahead=4, promote_k=128),
)
MULTIPLICATIONS = 12  # of a tile: 3 products of parts in 4 steps, or 6 in 2


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    made = Compiler(tensor.ARCH, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("config", "layout"),
    [(c, layout) for i, c in enumerate(CONFIGS) for j, layout in enumerate(LAYOUTS) if (i + j) % 2 == 0],
    ids=str,
)
def test_nothing_is_spilled(compiler: Compiler, config: TensorConfig, layout: str) -> None:
    gemm = Gemm.parse(f"512:{layout}")
    assert broken_rules(config, KNOWN["h100"], gemm) == ()
    variant = Variant(gemm.trans_a, gemm.trans_b)
    cubin = compiler.compile_source(template.source(TensorConfig.main_file), template.macros(config, variant))
    assert cubin.spill_bytes == cubin.stack_bytes == 0
    assert cubin.registers * config.threads <= tensor.REGISTERS
    loop = sass.Code(cubin.code, template.ENTRY, "sm_90").count()
    assert loop.kinds["warpgroup_mmas"] == MULTIPLICATIONS


def test_what_no_register_is_left_for_is_known_before(compiler: Compiler) -> None:
    """More tiles on their way than the rule allows are spilled."""
    config = TensorConfig(ahead=3)
    assert [r.id for r in broken_rules(config, KNOWN["h100"], Gemm(512, 512, 512))] == ["tensor-ahead"]
    cubin = compiler.compile_source(
        template.source(TensorConfig.main_file), template.macros(config, Variant())
    )
    assert cubin.spill_bytes > 64


def test_what_it_may_be_compiled_for_compiles(compiler: Compiler) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("rows", "gelu_tanh", keeps=True))
    for config in (TensorConfig(), replace(TensorConfig(), **UNALIGNED)):
        compiler.compile_source(template.source(TensorConfig.main_file), template.macros(config, variant))


def written_in_flight(code: list[str]) -> list[str]:
    """Instructions that write a register of A which tensor cores may not have read yet: between those that
    multiply, which begin and return, and the wait for them, in the order of the text."""
    read: set[int] = set()
    found = []
    for line in code:
        if multiplied := re.search(r"HGMMA\S+ R\d+, R(\d+),", line):
            read |= {int(multiplied[1]) + i for i in range(4)}
        elif "WARPGROUP.DEPBAR" in line:
            read.clear()
        elif wrote := re.match(r"(?:@\S+ )?(?!ST|RED|SYNCS|HGMMA)(\S+) (?:P\d, )?R(\d+)\b", line):
            width = 4 if ".128" in wrote[1] else 2 if ".64" in wrote[1] or ".WIDE" in wrote[1] else 1
            found += [line] if read & {int(wrote[2]) + i for i in range(width)} else []
    assert not read, "nothing waits for the last multiplications"
    return found


@pytest.mark.parametrize("scheme", tensor.SCHEMES)
@pytest.mark.parametrize("a_type", A_TYPES)
def test_no_register_is_written_while_tensor_cores_read_it(
    compiler: Compiler, a_type: str, scheme: str
) -> None:
    """Nothing in C++ says that wgmma reads registers later on: what comes next may be given the same ones."""
    narrow, unaligned = TensorConfig(bn=64, loaders=1, promote_k=16), replace(TensorConfig(), **UNALIGNED)
    kinds = [(TensorConfig(), False), (narrow, True), (unaligned, False)]
    config, trans_a = kinds[(A_TYPES.index(a_type) + tensor.SCHEMES.index(scheme)) % len(kinds)]
    macros = template.macros(replace(config, scheme=scheme), Variant(trans_a, a_type=a_type))
    cubin = compiler.compile_source(template.source(TensorConfig.main_file), macros)
    assert written_in_flight(instructions_of(cubin.code)) == []


def test_a_register_that_is_written_too_soon_is_found() -> None:
    multiply, wait = "HGMMA.64x128x8.F32.TF32 R24, R96, gdesc[UR20], R24", "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    assert written_in_flight([multiply, "LDS.128 R92, [R93]", wait]) == []
    for too_soon in ("@!P0 LDS.128 R96, [R93]", "IMAD.WIDE R98, R1, R2, R3", "LOP3.LUT P1, R99, R2, R3, RZ"):
        assert written_in_flight([multiply, too_soon, wait, too_soon]) == [too_soon]
