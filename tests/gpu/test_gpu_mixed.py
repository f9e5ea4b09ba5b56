"""An A of BF16 or FP16 is multiplied exactly by kernels on tensor cores, as FP32 of the same values is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from made_table import plain_config

from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.accuracy_class import FP32
from autotune.facts.device import Environment
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.gpu.driver import device_limits
from autotune.kernel import template, templates
from autotune.kernel import tensor_config as tensor
from autotune.kernel.compiler import Compiler
from autotune.kernel.launch import Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.tensor_config import BF16X6, TensorConfig
from autotune.runtime.dispatcher import Dispatcher
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
TUNED = Gemm(64, 256, 6144)


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
            if broken_rules(config, device_limits(0), gemm):
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
    fine = {Outcome.OK, Outcome.INACCURATE, Outcome.SPILLED}  # another NVRTC may spill
    assert {one.outcome for one in found} <= fine, found
    assert any(one.is_ok for one in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with kernels for the tuned shape that read BF16, and FP16, beside strict ones."""
    limits = device_limits(0)
    if limits.compute_capability != (9, 0):
        pytest.skip("compute capability 9.0 alone")
    environment = Environment(limits.name, "", limits.compute_capability, "", "", "", "")
    results = partial(TunedResults, environment, limits, policy="cold", policy_version=1)
    plain = plain_config(limits, 1)
    strict = results(template.source_hash(), shapes=(_winner(Gemm(128, 256, 2048), plain),))
    gemms = [replace(TUNED, trans_a=one[0] == "T", trans_b=one[1] == "T", a_type=a_type)
             for one in LAYOUTS for a_type in TYPES]  # fmt: skip
    config = TensorConfig(scheme=BF16X6, bn=64, loaders=1, reduction="two_pass", split_k=8, flush_k=0)
    tensor = results(templates.source_of(FP32), shapes=tuple(_winner(gemm, config) for gemm in gemms))
    compiler = Compiler(limits.arch)
    path = tmp_path_factory.mktemp("mixed") / "mixed_dispatch"
    made = export_table(strict, path, compiler, tensor=tensor, max_kernels=0)
    compiler.close()
    return made


def _winner(gemm: Gemm, config: Any) -> TunedShape:
    return TunedShape(gemm, (TunedPoint(config, 10.0, True),), cublas_us=20.0)


@pytest.mark.parametrize("accuracy", ["strict", FP32])
@pytest.mark.parametrize("a_type", TYPES)
def test_calls_of_torch(torch: Any, folder: Path, a_type: str, accuracy: str) -> None:
    """Served by a kernel that reads A, or converted first by the same call: with the same error, in any
    layout, of any shape, in a batch, and in a graph."""
    runtime = Dispatcher(folder, accuracy=accuracy)
    shapes = [TUNED, Gemm(33, 65, 127), Gemm(1, 300, 77), Gemm(128, 256, 2048, batch=3)]
    for layout in LAYOUTS:
        for shape in shapes:
            gemm = replace(shape, trans_a=layout[0] == "T", trans_b=layout[1] == "T")
            batch = (gemm.batch,) if gemm.is_batched else ()
            a = torch.randn(*batch, *((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)), device="cuda")
            b = torch.randn(*batch, *((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)), device="cuda")
            a = _shortened(torch, a, a_type)
            flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
            found = runtime.sgemm(a, b, **flags)
            x, y = (
                a.double().mT if gemm.trans_a else a.double(),
                b.double().mT if gemm.trans_b else b.double(),
            )
            bound = 2.0**-18 * (x.abs() @ y.abs())
            assert ((found.double() - x @ y).abs() <= bound).all(), gemm
            torch.testing.assert_close(runtime.sgemm(a, b, **flags), found, rtol=0, atol=0)
    counts = [one for one in runtime.counts() if one.gemm and one.gemm.a_type == a_type]
    assert len(counts) == len(LAYOUTS) * len(shapes)
    reading = {one.gemm for one in counts if one.kernel_id.partition("-tensor")[0].endswith(a_type)}
    tuned = {replace(TUNED, trans_a=x[0] == "T", trans_b=x[1] == "T", a_type=a_type) for x in LAYOUTS}
    assert reading == (tuned if accuracy == FP32 else set())


