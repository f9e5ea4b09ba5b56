"""A table whose kernels all sum in one order: what it holds, that nothing else serves, and its check."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import CARRIED
from fake_blas import FakeBlas, install
from table_cases import FakeDriver, OnGpu, isolated, make_kernel, make_spec, make_table, rank, write_table
from test_export import DEEP, EXACT, SPLIT, SQUARE, FakeCompiler, matrices, results
from test_runtime_table import sign
from test_settling_fake import matrices as operands_of
from test_torch_routing import expected_times as expected_times
from test_torch_routing import fake_torch as fake_torch

import autotune
from autotune.export import check
from autotune.export.exporter import export_table
from autotune.export.package import render
from autotune.export.tuned import TunedPoint, TunedShape
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, UsageError
from autotune.kernel.config import Config
from autotune.kernel.summation_order import order_of
from autotune.kernel.where import Where
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.settle import settling
from autotune.runtime.table.table import Table, load, parse
from autotune.runtime.torch.routed_engine import RoutedEngine

CHUNKED = Config(bm=128, wm=64, wn=32, flush_k=1024, min_blocks=1)
BATCH, UNTUNED = Gemm(300, 300, 300, batch=8), Gemm(3000, 2000, 900)


def chained() -> Table:
    entries = (rank(Gemm(512, 512, 512), "one"),)
    return make_table(make_kernel("one", make_spec()), entries=entries, order="chain")


@pytest.mark.every(2)
@CARRIED
@pytest.mark.parametrize("order", ["chain", "chunks:1024"])
def test_an_export_holds_kernels_of_its_order_alone(tmp_path: Path, order: str) -> None:
    config = CHUNKED if order == "chunks:1024" else EXACT
    shape = TunedShape(
        SQUARE, (TunedPoint(config, 2700.0, True),), ((config, 2700.0), (SPLIT, 2600.0)), 2600.0
    )
    deep = TunedShape(DEEP, (), ((SPLIT, 30.0), (config, 900.0)), 40.0)
    text = results(shapes=(shape, deep))
    where = Where.parse((), order=order)
    folder = export_table(
        text, tmp_path / "t", FakeCompiler(), matrices=matrices(), where=where, max_kernels=16
    )
    table = load(folder)
    assert table.order == order and f"of order {order}" in repr(table)
    assert {str(order_of(kernel.config)) for kernel in table.kernels} == {order}
    assert len(table.kernels) > len(table.defaults) + 1 or order == "chunks:1024"
    picks = [Chooser(table).pick(Call.packed(gemm)) for gemm in (SQUARE, DEEP, UNTUNED, BATCH)]
    assert [pick.provider for pick in picks] == ["autotune"] * 4 and picks[0].how == "exact"
    assert all(pick.reason.endswith(f"; sums have the order {order}") for pick in picks)


def test_a_table_without_an_order_leaves_such_calls_to_cublas() -> None:
    free, bound = replace(chained(), order=None), chained()
    picks = [Chooser(table).pick(Call.packed(BATCH)) for table in (free, bound)]
    assert [pick.provider for pick in picks] == ["cublas", "autotune"]
    assert "cuBLAS" in picks[0].reason and "cuBLAS" not in picks[1].reason and picks[1].is_looped
    assert "order" not in picks[0].reason


def test_routing_leaves_nothing_alone_that_kernels_of_an_order_serve() -> None:
    for table, reason in (
        (chained(), ""),
        (replace(chained(), order=None), "it is not known how fast cuBLAS is"),
    ):
        chooser = Chooser(table)
        pick = chooser.pick(Call.packed(UNTUNED))
        engine = RoutedEngine(False, chooser.core, "off", table, {}, chooser, FakeDriver(table))
        assert engine.why_not(UNTUNED, pick) == reason


def test_a_launch_for_each_product_of_a_batch_stays_one_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another kernel serves, as it takes the host fewer launches."""
    table, call = chained(), Call.packed(BATCH)
    two = make_kernel("two", make_spec(reduction="two_pass", split_k=2))
    both = make_table(two, *table.kernels)
    chooser = Chooser(both)
    ranked = [Pick("two", "modelled", lambda: "", 2, 3.0), Pick("one", "modelled", lambda: "", 1, 4.0)]
    asked = []
    monkeypatch.setattr(Chooser, "ranked", lambda _, call, num, allowed: asked.append(call) or ranked)
    engine = RoutedEngine(False, chooser.core, "off", both, {}, chooser, FakeDriver(both))
    looped = replace(ranked[0], expected_us=3.0 * BATCH.batch, is_looped=True)
    found = engine._in_few_launches(looped, call, None)
    assert (found.kernel_id, found.is_looped, found.expected_us) == ("one", True, 4.0 * BATCH.batch)
    assert asked == [call.single]


