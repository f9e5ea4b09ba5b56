"""Cubins of equal machine code have one hash, whatever else is in them; any other code has another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from autotune.files.errors import UsageError
from autotune.kernel import machine_code, template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant

CONFIG = Config(
    bm=32, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, stages=2, unroll_k=8, min_blocks=1, vec_c=4, pad=4,
    reduction="two_pass", split_k=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler("sm_86")
    yield made
    made.close()


@pytest.fixture(scope="module")
def cubin(compiler: Compiler) -> Cubin:
    return compiler.compile(CONFIG, Variant())


def text(compiler: Compiler, added: str) -> Cubin:
    """The template with more behind it, under no identity."""
    return compiler.compile_source(template.source() + added, template.macros(CONFIG, Variant()))


def test_names_and_constants_of_a_cubin_do_not_count(compiler: Compiler, cubin: Cubin) -> None:
    """Another identity, as of another source."""
    other = text(compiler, '\nextern "C" __device__ const char told[] = "another";\n')
    assert other.sha256 != cubin.sha256
    assert other.code_hash == cubin.code_hash
    assert len(cubin.code_hash or "") == 32


def test_every_function_of_a_cubin_counts(compiler: Compiler, cubin: Cubin) -> None:
    """Also the one that sums slices, and one that is added."""
    added = text(compiler, '\nextern "C" __global__ void more(float* c) { c[threadIdx.x] = 1; }\n')
    assert ".text.more" in machine_code.sections(added.code)
    assert added.code_hash != cubin.code_hash
    assert compiler.compile(replace(CONFIG, tm=2, wm=8), Variant()).code_hash != cubin.code_hash


def edited(cubin: Cubin, name: str, at: int) -> Cubin:
    """With one bit of a section changed."""
    content = machine_code.sections(cubin.code)[name].content
    begin = cubin.code.index(content)
    code = bytearray(cubin.code)
    code[begin + at] ^= 1
    return replace(cubin, code=bytes(code))


def test_one_bit_of_code_or_registers_is_another_code(cubin: Cubin) -> None:
    registers = machine_code.registers(machine_code.sections(cubin.code))
    assert registers["sgemm"] == cubin.registers and set(registers) == {"sgemm", "sgemm_reduce"}
    for name in (".text.sgemm", ".text.sgemm_reduce"):
        assert edited(cubin, name, 100).code_hash != cubin.code_hash
    info = machine_code.sections(cubin.code)[".nv.info"].content
    entry = next(
        at for at in range(0, len(info), 4) if info[at : at + 2] == bytes((4, machine_code.REGISTERS))
    )
    assert edited(cubin, ".nv.info", entry + 8).code_hash != cubin.code_hash


def test_what_is_no_cubin_has_no_hash_and_damage_is_told(cubin: Cubin) -> None:
    assert replace(cubin, code=b"code").code_hash is None
    rng = random.Random(1)
    for _ in range(300):
        code = bytearray(cubin.code[: rng.randrange(64, len(cubin.code) + 1)])
        for _ in range(rng.randrange(4)):
            code[rng.randrange(64)] = rng.randrange(256)
        with suppress(UsageError):
            machine_code.code_hash(bytes(code))
