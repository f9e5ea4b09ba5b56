"""How deep cuBLAS's sums are is read off what it would launch, where that tells; else it is guessed."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table_cases import FIGURES, FakeDriver, make_kernel, make_spec, make_table
from test_cublas_model import figures_of
from test_cublaslt import FakeLt
from test_sum_depths import splits_of as splits_in_name

from autotune.facts.cublas_calls import PEDANTIC_MATH, TORCH_BYTES, WORKSPACE_BYTES
from autotune.facts.gemm import Gemm
from autotune.perf_model.model_figures import DEFAULT_ERRORS, Depths
from autotune.runtime.choose import blas_provider
from autotune.runtime.choose.blas_provider import CublasSums, depths_in, splits_of
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.launch.cuda_driver import MOST_NODES, CudaFault, GraphNode
from autotune.runtime.launch.devices import Devices, LoadedKernel
from autotune.runtime.launch.planner import key_of
from autotune.runtime.served_model import ServedModel
from autotune.runtime.torch.routed_engine import AsPicked, RoutedEngine

DRAWN = Path(__file__).parents[2] / "studies" / "results" / "probes" / "h200-cublas-drawn.json.xz"
TILED = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_execute"
WHOLE = GraphNode(f"{TILED}_kernel__5x_cublas", 1)
LAYER = Gemm(2048, 768, 768)
NOTHING = GraphNode("", 0)  # a memset


class FakeBlas:
    """The functions of cuBLAS that are called, with their arguments."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        names = ["Create_v2", "SetMathMode", "SetStream_v2", "SetWorkspace_v2", "Sgemm_v2"]
        self.functions = {f"cublas{name}": self._function(f"cublas{name}", fails) for name in names}

    def _function(self, name: str, fails: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "cublasCreate_v2":
                arguments[0]._obj.value = 77
            return 14 if name == fails else 0

        return call

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


class KeptLt(FakeLt):
    """Keeps what the product is asked for, and multiplies nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[dict[str, Any]] = []
        self.status = 0

    def cublasLtMatmul(
        self, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
        workspace_bytes, stream,
    ):  # fmt: skip
        layouts = [self.alive[layout.value][:3] for layout in (a_layout, b_layout, c_layout)]
        flags = self.alive[desc.value][0]
        self.products.append({
            "layouts": layouts, "flags": dict(flags), "offsets": [x.value % 256 for x in (a, b, c)],
            "bytes": workspace_bytes.value, "stream": stream.value,
        })  # fmt: skip
        return self.status


def sums_of(
    driver: FakeDriver, blas: FakeBlas | None, lt: KeptLt | None = None, **changes: Any
) -> tuple[CublasSums, Any]:
    table = replace(driver.table, **changes)
    devices = Devices(table, {}, driver)
    return CublasSums(driver, devices, table, lambda: blas, lambda: lt), devices.gpu(0)


def test_splits_are_read_as_in_what_was_captured_of_an_h200() -> None:
    with lzma.open(DRAWN) as file:
        rows = json.load(file)["rows"]
    num_known = 0
    for text, _, launches, _ in rows:
        gemm = Gemm.parse(text)
        nodes = [GraphNode(name, grid[0][2]) if grid else NOTHING for name, *grid in launches]
        if splits := splits_of(nodes):
            num_known += min(gemm.m, gemm.n) > 32
            assert splits == max(splits_in_name(name, *grid) for name, *grid in launches)
            assert splits <= gemm.k
            assert splits > 1 or len(nodes) == 1
    wide = sum(min(Gemm.parse(row[0]).m, Gemm.parse(row[0]).n) > 32 for row in rows)
    assert num_known > 0.99 * wide > 1000


@pytest.mark.parametrize(
    ("nodes", "splits"),
    [
        ([WHOLE], 1),
        ([NOTHING, WHOLE._replace(blocks_z=2)], 2),
        ([WHOLE._replace(blocks_z=4), GraphNode(f"{TILED}_split_k_kernel__5x_cublas", 2)], 4),
        (
            [
                GraphNode("_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_128x256_8x4_nn_align1E", 14),
                GraphNode("reduce", 1),
            ],
            14,
        ),
        ([NOTHING, WHOLE], 0),  # something is added up all the same
        ([WHOLE, WHOLE], 0),
        ([GraphNode("_Z16gemmSN_NN_kernel", 1)], 0),
        ([GraphNode("cutlass3x_sm100_simt_sgemm_f32", 8)], 0),  # of which nothing was measured
        ([], 0),
        ([WHOLE._replace(blocks_z=3), *[NOTHING] * (MOST_NODES - 1)], 0),  # there may be more
    ],
)
def test_what_is_not_known_well_is_not_known(nodes: list[GraphNode], splits: int) -> None:
    assert splits_of(nodes) == splits


def test_a_call_is_captured_once_as_the_runtime_makes_it() -> None:
    driver, blas = (
        FakeDriver(make_table(), nodes=[WHOLE._replace(blocks_z=4), GraphNode("reduce", 1)]),
        FakeBlas(),
    )
    sums, gpu = sums_of(driver, blas)
    gemm = Gemm(100, 200, 768, trans_b=True)
    call = Call(gemm, (800, 900, 1000), (4, 8, 0))
    allowed = sums.allowed(call, gpu)
    assert allowed == Depths(768 / 4 + 3, 768 / 16 + 3).within(*DEFAULT_ERRORS)
    assert sums.allowed(call._replace(has_epilogue=True, addresses=(20, 24, 32)), gpu) == allowed
    (sgemm,) = blas.of("cublasSgemm_v2")
    assert sgemm[1:6] == (1, 0, 200, 100, 768) and (sgemm[8], sgemm[10], sgemm[13]) == (900, 800, 1000)
    assert [one.value % 16 for one in (sgemm[9], sgemm[7], sgemm[12])] == [4, 8, 0]
    ((_, mode),) = blas.of("cublasSetMathMode")
    ((_, workspace, size),) = blas.of("cublasSetWorkspace_v2")
    assert mode == PEDANTIC_MATH and size.value == WORKSPACE_BYTES and workspace.value % 256 == 0
    assert sums.allowed(call._replace(addresses=(0, 0, 0)), gpu) == allowed
    assert len(blas.of("cublasSgemm_v2")) == 2 and len(blas.of("cublasCreate_v2")) == 1
    assert "stream" not in driver.handles.values() and driver.context_stack == []


def test_with_a_bias_the_call_is_torchs() -> None:
    """Of cuBLASLt, with little workspace: what cuBLAS would do is not asked, nor is a handle of it made."""
    driver, blas, lt = FakeDriver(make_table(), nodes=[WHOLE]), FakeBlas(), KeptLt()
    sums, gpu = sums_of(driver, blas, lt)
    call = Call(Gemm(100, 200, 768, trans_b=True), (800, 900, 1000), (4, 8, 0), adds_bias=True)
    for _ in range(2):
        assert sums.allowed(call, gpu) == Depths(768, 768).within(*DEFAULT_ERRORS)
    (product,) = lt.products
    assert product["layouts"] == [[768, 200, 900], [768, 100, 800], [200, 100, 1000]]
    assert product["offsets"] == [8, 4, 0] and product["bytes"] == TORCH_BYTES and product["stream"]
    flags = product["flags"]
    assert (flags[3], flags[4], flags[7], flags["compute"]) == (1, 0, 4, 68) and flags[8] % 256 == 0
    assert lt.preferred == {1: TORCH_BYTES, 5: 8, 6: 4, 7: 256, 8: 256}
    assert lt.alive == {1: ["handle"]} and not blas.calls
    driver.nodes = [WHOLE._replace(blocks_z=4)]
    assert sums.allowed(call._replace(adds_bias=False), gpu) != sums.allowed(call, gpu)
    assert "stream" not in driver.handles.values() and driver.context_stack == []


@pytest.mark.parametrize("what", ["nothing", "refused", "absent", "old"])
def test_without_an_answer_of_cublaslt_it_is_guessed(what: str) -> None:
    lt = {"absent": None, "old": object()}.get(what, KeptLt())
    if what == "nothing":
        lt.answer = []
    if what == "refused":
        lt.status = 7
    driver = FakeDriver(make_table(), nodes=[WHOLE])
    sums, gpu = sums_of(driver, FakeBlas(), lt)
    assert sums.allowed(Call.packed(LAYER)._replace(adds_bias=True), gpu) is None
    assert "stream" not in driver.handles.values() and driver.context_stack == []


@pytest.mark.parametrize(
    "gemm", [Gemm(32, 4096, 4096), Gemm(4096, 1, 4096), Gemm(512, 512, 128), Gemm(64, 64, 512, batch=8)]
)
def test_other_products_are_left_to_the_guess(gemm: Gemm) -> None:
    blas = FakeBlas()
    sums, gpu = sums_of(FakeDriver(make_table(), nodes=[WHOLE]), blas)
    assert sums.allowed(Call.packed(gemm), gpu) is None and not blas.calls


@pytest.mark.parametrize(
    ("is_on", "is_deterministic", "is_read"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_what_is_loaded_decides_nothing_where_it_must_not(
    is_on: bool, is_deterministic: bool, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blas, driver = FakeBlas(), FakeDriver(make_table(), nodes=[WHOLE])
    monkeypatch.setattr(blas_provider, "loaded_library", lambda: blas)
    model = ServedModel(
        driver.table, {}, blas_provider.BlasProvider(is_on), "off", is_deterministic=is_deterministic
    )
    engine = model.routed_engine(driver, has_bias=False)
    allowed = engine.allowed(Call.packed(LAYER), engine.devices.gpu(0))
    assert (allowed is not None) == bool(blas.calls) == is_read


def test_a_table_of_one_order_asks_nothing() -> None:
    blas = FakeBlas()
    sums, gpu = sums_of(FakeDriver(make_table(), nodes=[WHOLE]), blas, order="chain")
    assert sums.allowed(Call.packed(LAYER), gpu) is None and not blas.calls


@pytest.mark.parametrize(
    "fails", ["cublasCreate_v2", "cublasSetStream_v2", "cublasSgemm_v2", "driver", "none"]
)
def test_whatever_fails_leaves_the_guess_and_is_not_tried_again(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blas = None if fails == "none" else FakeBlas(fails)
    driver = FakeDriver(make_table(), nodes=[WHOLE])
    if fails == "driver":
        fault = CudaFault("name of a kernel", 500, "CUDA_ERROR_NOT_FOUND")

        def refused(*_: Any) -> list[GraphNode]:
            raise fault

        monkeypatch.setattr(driver, "nodes_of", refused)
    sums, gpu = sums_of(driver, blas)
    for _ in range(2):
        assert sums.allowed(Call.packed(LAYER), gpu) is None
    assert blas is None or len(blas.of("cublasCreate_v2")) == 1
    assert "stream" not in driver.handles.values() and driver.context_stack == []


def test_a_router_serves_by_a_chain_where_cublas_does_not_split() -> None:
    """The guess is that cuBLAS splits k = 768 in four: then the kernel of one chain is too deep."""
    slower = replace(FIGURES, step_us=1.2 * FIGURES.step_us, round_us=1.2 * FIGURES.round_us)
    blocks = make_kernel("blocks", make_spec(), slower)
    table = make_table(
        make_kernel("chain", make_spec()), replace(blocks, config=replace(blocks.config, flush_k=256)),
        cublas={"NN": figures_of(5.0)},
    )  # fmt: skip
    chooser, call = Chooser(table), Call.packed(LAYER)
    known = {splits: depths_in(LAYER.k, splits).within(*DEFAULT_ERRORS) for splits in (1, 4)}
    expected = {None: "blocks", 4: "blocks", 1: "chain"}
    for splits, name in expected.items():
        assert chooser.pick(call, known.get(splits)).kernel_id == name
    forms = ((LAYER.m, LAYER.k, LAYER.k, 1), (LAYER.k, LAYER.n, LAYER.n, 1), None)
    for splits, name in expected.items():
        engine = RoutedEngine(
            False, chooser.core, "off", table, {}, chooser, FakeDriver(table), None, AsPicked()
        )
        engine.devices.kernel = lambda *_: LoadedKernel(1, 0, 0)
        engine.allowed = lambda *_, splits=splits: known.get(splits)
        found = engine.decide(key_of((0, 0, 0), forms, (0, 0, 0), False, False, None))
        assert found.is_served and found.pick and found.pick.kernel_id == name
