"""An A of BF16 or FP16 is multiplied exactly by kernels on tensor cores, as FP32 of the same values is."""

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
from autotune.kernel import tensor_config as tensor
from autotune.kernel.compiler import Compiler
from autotune.kernel.launch import Variant
from autotune.kernel.tensor_config import BF16X6, TensorConfig
from autotune.shipped.starting_points import on_tensor_cores

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

SHAPES = ((128, 128, 32), (256, 384, 512), (130, 66, 34), (514, 258, 1030), (70, 66, 0), (1000, 24, 72))
CONFIGS = (
    TensorConfig(),
    TensorConfig(scheme=BF16X6, flush_k=0, promote_k=64),
    TensorConfig(scheme=BF16X6, bn=64, loaders=1, stages=4, ahead=2, flush_k=64, promote_k=16),
)
TYPES = ("bf16", "fp16")


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    if device_limits(0).compute_capability != (9, 0):
        pytest.skip("compute capability 9.0 alone")
    with_cache = Compiler(tensor.ARCH)
    yield with_cache
    with_cache.close()


def _shortened(torch: Any, a: Any, a_type: str) -> Any:
    return a.to(torch.bfloat16 if a_type == "bf16" else torch.float16)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
@pytest.mark.parametrize("a_type", TYPES)
def test_any_shape_is_right(
    torch: Any, compiler: Compiler, a_type: str, config: TensorConfig, layout: str
) -> None:
    import tensor_vs_cublas as bench

    for extents in SHAPES:
        for batch in (1, 3):
            gemm = Gemm(*extents, layout[0] == "T", layout[1] == "T", batch=batch, a_type=a_type)
            fitted = config
            if tensor.broken_rules(config, device_limits(0), gemm):
                fitted = replace(config, vec_a=1, vec_b=1, vec_c=1)
            variant = Variant(gemm.trans_a, gemm.trans_b, is_batched=batch > 1, a_type=a_type)
            kernel = bench.TensorKernel(compiler, fitted, variant)
            a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=gemm.k)
            a = _shortened(torch, a, a_type)
            x, y = (one.double() for one in bench.as_multiplied(gemm, a, b))
            for alpha, beta in ((1.0, 0.0), (1.25, -0.5), (0.0, 2.0)):
                before = torch.randn_like(c) if beta else c.fill_(torch.nan).clone()
                c.copy_(before)
                kernel(gemm, (a, b, c), (alpha, beta))
                exact = alpha * (x @ y) + (beta * before.double() if beta else 0)
                bound = (alpha * (x.abs() @ y.abs()) + before.double().abs().nan_to_num()) * 2.0**-18
                assert ((c.double() - exact).abs() <= bound).all(), (gemm, alpha, beta)


@pytest.mark.parametrize("scheme", tensor.SCHEMES)
@pytest.mark.parametrize("a_type", TYPES)
def test_special_values(torch: Any, compiler: Compiler, a_type: str, scheme: str) -> None:
    """NaN of any bits gives NaN, infinity NaN or infinity; the least and the largest count as they are."""
    import tensor_vs_cublas as bench

    gemm = Gemm(128, 128, 64, a_type=a_type)
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=1)
    a = _shortened(torch, a, a_type)
    bits = a.view(torch.int16)
    infinity = 0x7F80 if a_type == "bf16" else 0x7C00
    bits[3, 5], bits[4, 5], bits[5, 6], bits[6, 6] = infinity + 1, -1, infinity, infinity - 2**15
    bits[7], bits[8], bits[8, 9] = 1, 0, infinity - 1
    b[9] *= 2.0**-10
    bench.TensorKernel(compiler, TensorConfig(scheme=scheme), Variant(a_type=a_type))(gemm, (a, b, c))
    assert c[[3, 4]].isnan().all()
    assert not c[[5, 6]].isfinite().any()
    rest = [row for row in range(gemm.m) if row not in (3, 4, 5, 6)]
    x, y = a[rest].double(), b.double()
    bound = 2.0**-20 * (x.abs() @ y.abs()) + torch.finfo(torch.float32).tiny
    assert ((c[rest].double() - x @ y).abs() <= bound).all()


@pytest.mark.parametrize("shape", ["1024", "64x256x6144", "512x512x4096:TN", "1000x600x512b3"])
@pytest.mark.parametrize("a_type", TYPES)
def test_a_search_holds_candidates_to_the_class(a_type: str, shape: str) -> None:
    gemm = Gemm.parse(f"{shape}:a-{a_type}")
    if device_limits(0).compute_capability != (9, 0):
        pytest.skip("compute capability 9.0 alone")
    with GpuTarget("auto", accuracy=FP32, a_type=a_type) as target:
        starts = [config for config in on_tensor_cores(gemm) if not target.builder.rejection(gemm, config)]
        found = [target.submit(gemm, config.to_dict(), None).result(300) for config in starts]
    assert {one.outcome for one in found} <= {Outcome.OK, Outcome.INACCURATE}, found
    assert any(one.is_ok for one in found)
