"""The kernel on tensor cores: right on any shape and layout, and no less accurate than cublasSgemm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.facts.accuracy_class import FP32, FP32_RANGE
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.gpu.driver import device_limits
from autotune.gpu.sgemm import EpilogueArgument
from autotune.kernel import tensor_config as tensor
from autotune.kernel.compiler import Compiler
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import OnTensorCores, ScaledConfig
from autotune.kernel.tensor_config import BF16X6, TensorConfig
from autotune.shipped.starting_points import on_tensor_cores

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

SHAPES = (
    *((128, 128, 32), (256, 384, 512), (1, 1, 1), (130, 67, 31), (515, 259, 1031), (70, 66, 0)),
    (1000, 24, 72),
)
UNALIGNED = {"vec_a": 1, "vec_b": 1, "vec_c": 1}
CONFIGS = (
    TensorConfig(),
    TensorConfig(bn=64, loaders=1, flush_k=64, promote_k=16, group=1),
    TensorConfig(loaders=1, promote_k=64, flush_k=0, stages=4, raster="m"),
    TensorConfig(bn=64, loaders=1, ahead=1, stages=2, promote_k=128, flush_k=256),
    TensorConfig(scheme=BF16X6, flush_k=0, promote_k=16),
    TensorConfig(scheme=BF16X6, bn=64, loaders=1, stages=4, ahead=4, promote_k=64),
    ScaledConfig(),
    ScaledConfig(bn=64, stages=4, promote_k=16, group=1),
    ScaledConfig(bn=192, stages=2, promote_k=32, raster="m", group=1),
)
ACCURATE = TensorConfig(promote_k=16, flush_k=256), ScaledConfig(promote_k=32)
SCALES = ((1.0, 0.0), (1.25, -0.5), (0.0, 2.0))


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    if device_limits(0).compute_capability != (9, 0):
        pytest.skip("compute capability 9.0 alone")
    with_cache = Compiler(tensor.ARCH)
    yield with_cache
    with_cache.close()


def _fitted(config: OnTensorCores, gemm: Gemm) -> OnTensorCores:
    if isinstance(config, ScaledConfig):
        return replace(config, vec_c=2 - gemm.ldc % 2)
    limits = device_limits(0)
    return replace(config, **UNALIGNED) if broken_rules(config, limits, gemm) else config


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("extents", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_any_shape_is_right(
    torch: Any, compiler: Compiler, config: OnTensorCores, extents: tuple[int, int, int], layout: str
) -> None:
    import tensor_vs_cublas as bench

    for batch in (1, 3):
        gemm = Gemm(*extents, layout[0] == "T", layout[1] == "T", batch=batch)
        variant = Variant(gemm.trans_a, gemm.trans_b, is_batched=batch > 1)
        kernel = bench.TensorKernel(compiler, _fitted(config, gemm), variant)
        assert kernel.cubin.spill_bytes == 0 or config.vec_a != kernel.config.vec_a or config.bn == 192
        a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=gemm.k)
        x, y = (one.double() for one in bench.as_multiplied(gemm, a, b))
        for alpha, beta in SCALES:
            before = torch.randn_like(c) if beta else c.fill_(torch.nan).clone()
            c.copy_(before)
            kernel(gemm, (a, b, c), (alpha, beta))
            exact = alpha * (x @ y) + (beta * before.double() if beta else 0)
            bound = (alpha * (x.abs() @ y.abs()) + before.double().abs().nan_to_num()) * 2.0**-18
            assert ((c.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("config", [TensorConfig(), ScaledConfig()], ids=str)
def test_the_epilogue_is_that_of_any_kernel(torch: Any, compiler: Compiler, config: OnTensorCores) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(200, 136, 96)
    variant = Variant(epilogue=Epilogue("columns", "gelu", keeps=True))
    kernel = bench.TensorKernel(compiler, config, variant)
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=1)
    bias, kept = torch.randn(gemm.n, device="cuda"), torch.empty_like(c)
    kernel(gemm, (a, b, c), epilogue=EpilogueArgument(bias.data_ptr(), kept.data_ptr(), gemm.n))
    exact = a.double() @ b.double() + bias.double()
    torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(c.double(), torch.nn.functional.gelu(exact), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("k", [512, 1024, 4096])
@pytest.mark.parametrize("kind", ["normal", "uniform", "wide", "scaled", "cancelling"])
@pytest.mark.parametrize("config", ACCURATE, ids=str)
def test_errors_are_no_larger_than_those_of_cublas(
    torch: Any, compiler: Compiler, config: OnTensorCores, kind: str, k: int
) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(1024, 1024, k)  # which cuBLAS does not split
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS[kind], seed=k)
    bench.TensorKernel(compiler, config, Variant())(gemm, (a, b, c))
    found = bench.errors(c, a, b).over(bench.errors(a @ b, a, b))
    assert max(found) <= 1, found


@pytest.mark.parametrize("scheme", tensor.SCHEMES)
def test_nan_of_any_bits_gives_nan(torch: Any, compiler: Compiler, scheme: str) -> None:
    """Also that which a GPU computes, whose bits are all set."""
    import tensor_vs_cublas as bench

    gemm = Gemm(128, 128, 64)
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=1)
    a.view(torch.int32)[3, 5], b.view(torch.int32)[7, 9] = 0x7FFFFFFF, -1
    a[20, 4], b[8, 30] = torch.inf, -torch.inf
    bench.TensorKernel(compiler, TensorConfig(scheme=scheme), Variant())(gemm, (a, b, c))
    is_part = torch.zeros_like(c, dtype=torch.bool)
    is_part[[3, 20]] = is_part[:, [9, 30]] = True
    assert (c.isnan() == is_part).all()


def _beyond(torch: Any, a: Any, b: Any) -> None:
    """Numbers that FP16 cannot hold beside others, and special ones."""
    a[3, 5], b[5, 7], a[200, 40] = 1.2345e-20, 3.1e25, 2.5e-39
    a[17, 100], a[18, 101], b[102, 30] = torch.inf, torch.nan, -torch.inf


@pytest.mark.parametrize("config", [ScaledConfig(), ScaledConfig(bn=192, stages=2)], ids=str)
def test_what_fp16_cannot_hold_is_found_by_the_gpu(
    torch: Any, compiler: Compiler, config: ScaledConfig
) -> None:
    """In a captured graph, whose operands change: special values are cublasSgemm's, others within 2^-20."""
    import tensor_vs_cublas as bench

    gemm = Gemm(300, 260, 200)
    kernel = bench.TensorKernel(compiler, replace(config, vec_c=2), Variant())
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=5)
    kernel(gemm, (a, b, c))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(gemm, (a, b, c))
    for spoil in (lambda: None, lambda: _beyond(torch, a, b)):
        spoil()
        graph.replay()
        theirs = a @ b
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        assert (c.isnan() == theirs.isnan()).all() and (c.isinf() == theirs.isinf()).all()
        finite = theirs.isfinite()
        assert (c[theirs.isinf()] == theirs[theirs.isinf()]).all()
        assert ((c.double() - exact).abs()[finite] <= 2.0**-20 * size[finite]).all()