@pytest.mark.parametrize("a_type", TYPES)
def test_every_value_is_converted_exactly(torch: Any, folder: Path, a_type: str) -> None:
    """NaN and infinity, subnormals and zeros among them; along a row, and a row each."""
    runtime = Dispatcher(folder, cublas=False)
    bits = torch.arange(1 << 16, device="cuda").to(torch.int16)
    a, one = bits.view(torch.bfloat16 if a_type == "bf16" else torch.float16), torch.ones(1, 1, device="cuda")
    for trans_a, stored in ((False, a[:, None]), (True, a[None])):
        found = runtime.sgemm(stored, one, trans_a=trans_a)[:, 0]
        torch.testing.assert_close(found, a.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("a_type", TYPES)
def test_an_a_may_lie_anyhow(torch: Any, folder: Path, a_type: str) -> None:
    """At an odd element, its rows any distance apart, strided along both sides; out by columns or not; in a
    batch that shares it; on a stream of the caller; as the input of a layer."""
    runtime = Dispatcher(folder)
    space = _shortened(torch, torch.randn(200, 301, device="cuda"), a_type)
    b = torch.randn(3, 90, 40, device="cuda")
    views = space[1:71, 3:93], space[1:141:2, 3:183:2], space[1:91, 5:75].mT, space[:90, ::3][:, :70].mT
    for a in views:
        exact = a.double() @ b[0].double()
        bound = 2.0**-18 * (a.double().abs() @ b[0].double().abs())
        by_columns = torch.full((40, 70), torch.nan, device="cuda").mT
        assert runtime.sgemm(a, b[0], out=by_columns) is by_columns
        assert ((by_columns.double() - exact).abs() <= bound).all()
        assert ((runtime.sgemm(a, b[0]).double() - exact).abs() <= bound).all()
        batch = runtime.sgemm(a, b)
        assert ((batch[0].double() - exact).abs() <= bound).all()
        torch.testing.assert_close(batch[2], runtime.sgemm(a, b[2]), rtol=1e-4, atol=1e-4)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        packed, c = a.contiguous(), torch.empty(70, 40, device="cuda")
        torch.cuda.synchronize()
        runtime.sgemm(packed, b[0], out=c, stream=stream)
        stream.synchronize()
        assert ((c.double() - exact).abs() <= bound).all()
    found = runtime.linear(views[0].reshape(7, 10, 90), b[0].mT.contiguous())
    assert found.shape == (7, 10, 40)
    exact = views[0].double() @ b[0].double()
    bound = 2.0**-18 * (views[0].double().abs() @ b[0].double().abs())
    assert ((found.reshape(70, 40).double() - exact).abs() <= bound).all()


def test_in_a_graph_and_through_dlpack(torch: Any, folder: Path) -> None:
    """FP16, since DLPack tells cuda-core of BF16 only where ml_dtypes is installed."""
    for accuracy in ("strict", FP32):
        runtime = Dispatcher(folder, accuracy=accuracy)
        a = torch.randn(TUNED.m, TUNED.k, device="cuda").half()
        b, c = torch.randn(TUNED.k, TUNED.n, device="cuda"), torch.empty(TUNED.m, TUNED.n, device="cuda")
        expected = runtime.sgemm(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            runtime.sgemm(a, b, out=c)
        graph.replay()
        torch.testing.assert_close(c, expected, rtol=0, atol=0)

        class Foreign:
            def __init__(self, tensor: Any) -> None:
                self.tensor = tensor

            def __dlpack__(self, **options: Any) -> Any:
                return self.tensor.__dlpack__(**options)

            def __dlpack_device__(self) -> Any:
                return self.tensor.__dlpack_device__()

        c.fill_(torch.nan)
        runtime.sgemm(Foreign(a), Foreign(b), out=Foreign(c))
        torch.cuda.synchronize()
        torch.testing.assert_close(c, expected, rtol=0, atol=0)