def in_chunks(table: Table, chunk: int = 512) -> Table:
    """The same chains in a table of chunks, in which they serve as deep as one."""
    kernels = tuple(replace(k, spec=replace(k.spec, max_k=chunk)) for k in table.kernels)
    return replace(table, kernels=kernels, order=f"chunks:{chunk}")


def test_a_chain_serves_as_deep_as_a_chunk() -> None:
    table = in_chunks(chained())
    assert parse(render(table)) == table
    kernel = next(kernel for kernel in table.kernels if kernel.id == "one")
    call, deep = (Call.packed(Gemm(64, 64, k)) for k in (512, 513))
    assert call.rejection(kernel) is None
    assert Chooser(table).pick(call).how == "modelled"
    assert deep.rejection(kernel) == "from k = 513 on it sums in another order than its table"
    with pytest.raises(DispatchError, match="from k = 513 on it sums in another order"):
        Chooser(table).pick(deep)


def test_routing_says_the_order(tmp_path: Path, fake_torch: object) -> None:
    for table, told in ((chained(), True), (replace(chained(), order=None), False)):
        folder = write_table(table, tmp_path / f"order_{told}".lower())
        routing = Dispatcher(folder, driver=FakeDriver(table)).torch()
        assert ("sums of all that is served have the order chain" in routing.report()) == told


def test_a_kernel_of_another_order_is_refused() -> None:
    split = make_kernel("split", make_spec(reduction="last_block", split_k=2))
    table = make_table(split)
    assert parse(render(table)).order is None
    with pytest.raises(DispatchError, match="'split' does not sum in the order chain"):
        parse(render(replace(table, order="chain")))
    with pytest.raises(DispatchError, match="'split' does not sum in the order chunks:512"):
        parse(render(in_chunks(table)))
    with pytest.raises(DispatchError, match="no kernel sums in the order chunks:500"):
        parse(render(in_chunks(table, 500)))


def test_an_older_table_has_no_order() -> None:
    tree = json.loads(render(replace(chained(), order=None))) | {"schema_version": 11}
    del tree["order"]
    assert parse(sign(tree)).order is None


@pytest.mark.parametrize(
    ("order", "fault"), [("chain", ""), ("chunks:16", "has other bits than the order chain")]
)
def test_a_check_compares_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, fault: str
) -> None:
    table = replace(chained(), entries=())
    monkeypatch.setattr(check, "SCALES", ((1.0, 0.0), (1.0, -0.5)))
    folder = write_table(table, tmp_path / "t")
    found = [*check.verify_table(folder, driver=FakeDriver(table, summed=order))]
    assert {fault in one.reason for one in found} == {True}
    assert all(one.is_ok for one in found) == (not fault)