def test_the_same_bits_every_time_and_for_any_tile(torch: Any, compiler: Compiler) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(384, 256, 1000)
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=3)
    found = set()
    for config in (TensorConfig(), TensorConfig(), TensorConfig(bn=64, loaders=1), TensorConfig(loaders=1)):
        bench.TensorKernel(compiler, config, Variant())(gemm, (a, b, c.fill_(torch.nan)))
        found.add(c.cpu().numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("accuracy", [FP32, FP32_RANGE])
@pytest.mark.parametrize("shape", ["1024", "1025x1027x700", "512x512x4096:TN", "1000x600x512b3"])
def test_a_search_for_the_class_holds_candidates_to_it(shape: str, accuracy: str) -> None:
    """Packed, split, in batches: right, and as accurate as the class promises, or refused for that."""
    gemm = Gemm.parse(shape)
    if device_limits(0).compute_capability != (9, 0):
        pytest.skip("compute capability 9.0 alone")
    with GpuTarget("auto", accuracy=accuracy) as target:
        known = on_tensor_cores(gemm, accuracy)
        starts = [config for config in known if not target.builder.rejection(gemm, config)]
        found = [target.submit(gemm, config.to_dict(), None).result(300) for config in starts]
    fine = {Outcome.OK, Outcome.INACCURATE, Outcome.SPILLED}  # another NVRTC may spill
    assert {one.outcome for one in found} <= fine, found
    assert any(one.is_ok for one in found), [(one.outcome, one.reason) for one in found]
