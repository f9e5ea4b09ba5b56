"""Settling measures errors: cuBLAS's tell how deep sums may be, and launches that are inaccurate drop out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas, install
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import (
    FIGURES,
    LIMITS,
    FakeDriver,
    inexact,
    isolated,
    make_kernel,
    make_spec,
    make_table,
    matrix_at,
    write_table,
)

from autotune.facts.gemm import Gemm, Triple
from autotune.files import folder_files
from autotune.files.errors import DispatchError, DispatchWarning
from autotune.perf_model.model_figures import Depths
from autotune.perf_model.sum_depths import Sums, allowed_depths
from autotune.runtime.calls.product import Product
from autotune.runtime.choose.chooser import Call, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.devices import OpenGpu
from autotune.runtime.launch.planner import Engine, Plan
from autotune.runtime.settle import harness as harness_module
from autotune.runtime.settle.harness import ErrorSample, Harness
from autotune.runtime.table.table import Table

SHAPE = Gemm(72, 68, 2048)
DEEP = 4e-7  # an error of sums some 500 deep
FAST = replace(FIGURES, step_us=0.1)


def _table() -> Table:
    table = make_table(
        make_kernel("whole", make_spec(), replace(FAST, step_us=0.01, round_us=0.01)),
        make_kernel("split", make_spec(reduction="two_pass", split_k=16), replace(FAST, step_us=0.3)),
        make_kernel("last", make_spec(reduction="last_block", split_k=16), replace(FAST, step_us=0.3)),
    )
    return replace(table, limits=replace(LIMITS, l2_bytes=1 << 16))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_CUBLAS", raising=False)
    isolated(monkeypatch, tmp_path)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(_table(), errors=dict.fromkeys(("whole", "split", "last"), 1e-07))


@pytest.fixture
def blas(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeBlas:
    fake = FakeBlas(driver, time_us=1000.0, error=DEEP)
    install(monkeypatch, fake)
    return fake


@contextmanager
def taken(driver: FakeDriver, problem: Product, offsets: Triple = (0, 0, 0)) -> Iterator[Harness]:
    """A harness with one set of operands."""
    driver.push_context(100)
    with driver.relaxed(), ExitStack() as at_end:
        at_end.callback(driver.pop_context)
        stream = driver.make_stream()
        at_end.callback(driver.free_stream, stream)
        harness = Harness(driver, problem, Call(problem.gemm, problem.lds, offsets), 0, stream, at_end)
        harness.take(1, [])
        yield harness


def settled(folder: Path, driver: FakeDriver, gemm: Gemm = SHAPE) -> str:
    """The kernel that settling chooses."""
    (pick,) = Dispatcher(folder, driver=driver).settle([(gemm.m, gemm.n, gemm.k)])
    assert pick.how == "settled", pick.reason
    return pick.kernel_id


def timed(driver: FakeDriver) -> set[str]:
    """The kernels that were launched often: not only for their errors and for a first time."""
    ran = [launch.kernel_id for launch in driver.launches if launch.name == "sgemm"]
    return {name for name in ran if ran.count(name) > 8}


def sums_of(name: str, gemm: Gemm = SHAPE) -> Depths:
    kernel = next(kernel for kernel in _table().kernels if kernel.id == name)
    found = Sums.of([kernel.config]).depths(float(kernel.spec.split_k), gemm)
    return Depths(*(float(depth[0]) for depth in found))


def test_cublas_may_sum_deeper_than_the_shape_tells(folder: Path, driver: FakeDriver, blas: FakeBlas) -> None:
    """Kernels that sum all of k in one chain are too deep by the guess, and accurate by its errors."""
    guessed = allowed_depths(SHAPE, LIMITS.num_sms)
    assert sums_of("whole").zero_mean > guessed.zero_mean
    driver.kernel_us = {"whole": 20.0}
    blas.error = 2e-6
    assert settled(folder, driver) == "whole"


@pytest.mark.every(2)
@pytest.mark.parametrize(("cublas_us", "provider"), [(1000.0, "cublas"), (1e9, "autotune")])
def test_where_no_launch_is_accurate_cublas_serves_unless_it_is_far_slower(
    folder: Path, driver: FakeDriver, blas: FakeBlas, cublas_us: float, provider: str, tmp_path: Path
) -> None:
    blas.error, blas.time_us = 1e-7, cublas_us
    driver.errors = dict.fromkeys(driver.errors, 4e-7)
    runtime = Dispatcher(folder, driver=driver)
    (pick,) = runtime.settle([(SHAPE.m, SHAPE.n, SHAPE.k)])
    assert (pick.how, pick.provider, pick.kernel_id) == ("settled", provider, "split")
    assert "none of which is accurate enough" in pick.reason
    runtime.export_choices(tmp_path / "choices.json")
    pinned = Dispatcher(
        folder, deterministic=True, choices=tmp_path / "choices.json", cublas=True, driver=driver
    )
    assert pinned.pick(SHAPE.m, SHAPE.n, SHAPE.k).provider == provider
    assert not driver.memory and not driver.handles and not driver.context_stack


def test_choices_from_before_errors_were_measured_are_refused(
    folder: Path, driver: FakeDriver, blas: FakeBlas, tmp_path: Path
) -> None:
    runtime, path = Dispatcher(folder, driver=driver), tmp_path / "choices.json"
    runtime.settle([(SHAPE.m, SHAPE.n, SHAPE.k)])
    runtime.export_choices(path)
    data = json.loads(path.read_text()) | {"schema_version": 1, "checksum": folder_files.BLANK}
    path.write_text(folder_files.with_checksum(json.dumps(data)))
    with pytest.raises(DispatchError, match="not of schema 2, which this code reads; write it again"):
        Dispatcher(folder, deterministic=True, choices=path, driver=driver)


@pytest.mark.every(3)
@pytest.mark.parametrize("times, is_accurate", [(1.3, True), (1.7, False)])
@pytest.mark.parametrize("name", ["split", "last"])
def test_a_launch_whose_errors_are_too_large_drops_out(
    folder: Path, driver: FakeDriver, blas: FakeBlas, name: str, times: float, is_accurate: bool
) -> None:
    driver.kernel_us = {name: 5.0}
    driver.errors[name] = times * DEEP
    assert (settled(folder, driver) == name) == is_accurate
    assert (name in timed(driver)) == is_accurate


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["split", "last"])
def test_errors_on_positive_numbers_alone_are_enough(
    folder: Path, driver: FakeDriver, blas: FakeBlas, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ErrorSample._errors

    def errors(self: ErrorSample, launches: object, numbers: str) -> list[float]:
        driver.errors[name] = 3 * DEEP if numbers == "uniform" else 1e-7
        return own(self, launches, numbers)  # type: ignore[arg-type]

    monkeypatch.setattr(ErrorSample, "_errors", errors)
    driver.kernel_us = {name: 5.0}
    assert settled(folder, driver) != name


def test_four_accurate_ones_are_timed_behind_others_that_are_not(
    tmp_path: Path, blas: FakeBlas, driver: FakeDriver
) -> None:
    kernels = [
        make_kernel(
            f"k{i}", make_spec(group=1 << i % 3, is_along_m=i > 2), replace(FAST, fixed_us=1 + i / 10)
        )
        for i in range(6)
    ]
    driver.table = replace(make_table(*kernels), limits=_table().limits)
    driver.errors = {kernel.id: (3.0 if i in (0, 2) else 0.5) * 2e-6 for i, kernel in enumerate(kernels)}
    blas.error = 2e-6
    assert settled(write_table(driver.table, tmp_path / "t"), driver) in {"k1", "k3", "k4", "k5"}
    assert timed(driver) == {"k1", "k3", "k4", "k5"}


@pytest.mark.parametrize("gemm", [Gemm(72, 68, 64), Gemm(3, 5, 2048), Gemm(72, 68, 2048)], ids=str)
def test_errors_are_looked_at_where_they_tell_something(
    folder: Path, driver: FakeDriver, blas: FakeBlas, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    own = ErrorSample.depths
    monkeypatch.setattr(ErrorSample, "depths", lambda self, some: looked.append(len(some)) or own(self, some))
    settled(folder, driver, gemm)
    assert bool(looked) == (gemm == SHAPE)


def test_without_cublas_the_shape_tells(folder: Path, driver: FakeDriver, blas: FakeBlas) -> None:
    driver.errors = dict.fromkeys(driver.errors, 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime = Dispatcher(folder, driver=driver, cublas=False)
        (pick,) = runtime.settle([(SHAPE.m, SHAPE.n, SHAPE.k)])
    assert pick.how == "settled" and not blas.served


def test_launches_are_timed_on_numbers_of_mean_zero(
    folder: Path, driver: FakeDriver, blas: FakeBlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a search times them: positive numbers are only for errors."""
    filled: list[bool] = []
    fill = Harness._fill

    def note(self: Harness, numbers: np.ndarray[Any, Any], num_bytes: int) -> None:
        filled.append(bool(numbers.min() < 0))
        fill(self, numbers, num_bytes)

    monkeypatch.setattr(Harness, "_fill", note)
    settled(folder, driver)
    assert filled[0] and filled[-1] and not all(filled)


