"""What the runtime asks the driver of a loaded kernel stands in the cubin as it expects: launch bounds,
registers and the size of a cluster, read here from the ELF file itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from autotune.facts.device import known_limits
from autotune.kernel import resources
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant
from autotune.runtime.cuda_driver import KernelFacts
from autotune.runtime.devices import misfit
from autotune.runtime.table import KernelRecord, launchable

H200 = known_limits("h200")
PLAIN = Config(copy_a="register", copy_b="register", stages=2, min_blocks=1)
CONFIGS = {
    "plain": PLAIN,
    "more threads": Config(bm=128, wm=32, min_blocks=1),
    "cluster": Config(reduction="cluster", split_k=8),
    "small cluster": Config(reduction="cluster", split_k=2),
    "two_pass": Config(reduction="two_pass", split_k=4),
    "packed": Config(pack_a=1, vec_a=4),
}
# Attributes of .nv.info sections (as nvdisasm names them) and how an entry is stored: a format, an attribute,
# then 16 bits that are the value or, for _SIZED, the size of what follows.
_SIZED = 0x04
_MAX_THREADS, _REGISTERS, _CLUSTER = 0x05, 0x2F, 0x3D


def _sections(code: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, `sh_info` and content of every section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    size, count, names = struct.unpack_from("<HHH", code, 0x3A)
    heads = [struct.unpack_from("<IIQQQQII", code, table + i * size) for i in range(count)]
    strings = code[heads[names][4] :]
    for name, kind, _, _, offset, length, _, info in heads:
        text = strings[name : strings.index(b"\0", name)].decode()
        yield text, info, b"" if kind == 8 else code[offset : offset + length]  # 8: takes no room


def _attributes(section: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            yield attribute, struct.unpack_from(f"<{value // 4}I", section, at)
            at += value
        else:
            yield attribute, (value,)


def facts_of(code: bytes, entry: str) -> KernelFacts:
    """What a driver will say of a kernel, as far as the file tells: static shared memory has no attribute."""
    sections = list(_sections(code))
    own = dict(_attributes(next(s for name, _, s in sections if name == f".nv.info.{entry}")))
    # registers are told in one section for all functions, each by the number of its symbol
    symbol = {name: info & 0xFFFFFF for name, info, _ in sections}[f".text.{entry}"]
    everyone = next(s for name, _, s in sections if name == ".nv.info")
    registers = dict(v for a, v in _attributes(everyone) if a == _REGISTERS)
    x, y, z = own.get(_CLUSTER, (0, 0, 0))
    return KernelFacts(own[_MAX_THREADS][0], registers[symbol], 0, (x, y, z))


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(H200.arch)
    yield made
    made.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cubin_holds_what_its_table_launches(compiler: Compiler, name: str) -> None:
    config = CONFIGS[name]
    cubin = compiler.compile(config, Variant())
    record = KernelRecord("k", config, Variant(), cubin.sha256, 1, 1, cubin.registers, 1, None, "")
    kernel = launchable(record, H200, "")
    facts = facts_of(cubin.code, "sgemm")
    assert facts.max_threads == resources.threads(config)
    assert misfit(kernel, "sgemm", facts, H200.smem_per_block) is None
    for entry in ("sgemm_reduce",) * (name == "two_pass") + ("sgemm_pack",) * (name == "packed"):
        assert misfit(kernel, entry, facts_of(cubin.code, entry), H200.smem_per_block) is None


def test_a_cubin_of_another_config_is_told_by_what_it_holds(compiler: Compiler) -> None:
    cubins = {name: compiler.compile(config, Variant()) for name, config in CONFIGS.items()}
    for name, other in (("plain", "more threads"), ("plain", "cluster"), ("cluster", "small cluster"),
                        ("cluster", "plain")):  # fmt: skip
        mine, cubin = CONFIGS[name], cubins[other]
        record = KernelRecord("k", mine, Variant(), "", 1, 1, cubin.registers, 1, None, "")
        kernel = launchable(record, H200, "")
        assert misfit(kernel, "sgemm", facts_of(cubin.code, "sgemm"), H200.smem_per_block)
