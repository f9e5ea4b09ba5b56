"""The kernel on tensor cores without warpgroups, on any GPU since sm_80: right on any shape and layout, and
no less accurate than cublasSgemm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.facts.accuracy_class import FP32
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.gpu.driver import device_limits
from autotune.gpu.sgemm import EpilogueArgument
from autotune.kernel import mma_config as mma
from autotune.kernel.compiler import Compiler
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.tensor_config import BF16X6, SCHEMES

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

SHAPES = (
    *((128, 128, 32), (256, 384, 512), (1, 1, 1), (130, 67, 31), (515, 259, 1031), (70, 66, 0)),
    (1000, 24, 72),
)
CONFIGS = (
    MmaConfig(),
    MmaConfig(wm=32, wn=64, bk=32, stages=2, raster="m", group=1),
    MmaConfig(bm=64, bn=64, wm=32, stages=5, scheme=BF16X6),
    MmaConfig(bk=32, stages=2, promote_k=32, scheme=BF16X6),
    MmaConfig(bm=64, wm=32, wn=64, stages=3, flush_k=256),
)
ACCURATE = {scheme: MmaConfig(bn=64, wm=32, flush_k=256, scheme=scheme) for scheme in SCHEMES}
SCALES = ((1.0, 0.0), (1.25, -0.5), (0.0, 2.0))


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    limits = device_limits(0)
    if limits.compute_capability < mma.FIRST:
        pytest.skip("compute capability 8.0 and later")
    with_cache = Compiler(limits.arch)
    yield with_cache
    with_cache.close()


def _fitted(config: MmaConfig, gemm: Gemm) -> MmaConfig:
    vec_a, vec_b = (4 if lead % 4 == 0 else 1 for lead in (gemm.lda, gemm.ldb))
    return replace(config, vec_a=vec_a, vec_b=vec_b, vec_c=2 - gemm.ldc % 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("extents", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_any_shape_is_right(
    torch: Any, compiler: Compiler, config: MmaConfig, extents: tuple[int, int, int], layout: str
) -> None:
    import tensor_vs_cublas as bench

    for batch in (1, 3):
        gemm = Gemm(*extents, layout[0] == "T", layout[1] == "T", batch=batch)
        variant = Variant(gemm.trans_a, gemm.trans_b, is_batched=batch > 1)
        kernel = bench.TensorKernel(compiler, _fitted(config, gemm), variant)
        a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=gemm.k)
        x, y = (one.double() for one in bench.as_multiplied(gemm, a, b))
        for alpha, beta in SCALES:
            before = torch.randn_like(c) if beta else c.fill_(torch.nan).clone()
            c.copy_(before)
            kernel(gemm, (a, b, c), (alpha, beta))
            exact = alpha * (x @ y) + (beta * before.double() if beta else 0)
            bound = (alpha * (x.abs() @ y.abs()) + before.double().abs().nan_to_num()) * 2.0**-18
            assert ((c.double() - exact).abs() <= bound).all()


def test_the_epilogue_is_that_of_any_kernel(torch: Any, compiler: Compiler) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(200, 136, 96)
    kernel = bench.TensorKernel(
        compiler, MmaConfig(), Variant(epilogue=Epilogue("columns", "gelu", keeps=True))
    )
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=1)
    bias, kept = torch.randn(gemm.n, device="cuda"), torch.empty_like(c)
    kernel(gemm, (a, b, c), epilogue=EpilogueArgument(bias.data_ptr(), kept.data_ptr(), gemm.n))
    exact = a.double() @ b.double() + bias.double()
    torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(c.double(), torch.nn.functional.gelu(exact), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("k", [512, 1024, 4096])
@pytest.mark.parametrize("kind", ["normal", "uniform", "wide", "scaled", "cancelling"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_errors_are_no_larger_than_those_of_cublas(
    torch: Any, compiler: Compiler, scheme: str, kind: str, k: int
) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(1024, 1024, k)  # which cuBLAS does not split
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS[kind], seed=k)
    bench.TensorKernel(compiler, ACCURATE[scheme], Variant())(gemm, (a, b, c))
    found = bench.errors(c, a, b).over(bench.errors(a @ b, a, b))
    assert max(found) <= 1, found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nan_of_any_bits_gives_nan(torch: Any, compiler: Compiler, scheme: str) -> None:
    """Also that which a GPU computes, whose bits are all set."""
    import tensor_vs_cublas as bench

    gemm = Gemm(128, 128, 64)
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=1)
    a.view(torch.int32)[3, 5], b.view(torch.int32)[7, 9] = 0x7FFFFFFF, -1
    a[20, 4], b[8, 30] = torch.inf, -torch.inf
    bench.TensorKernel(compiler, MmaConfig(scheme=scheme), Variant())(gemm, (a, b, c))
    is_part = torch.zeros_like(c, dtype=torch.bool)
    is_part[[3, 20]] = is_part[:, [9, 30]] = True
    assert (c.isnan() == is_part).all()


def test_the_same_bits_every_time_and_for_any_tile(torch: Any, compiler: Compiler) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(384, 256, 1000)
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=3)
    found = set()
    others = MmaConfig(wm=32, wn=64, stages=2), MmaConfig(bm=64, bn=64, wm=32, bk=32, stages=2)
    for config in (MmaConfig(), MmaConfig(), *others):
        bench.TensorKernel(compiler, config, Variant())(gemm, (a, b, c.fill_(torch.nan)))
        found.add(c.cpu().numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("shape", ["1024", "1025x1027x700", "512x512x4096:TN", "1000x600x512b3"])
def test_a_search_for_the_class_holds_candidates_to_it(compiler: Compiler, shape: str) -> None:
    """Packed, split, in batches: right, and as accurate as the class promises, or refused for that."""
    gemm = Gemm.parse(shape)
    tiles = [_fitted(config, gemm) for config in (*CONFIGS, *ACCURATE.values())]
    packed = [
        replace(one, pack_a=1, vec_a=4, pack_b=1, vec_b=4, reduction="two_pass", split_k=4) for one in tiles
    ]
    with GpuTarget("auto", accuracy=FP32) as target:
        starts = [one for one in (*tiles, *packed) if not target.builder.rejection(gemm, one)]
        found = [target.submit(gemm, config.to_dict(), None).result(300) for config in starts]
    assert len(starts) == len(tiles) * 2
    assert {one.outcome for one in found} <= {Outcome.OK, Outcome.INACCURATE, Outcome.SPILLED}, found
    assert any(one.is_ok for one in found)