def test_the_feasible_set_of_an_order_has_no_other() -> None:
    for order in ("chain", "chunks:512"):
        found = autotune.space("700x300x900", "h200", order=order)
        some = range(0, found.num_points, found.num_points // 50)
        assert {str(order_of(Config.from_dict(found.point(number)))) for number in some} == {order}
    with pytest.raises(UsageError, match="kernels have chain, chunks:256"):
        autotune.space(4096, "h200", order="chunks:384")


def test_conditions_tell_their_order() -> None:
    where = Where.parse("bm=64", 8, "chunks:256")
    assert where.options == " --where bm=64 --max-workspace 8 --order chunks:256"
    assert where.description == "bm=64 and a workspace of at most 8 MiB and the order chunks:256"
    assert where.holds({"flush_k": 256}) and not where.holds({"flush_k": 256, "slice_k": 2})
    assert not where.holds({"flush_k": 256, "foreign": 1}) and bool(Where.parse((), order="chain"))


# ------------------------------------------------------------------------------------------------
# cuBLAS, where it has the bits of the order

MODELLED, TUNED, SMALL = Gemm(16, 36, 24), Gemm(16, 32, 24), Gemm(3, 5, 24)


@pytest.fixture
def served_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Dispatcher, FakeBlas]]:
    """A dispatcher of a table in the order `chain`, or in none, beside a faster cuBLAS that sums so."""
    monkeypatch.delenv("AUTOTUNE_CUBLAS", raising=False)
    isolated(monkeypatch, tmp_path)
    for name in ("MAX_LAUNCHES", "MAX_ROUNDS"):
        monkeypatch.setattr(settling, name, 1)
    kernels = make_kernel("one", make_spec()), make_kernel("other", make_spec(group=4))

    def made(summed: str, order: str | None = "chain", **options: Any) -> tuple[Dispatcher, FakeBlas]:
        entries = (replace(rank(TUNED, "one"), cublas_us=3.0),)
        date = f"2026-11-21T00:00:0{len(order or '')}+00:00"  # of tables that differ
        table = make_table(*kernels, entries=entries, order=order, created_at=date)
        driver = FakeDriver(table, summed="chain")
        blas = FakeBlas(driver, time_us=1.0, summed=summed)
        install(monkeypatch, blas)
        folder = tmp_path / f"table_{order}".lower()
        if not folder.exists():
            write_table(table, folder)
        return Dispatcher(folder, driver=driver, **options), blas

    return made


@pytest.mark.parametrize(("summed", "provider"), [("chain", "cublas"), ("chunks:16", "autotune")])
def test_settling_takes_cublas_only_where_it_has_the_bits(served_by: Any, summed: str, provider: str) -> None:
    """Of what was tuned, too, where it was faster; a later process compares again before it serves."""
    shapes = [(gemm.m, gemm.n, gemm.k) for gemm in (MODELLED, TUNED, SMALL)]
    for _ in range(2):
        table, _ = served_by(summed)
        assert {table.pick(*shape).provider for shape in shapes} == {"autotune"}
        picks = table.settle(shapes)
        assert [pick.provider for pick in picks] == [provider, provider, "autotune"]
        tuned = "settled" if provider == "cublas" else "exact"
        assert [pick.how for pick in picks] == ["settled", tuned, "settled"]
    assert served_by(summed, order=None)[0].settle(shapes[:1])[0].provider == "cublas"


def test_a_first_use_compares_once_and_scaled_products_stay_with_kernels(served_by: Any) -> None:
    table, blas = served_by("chain", settle="first-use")
    a, b, c = operands_of(TUNED)
    expected, operands = autotune.reference(a, b), (OnGpu(a), OnGpu(b), OnGpu(c))
    table.sgemm(*operands)
    assert np.array_equal(c, expected) and blas.served
    for alpha, num in ((1.0, 1), (2.0, 0)):
        before = len(blas.served)
        table.sgemm(*operands, alpha=alpha)
        assert np.array_equal(c, alpha * expected) and len(blas.served) == before + num
    other, blas = served_by("chunks:16", settle="first-use")
    for _ in range(3):
        other.sgemm(*operands)
        assert np.array_equal(c, expected) and len(blas.served) == 1


def test_cublas_is_not_compared_under_capture(served_by: Any) -> None:
    table, blas = served_by("chain", settle="first-use")
    a, b, c = operands_of(TUNED)
    driver = table._driver
    driver.capturing = frozenset({0})
    table.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert not blas.served and np.array_equal(c, autotune.reference(a, b))
    driver.capturing = frozenset()
    table.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert blas.served
