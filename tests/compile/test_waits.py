"""From sm_90 on every kernel of the template waits for those before it, first of all; below, none does.

What the compilers made of it is read from the cubin: they must not move an access to global memory, nor an
end, in front of the wait. Instructions are known by their opcodes, which small kernels are compiled to learn.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from cuda.bindings import nvrtc

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import AnyConfig, OnTensorCores, ScaledConfig
from autotune.kernel.tensor_config import ARCH, TensorConfig

EARLY_ARCHS = sorted(limits.arch for limits in KNOWN.values() if limits.has_dependent_launch)
WAIT, LET_NEXT_BEGIN, EXIT = 0x82E, 0x82D, 0x94D
ALWAYS = 0x7  # predicate of an instruction that has none
# Opcodes of accesses to global (or any) memory, and a kernel that makes one of them
ACCESSES = {
    0x981: "p[0] = p[1]",
    0x986: "p[0] = 1",
    0x985: 'asm volatile("st.f32 [%0], 0f00000000;" ::"l"(p))',
    0x980: 'float x; asm volatile("ld.f32 %0, [%1];" : "=f"(x) : "l"(p)); p[1] = x',
    0x9A8: "p[0] = atomicAdd(reinterpret_cast<unsigned*>(p), p[1])",
    0x98E: 'asm volatile("red.global.add.u32 [%0], %1;" ::"l"(p), "r"(threadIdx.x))',
    0xFAE: "__shared__ float s[32]; asm volatile("
    '"cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(s)), "l"(p))',
}
OTHERS = {
    WAIT: 'asm volatile("griddepcontrol.wait;" ::: "memory")',
    LET_NEXT_BEGIN: 'asm volatile("griddepcontrol.launch_dependents;")',
    EXIT: "",
}
_PLAIN = Config(vec_b=4)
_PACKED = replace(_PLAIN, pack_a=1, pack_b=1, vec_a=4, pad=0)
CONFIGS = {
    "async": _PLAIN,
    "registers": replace(_PLAIN, copy_a="register", copy_b="register", stages=2),
    "exact": replace(_PLAIN, edges="exact"),
    "last_block": replace(_PLAIN, reduction="last_block", split_k=4),
    "last_wave": replace(_PLAIN, reduction="last_wave", split_k=2),
    "cluster": replace(_PLAIN, reduction="cluster", split_k=4),
    "two_pass": replace(_PLAIN, reduction="two_pass", split_k=2),
    "packed": _PACKED,
    "packed, two_pass": replace(_PACKED, reduction="two_pass", split_k=2),
}
_SPLIT: dict[str, Any] = {"reduction": "two_pass", "split_k": 2}
SPLITS_ON_TENSOR_CORES = TensorConfig(**_SPLIT), MmaConfig(**_SPLIT), ScaledConfig(**_SPLIT)


def text_of(cubin: bytes, entry: str) -> bytes | None:
    """The machine code of an entry function: the section `.text.<entry>` of an ELF file, or None."""
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    for name, _, _, _, offset, length in sections:
        start = sections[names][4] + name
        if cubin[start : cubin.index(b"\0", start)] == f".text.{entry}".encode():
            return cubin[offset : offset + length]
    return None


def instructions(text: bytes) -> list[tuple[int, int]]:
    """(opcode, predicate) of each instruction: the low 12 of its 128 bits (sm_70 and later), the next 4."""
    words = [int.from_bytes(text[at : at + 2], "little") for at in range(0, len(text), 16)]
    return [(word & 0xFFF, word >> 12) for word in words]


@pytest.fixture(scope="module", params=EARLY_ARCHS)
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    made = Compiler(request.param, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


def entries(compiler: Compiler, config: AnyConfig) -> dict[str, list[tuple[int, int]]]:
    """The instructions of each kernel of an instance."""
    code = compiler.compile(config, Variant()).code
    entries = (template.ENTRY, template.PACK_ENTRY, template.REDUCE_ENTRY)
    texts = {name: text_of(code, name) for name in entries}
    return {name: instructions(text) for name, text in texts.items() if text is not None}


@pytest.mark.every(5)
@pytest.mark.parametrize("opcode", [*ACCESSES, *OTHERS], ids=hex)
def test_the_opcodes_are_what_the_compiler_writes(compiler: Compiler, opcode: int) -> None:
    source = 'extern "C" __global__ void sgemm(unsigned* p) { %s; }'
    cubin = compiler.compile_source(source % (ACCESSES | OTHERS)[opcode])
    text = text_of(cubin.code, "sgemm")
    assert text is not None and opcode in {code for code, _ in instructions(text)}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_wait_stands_before_every_access_and_end_and_the_next_of_a_call_may_begin(
    compiler: Compiler, name: str
) -> None:
    config = CONFIGS[name]
    kernels = entries(compiler, config)
    expected = {template.ENTRY: True, template.PACK_ENTRY: config.pack_a}
    expected |= {template.REDUCE_ENTRY: config.reduction == "two_pass"}
    assert kernels.keys() == {entry for entry, is_there in expected.items() if is_there}
    for entry, code in kernels.items():
        waits = [at for at, (opcode, _) in enumerate(code) if opcode == WAIT]
        assert len(waits) == 1, entry
        assert code[waits[0]][1] == ALWAYS, entry
        before = {opcode for opcode, _ in code[: waits[0]]}
        assert not before & {*ACCESSES, EXIT, LET_NEXT_BEGIN}, entry
    letting = {entry for entry, code in kernels.items() if LET_NEXT_BEGIN in {op for op, _ in code}}
    first = {template.PACK_ENTRY} if config.pack_a else set()
    assert letting == first | ({template.ENTRY} if config.reduction == "two_pass" else set())


@pytest.mark.parametrize("config", SPLITS_ON_TENSOR_CORES, ids=lambda config: type(config).__name__)
def test_splits_on_tensor_cores_let_their_second_pass_begin(
    tmp_path_factory: pytest.TempPathFactory, config: OnTensorCores
) -> None:
    with closing(Compiler(ARCH, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)) as compiler:
        kernels = entries(compiler, config)
    opcodes = [opcode for opcode, _ in kernels[template.ENTRY]]
    wait = opcodes.index(WAIT)
    assert LET_NEXT_BEGIN in opcodes[wait:]
    assert not {*opcodes[:wait]} & {*ACCESSES, EXIT, LET_NEXT_BEGIN}
    assert LET_NEXT_BEGIN not in {opcode for opcode, _ in kernels[template.REDUCE_ENTRY]}


def test_kernels_of_older_gpus_know_no_wait(tmp_path_factory: pytest.TempPathFactory) -> None:
    older = Compiler("sm_86", cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    for code in entries(older, CONFIGS["packed, two_pass"]).values():
        assert not {opcode for opcode, _ in code} & {WAIT, LET_NEXT_BEGIN}
    older.close()


def ptx_of(config: Config, arch: str) -> str:
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in template.macros(config, Variant()).items()]
    _, program = nvrtc.nvrtcCreateProgram(template.source().encode(), b"", 0, [], [])
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode()


@pytest.mark.parametrize("name", ["registers", "packed, two_pass"])
def test_what_the_kernel_before_may_still_write_is_not_read_as_constant(name: str) -> None:
    """ld.global.nc is for memory that does not change while a kernel runs; below sm_90 none does."""
    assert not re.search(r"\bld\.global\.nc\b", ptx_of(CONFIGS[name], "compute_90"))
    assert re.search(r"\bld\.global\.nc\b", ptx_of(CONFIGS[name], "compute_86"))


def test_the_configs_are_legal() -> None:
    for config in CONFIGS.values():
        assert broken_rules(config, KNOWN["h200"], Gemm(4096, 4096, 4096)) == ()