# What is measured


@st.composite
def _products(draw: st.DrawFn) -> tuple[Product, Triple]:
    """A product of any layout and leading dimensions, and the alignment of its operands."""
    m, n, k = draw(st.integers(1, 90)), draw(st.integers(1, 90)), draw(st.integers(1, 90))
    gemm = Gemm(m, n, k, draw(st.booleans()), draw(st.booleans()))
    stored = ((k, m) if gemm.trans_a else (m, k), (n, k) if gemm.trans_b else (k, n), (m, n))
    lds = tuple(columns + draw(st.integers(0, 5)) for _, columns in stored)
    num_bytes = tuple(
        4 * ((rows - 1) * ld + columns) for (rows, columns), ld in zip(stored, lds, strict=True)
    )
    offsets = tuple(draw(st.sampled_from((0, 4, 8))) for _ in range(3))
    return Product(gemm, (lds[0], lds[1], lds[2]), (num_bytes[0], num_bytes[1], num_bytes[2])), (
        offsets[0],
        offsets[1],
        offsets[2],
    )


def _multiply(driver: FakeDriver, problem: Product, operands: Triple, error: float) -> None:
    gemm, (lda, ldb, ldc) = problem.gemm, problem.lds
    a, b, c = operands
    of_a = matrix_at(a, gemm.k, gemm.m, lda).T if gemm.trans_a else matrix_at(a, gemm.m, gemm.k, lda)
    of_b = matrix_at(b, gemm.n, gemm.k, ldb).T if gemm.trans_b else matrix_at(b, gemm.k, gemm.n, ldb)
    matrix_at(c, gemm.m, gemm.n, ldc)[...] = inexact(of_a.astype(np.float64) @ of_b.astype(np.float64), error)


