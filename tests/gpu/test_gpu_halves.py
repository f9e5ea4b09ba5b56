"""The kernel on scaled operands without warpgroups, on any GPU since sm_75: right on any shape and layout, as
accurate as its class promises, and special values as cublasSgemm has them. And a table of the class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.accuracy_class import FP32_RANGE
from autotune.facts.device import Environment
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.gpu.driver import device_limits
from autotune.gpu.sgemm import EpilogueArgument
from autotune.kernel import template, templates
from autotune.kernel.compiler import Compiler
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.scaled_config import HALVES_FIRST, HalvesConfig
from autotune.runtime.dispatcher import Dispatcher

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

SHAPES = (
    *((128, 128, 64), (256, 384, 512), (1, 1, 1), (130, 67, 31), (515, 259, 1031), (70, 66, 0)),
    (1000, 24, 72),
)
CONFIGS = (
    HalvesConfig(),
    HalvesConfig(bn=64, raster="m", group=1),
    HalvesConfig(bm=64, wm=32, depth=32),
    HalvesConfig(bm=64, bn=64, wm=32),
)
# Whose errors are no larger than cuBLAS's in one chain of k; deeper ones with slices of 16 are split
ACCURATE = [(HalvesConfig(), 512), (HalvesConfig(), 1024)]
ACCURATE += [(HalvesConfig(bm=64, wm=32, depth=32), k) for k in (512, 1024, 4096)]
SCALES = ((1.0, 0.0), (1.25, -0.5), (0.0, 2.0))


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    limits = device_limits(0)
    if limits.compute_capability < HALVES_FIRST:
        pytest.skip("compute capability 7.5 and later")
    with_cache = Compiler(limits.arch)
    yield with_cache
    with_cache.close()


def _fitted(config: HalvesConfig, gemm: Gemm) -> HalvesConfig:
    return replace(config, vec_c=2 - gemm.ldc % 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("extents", SHAPES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_any_shape_is_right(
    torch: Any, compiler: Compiler, config: HalvesConfig, extents: tuple[int, int, int], layout: str
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
        compiler, HalvesConfig(), Variant(epilogue=Epilogue("columns", "gelu", keeps=True))
    )
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS["normal"], seed=1)
    bias, kept = torch.randn(gemm.n, device="cuda"), torch.empty_like(c)
    kernel(gemm, (a, b, c), epilogue=EpilogueArgument(bias.data_ptr(), kept.data_ptr(), gemm.n))
    exact = a.double() @ b.double() + bias.double()
    torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(c.double(), torch.nn.functional.gelu(exact), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["normal", "uniform", "wide", "scaled", "cancelling"])
@pytest.mark.parametrize(("config", "k"), ACCURATE)
def test_errors_are_no_larger_than_those_of_cublas(
    torch: Any, compiler: Compiler, config: HalvesConfig, kind: str, k: int
) -> None:
    import tensor_vs_cublas as bench

    gemm = Gemm(1024, 1024, k)  # which cuBLAS does not split
    a, b, c = bench.stored(gemm, bench.DISTRIBUTIONS[kind], seed=k)
    bench.TensorKernel(compiler, config, Variant())(gemm, (a, b, c))
    found = bench.errors(c, a, b).over(bench.errors(a @ b, a, b))
    assert max(found) <= 1, found


def _beyond(torch: Any, a: Any, b: Any) -> None:
    """Numbers that FP16 cannot hold beside others, and special ones."""
    a[3, 5], b[5, 7], a[200, 40] = 1.2345e-20, 3.1e25, 2.5e-39
    a[17, 100], a[18, 101], b[102, 30] = torch.inf, torch.nan, -torch.inf


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_what_fp16_cannot_hold_is_found_by_the_gpu(
    torch: Any, compiler: Compiler, config: HalvesConfig
) -> None:
    """In a captured graph, whose operands change: special values are cublasSgemm's, others within 2^-20."""
    import tensor_vs_cublas as bench

    gemm = Gemm(300, 260, 200)
    kernel = bench.TensorKernel(compiler, config, Variant())
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
    for config in (HalvesConfig(), HalvesConfig(), HalvesConfig(bn=64), HalvesConfig(bm=64, bn=64, wm=32)):
        bench.TensorKernel(compiler, config, Variant())(gemm, (a, b, c.fill_(torch.nan)))
        found.add(c.cpu().numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("shape", ["1024", "1025x1027x700", "512x512x4096:TN", "1000x600x512b3"])
def test_a_search_for_the_class_holds_candidates_to_it(compiler: Compiler, shape: str) -> None:
    """Split, in batches: right, and as accurate as the class promises, or refused for that."""
    gemm = Gemm.parse(shape)
    whole = [_fitted(config, gemm) for config in CONFIGS]
    split = [replace(one, reduction="two_pass", split_k=4) for one in whole]
    with GpuTarget("auto", accuracy=FP32_RANGE) as target:
        starts = [one for one in (*whole, *split) if not target.builder.rejection(gemm, one)]
        found = [target.submit(gemm, config.to_dict(), None).result(300) for config in starts]
    assert len(starts) == len(CONFIGS) * 2
    assert {one.outcome for one in found} <= {Outcome.OK, Outcome.INACCURATE, Outcome.SPILLED}, found
    assert any(one.is_ok for one in found) or gemm.k > 1024  # which cuBLAS splits, too: a strict one serves


def test_a_table_serves_who_asks_for_the_class(torch: Any, compiler: Compiler, tmp_path: Path) -> None:
    """By the kernel that a search on this GPU searches, with warpgroups or without; launched by the core."""
    limits = device_limits(0)
    its = templates.searched_for(FP32_RANGE, limits)
    plain: Any = its()
    split = replace(plain, reduction="two_pass", split_k=4)
    winners = {Gemm(512, 512, 4096): split}
    for one in LAYOUTS:
        winners[Gemm(1024, 768, 640, one[0] == "T", one[1] == "T")] = plain
        winners[Gemm(256, 132, 200, one[0] == "T", one[1] == "T", batch=3)] = plain
    environment = Environment(limits.name, "", limits.compute_capability, "", "", "", "")
    results = partial(TunedResults, environment, limits, policy="cold", policy_version=1)
    tensor = results(
        templates.source_of(FP32_RANGE, limits=limits),
        shapes=tuple(TunedShape(gemm, (TunedPoint(won, 10.0, True),)) for gemm, won in winners.items()),
    )
    strict = results(template.source_hash(), shapes=())
    folder = export_table(strict, tmp_path / "range_dispatch", compiler, tensor=tensor, max_kernels=0)
    runtime = Dispatcher(folder, accuracy=FP32_RANGE, cublas=False)
    for gemm in winners:
        batch = (gemm.batch,) if gemm.is_batched else ()
        a = torch.randn(*batch, *((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)), device="cuda")
        b = torch.randn(*batch, *((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)), device="cuda")
        x, y = (a.mT if gemm.trans_a else a).double(), (b.mT if gemm.trans_b else b).double()
        flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
        found = runtime.sgemm(a, b, **flags)
        assert ((found.double() - x @ y).abs() <= 2.0**-20 * (x.abs() @ y.abs())).all(), gemm
        torch.testing.assert_close(runtime.sgemm(a, b, **flags), found, rtol=0, atol=0)
    served = {one.gemm for one in runtime.counts() if "-tensor-" in one.kernel_id}
    assert served == winners.keys()
