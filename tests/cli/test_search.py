"""`autotune search` on a recorded space: results, resuming, interruption, what is told where."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.report import numbers_of
from autotune.cli.search import _WHY
from autotune.export.exporter import cut_to_chosen
from autotune.export.from_store import read_results
from autotune.facts.device import known_limits
from autotune.kernel.config import Config
from autotune.search import DEFAULT_SAMPLER, SAMPLERS, StopReason
from autotune.store import Store

from .conftest import CUBLAS_US, ENVIRONMENT, RECORDED_ON, SQUARE, measured, points
from .runner import REPOSITORY, run


def search(recording: Path, db: Path, *arguments: str | Path) -> dict[str, Any]:
    done = run("search", "--gpu", f"replay:{recording}", "--db", db, "--json", *arguments)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_json_of_one_shape(recording: Path, tmp_path: Path) -> None:
    facts = search(recording, tmp_path / "a.db", "--shape", "512", "--trials", "60", "--seed", "3")
    best = points(SQUARE)[20]
    assert facts["best_config"] == best.to_dict()
    assert facts["best_time_us"] == pytest.approx(measured(20).time_us, rel=1e-4)  # five digits are kept
    assert facts["best_time_us"] == facts["optimum_time_us"]
    assert facts["cublas_time_us"] == CUBLAS_US
    assert facts["limit_us"] < facts["best_time_us"]
    assert (facts["num_trials"], facts["num_failed"]) == (48, 7)  # the space holds no more
    assert facts["stopped"] == "exhausted"
    assert facts["trials_per_s"] == pytest.approx(facts["num_new"] / facts["elapsed_s"])
    assert (facts["is_recorded"], facts["recorded_on"]) == (True, RECORDED_ON)
    assert facts["gpu"] == ENVIRONMENT.gpu_name


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(3))
def test_everything_names_one_winner(recording: Path, tmp_path: Path, seed: int) -> None:
    """Of a final on a recording, which draws from the samples that made the times of the trials."""
    db = tmp_path / "a.db"
    facts = search(recording, db, "--shape", "512", "--trials", "40", "--seed", str(seed))
    (study,) = json.loads(run("trials", "best", "--db", db, "--json").stdout)["studies"]
    with Store.open_existing(db) as store:
        (read,) = numbers_of(store, (), None)
        results = read_results(store, ENVIRONMENT, known_limits(ENVIRONMENT.gpu_name))
    exported = cut_to_chosen(results).shapes[0].ranked[0]
    config = Config.from_dict(facts["best_config"])
    assert facts["tied"][0] == config.key == read.final.winner.key == exported.config.key
    assert Config.from_dict(study["best_config"]) == config
    times = (study["best_time_us"], read.final.winner.time_us, exported.time_us)
    assert {*times} == {facts["best_time_us"]} and study["cublas_time_us"] == CUBLAS_US


def test_text_says_that_it_is_recorded(recording: Path, tmp_path: Path) -> None:
    done = run(
        "search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--shape", "512", "--trials", "9"
    )
    assert f"recorded on {ENVIRONMENT.gpu_name}, {RECORDED_ON}" in done.stdout
    assert "simulated" in done.stdout
    assert "48 configs" in done.stderr  # progress is no result
    quiet = run(
        "search", "--quiet", "--gpu", f"replay:{recording}", "--db", tmp_path / "b.db", "--shape", "512",
        "--trials", "9",
    )  # fmt: skip
    assert quiet.stderr == ""


def test_one_run_tells_one_time_for_one_kernel(recording: Path, tmp_path: Path) -> None:
    """The final of a recording draws other times from the samples that the table's are made of."""
    done = run("search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--shape", "512")
    (line,) = [line for line in done.stderr.splitlines() if "winner" in line]
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("512x512x512:NN")]
    shown = re.search(r"winner (.* us), (\S+x) cuBLAS, (\S+%) of limit", line)
    assert shown is not None
    assert [value in row for value in shown.groups()] == [True] * 3, f"{line}\n{row}"


