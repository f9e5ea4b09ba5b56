"""The sources compile for every supported architecture, in every layout, without a spill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from compiled_once import of_entries
from cuda.bindings import nvrtc

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import resources, template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import PARAMETER, Config, Value
from autotune.kernel.launch import ACTIVATIONS, BIASES, PACK_THREADS, PLANES, Epilogue, Variant
from autotune.kernel.rules import broken_rules

FULL = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
DEVICES = {limits.arch: limits for limits in KNOWN.values()}
OTHERS = [f"sm_{number}" for number in nvrtc.nvrtcGetSupportedArchs()[1] if f"sm_{number}" not in FULL]


@pytest.fixture(scope="module", params=FULL)
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    made = Compiler(request.param, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    yield made
    made.close()


def _halves(others: Iterable[str], name: str, odd: int = 0) -> pytest.MarkDecorator:
    """Half of all pairs with an architecture: each has every second of the others, in turn."""
    pairs = [(a, b) for i, a in enumerate(FULL) for j, b in enumerate(others) if (i + j) % 2 == odd]
    return pytest.mark.parametrize(("compiler", name), pairs, indirect=["compiler"])


def _default(arch: str, gemm: Gemm) -> Config:
    """The default config, or its twin that copies through registers where cp.async is missing."""
    config = Config(vec_b=1 if gemm.trans_b else 4, min_blocks=2)
    if DEVICES[arch].has_async_copy:
        return config
    return replace(config, copy_a="register", copy_b="register", stages=2)


def test_architectures_are_known() -> None:
    assert set(FULL) <= set(DEVICES)
    assert {"sm_100", "sm_103", "sm_110", "sm_121"} <= set(OTHERS)


@pytest.mark.every(3)
@pytest.mark.parametrize("arch", OTHERS)
def test_a_kernel_compiles_for_whatever_else_the_compiler_knows(
    arch: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One that has much in it: later architectures differ from sm_90 by little that the template asks for."""
    compiler = Compiler(arch, cache_dir=tmp_path_factory.mktemp("cache"), num_threads=1)
    with closing(compiler):
        reduction = "cluster" if int(arch.removeprefix("sm_")) >= 90 else "last_block"
        config = Config(vec_b=1, min_blocks=2, reduction=reduction, split_k=2)
        cubin = compiler.compile(config, Variant(trans_b=True, epilogue=Epilogue("columns", "gelu")))
    assert cubin.arch == arch and cubin.spill_bytes == cubin.stack_bytes == 0


@pytest.mark.every(5)
@_halves(LAYOUTS, "layout")
def test_the_default_kernel_compiles(compiler: Compiler, layout: str) -> None:
    gemm = Gemm.parse(f"512:{layout}")
    limits, config = DEVICES[compiler.arch], _default(compiler.arch, gemm)
    assert broken_rules(config, limits, gemm) == ()
    cubin = compiler.compile(config, Variant(gemm.trans_a, gemm.trans_b))
    assert cubin.arch == compiler.arch
    assert cubin.spill_bytes == cubin.stack_bytes == 0
    assert resources.blocks_per_sm(config, limits, gemm, cubin.registers) >= config.min_blocks


@pytest.mark.every(5)
@_halves(LAYOUTS, "layout", odd=1)
def test_a_kernel_of_packed_operands_compiles(compiler: Compiler, layout: str) -> None:
    """With vectors of four, whatever the layout: nothing is left to transpose. It needs no more registers
    than the default kernel, and its threads that pack must all fit."""
    gemm = Gemm.parse(f"513x514x515:{layout}")
    limits = DEVICES[compiler.arch]
    config = replace(_default(compiler.arch, gemm), pack_a=1, pack_b=1, vec_a=4, vec_b=4, vec_c=2, pad=0)
    assert broken_rules(config, limits, gemm) == ()
    variant = Variant(gemm.trans_a, gemm.trans_b)
    entries, macros = (template.ENTRY, template.PACK_ENTRY), template.macros(config, variant)
    cubin, packing = of_entries(compiler, template.source(), entries, macros)
    assert cubin.spill_bytes == cubin.stack_bytes == 0
    assert resources.blocks_per_sm(config, limits, gemm, cubin.registers) >= config.min_blocks
    assert packing.spill_bytes == packing.stack_bytes == 0
    assert packing.registers * PACK_THREADS <= limits.regs_per_sm