@settings(deadline=None, max_examples=60)
@given(_products(), st.booleans())
def test_errors_of_any_product_are_found(case: tuple[Product, Triple], is_by_rows: bool) -> None:
    """Also of matrices that are too large to be copied whole. An error of 1e-3 hides that of rounding."""
    problem, offsets = case
    driver = FakeDriver(_table())
    with pytest.MonkeyPatch.context() as patch, taken(driver, problem, offsets) as harness:
        if is_by_rows:
            patch.setattr(harness_module, "WHOLE_BYTES", 0)
        sample = ErrorSample(harness, problem)
        launches = [partial(_multiply, driver, problem, error=error) for error in (1e-3, 2e-3)]
        small, large = sample.depths(launches)
        missing = sample.depths([lambda operands: None])[0]
    for depth in small, large, missing:
        assert depth.zero_mean > 0 and depth.positive > 0
    elements = problem.gemm.m * problem.gemm.n
    assert min(elements, 64) <= sample.num_elements <= elements
    spread = 1 + 5 / np.sqrt(sample.num_elements) if elements > sample.num_elements else 1.001
    for depth, error in ((small, 1e-3), (large, 2e-3), (missing, 1.0)):
        found = Depths.of_errors(error, error)
        if elements >= 64:
            for own, expected in zip(depth, found, strict=True):
                assert 1 / (1.7 * spread) < own / expected < 1.7 * spread


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 1 << 24))
def test_few_elements_are_looked_at(m: int, n: int, k: int) -> None:
    rows, columns = harness_module._numbers(m, n, k)
    assert 0 <= rows <= m and 0 <= columns <= n
    assert rows * columns <= harness_module.MOST_ELEMENTS
    assert (rows + columns) * k <= harness_module.MOST_NUMBERS
    if min(m, n) > 1 and k <= 1 << 16:
        assert rows * columns >= min(m * n, 64)


