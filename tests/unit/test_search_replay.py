"""The benchmarks of searches: what they read off runs, against runs worked out by hand and a known best."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import search_cli
import search_replay
from curves import Curve, Panel, draw
from replay_runs import Job, Run, mean_interval, search, search_all

from autotune.facts.gemm import Gemm
from autotune.recording.replay import ReplayTarget

CLBLAST = Path(__file__).parents[1] / "data" / "clblast_t1.json.gz"
GEMM = Gemm(4096, 4096, 4096)


def _job(**changes) -> Job:
    options = {"path": CLBLAST, "gemm": GEMM, "sampler": "random", "seed": 0, "trials": 40}
    options |= {"seconds": float("inf"), "in_flight": 1, "is_bare": False}
    return Job(**(options | changes))


def test_percents_by_trials_and_by_seconds() -> None:
    run = Run(
        _job(), 90.0, num_trials=[1, 5, 9], seconds=[2.0, 3.5, 8.0], best_us=[180.0, 120.0, 90.0], ask_ms=1.0
    )
    assert [run.percent_after_trials(n) for n in (0, 1, 4, 5, 8, 9, 100)] == [0, 50, 50, 75, 75, 100, 100]
    assert [run.percent_after_seconds(s) for s in (1.9, 2.0, 3.4, 3.5, 7.9, 8.0)] == [0, 50, 50, 75, 75, 100]


@pytest.mark.every(2)
@pytest.mark.parametrize("sampler", ["autotune", "random"])
def test_a_run_follows_the_best_of_its_trials(sampler: str) -> None:
    run = search(_job(sampler=sampler, trials=35))
    assert run.best_us == sorted(run.best_us, reverse=True)
    assert run.num_trials == sorted(set(run.num_trials)) and run.num_trials[-1] <= 35
    assert run.seconds == sorted(run.seconds) and run.seconds[0] > 0
    target = ReplayTarget(CLBLAST)
    assert run.optimum_us == target.optimum(GEMM)[1] <= run.best_us[-1]


def test_one_at_a_time_takes_as_long_as_all_its_trials_together() -> None:
    """Some candidates are cut short: no less than what the first sample takes, no more than all."""
    run = search(_job(trials=30))
    measurements = ReplayTarget(CLBLAST)
    space = measurements.space(GEMM)
    longest_s = max(
        (found := measurements.look_up(GEMM, space.point(i), None)).compile_s
        + found.verify_s
        + found.measure_s
        for i in range(len(space))
    )
    assert run.seconds[-1] <= run.num_trials[-1] * longest_s


def test_with_more_in_flight_random_points_are_the_same() -> None:
    alone, ahead = search(_job(trials=60)), search(_job(trials=60, in_flight=18))
    assert ahead.percent_after_trials(60) == alone.percent_after_trials(60)
    assert ahead.seconds[0] < alone.seconds[-1]


def test_it_ends_at_the_optimum_and_in_time() -> None:
    whole = search(_job(trials=10**6))
    assert whole.percent_after_trials(10**6) == 100.0
    assert search(_job(trials=10**6, seconds=20.0)).seconds[-1] < 25.0


@pytest.mark.stress
def test_processes_give_the_same_runs() -> None:
    jobs = [_job(seed=seed, trials=20) for seed in range(3)]
    alone, combined = list(search_all(jobs, 1)), list(search_all(jobs, 2))
    assert [run.best_us for run in alone] == [run.best_us for run in combined]


@given(st.lists(st.lists(st.floats(50, 100), min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_interval_holds_the_mean(percents) -> None:
    mean, low, high = mean_interval(np.array(percents))
    assert mean == pytest.approx(np.mean(percents))
    assert min(map(min, percents)) - 1e-9 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= max(map(max, percents)) + 1e-9


def test_spaces_do_not_widen_the_interval() -> None:
    """Two spaces of quite different percents whose seeds agree: nothing is left to chance."""
    assert mean_interval(np.array([[60.0] * 5, [100.0] * 5])) == (80.0, 80.0, 80.0)


@pytest.mark.stress
def test_tables_and_files_hold_every_space_and_sampler(tmp_path: Path, monkeypatch, capsys) -> None:
    out, svg = tmp_path / "o.json.xz", tmp_path / "o.svg"
    arguments = [str(CLBLAST), str(CLBLAST), "--seeds", "2", "--samplers", "random,autotune", "--jobs", "1"]
    arguments += ["--trials", "5,31", "--seconds", "4", "--out", str(out), "--svg", str(svg)]
    monkeypatch.setattr(sys, "argv", ["search_replay.py", *arguments])
    search_replay.main()
    message = capsys.readouterr().out
    assert message.count("all spaces") == 4 and "31 trials" in message and "4 seconds" in message
    data = json.loads(lzma.decompress(out.read_bytes()))
    assert {(row["space"], row["sampler"]) for row in data["trials"]} >= {("all spaces", "random")}
    for unit, last in (("trials", "31"), ("seconds", "4")):
        for row in data[unit]:
            after = row["percent_after"][last]
            assert 0 <= after["worst"] <= after["low"] <= after["mean"] <= after["high"] <= 100
    assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")


def test_curves_stay_inside_their_panel() -> None:
    bands = [(30.0, 10.0, 50.0), (99.5, 98.0, 120.0)]
    text = draw("<&>", "", [Panel("trials", (100.0,), [Curve("a & b", "#123456", (1.0, 100.0), bands)])])
    root = ElementTree.fromstring(text)
    places = [p.split(",") for shape in root.iter() for p in shape.get("points", "").split()]
    assert places
    for x, y in places:
        assert 0 <= float(x) <= 480 and 92 <= float(y) <= 340 - 48


@pytest.mark.stress
def test_the_command_line_is_read_as_it_is_told(tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "o.json"
    arguments = [str(CLBLAST), "--trials", "6", "--seeds", "2", "--sampler", "random", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["search_cli.py", *arguments])
    search_cli.main()
    assert "4096x4096x4096:NN" in capsys.readouterr().out
    runs = json.loads(out.read_text())["runs"]
    assert [(run["seed"], run["num_trials"]) for run in runs] == [(0, 6), (1, 6)]
    optimum_us = ReplayTarget(CLBLAST).optimum(GEMM)[1]
    assert all(run["optimum_time_us"] == optimum_us <= run["best_time_us"] for run in runs)


@pytest.mark.stress
def test_a_command_that_fails_ends_it(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["search_cli.py", str(CLBLAST), "--sampler", "none", "--seeds", "1"])
    with pytest.raises(SystemExit, match="'none' is unknown"):
        search_cli.main()
