"""What the runtime asks the driver of a loaded kernel stands in the cubin as it expects: launch bounds,
registers and the size of a cluster, read here from the ELF file itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.facts.device import known_limits
from autotune.kernel import machine_code, resources
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant
from autotune.runtime.launch.cuda_driver import KernelFacts
from autotune.runtime.launch.devices import mismatch
from autotune.runtime.table.table import KernelRecord, launchable

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
_MAX_THREADS, _CLUSTER = 0x05, 0x3D  # attributes of .nv.info sections, as nvdisasm names them


def facts_of(code: bytes, entry: str) -> KernelFacts:
    """What a driver will say of a kernel, as far as the file tells: static shared memory has no attribute."""
    sections = machine_code.sections(code)
    own = dict(machine_code.attributes(sections[f".nv.info.{entry}"].content))
    registers = machine_code.registers(sections)[entry]
    x, y, z = own.get(_CLUSTER, (0, 0, 0))
    return KernelFacts(own[_MAX_THREADS][0], registers, 0, (x, y, z))


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
    assert mismatch(kernel, "sgemm", facts, H200.smem_per_block) is None
    for entry in ("sgemm_reduce",) * (name == "two_pass") + ("sgemm_pack",) * (name == "packed"):
        assert mismatch(kernel, entry, facts_of(cubin.code, entry), H200.smem_per_block) is None


def test_a_cubin_of_another_config_is_told_by_what_it_holds(compiler: Compiler) -> None:
    cubins = {name: compiler.compile(config, Variant()) for name, config in CONFIGS.items()}
    for name, other in (("plain", "more threads"), ("plain", "cluster"), ("cluster", "small cluster"),
                        ("cluster", "plain")):  # fmt: skip
        mine, cubin = CONFIGS[name], cubins[other]
        record = KernelRecord("k", mine, Variant(), "", 1, 1, cubin.registers, 1, None, "")
        kernel = launchable(record, H200, "")
        assert mismatch(kernel, "sgemm", facts_of(cubin.code, "sgemm"), H200.smem_per_block)
