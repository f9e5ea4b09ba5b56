"""benchmarks/any_shape.py without a GPU: what it draws, what it makes of samples, where a command goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_target import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import make_spec

from autotune.facts.device import KNOWN
from autotune.facts.fitted import MOST_DRAWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import UsageError
from autotune.kernel.launch import rejection
from autotune.runtime.choose.chooser import Call
from autotune.store import Store

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import any_shape
import any_shape_figures as figures
import reports
from any_shape import SORTS, drawn_calls, tuned_as
from table_arena import stored_bytes

SCRIPT = Path(any_shape.__file__)
H200 = KNOWN["h200"]
SEEDS = st.integers(0, 10**6)


def draw(num: int, seed: int) -> list[any_shape.JudgedCall]:
    return drawn_calls(num, seed, H200.fma_tflops, H200.bandwidth_gbs)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_seed_draws_all_layouts_and_each_sort(seed: int) -> None:
    found = draw(48, seed)
    assert draw(20, seed) == found[:20]
    assert len({one.call for one in found}) == 48
    layouts = Counter(one.call.gemm.layout for one in found)
    assert layouts["NN"] == 24 and set(layouts) == set(LAYOUTS)
    assert Counter(one.sort for one in found) == dict(zip(SORTS, (24, 12, 12), strict=True))


@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_long_products_are_longer_than_what_a_search_draws(seed: int) -> None:
    found = drawn_calls(8, seed, H200.fma_tflops, H200.bandwidth_gbs, 16, is_long=True)
    sides = [(one.call.gemm.m, one.call.gemm.n) for one in found]
    assert all(min(both) >= 16 and MOST_DRAWN < max(both) <= 2**18 for both in sides)


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_batches_are_strided_and_packed_of_all_layouts(seed: int) -> None:
    found = drawn_calls(16, seed, H200.fma_tflops, H200.bandwidth_gbs, is_batched=True)
    gemms = [one.call.gemm for one in found]
    assert all(gemm.is_batched and not (gemm.shares_a or gemm.shares_b) for gemm in gemms)
    assert {gemm.layout for gemm in gemms} == set(LAYOUTS) and {one.sort for one in found} <= set(SORTS[:2])
    assert all(sum(stored_bytes(one.call)) == one.call.gemm.num_bytes <= 2**30 for one in found)
    assert all(Gemm.parse(str(gemm)) == gemm for gemm in gemms)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_shapes_are_what_their_sort_says(seed: int) -> None:
    for one in draw(12, seed):
        gemm, lds = one.call.gemm, one.call.lds
        extents, packed = (gemm.m, gemm.n, gemm.k), (gemm.lda, gemm.ldb, gemm.ldc)
        rows = (gemm.k if gemm.trans_a else gemm.m, gemm.n if gemm.trans_b else gemm.k, gemm.m)
        padded = [i for i in range(3) if lds[i] != packed[i]]
        assert bool(padded) == (one.sort == "odd leading dimensions")
        assert all(lds[i] % 2 and lds[i] > packed[i] and rows[i] > 1 for i in padded)
        if one.sort == "odd size":
            assert any(extent % 2 for extent in extents)
        else:
            assert all(extent < 16 or extent % 16 == 0 for extent in extents)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(0, 11), st.tuples(*[st.sampled_from((1, 2, 4))] * 3))
def test_what_serves_the_shape_that_is_tuned_instead_serves_the_call(
    seed: int, at: int, vectors: tuple[int, int, int]
) -> None:
    call = draw(12, seed)[at].call
    gemm = tuned_as(call)
    assert call.is_packed <= (gemm == call.gemm)
    vec_a, vec_b, vec_c = vectors
    spec = make_spec(gemm.layout, vec_a=vec_a, vec_b=vec_b, vec_c=vec_c)
    if rejection(spec, gemm.m, gemm.n, gemm.k, Call.packed(gemm).lds) is None:
        assert call.rejection(SimpleNamespace(layout=gemm.layout, spec=spec, variant=spec.variant)) is None
    tiles = [-(-extent // 16) for extent in (gemm.m, gemm.n, gemm.k)]
    assert tiles == [-(-extent // 16) for extent in (call.gemm.m, call.gemm.n, call.gemm.k)]


# ------------------------------------------------------------------------------------------------
# Figures


def against(shape: str, error: float = 1.0, **times_us: float) -> dict[str, object]:
    """A shape on which launches took so long in each of four rounds; x is picked."""
    samples = {name: [time_us] * 4 for name, time_us in times_us.items()}
    errors = {"normal": {name: error * 1e-6 if name == "x" else 1e-6 for name in samples}}
    first = {name: None for name in samples if name != "cublas"}
    facts = {"name": "x", "provider": "autotune", "first": first, "samples_us": samples, "errors": errors,
             "session": 0}  # fmt: skip
    gemm = Gemm.parse(shape)
    return {"shape": str(gemm), "lds": Call.packed(gemm).lds, "sort": "round", "pick": facts}


def reference(shape: str, **times_us: float) -> dict[str, object]:
    samples = {name: [time_us] * 4 for name, time_us in times_us.items()}
    return against(shape, x=1.0, cublas=1.0) | {
        "reference": {"name": "x", "first": ["x", "y"], "samples_us": samples, "session": 0}
    }


def report(*shapes: dict[str, object], num_tuned: int = 9) -> dict[str, object]:
    session = {"date": "2026-11-23T00:00:00+00:00", "environment": {"cublas_version": "13.1"}}
    table = {"created_at": "now", "num_kernels": dict.fromkeys(LAYOUTS, 7), "num_tuned": num_tuned}
    return {
        "benchmark": "any_shape", "seed": 77, "gpu": "NVIDIA H200", "policy": "cold", "table": table,
        "sessions": [session], "shapes": list(shapes),
    }  # fmt: skip


def test_a_pick_and_the_settled_choice_are_held_against_cublas() -> None:
    found = figures.Against.of(against("4096", x=10.0, y=8.0, cublas=12.0))
    assert (found.modelled, found.served, found.settled) == (1.2, 1.2, 1.5)
    assert found.errors == {"normal": 1.0}


def test_cublas_serves_where_it_is_the_provider_or_was_the_fastest() -> None:
    shape = against("4096", x=10.0, y=8.0, cublas=6.0)
    shape["pick"]["provider"] = "cublas"
    found = figures.Against.of(shape)
    assert (found.modelled, found.served, found.settled) == (0.6, 1.0, 1.0)
    assert found.is_left("served") and found.is_left("settled")


def test_what_is_settled_on_calls_is_held_against_cublas_and_first_use() -> None:
    shape = against("4096", x=10.0, y=8.0, cublas=9.0)
    live = {"name": "x", "is_settled": True, "cost_calls": 1.5}
    shape["pick"]["live"] = live | {"again_us": [{"x": [10.0], "cublas": [9.0]}] * 3}
    found = figures.OnCalls.of(figures.Against.of(shape))
    assert (found.over_cublas, found.over_settled, found.stays_slower) == (0.9, 0.8, True)
    assert figures.of_total_time_settled([found]) == pytest.approx(0.8)
    bars = {bar.what: bar for bar in figures.bars([found.against], [], 0, is_of_one=False)}
    assert not bars["shapes that stay below 0.98"].is_met and bars["samples cost at most, in calls"].is_met
    shape["pick"]["live"]["again_us"][0] = {"x": [9.0], "cublas": [9.0]}
    assert not figures.OnCalls.of(found.against).stays_slower
    assert "settled on calls" in figures.text(report(shape))


def test_the_tenth_percentile_is_of_the_slow_ones() -> None:
    assert figures.tenth([0.5, *[1.0] * 8]) == 0.5 and figures.tenth([0.5, 0.6, *[1.0] * 9]) == 0.6


def test_seconds_are_told_beside_the_mean_of_ratios() -> None:
    found = [
        figures.Against.of(one)
        for one in (against("64", x=1.0, cublas=4.0), against("4096", x=100.0, cublas=96.0))
    ]
    found[1].shape["pick"]["provider"] = "cublas"
    found[1] = figures.Against.of(found[1].shape)
    assert figures.of_total_time(found, "served") == 100 / 97
    assert [one.is_left("served") for one in found] == [False, True]


def test_what_is_chosen_by_some_rounds_is_told_by_the_others() -> None:
    shape = against("4096", x=10.0, y=10.0, cublas=10.0)
    shape["pick"]["samples_us"]["y"] = [5.0, 20.0, 5.0, 20.0]  # lucky where it is chosen
    assert figures.Against.of(shape).settled == 0.5


def test_what_is_too_inaccurate_is_neither_the_best_kernel_nor_the_reference() -> None:
    shape = reference("4096", x=10.0, y=8.0, z=5.0, alone=4.0, cublas=2.0)
    normal = {"x": 1.0, "y": 1.5, "z": 1.6, "alone": 1.0, "cublas": 1.0}
    shape["reference"]["errors"] = {"normal": normal, "uniform": dict.fromkeys(normal, 1.0)}
    found = figures.Reached.of(shape)
    assert (found.portfolio, found.modelled, found.settled) == (0.5, 0.8, 1.0)
    normal["alone"] = 2.0
    found = figures.Reached.of(shape)
    assert (found.portfolio, found.over_cublas) == (1.0, 0.25)
    free = figures.Reached.of(shape, of_any_error=True)
    assert (free.portfolio, free.modelled) == (0.8, 0.5)
    every = dict.fromkeys(normal, 9.0) | {"cublas": 1.0}
    shape["reference"]["errors"]["uniform"] = every
    assert (
        figures.Reached.of(shape).portfolio == 1.0
    )  # nothing is accurate: the best of the table all the same


def test_the_reference_is_the_best_but_cublas() -> None:
    found = figures.Reached.of(reference("4096", x=10.0, y=8.0, z=5.0, alone=4.0, cublas=2.0))
    assert (found.over_cublas, found.portfolio) == (0.5, 0.8)
    assert (found.modelled, found.settled) == (0.5, 0.625)
    assert (found.modelled_in_all, found.settled_in_all) == (0.4, 0.5)
    better = figures.Reached.of(reference("4096", x=10.0, y=8.0, z=5.0, alone=9.0, cublas=2.0))
    assert better.portfolio == 1.0


def test_bars_are_of_the_worst_kind() -> None:
    deep, square = (
        reference("64x64x65536", x=2.0, y=2.0, alone=1.0),
        reference("4096", x=1.0, y=1.0, alone=1.0),
    )
    for one in (deep, square):
        one["reference"]["samples_us"]["cublas"] = [1.0] * 4
    reached = [figures.Reached.of(one) for one in (deep, square)]
    bars = {bar.what: bar for bar in figures.bars([], reached, 0, is_of_one=False)}
    assert bars["portfolio / reference (one side up to 64)"].figure == 0.5
    assert not bars["portfolio / reference (one side up to 64)"].is_met
    assert bars["pick / portfolio, modelled (one side up to 64)"].is_met


def test_bars_of_all_shapes() -> None:
    shapes = [against("4096", x=10.0, cublas=13.0)] * 98 + [
        against("4096", error=1.6, x=10.0, cublas=9.5)
    ] * 2
    found = [figures.Against.of(one) for one in shapes]
    bars = {bar.what: bar for bar in figures.bars(found, [], 1, is_of_one=False)}
    missed = {what for what, bar in bars.items() if not bar.is_met}
    errors = {"largest error of a kernel, times cuBLAS's", "the same with cuBLAS as a provider"}
    assert missed == {"shapes that failed"} | errors
    for one in shapes[-1:]:
        one["pick"]["provider"] = "cublas"
    bars = {bar.what: bar for bar in figures.bars(found, [], 0, is_of_one=False)}
    assert bars["the same with cuBLAS as a provider"].figure == 1.0
    of_one = figures.bars(found, [], 0, is_of_one=True)
    assert [bar.least for bar in of_one if "mean" in bar.what] == [1.10, 1.10]


def test_a_report_is_printed_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "a.json.xz"
    failed = against("5x5x20000:TN") | {"pick": {"fault": "CUDA_ERROR_ILLEGAL_ADDRESS", "session": 0}}
    strided = reference("4096x1x64", x=2.0, y=1.0, alone=1.0, cublas=3.0)
    strided |= {"sort": "odd leading dimensions", "lds": [67, 1, 3]}
    reports.keep(path, report(against("4096", error=2.0, x=10.0, cublas=9.0), strided, failed))
    done = subprocess.run(
        [sys.executable, SCRIPT, "--report", path], capture_output=True, text=True, check=True
    )
    assert "2 of 3 shapes against cuBLAS, 1 against a reference" in done.stdout
    assert "worst against cuBLAS: 4096x4096x4096:NN 0.900, 4096x1x64:NN ld 67,1,3 1.000" in done.stdout
    assert "5x5x20000:TN FAILED: CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout
    assert "1 shapes above 1.5: 4096x4096x4096:NN 2.00" in done.stdout
    assert "2026-11-23; seed 77" in done.stdout
    assert re.search(r"^all +2 +0% +0.950 +0.909 +50% +1.000 +1.000$", done.stdout, re.MULTILINE)
    assert "error of settled kernels, times cuBLAS's: most 1.00; 0 of 1 above 1.5\n" in done.stdout


def test_reports_are_printed_together_and_beside_each_other() -> None:
    first = report(against("4096", x=10.0, cublas=9.0), against("64x8x640", x=1.0, cublas=2.0))
    second = report(against("4096", x=20.0, cublas=27.0), against("96x8x640", x=1.0, cublas=2.0))
    shown = figures.text(first, second)
    assert "4 of 4 shapes against cuBLAS, 0 against a reference" in shown
    assert "1 products are in both: in the second, kernels that are picked take 2.000 times" in shown
    assert "cuBLAS 3.000 times" in shown
    assert "are in both" not in figures.text(first, report(against("96x8x640", x=1.0, cublas=2.0)))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"benchmark": "vs_cublas"}', b"\xff"])
@pytest.mark.parametrize("name", ["a.json", "a.json.xz"])
def test_another_file_is_no_report(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"holds no report of any_shape \(.*; name another file"):
        reports.read(tmp_path / name, "any_shape")


# ------------------------------------------------------------------------------------------------
# Commands


def options(**changes: object) -> Namespace:
    values = {
        "report": None, "part": "pick", "gpu": "0", "table": None, "seed": 77, "num": 6, "alone": 3,
        "seconds_alone": 60.0, "db": None, "rounds": 15, "seconds": None, "out": None, "least": 1,
        "batches": False, "long": False, "live": False,
    }  # fmt: skip
    return Namespace(**(values | changes))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[FakeTarget]:
    """A GPU that is not there; each command opens a target of its own."""
    opened: list[FakeTarget] = []

    def open_target(*arguments: object, **more: object) -> FakeTarget:
        opened.append(FakeTarget())
        return opened[-1]

    monkeypatch.setattr(any_shape.targets, "open_target", open_target)
    monkeypatch.setattr(any_shape, "find_gpu", lambda selector: SimpleNamespace(index=0))
    monkeypatch.setattr(any_shape, "device_limits", lambda index: H200)
    return opened


def test_each_shape_is_searched_alone_and_once(
    fake: list[FakeTarget], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    db = str(tmp_path / "alone.db")
    clock = iter(range(0, 10**6, 10))
    monkeypatch.setattr(any_shape, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    any_shape._run(options(part="alone", db=db, seconds=25.0))
    assert "2 of 3 shapes are done; run the same command again to resume" in capsys.readouterr().err
    any_shape._run(options(part="alone", db=db))
    any_shape._run(options(part="alone", db=db))
    wanted = [tuned_as(one.call) for one in draw(3, 77)]
    searched = [list(dict.fromkeys(gemm for gemm, _ in target.submitted)) for target in fake]
    assert searched == [wanted[:2], wanted[2:], []]
    with Store.open_existing(db) as store:
        assert {s.study.gemm for s in store.studies() if store.final(s.study, None)} == set(wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": None}, "--seed"),
        ({"rounds": 1}, "too few"),
        ({}, "needs a --table"),
        ({"part": "alone"}, "needs a --db"),
    ],
)
def test_what_a_command_lacks_is_told(fake: list[FakeTarget], changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        any_shape._run(options(**changes))
