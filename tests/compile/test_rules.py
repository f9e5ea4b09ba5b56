"""Python's rules are the compiler's: what they accept compiles and fits, what they refuse does not compile.

Sampled in both directions from the same seeds each time, so that a failure can be repeated.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from space_cases import find_config

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import Outcome
from autotune.files.errors import TrialFailure
from autotune.kernel import resources, template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import PARAMETER, Config
from autotune.kernel.launch import Variant
from autotune.kernel.rules import RULE, RULES, broken_rules

TEMPLATE = [rule.id for rule in RULES if rule.kind == "template"]
MAX_FMAS = 768  # in the unrolled loop: larger kernels take seconds to compile
NUM_ACCEPTED = 26
SMALL = Config(
    bm=16, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, unroll_k=8, bursts=1, stages=2, copy_a="register",
    copy_b="register", min_blocks=1,
)  # fmt: skip
SHAPES = [f"{shape}:{layout}" for shape in ("512", "1002", "97x33x65") for layout in LAYOUTS]


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Compiler]]:
    folder = tmp_path_factory.mktemp("cache")
    archs = sorted({limits.arch for limits in KNOWN.values()})
    made = {arch: Compiler(arch, cache_dir=folder, num_threads=1) for arch in archs}
    yield made
    for compiler in made.values():
        compiler.close()


def _accepted(rng: random.Random, limits: DeviceLimits, gemm: Gemm) -> Config:
    while True:
        config = find_config(rng, limits, gemm)
        assert config is not None
        if config.tm * config.tn * config.unroll_k <= MAX_FMAS:
            return config


def _variant(gemm: Gemm, rng: random.Random) -> Variant:
    return Variant(gemm.trans_a, gemm.trans_b, rng.random() < 0.3)


def _derived(config: Config, gemm: Gemm) -> str:
    """Asks the compiler whether it derives from the parameters what Python does."""
    claims = [
        f"THREADS == {resources.threads(config)}",
        f"THREADS_PER_SLICE == {resources.threads_per_slice(config)}",
        f"CHUNK_M == {resources.chunk_m(config)}",
        f"CHUNK_N == {resources.chunk_n(config)}",
        f"IS_K_MAJOR_A == {int(resources.is_k_major_a(config, gemm))}",
        f"IS_K_MAJOR_B == {int(resources.is_k_major_b(config, gemm))}",
        f"4 * SHARED_FLOATS == {resources.smem_bytes(config, gemm)}",
    ]
    return f'static_assert({" && ".join(claims)}, "derived in Python otherwise");\n'


@pytest.mark.parametrize("number", range(NUM_ACCEPTED))
def test_an_accepted_config_compiles_and_fits(compilers: dict[str, Compiler], number: int) -> None:
    rng = random.Random(f"accepted {number}")
    limits = list(KNOWN.values())[number % len(KNOWN)]
    gemm = Gemm.parse(SHAPES[number % len(SHAPES)])
    config, variant = _accepted(rng, limits, gemm), _variant(gemm, rng)
    source = template.source() + _derived(config, gemm)
    cubin = compilers[limits.arch].compile_source(source, template.macros(config, variant))
    text = f"{config} {variant} {limits.arch}"
    assert cubin.registers <= resources.register_cap(config, limits), text
    assert cubin.static_smem_bytes == 0, text
    if cubin.spill_bytes == 0:
        assert cubin.stack_bytes == 0, f"an array that was not kept in registers: {text}"
        assert resources.register_estimate(config) <= cubin.registers, f"no lower bound: {text}"


def _values(name: str) -> tuple[int | str, ...]:
    """Those of the table, and odd numbers: some rules hold for all that the table lists."""
    values = PARAMETER[name].values
    return values if isinstance(values[0], str) else (*values, 1, 3)


def _mutant(rng: random.Random, rule_id: str) -> tuple[Config, Gemm]:
    """A legal config, changed in few parameters until that template rule alone is broken."""
    limits = KNOWN["h200"]
    pool = sorted({*RULE[rule_id].needs, "bk", "unroll_k"})
    for _ in range(500):
        gemm = Gemm.parse(rng.choice(SHAPES))
        config = _accepted(rng, limits, gemm)
        for _ in range(100):
            names = rng.sample(pool, rng.randint(1, 3))
            mutant = replace(config, **{name: rng.choice(_values(name)) for name in names})
            if [rule.id for rule in broken_rules(mutant, limits, gemm, ("template",))] == [rule_id]:
                return mutant, gemm
    raise AssertionError(f"nothing breaks {rule_id} alone: it follows from other rules")


@pytest.mark.parametrize("rule_id", TEMPLATE)
def test_a_refused_config_does_not_compile(compilers: dict[str, Compiler], rule_id: str) -> None:
    rng = random.Random(f"refused {rule_id} 0")
    config, gemm = _mutant(rng, rule_id)
    arch = rng.choice(["sm_90", "sm_120"])  # where no device rule is broken besides
    with pytest.raises(TrialFailure) as failed:
        compilers[arch].compile(config, _variant(gemm, rng))
    assert failed.value.outcome is Outcome.COMPILE_FAILED
    assert set(re.findall(r"rule ([a-z-]+)", failed.value.reason)) == {rule_id}, f"{config} {gemm}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_asynchronous_copies_do_not_compile_before_sm_80(compilers: dict[str, Compiler], layout: str) -> None:
    rng, gemm = random.Random(layout), Gemm.parse(f"512:{layout}")
    config = find_config(rng, KNOWN["h200"], gemm, pins={"copy_a": "async", "tm": 2, "tn": 4})
    assert config is not None
    assert "async-device" in [rule.id for rule in broken_rules(config, KNOWN["quadro-rtx-5000"], gemm)]
    with pytest.raises(TrialFailure, match="rule async-device"):
        compilers["sm_75"].compile(config, _variant(gemm, rng))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89"])
def test_clusters_do_not_compile_before_sm_90(compilers: dict[str, Compiler], arch: str) -> None:
    older = next(limits for limits in KNOWN.values() if limits.arch == arch)
    config = replace(SMALL, reduction="cluster", split_k=4)
    broken = [rule.id for rule in broken_rules(config, older, Gemm.parse("512"))]
    assert broken == ["cluster-device"]
    with pytest.raises(TrialFailure, match="rule cluster-device"):
        compilers[arch].compile(config, Variant())


CTA_PER_CLUSTER = (0x04, 0x3D, 12, 0)  # in .nv.info: values follow, which attribute, bytes of the values


@pytest.mark.every(3)
@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_size_of_clusters_is_compiled_in(compilers: dict[str, Compiler], arch: str, size: int) -> None:
    """The driver reads it from this attribute of the cubin, so that a plain launch makes clusters."""
    cubin = compilers[arch].compile(replace(SMALL, reduction="cluster", split_k=size), Variant())
    assert cubin.spill_bytes == 0
    assert struct.pack("<4B3I", *CTA_PER_CLUSTER, 1, size, 1) in cubin.code


HUNGRY = """
extern "C" __global__ void __launch_bounds__(NUM_THREADS, NUM_BLOCKS)
    sgemm(float* out, const float* in, int n) {
    float held[300];
#pragma unroll
    for (int i = 0; i < 300; ++i) held[i] = in[i * n];
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < 300; ++i) held[i] = fmaf(held[i], in[k], held[(i + 7) % 300]);
#pragma unroll
    for (int i = 0; i < 300; ++i) out[i * n] = held[i];
}"""


@pytest.mark.every(3)
@pytest.mark.parametrize(("num_warps", "min_blocks"), [(3, 3), (25, 1), (18, 2)])
def test_the_register_cap_is_ptxas_own(
    compilers: dict[str, Compiler], num_warps: int, min_blocks: int
) -> None:
    """A kernel that wants 300 registers gets all that its launch bounds allow."""
    config = Config(bm=num_warps, wm=1, bn=4, wn=4, slice_k=1, min_blocks=min_blocks)
    macros = {"NUM_THREADS": resources.threads(config), "NUM_BLOCKS": min_blocks}
    cubin = compilers["sm_90"].compile_source(HUNGRY, macros)
    assert cubin.registers == resources.register_cap(config, KNOWN["h200"])