@pytest.mark.every(3)
@_halves(["pack_a", "pack_b"], "packed")
def test_one_operand_alone_may_be_packed(compiler: Compiler, packed: str) -> None:
    gemm = Gemm.parse("512:NT")
    config = replace(_default(compiler.arch, gemm), **{packed: 1})
    assert broken_rules(config, DEVICES[compiler.arch], gemm) == ()
    assert compiler.compile(config, Variant(trans_b=True)).spill_bytes == 0


def test_the_reduction_of_split_k_compiles(compiler: Compiler) -> None:
    """`sgemm_reduce` stands in every cubin; its threads must all fit whatever the registers."""
    tiles = {"bm": 16, "bn": 32, "bk": 8, "wm": 16, "wn": 32, "tm": 4, "tn": 4, "unroll_k": 4, "bursts": 1}
    copies = {"copy_a": "register", "copy_b": "register", "stages": 2}
    config = Config.from_dict(tiles | copies | {"reduction": "two_pass", "split_k": 2})
    macros = template.macros(config, Variant())
    cubin = compiler.compile_source(template.source(), macros, entry=template.REDUCE_ENTRY)
    assert 0 < cubin.registers <= 64
    assert cubin.spill_bytes == 0


# Each value of each part of a variant, and each reduction.
VARIANTS: dict[str, tuple[dict[str, Value], Variant]] = {
    "packed batches": ({"pack_a": 1, "pack_b": 1, "pad": 0}, Variant(is_batched=True)),
    "batches with a last wave": (
        {"reduction": "last_wave", "split_k": 2},
        Variant(is_batched=True, epilogue=Epilogue("columns", "relu")),
    ),
    "staged rows": (
        {"reduction": "last_block", "split_k": 2, "vec_c": 1},
        Variant(is_wide=True, epilogue=Epilogue("rows", "gelu", keeps=True)),
    ),
    "two passes": (
        {"reduction": "two_pass", "split_k": 2},
        Variant(is_batched=True, epilogue=Epilogue("rows", "gelu", keeps=True)),
    ),
    "chunks": ({"reduction": "chunks", "flush_k": 512}, Variant(epilogue=Epilogue("columns"))),
    "clusters": (
        {"reduction": "cluster", "split_k": 2},
        Variant(is_batched=True, epilogue=Epilogue("columns", "gelu_tanh", keeps=True)),
    ),
}


@pytest.mark.every(3)
@_halves(VARIANTS, "name")
def test_a_variant_compiles(compiler: Compiler, name: str) -> None:
    """Without a spill, and as many blocks fit an SM as of the plain kernel."""
    parameters, variant = VARIANTS[name]
    gemm, limits = Gemm.parse("512b2" if variant.is_batched else "512"), DEVICES[compiler.arch]
    config = replace(_default(compiler.arch, gemm), **parameters)
    if broken := broken_rules(config, limits, gemm):
        assert name == "clusters" and {rule.id for rule in broken} == {"cluster-device"}
        assert not limits.has_clusters
        return
    entries = [template.ENTRY]
    entries += [template.REDUCE_ENTRY] if config.reduction in PLANES else []
    entries += [template.PACK_ENTRY] if config.pack_a or config.pack_b else []
    cubins = of_entries(compiler, template.source(), entries, template.macros(config, variant))
    for entry, cubin in zip(entries, cubins, strict=True):
        assert cubin.spill_bytes == cubin.stack_bytes == 0
        if entry == template.ENTRY:
            feasible = resources.blocks_per_sm(config, limits, gemm, cubin.registers)
            assert feasible >= config.min_blocks


def test_every_part_of_a_variant_is_compiled() -> None:
    epilogues = [variant.epilogue for _, variant in VARIANTS.values()]
    assert {epilogue.bias for epilogue in epilogues} == set(BIASES)
    assert {epilogue.activation for epilogue in epilogues} == set(ACTIVATIONS)
    assert {epilogue.keeps for epilogue in epilogues} == {False, True}
    found = {parameters.get("reduction", "none") for parameters, _ in VARIANTS.values()}
    assert found == set(PARAMETER["reduction"].values)
