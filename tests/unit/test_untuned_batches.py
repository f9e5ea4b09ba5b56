"""A batch that was not tuned is served by a kernel for batches where that is expected to be surely faster
than cuBLAS, which was timed on other batches."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas, install
from table_cases import (
    FIGURES,
    LIMITS,
    FakeDriver,
    OnGpu,
    make_kernel,
    make_spec,
    make_table,
    with_tensor_kernel,
    write_table,
)
from test_batches import close, expected, operands
from test_cublas_model import results_of

from autotune import Dispatcher
from autotune.export import figures
from autotune.export.figures import known_of_cublas, times_of_batches
from autotune.export.package import render
from autotune.facts import fitted
from autotune.facts.distribution import drawn as drawn_shapes
from autotune.facts.distribution import drawn_batches, products
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel.launch import Variant, plan
from autotune.kernel.tensor_config import BF16X6, TensorConfig
from autotune.perf_model import cublas_model
from autotune.perf_model.launches import Launches, Shapes, grids
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.launch.planner import key_of
from autotune.runtime.table import table as tables
from autotune.runtime.table.table import CublasFigures, Table
from autotune.runtime.torch.routed_engine import ROUTED_SHARE, Decided

BATCH = Gemm(96, 64, 80, batch=7)
DEVIATION = 0.2


def times(factor: float) -> CublasFigures:
    """Of a cuBLAS that takes so many times what is usual for every batch."""
    one = "01000000" * 3 + "02000000"
    return CublasFigures("13.1.0", one, "00000000", math.log(factor), DEVIATION, 3.0)


def table_of(factor: float | None) -> Table:
    kernels = (
        make_kernel("single", make_spec(), replace(FIGURES, num_samples=9, relative_error=0.1)),
        make_kernel("batched", make_spec(variant=Variant(is_batched=True)), None),
    )
    return make_table(*kernels, cublas_batched={} if factor is None else {"NN": times(factor)})


def at_ratio(log_ratio: float, gemm: Gemm = BATCH) -> Table:
    """By which cuBLAS is expected to take longer than the kernel."""
    unit = Chooser(table_of(1.0)).pick(Call.packed(gemm))
    assert unit.expected_us and unit.cublas_us
    return table_of(math.exp(log_ratio) * unit.expected_us / unit.cublas_us)


def margin_of(gemm: Gemm) -> float:
    deviation = DEVIATION * float(cublas_model.deviation_scale(min(gemm.m, gemm.n)))
    return cublas_model.MARGIN * math.hypot(deviation, 0.1, cublas_model.BATCH_ERROR)


def test_the_kernel_serves_where_it_is_surely_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    margin = margin_of(BATCH)
    for number, (ratio, who) in enumerate(((margin + 0.01, "autotune"), (margin - 0.01, "cublas"))):
        table = at_ratio(ratio)
        driver = FakeDriver(table)
        blas = FakeBlas(driver)
        install(monkeypatch, blas)
        runtime = Dispatcher(write_table(table, tmp_path / f"t{number}"), driver=driver, cublas=True)
        pick = runtime.pick(BATCH.m, BATCH.n, BATCH.k, batch=BATCH.batch)
        assert (pick.how, pick.provider, pick.is_looped) == ("modelled", who, False)
        assert pick.margin == pytest.approx(margin) and pick.kernel_id == "batched"
        a, b, c = operands(BATCH)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
        close(c, expected(a, b, c, 1.0, 0.0, BATCH))
        served = len(driver.launches), len(blas.served)
        assert served == ((1, 0) if who == "autotune" else (0, 1))


def test_what_is_not_timed_and_what_has_an_epilogue_is_looped_as_before() -> None:
    for table, call in (
        (table_of(None), Call.packed(BATCH)),
        (table_of(1e3), Call.packed(BATCH)._replace(has_epilogue=True)),
        (table_of(1e3), Call.packed(replace(BATCH, trans_b=True))),
    ):
        pick = Chooser(table).pick(call)
        assert (pick.provider, pick.is_looped, pick.cublas_us) == ("cublas", True, None)
    alone = make_table(make_kernel("single", make_spec()), cublas_batched={"NN": times(1e3)})
    assert Chooser(alone).pick(Call.packed(BATCH)).is_looped and not Chooser(alone).ranked_in_batch(
        Call.packed(BATCH), 4
    )


@pytest.mark.parametrize("narrow", [Gemm(4, 1024, 2048, batch=256), Gemm(2, 4096, 512, batch=1024)])
def test_a_promise_is_held_by_one_product_of_a_narrow_batch(narrow: Gemm) -> None:
    """Of few rows cuBLAS splits k in a batch, too: its sums are less deep than those of one product of all
    rows would be, and tensor cores err more."""
    table = with_tensor_kernel(table_of(1e3), TensorConfig(scheme=BF16X6, flush_k=256))
    tensor = replace(table.kernels[-1], model=replace(FIGURES, step_us=FIGURES.step_us / 1e3))
    batched = replace(tensor, id="in batches", model=None, variant=Variant(is_batched=True))
    batched = replace(batched, spec=replace(tensor.spec, variant=batched.variant))
    chooser = Chooser(replace(table, kernels=(*table.kernels[:-1], tensor, batched)))

    def ranked(gemm: Gemm) -> set[str]:
        return {one.kernel_id for one in chooser.ranked_in_batch(Call.packed(gemm), 8)}

    assert ranked(Gemm(512, 512, 1024, batch=64)) == {"batched", "in batches"}
    assert ranked(narrow) == {"batched"} and chooser.pick(Call.packed(narrow)).kernel_id == "batched"


def test_tiles_end_with_each_product_and_each_reads_what_it_does_not_share() -> None:
    """Times grow with the tiles of a product, whatever rows they hold, and with the bytes that are read."""
    chooser = Chooser(table_of(1.0))

    def expected_us(gemm: Gemm) -> float:
        return chooser.ranked_in_batch(Call.packed(gemm), 1)[0].expected_us or math.nan

    few, full = (expected_us(Gemm(m, 64, 512, batch=600)) for m in (33, 64))
    assert few == pytest.approx(full, rel=0.1) and expected_us(Gemm(65, 64, 512, batch=600)) > 1.7 * full
    for gemm in (BATCH, replace(BATCH, shares_a=True), replace(BATCH, shares_b=True)):
        assert Shapes.in_batch(gemm).num_bytes == gemm.num_bytes


@pytest.mark.parametrize("shared", [{}, {"shares_a": True}, {"shares_b": True}], ids=str)
def test_packing_is_modelled_as_it_is_planned(shared: dict[str, bool]) -> None:
    gemm = Gemm(64, 1024, 64, batch=32, **shared)
    spec = make_spec(packs_a=True, packs_b=True, variant=Variant(is_batched=True))
    planned = plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides).pack_bytes
    assert float(grids(Launches.of([spec], [1]), Shapes.in_batch(gemm)).pack_bytes[0]) == planned


def decided(folder: Path, table: Table, gemm: Gemm, *, has_bias: bool = False) -> Decided:
    engines, _ = Dispatcher(folder, driver=FakeDriver(table))._on_gpus()
    forms = ((gemm.m, gemm.k, gemm.k, 1), (gemm.k, gemm.n, gemm.n, 1), None)
    kinds = engines.routed_signatures(has_bias=has_bias)
    return kinds.decide(key_of((0, 0, 0), forms, (0, 0, 0), False, False, gemm.strides))


@pytest.mark.parametrize("has_bias", [False, True])
def test_routing_serves_with_its_share_of_the_margin(tmp_path: Path, has_bias: bool) -> None:
    least = ROUTED_SHARE * margin_of(BATCH)
    for ratio in (least + 0.01, least - 0.01):
        table = at_ratio(ratio)
        found = decided(write_table(table, tmp_path / f"t{ratio > least}"), table, BATCH, has_bias=has_bias)
        if has_bias:  # of which a copy is made first
            assert not found.is_served
        else:
            assert found.is_served == (ratio > least), found
            assert ratio > least or "as fast" in found.reason
    unknown = table_of(None)
    found = decided(write_table(unknown, tmp_path / "unknown"), unknown, BATCH, has_bias=has_bias)
    assert not found.is_served and "not tuned in batches" in found.reason


def took_us(gemm: Gemm) -> float:
    """A library that takes k one step after another, but of vectors."""
    limit_us = gemm.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)
    return 2 * math.hypot(limit_us, 0.03 * gemm.k * (min(gemm.m, gemm.n) > 1)) + 3


def batches(num: int, seed: int, layout: str = "NN") -> list[Gemm]:
    source = drawn_shapes(seed, LIMITS.fma_tflops, LIMITS.bandwidth_gbs, layouts=(layout,), more=products)
    return list(islice(source, num))


def test_times_of_batches_left_out_are_off_by_what_is_told() -> None:
    model = cublas_model.learn({gemm: took_us(gemm) for gemm in batches(300, 1)}, LIMITS)
    off = [math.log(took_us(gemm) / model.expected_us(gemm, LIMITS)) for gemm in batches(200, 2)]
    assert float(np.sqrt(np.square(off).mean())) < 0.2 and model.deviation < 0.2


def test_an_export_learns_from_times_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "LEAST_TIMES", 20)
    many = drawn_batches(100, 3, LIMITS.fma_tflops, LIMITS.bandwidth_gbs)
    shared = {replace(gemm, shares_a=True): 1.0 for gemm in many}
    results: Any = results_of(batched_us={gemm: took_us(gemm) for gemm in many} | shared)
    known = known_of_cublas(times_of_batches(results), LIMITS)
    assert known.keys() == set(LAYOUTS) and not known_of_cublas(times_of_batches(results_of()), LIMITS)
    read = tables.parse(render(make_table(cublas_batched=known)))
    assert read.cublas_batched == known and not read.cublas
    chooser = Chooser(replace(table_of(None), cublas_batched=known))
    for gemm in many[::4]:  # of NN
        if min(gemm.m, gemm.n) == 1:  # left to cuBLAS
            continue
        found = chooser.pick(Call.packed(gemm))
        assert found.cublas_us == pytest.approx(took_us(gemm), rel=0.4)


def test_the_manual_tells_by_how_much_a_near_batch_has_to_be_faster() -> None:
    least = 100 * math.expm1(cublas_model.MARGIN * fitted.number("BATCH_SHARE"))
    text = (Path(__file__).parents[2] / "docs/manual/using.md").read_text("utf-8")
    assert f"at least {least:.0f} % faster than cuBLAS there" in text
