"""What a program calls most is searched first, and longest, and what that gains is told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_here import run_here
from hypothesis import given
from hypothesis import strategies as st
from kind_cases import FIRST, SECOND, add
from table_cases import make_kernel, make_spec, make_table, rank, write_table
from typer.testing import CliRunner

from autotune import tuning
from autotune.cli import coverage
from autotune.cli.app import app
from autotune.estimate.counts import rendered
from autotune.facts.cublas_calls import adds_bias_within
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, UsageError
from autotune.kernel.launch import BIAS, Variant
from autotune.recording.replay import ReplayTarget
from autotune.runtime.choose import chooser
from autotune.runtime.choose.chooser import Counted
from autotune.runtime.native import core
from autotune.search import Options
from autotune.search.called import SEARCHED_SHARE, gain_of, in_order, weights
from autotune.search.progress import Best, Event, ShapeStarted
from autotune.store import Store
from autotune.suite import CallSignature

RECORDED = Path(__file__).parents[2] / "studies/recorded/h200.json.gz"
REPLAY = f"replay:{RECORDED}"
_SECONDS = st.dictionaries(
    st.builds(Gemm, *3 * [st.integers(1, 9)]), st.floats(1e-6, 1e6), min_size=1, max_size=20
)


@given(_SECONDS)
def test_what_takes_most_comes_first_and_the_last_hundredth_is_left_out(seconds):
    due = in_order(seconds)
    taken = [seconds[gemm] for gemm in due]
    left = [of for gemm, of in seconds.items() if gemm not in due]
    assert due and taken == sorted(taken, reverse=True) and max(left, default=0) <= taken[-1]
    assert sum(taken) >= SEARCHED_SHARE * sum(seconds.values()) * (1 - 1e-9)
    assert sum(taken[:-1]) < SEARCHED_SHARE * sum(seconds.values())  # no more than it takes


@given(_SECONDS)
def test_weights_follow_what_calls_take(seconds):
    found = weights(seconds)
    assert math.isclose(sum(found.values()), len(seconds))
    first = next(iter(seconds))
    for gemm, taken in seconds.items():
        assert math.isclose((found[gemm] / found[first]) ** 2, taken / seconds[first], rel_tol=1e-6)


def _found(gemm: Gemm, time_us: float, cublas_us: float | None) -> Any:
    return SimpleNamespace(gemm=gemm, verdict=Best({}, time_us, cublas_us, 1.0))


def test_a_gain_is_of_all_calls():
    a, b, c = Gemm(1, 1, 1), Gemm(2, 2, 2), Gemm(3, 3, 3)
    calls, expected = {a: 10, b: 5, c: 7}, {a: 9.0, b: 9.0, c: 3.0}
    shapes = [_found(a, 2.0, 4.0), _found(b, 6.0, 6.0), SimpleNamespace(gemm=c, verdict=None)]
    gain = gain_of(shapes, calls, expected)
    assert (gain.num_calls, gain.left_shapes, gain.left_calls) == (15, 1, 7)
    assert math.isclose(gain.tuned_s, 50e-6) and math.isclose(gain.cublas_s or 0, 70e-6)
    assert math.isclose(gain.speedup or 0, 1.4) and math.isclose(gain.left_s, 21e-6)
    biased = gain_of(shapes, calls, expected, {a: 4, b: 5}, {a: 5.0, c: 9.0})
    assert math.isclose(biased.cublas_s or 0, 74e-6) and biased.tuned_s == gain.tuned_s
    alone = gain_of([_found(a, 2.0, None)], {a: 1}, expected)
    assert alone.cublas_s is None and alone.speedup is None and alone.left_calls == 0


@pytest.fixture(scope="module")
def gemms(tmp_path_factory: pytest.TempPathFactory) -> list[Gemm]:
    db = str(tmp_path_factory.mktemp("recorded") / "a.db")
    result = tuning.tune(gpu=REPLAY, trials=1, db=db, note=lambda shown: None)
    return [shape.gemm for shape in result.shapes]


def test_a_search_goes_by_what_calls_take(gemms, tmp_path):
    """The last shape is called for the most: it begins first and has the most trials."""
    started: list[Gemm] = []

    def tell(event: Event) -> None:
        if isinstance(event, ShapeStarted):
            started.append(event.gemm)

    calls = {gemm: 1 + 10**6 * (gemm == gemms[-1]) for gemm in gemms}
    named = gemms[0]
    found = tuning.tune(
        named,
        gpu=REPLAY,
        trials=3,
        calls=calls,
        db=str(tmp_path / "a.db"),
        on_event=tell,
        note=lambda _: None,
    )
    assert started == [gemms[-1], named]  # the others take less than a hundredth, and nobody named them
    assert found.gain is not None and found.gain.num_calls == 10**6 + 2
    assert found.gain.left_shapes == len(gemms) - 2 == found.gain.left_calls


@pytest.mark.stress
def test_what_was_measured_before_counts(gemms, tmp_path):
    """The order goes by what a call takes: of two that are called as often, the slower one comes first."""
    started: list[Gemm] = []

    def tell(event: Event) -> None:
        if isinstance(event, ShapeStarted):
            started.append(event.gemm)

    db = str(tmp_path / "a.db")
    first = tuning.tune(gpu=REPLAY, trials=12, db=db, note=lambda _: None)
    times = {shape.gemm: shape.best.measurement.time_us for shape in first.shapes if shape.best}
    tuning.tune(
        gpu=REPLAY, trials=3, calls=dict.fromkeys(gemms, 7), db=db, on_event=tell, note=lambda _: None
    )
    assert started == sorted(gemms, key=lambda gemm: -times[gemm])[: len(started)] and len(started) > 1


def test_whoever_has_had_the_least_of_its_share_is_requested_next():
    shapes = [SimpleNamespace(gemm=Gemm(m, 1, 1), share=(4.0, 8)) for m in (1, 2, 3)]
    options = Options(weights={Gemm(1, 1, 1): 0.5, Gemm(2, 1, 1): 2.0})
    shares = [options.weighted_share(shape) for shape in shapes]
    assert shares == [(8.0, 16.0), (2.0, 4.0), (4.0, 8.0)]


def _write(path: Path, *counts: tuple[CallSignature, int]) -> Path:
    folder = path.with_name(f"{path.name}.d")
    folder.mkdir()
    text = rendered(Counted(*kind, "plain", 1, "autotune", count) for kind, count in counts)
    (folder / "host-1-2.json").write_text(text)
    return path


def test_the_command_searches_what_was_recorded_and_tells_the_gain(gemms, tmp_path):
    calls = _write(tmp_path / "calls.json", *((CallSignature.packed(gemm), 1000) for gemm in gemms[:2]))
    command = ("search", "--gpu", REPLAY, "--suite", calls, "--trials", "20", "--db", tmp_path / "a.db")
    facts = json.loads(run_here(*command, "--json").stdout)
    assert facts["gain"]["num_calls"] == 2000 and facts["gain"]["left_calls"] == 0
    by_hand = sum(1e-3 * shape["best_time_us"] for shape in facts["shapes"])
    assert math.isclose(facts["gain"]["tuned_s"], by_hand, rel_tol=1e-6)
    text = run_here(*command).stdout
    assert "The program's 2,000 calls of searched shapes take " in text and "by cuBLAS: " in text
    assert f"export-table --db {tmp_path / 'a.db'} --suite {calls}" in text.splitlines()[-1]


def test_calls_that_add_a_bias_are_compared_with_the_cublas_that_does(gemms, tmp_path):
    """A search times it; a recording has none, so that the database has a time of it."""
    gemm = next(filter(adds_bias_within, gemms))
    packed = CallSignature.packed(gemm)
    calls = _write(tmp_path / "calls.json", (packed, 1000), (packed._replace(epilogue=BIAS), 3000))
    command = ("search", "--gpu", REPLAY, "--suite", calls, "--trials", "5", "--db", tmp_path / "a.db")
    facts = json.loads(run_here(*command, "--json").stdout)
    target, cublas_us = ReplayTarget(REPLAY.removeprefix("replay:")), facts["shapes"][0]["cublas_time_us"]
    assert math.isclose(facts["gain"]["cublas_s"], 4e-3 * cublas_us, rel_tol=1e-6)
    with Store.open(tmp_path / "a.db") as store:
        times = {gemm: 2.5 * cublas_us}
        store.add_cublas_times(target.environment, target.policy, times, has_bias=True)
    facts = json.loads(run_here(*command, "--json").stdout)
    assert math.isclose(facts["gain"]["cublas_s"], 8.5e-3 * cublas_us, rel_tol=1e-6)


# Coverage


TUNED, BATCHED, DEEP = Gemm(128, 128, 64), Gemm(64, 64, 64, batch=4), Gemm(70, 66, 3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = make_table(
        make_kernel("fast", make_spec(vec_a=4, vec_b=4, vec_c=4)), make_kernel("plain", make_spec()),
        entries=(rank(TUNED, "fast"),),
    )  # fmt: skip
    return write_table(table, tmp_path / "table")


def test_coverage_is_told_by_calls_and_by_time(folder, tmp_path):
    packed = CallSignature.packed(TUNED)
    kinds = [
        (packed, 100),
        (packed._replace(lds=(65, 128, 128)), 10),  # tuned, but not with such rows
        (packed._replace(alignment=(4, 16, 16)), 5),
        (CallSignature.packed(DEEP), 1),
    ]
    calls = _write(tmp_path / "calls.json", *kinds)
    facts = json.loads(run_here("coverage", calls, folder, "--json").stdout)
    ways = facts["ways"]
    assert facts["num_calls"] == 116 and facts["num_kinds"] == 4
    assert {way: found["num_calls"] for way, found in ways.items()} == {
        "tuned": 100, "modelled": 16, "cublas": 0, "missed": 0,
    }  # fmt: skip
    assert math.isclose(sum(found["share_of_seconds"] for found in ways.values()), 1)
    assert math.isclose(sum(found["seconds"] for found in ways.values()), facts["seconds"])
    assert all(
        "was tuned, but packed and aligned" in one["why"]
        for one in facts["not_tuned"]
        if "128" in one["shape"]
    )
    seconds = [one["seconds"] for one in facts["not_tuned"]]
    assert len(seconds) == 3 and seconds == sorted(seconds, reverse=True)
    text = run_here("coverage", calls, folder, "--limit", "2").stdout
    assert "116 calls of 4 kinds" in text and "86.2%" in text
    assert f"Next: autotune search --suite {calls}" in text


def test_calls_for_an_epilogue_that_the_table_lacks_are_missed(folder, tmp_path):
    packed = CallSignature.packed(TUNED)
    calls = _write(tmp_path / "calls.json", (packed, 3), (packed._replace(epilogue=BIAS), 4))
    facts = json.loads(run_here("coverage", calls, folder, "--json").stdout)
    assert (facts["ways"]["tuned"]["num_calls"], facts["ways"]["missed"]["num_calls"]) == (3, 4)
    (missed,) = facts["not_tuned"]
    assert missed["epilogue"] == "bias" and "--epilogue bias" in missed["why"]
    assert f"{TUNED} bias" in run_here("coverage", calls, folder).stdout


def test_without_the_core_no_call_is_called_missed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(core, "library", lambda: None)
    calls = _write(tmp_path / "calls.json", (CallSignature.packed(TUNED), 3))
    fault = CliRunner().invoke(app, ["coverage", str(calls), str(folder)]).exception
    assert isinstance(fault, DispatchError) and "products need the core in C" in str(fault)


def test_a_reason_beside_a_shape_does_not_repeat_it():
    one = {"shape": "9x8x7:NN", "ld": (7, 8, 8), "align": (16, 16, 16), "count": 1, "seconds": 1.0}
    one |= {"served": "x", "epilogue": None}
    for why, shown in (
        ("9x8x7:NN was not tuned: the least modelled time", "the least modelled time"),
        ("9x8x7:NN was tuned, but packed and aligned: x", "was tuned, but packed and aligned: x"),
        ("the result has no elements", "the result has no elements"),
    ):
        assert coverage._row(one | {"why": why}, 2.0) == ("9x8x7:NN", "1", "50.0%", "x", shown)


def test_a_reason_names_times_without_an_exponent():
    found = SimpleNamespace(is_cublas=True, cublas_us=5.303e4, margin=0.3)
    assert "cuBLAS is expected to take 53.03 ms, and" in chooser._why_cublas(found)
    found.margin = 0.0
    assert chooser._why_cublas(found) == "; cuBLAS was faster, with 53.03 ms"


def test_coverage_tells_what_cublas_alone_would_take(tmp_path):
    """Of the kinds of which that is known: here one that is tuned, and one that cuBLAS was faster on."""
    slow, fast, unknown = TUNED, Gemm(256, 128, 64), Gemm(512, 128, 64)
    beside = ((slow, 30.0), (fast, 6.0), (unknown, None))
    entries = tuple(replace(rank(gemm, "fast"), cublas_us=us) for gemm, us in beside)
    table = make_table(make_kernel("fast", make_spec(), None), entries=entries)
    folder = write_table(table, tmp_path / "table")
    (ranked,) = {entry.ranked[0].time_us for entry in table.entries}
    calls = _write(
        tmp_path / "calls.json", *((CallSignature.packed(gemm), 10) for gemm in (slow, fast, unknown))
    )
    facts = json.loads(run_here("coverage", calls, folder, "--json").stdout)
    assert math.isclose(facts["cublas_seconds"], 10 * 36e-6)
    own_s = 10 * (ranked + min(ranked, 6.0)) * 1e-6
    assert math.isclose(facts["speedup"], 360e-6 / own_s)
    assert math.isclose(facts["known_share"], own_s / (own_s + 10 * ranked * 1e-6))
    assert math.isclose(facts["ways"]["tuned"]["speedup"], 30 / ranked)
    assert facts["ways"]["cublas"]["speedup"] == 1 and facts["ways"]["missed"]["speedup"] is None
    text = run_here("coverage", calls, folder).stdout
    assert "0.00036 s by cuBLAS alone" in text and "for which that is known" in text
    alone = _write(tmp_path / "alone.json", (CallSignature.packed(unknown), 10))
    assert "not known" in run_here("coverage", alone, folder).stdout


def test_coverage_is_told_for_each_kind_of_gpu(tmp_path):
    folder = write_table(FIRST, tmp_path / "t")
    add(replace(SECOND, entries=()), folder)
    calls = _write(tmp_path / "calls.json", (CallSignature.packed(TUNED), 7))
    facts = json.loads(run_here("coverage", calls, folder, "--json").stdout)
    (other,) = facts["other_gpus"]
    assert (facts["gpu"], facts["ways"]["tuned"]["num_calls"]) == ("NVIDIA H200", 7)
    assert (other["gpu"], other["ways"]["tuned"]["num_calls"]) == ("NVIDIA H100", 0)
    text = run_here("coverage", calls, folder).stdout
    assert "for NVIDIA H200" in text and "for NVIDIA H100" in text and "Next: " in text


def test_what_no_kernel_serves_well_is_missed(tmp_path):
    """A layout for which the table has its default alone, without a model."""
    table = make_table(make_kernel("nn", make_spec(), None))
    folder = write_table(table, tmp_path / "table")
    path = tmp_path / "calls.toml"
    path.write_text(
        "[[shape]]\nm = 8\nn = 8\nk = 8\ncount = 3\n[[shape]]\nm = 8\nn = 8\nk = 8\nbatch = 2\ncount = 4\n"
    )
    facts = json.loads(run_here("coverage", path, folder, "--json").stdout)
    whys = {one["shape"]: (one["served"], one["why"]) for one in facts["not_tuned"]}
    assert whys["8x8x8b2:NN"][0] == "cublas" and "a launch for each product" in whys["8x8x8b2:NN"][1]
    assert facts["seconds"] > 0
    assert facts["ways"]["cublas"]["num_calls"] == 4


def test_batches_are_told_by_what_serves_them(tmp_path):
    """The very batch, one with some more products, one that is too far, and one that is a single product."""
    many = make_kernel("many", make_spec(variant=Variant(is_batched=True)), None)
    one = make_kernel("one", make_spec(), None)
    entries = (rank(Gemm(64, 64, 64, batch=8), "many"), rank(Gemm(512, 64, 64), "one"))
    folder = write_table(make_table(many, one, entries=entries), tmp_path / "table")
    calls = {8: 3, 9: 5, 40: 7}
    rows = [f"m = 64\nn = 64\nk = 64\nbatch = {batch}\ncount = {count}\n" for batch, count in calls.items()]
    rows.append('m = 64\nn = 64\nk = 64\nbatch = 8\nshared = "b"\ncount = 11\n')
    path = tmp_path / "calls.toml"
    path.write_text("".join(f"[[shape]]\n{row}" for row in rows))
    facts = json.loads(run_here("coverage", path, folder, "--json").stdout)
    ways = {way: found["num_calls"] for way, found in facts["ways"].items()}
    assert ways == {"tuned": 3 + 11, "modelled": 5, "cublas": 7, "missed": 0}


def test_calls_of_which_nothing_is_known_are_missed(folder, tmp_path):
    path = tmp_path / "calls.json"
    path.write_text('{"version": 1, "shape": [{"m": 128, "n": 128, "k": 64, "count": 3}], "others": 7}')
    facts = json.loads(run_here("coverage", path, folder, "--json").stdout)
    assert facts["num_calls"] == 10 and facts["ways"]["missed"]["num_calls"] == 7
    assert facts["ways"]["missed"]["share_of_calls"] == 0.7


def test_what_is_not_there_is_told_with_the_next_step(folder, tmp_path):
    for arguments, message in (
        ((tmp_path / "none.json", folder), "no suite at"),
        (
            (_write(tmp_path / "calls.json", (CallSignature.packed(DEEP), 1)), tmp_path / "none"),
            "no table.json in",
        ),
    ):
        fault = CliRunner().invoke(app, ["coverage", *map(str, arguments)]).exception
        assert isinstance(fault, UsageError | DispatchError) and message in str(fault)