def test_several_shapes_share_a_search(recording: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text("[[shape]]\nm = 16\nn = 512\nk = 4096\n", encoding="utf-8")
    facts = search(recording, tmp_path / "a.db", "--shape", "512", "--suite", suite, "--trials", "12")
    assert [shape["shape"] for shape in facts["shapes"]] == ["512x512x512:NN", "16x512x4096:NN"]
    assert [shape["num_trials"] for shape in facts["shapes"]] == [12, 12]
    assert "best_time_us" not in facts  # whose would it be?


def test_requested_again_it_goes_on(recording: Path, tmp_path: Path) -> None:
    first = search(recording, tmp_path / "a.db", "--shape", "512", "--trials", "10")
    again = search(recording, tmp_path / "a.db", "--shape", "512", "--trials", "10")
    more = search(recording, tmp_path / "a.db", "--shape", "512", "--trials", "15")
    assert (first["num_new"], again["num_new"], more["num_new"]) == (10, 0, 5)
    assert more["num_trials"] == 15


def test_the_same_seed_gives_the_same_search(recording: Path, tmp_path: Path) -> None:
    keys = [
        [
            trial["config"]
            for trial in json.loads(
                run("trials", "history", "--db", tmp_path / f"{name}.db", "--json").stdout
            )["trials"]
        ]
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
        if search(
            recording, tmp_path / f"{name}.db", "--shape", "512", "--trials", "20", "--seed", seed,
            "--sampler", "random",
        )
    ]  # fmt: skip
    assert keys[0] == keys[1] != keys[2]


def test_any_sampler_of_optuna_may_propose(recording: Path, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    facts = search(recording, db, "--shape", "512", "--trials", "20", "--sampler", "tpe")
    assert (facts["num_new"], facts["sampler"]) == (20, "tpe")
    with Store.open(db) as store:
        (summary,) = store.studies()
        assert {trial.origin for trial in store.trials(summary.study)} > {"tpe"}
        assert [found.sampler for found in store.searches(summary.study)] == ["tpe"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "77"), "77x77x77:NN"),
        (("--shape", "512", "--sampler", "oracle"), "oracle"),
        (("--shape", "512", "--cache", "lukewarm"), "lukewarm"),
        (("--shape", "512", "--trials", "0"), "--trials"),
        (("--shape", "512", "--seconds", "-1"), "--seconds"),
        (("--suite", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_wrong_usage(recording: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run("search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", *arguments, code=2)
    assert message in done.stderr
    assert done.stdout == ""


def test_no_such_recording(tmp_path: Path) -> None:
    done = run("search", "--gpu", "replay:none.gz", "--db", tmp_path / "a.db", "--shape", "512", code=2)
    assert "none.gz" in done.stderr
    assert not (tmp_path / "a.db").exists()


def test_a_recording_without_a_name(tmp_path: Path) -> None:
    done = run("search", "--gpu", "replay:", "--db", tmp_path / "a.db", code=2)
    assert "replay:FILE" in done.stderr


def test_no_such_gpu_says_what_to_do(tmp_path: Path) -> None:
    done = run(
        "search", "--gpu", "0", "--db", tmp_path / "a.db", "--shape", "512", code=3, CUDA_VISIBLE_DEVICES=""
    )
    assert "`autotune search --gpu auto`" in done.stderr


def test_without_a_gpu_auto_says_so_and_searches_the_shipped_recording(tmp_path: Path) -> None:
    done = run(
        "search", "--gpu", "auto", "--db", tmp_path / "a.db", "--shape", "4096", "--trials", "20",
        CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    assert "No GPU can be used here" in done.stderr
    assert "recorded on" in done.stderr
    assert "recorded on" in done.stdout


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_keeps_what_it_has(recording: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The first Ctrl-C ends a search in order: results are printed, and nothing is lost or doubled."""
    command = (
        *(sys.executable, "-m", "autotune", "search", "--gpu", f"replay:{recording}", "--shape", "512"),
        *("--db", str(tmp_path / "a.db"), "--json"),
    )
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stderr is not None
    process.stderr.readline()  # the shape is ready: signals are handled from before that
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    ended = 128 + number
    assert process.returncode in (0, ended)  # 0 where the small space was exhausted first
    facts = json.loads(out)
    assert process.returncode == (ended if facts["stopped"] == "interrupted" else 0)
    again = search(recording, tmp_path / "a.db", "--shape", "512")
    assert facts["num_new"] + again["num_new"] == again["num_trials"]


@pytest.mark.stress
def test_killed_it_loses_at_most_the_trial_in_flight(recording: Path, tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "autotune", "search", "--gpu", f"replay:{recording}", "--shape", "512"),
        *("--db", str(tmp_path / "a.db")),
    )
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    for delay_s in (0.0, 0.02, 0.05, 0.1):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(delay_s)
        process.kill()
        process.communicate(timeout=60)
    facts = search(recording, tmp_path / "a.db", "--shape", "512", "--trials", "48")
    assert facts["num_trials"] == 48  # every config once: none lost for good, none doubled
    history = json.loads(
        run("trials", "history", "--db", tmp_path / "a.db", "--limit", "99", "--json").stdout
    )
    assert len({json.dumps(trial["config"]) for trial in history["trials"]}) == 48


def test_help_knows_the_samplers_and_every_end_is_explained() -> None:
    text = run("search", "--help").stdout
    assert all(f"`{sampler}`" in text for sampler in SAMPLERS)
    assert f"[default: {DEFAULT_SAMPLER}]" in text
    assert set(_WHY) == {reason.value for reason in StopReason}