def test_a_result_that_is_no_number_is_an_error(driver: FakeDriver) -> None:
    problem = Product(SHAPE, SHAPE.lds, SHAPE.operand_bytes)

    def spoil(operands: Triple) -> None:
        matrix_at(operands[2], SHAPE.m, SHAPE.n, SHAPE.n)[...] = np.nan

    with taken(driver, problem) as harness, pytest.raises(DispatchError, match="no number"):
        ErrorSample(harness, problem).depths([spoil])


@pytest.mark.parametrize("splitting", [("split",), ("split", "last", "whole")])
def test_launches_without_room_for_their_partial_sums_are_left_out(
    folder: Path,
    driver: FakeDriver,
    blas: FakeBlas,
    splitting: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned, own = dict[int, str](), Engine.plan_of

    def plan_of(
        self: Engine, problem: Product, gpu: OpenGpu, pick: Pick, addresses: Triple = (0, 0, 0)
    ) -> Plan:
        plan = own(self, problem, gpu, pick, addresses)
        planned[id(plan.core)] = pick.kernel_id
        return plan

    def has_room_for(self: Harness, plan: Plan) -> bool:
        return planned[id(plan.core)] not in splitting

    monkeypatch.setattr(Engine, "plan_of", plan_of)
    monkeypatch.setattr(Harness, "has_room_for", has_room_for)
    runtime = Dispatcher(folder, driver=driver)
    if "whole" in splitting:
        with pytest.warns(DispatchWarning, match="partial sums are too large for the memory that is free"):
            runtime.settle([(SHAPE.m, SHAPE.n, SHAPE.k)])
    else:
        assert settled(folder, driver) not in splitting
    assert not driver.memory and not driver.handles


def test_room_is_what_is_left_of_a_quarter_of_the_free_memory(driver: FakeDriver) -> None:
    problem = Product(SHAPE, SHAPE.lds, SHAPE.operand_bytes)
    driver.num_free_bytes = 16 << 20
    with taken(driver, problem) as harness:
        for num_bytes, has_room in ((1 << 20, True), (4 << 20, False)):
            plan = SimpleNamespace(grid=SimpleNamespace(scratch_bytes=num_bytes, counter_bytes=256))
            assert harness.has_room_for(plan) == has_room  # type: ignore[arg-type]


def test_no_more_of_a_wide_c_is_copied_than_some_rows(driver: FakeDriver) -> None:
    gemm = Gemm(64, 300_000, 1)
    with taken(driver, Product(gemm, gemm.lds, gemm.operand_bytes)) as harness:
        sample = ErrorSample(harness, Product(gemm, gemm.lds, gemm.operand_bytes))
    assert 1 <= sample._rows.size <= (16 << 20) // (4 * gemm.n) and sample.num_elements >= 4000
