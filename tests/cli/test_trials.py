"""`autotune trials` over a database that a search has left."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest

from autotune.cli import view
from autotune.cli.requests import DashboardRequest
from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.facts.other_problem import OtherProblem
from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.kernel.config import Config
from autotune.store import ComparisonRecord, FinalEntry, Store
from autotune.target import Baseline

from .runner import run

ENVIRONMENT = Environment("NVIDIA H200", "GPU-0", (9, 0), "580.1", "13.0", "nvrtc 13.0", "13.1", "2026-11-21")
FAST, SLOW, BAD = Config(), Config(bk=8, unroll_k=8), Config(min_blocks=8)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Two problems: one with a final and a failure, one with a single trial."""
    path = tmp_path / "trials.db"
    with Store.open(path) as store:
        first = store.study(ENVIRONMENT, "0" * 64, "nvrtc 13.0", Gemm(4096, 4096, 4096))
        second = store.study(ENVIRONMENT, "0" * 64, "nvrtc 13.0", Gemm(64, 64, 64))
        store.study(ENVIRONMENT, "0" * 64, "nvrtc 13.0", Gemm(1, 1, 1))  # nothing measured
        ok = Measurement(Outcome.OK, time_us=2700.0, samples_us=(2699.0, 2700.0, 2701.0))
        store.add_trial(first, FAST.key, FAST.to_dict(), ok, "seed")
        slow = Measurement(Outcome.OK, time_us=3000.0, error_over_cublas=1.25)
        store.add_trial(first, SLOW.key, SLOW.to_dict(), slow, "tpe")
        reason = "C[3][5] is 1.0, not 2.0\nand 17 more"
        wrong = Measurement(Outcome.WRONG_RESULT, reason, error_ratio=math.inf)
        store.add_trial(first, BAD.key, BAD.to_dict(), wrong, "tpe")
        store.add_baseline(first, Baseline(2800.0))
        # interleaved, the slower trial turned out to be the faster kernel
        entries = [
            FinalEntry(SLOW.key, SLOW.to_dict(), 1, True, 2650.0),
            FinalEntry(FAST.key, FAST.to_dict(), 2, True, 2655.0),
        ]
        store.set_final(first, entries, Baseline(2783.0))
        store.add_trial(second, FAST.key, FAST.to_dict(), Measurement(Outcome.OK, time_us=4.0), "seed")
    return path


def test_best_takes_the_final_before_the_fastest_trial(db: Path) -> None:
    small, large = json.loads(run("trials", "best", "--db", db, "--json").stdout)["studies"]
    assert (large["best_time_us"], large["cublas_time_us"], large["num_tied"]) == (2650.0, 2783.0, 2)
    assert large["best_config"] == SLOW.to_dict()
    limits = KNOWN["h200"]
    assert large["limit_us"] == Gemm(4096, 4096, 4096).limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    assert (large["num_trials"], large["num_ok"]) == (3, 2)
    assert (large["error_over_cublas"], small["error_over_cublas"]) == (1.25, None)
    assert (small["best_time_us"], small["cublas_time_us"], small["is_final"]) == (4.0, None, False)


def test_best_tells_when_by_which_driver_and_what_came_of_it_in_order(db: Path) -> None:
    with Store.open(db) as store:
        middle = store.study(ENVIRONMENT, "0" * 64, "nvrtc 13.0", Gemm(128, 64, 64))
        store.add_trial(middle, FAST.key, FAST.to_dict(), Measurement(Outcome.OK, time_us=5.0), "seed")
        store.set_final(middle, [FinalEntry(FAST.key, FAST.to_dict(), 1, True, 5.0)], Baseline(4.0))
    text = run("trials", "best", "--db", db).stdout
    head, *rows = text.splitlines()
    source = "recorded on NVIDIA H200, 2026-11-21, driver 580.1"
    assert head.startswith(f"{source}: 3 shapes, 5 trials (1 failed), the newest of 2")
    speedup = math.sqrt(2783.0 / 2650.0 * 4.0 / 5.0)
    assert head.endswith(f"; geometric mean {speedup:.3f}x cuBLAS, 1 slower than it")
    shapes = [re.findall(r" (\d+)x\d+x\d+:NN", row)[0] for row in rows[2:]]
    assert shapes == ["64", "128", "4096"]


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\nNext: rm -rf"


def test_nothing_of_a_database_steers_a_terminal(tmp_path: Path) -> None:
    path, gpu = tmp_path / "a.db", ENVIRONMENT.__class__(**{**vars(ENVIRONMENT), "gpu_name": HOSTILE})
    with Store.open(path) as store:
        study = store.study(gpu, "0" * 64, "nvrtc 13.0", Gemm(64, 64, 64))
        store.add_trial(study, FAST.key, FAST.to_dict(), Measurement(Outcome.OK, time_us=4.0), HOSTILE)
        wrong = Measurement(Outcome.WRONG_RESULT, HOSTILE)
        store.add_trial(study, BAD.key, BAD.to_dict(), wrong, HOSTILE)
    for command in ("best", "history", "failures", "show 1", "show 2", "diff 1 2"):
        done = run("trials", *command.split(), "--db", path)
        steering = re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.stdout + done.stderr)
        assert not steering, command
        assert command.startswith(("show", "diff")) or not re.search("^Next: rm", done.stdout, re.MULTILINE)
    message = run("export-table", "--db", path, "--out", tmp_path / "table", code=3).stderr
    assert "\x1b" not in message and "\\x1b]0;owned" in message


def test_the_error_over_cublas_is_listed(db: Path) -> None:
    (line,) = (x for x in run("trials", "best", "--db", db).stdout.splitlines() if " 4096x" in x)
    assert "1.250x" in line
    assert run("trials", "history", "--db", db).stdout.count("1.250x") == 1


def test_best_says_that_times_are_recorded(db: Path) -> None:
    assert "recorded on NVIDIA H200, 2026-11-21" in run("trials", "best", "--db", db).stdout
    assert json.loads(run("trials", "best", "--db", db, "--json").stdout)["studies"][0]["is_recorded"]


def test_best_of_one_shape(db: Path) -> None:
    studies = json.loads(run("trials", "best", "--db", db, "--shape", "64", "--json").stdout)["studies"]
    assert [study["shape"] for study in studies] == ["64x64x64:NN"]
    assert "1x1x1" in run("trials", "best", "--db", db, "--shape", "1", code=2).stderr


def on_a_terminal(columns: int, *arguments: str | Path) -> list[str]:
    """What a command prints on a terminal of so many columns."""
    command = shlex.join([sys.executable, "-m", "autotune", *map(str, arguments)])
    done = subprocess.run(
        ["script", "-qec", f"stty cols {columns} && {command}", "/dev/null"],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )  # fmt: skip
    return re.sub(r"\r|\x1b\[[0-9]*m", "", done.stdout).splitlines()


@pytest.mark.every(3)
@pytest.mark.skipif(shutil.which("script") is None, reason="no terminal can be made")
@pytest.mark.parametrize("command", ["best", "history", "failures"])
def test_tables_fit_the_terminal(db: Path, command: str) -> None:
    lines = on_a_terminal(80, "trials", command, "--db", db)
    assert max(map(len, lines)) <= 80
    piped = run("trials", command, "--db", db).stdout
    if command == "best":
        assert any(line.startswith("    tied 2, workspace 0 MiB, config 64x128x8 8x8") for line in lines)
        assert max(map(len, piped.splitlines())) > 80  # whole, a line per study


def test_the_workspace_of_a_launch_is_told(db: Path) -> None:
    packing = Config(pack_a=1, vec_a=4, pad=0)
    with Store.open(db) as store:
        large = store.study(ENVIRONMENT, "0" * 64, "nvrtc 13.0", Gemm(4096, 4096, 4096))
        ok = Measurement(Outcome.OK, time_us=2500.0)
        store.add_trial(large, packing.key, packing.to_dict(), ok, "seed")
        other = store.study(ENVIRONMENT, "1" * 64, "nvrtc 13.0", Gemm(64, 64, 64))
        store.add_trial(other, "x=1", {"x": 1}, ok, "seed")  # of another kernel
        ids = [store.trial(study, key).id for study, key in ((large, packing.key), (other, "x=1"))]
    for number, num_bytes, text in ((1, 0, "0 MiB"), (ids[0], 64 << 20, "64.0 MiB"), (ids[1], None, "-")):
        facts = json.loads(run("trials", "show", str(number), "--db", db, "--json").stdout)
        assert facts["workspace_bytes"] == num_bytes
        shown = run("trials", "show", str(number), "--db", db).stdout
        assert re.search(rf"^workspace +{re.escape(text)}$", shown, re.M)
    message = json.loads(run("trials", "diff", "1", str(ids[0]), "--db", db, "--json").stdout)
    assert message["differences"]["workspace_bytes"] == [0, 64 << 20]
    assert "8x8 stages=3 row_snake pack_a" in run("trials", "history", "--db", db).stdout


def test_ids_lead_to_everything_about_a_trial(db: Path) -> None:
    small, large = json.loads(run("trials", "best", "--db", db, "--json").stdout)["studies"]
    assert (large["id"], small["id"]) == (2, 4)
    assert run("trials", "best", "--db", db).stdout.splitlines()[4].split()[0] == "2"
    facts = json.loads(run("trials", "show", "1", "--db", db, "--json").stdout)
    assert (facts["id"], facts["shape"], facts["origin"]) == (1, "4096x4096x4096:NN", "seed")
    assert facts["config"] == FAST.to_dict() and facts["environment"]["driver_version"] == "580.1"
    assert facts["samples"]["num"] == 3 and facts["samples"]["median_us"] == 2700.0
    assert facts["speedup"] == 2783.0 / 2700.0 and facts["final"]["rank"] == 2
    text = run("trials", "show", "1", "--db", db).stdout
    for message in (
        "2700 us",
        "rank 2, 2655 us, tied with the best",
        "rows of C per block (BM)",
        "580.1",
        "0" * 64,
    ):
        assert message in text
    assert "C[3][5] is 1.0, not 2.0\nand 17 more" in run("trials", "show", "3", "--db", db).stdout
    for none in ("99", "9" * 30):
        assert "trials history" in run("trials", "show", none, "--db", db, code=2).stderr


def test_what_two_trials_differ_in(db: Path) -> None:
    facts = json.loads(run("trials", "diff", "1", "2", "--db", db, "--json").stdout)
    parameters = {n.partition(".")[2]: v for n, v in facts["differences"].items() if n.startswith("config.")}
    assert parameters == {"bk": [16, 8], "unroll_k": [16, 8]}
    assert facts["differences"]["time_us"] == [2700.0, 3000.0]
    assert "too few samples to say how surely" in run("trials", "diff", "1", "2", "--db", db).stdout
    assert "nothing tells which" in run("trials", "diff", "1", "3", "--db", db).stdout
    assert "of different shapes" in run("trials", "diff", "1", "4", "--db", db).stdout


def test_rounds_that_held_both_decide(db: Path) -> None:
    with Store.open(db) as store:
        study = next(s.study for s in store.studies() if s.study.gemm == Gemm(4096, 4096, 4096))
        rounds = (tuple(100.0 + i for i in range(20)), tuple(1.02 * (100.0 + i) for i in range(20)))
        store.add_comparison(study, ComparisonRecord((SLOW.key, FAST.key), rounds, 0))
    times = json.loads(run("trials", "diff", "1", "2", "--db", db, "--json").stdout)["times"]
    assert (times["how"], times["num_rounds"]) == ("paired", 20)
    assert times["ratio"] == pytest.approx(1 / 1.02)
    text = run("trials", "diff", "1", "2", "--db", db).stdout
    assert "20 rounds that held both" in text and "Trial 2 is the faster." in text


def test_history_is_in_order_and_limited(db: Path) -> None:
    facts = json.loads(run("trials", "history", "--db", db, "--limit", "3", "--json").stdout)
    assert facts["num_trials"] == 4
    assert [trial["origin"] for trial in facts["trials"]] == ["tpe", "tpe", "seed"]
    assert [trial["outcome"] for trial in facts["trials"]] == ["ok", "wrong_result", "ok"]


def test_failures_tell_reasons_on_one_line(db: Path) -> None:
    facts = json.loads(run("trials", "failures", "--db", db, "--json").stdout)
    assert facts["counts"] == {"wrong_result": 1}
    assert facts["trials"][0]["config"] == BAD.to_dict()
    text = run("trials", "failures", "--db", db).stdout
    assert "C[3][5] is 1.0, not 2.0 and 17 more" in text
    assert run("trials", "failures", "--db", db, "--shape", "64").stdout == "no trial failed\n"


@pytest.mark.parametrize("command", ["best", "history", "failures"])
def test_a_missing_database_is_not_made(command: str, tmp_path: Path) -> None:
    done = run("trials", command, "--db", tmp_path / "none.db", code=5)
    assert "autotune search" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look at" * 100, encoding="utf-8")
    assert "another file" in run("trials", "best", "--db", path, code=5).stderr


def test_an_empty_database_says_what_to_run(tmp_path: Path) -> None:
    Store.open(tmp_path / "empty.db").close()
    assert "autotune search" in run("trials", "best", "--db", tmp_path / "empty.db", code=2).stderr


def test_databases_are_merged_runs_told_and_studies_forgotten(recording: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    for db, seed in ((one, "1"), (other, "2")):
        arguments = ("--shape", "512", "--trials", "12", "--seeds", "none", "--seed", seed, "--quiet")
        run("search", "--gpu", f"replay:{recording}", "--db", db, *arguments)
    merged = json.loads(run("trials", "merge", other, "--db", one, "--json").stdout)
    assert merged["num_studies"] == 1 and merged["num_new"] + merged["num_known"] == 12
    (study,) = json.loads(run("trials", "best", "--db", one, "--json").stdout)["studies"]
    assert study["num_trials"] == 12 + merged["num_new"]
    again = run("trials", "merge", other, "--db", one, "--quiet").stdout
    assert again == f"{one}: 0 trials of 1 study are new, 12 were there already\n"
    assert "itself" in run("trials", "merge", one, "--db", one, code=2).stderr
    assert "no database" in run("trials", "merge", tmp_path / "none.db", "--db", one, code=5).stderr

    message = json.loads(run("runs", "--db", one, "--json").stdout)
    assert message["num_runs"] == 2 and {one["num_trials"] for one in message["runs"]} == {12}
    assert f"search --gpu replay:{recording} --db {other}" in message["runs"][1]["command"]
    text = run("runs", "--db", one, "--limit", "1").stdout
    assert (
        "ended 20" in text and "12 trials" in text and "recorded on NVIDIA H200, driver 580.1; 512x" in text
    )
    assert run("runs", "--db", one, "--shape", "64").stdout.startswith("no run is stored")

    shape = ("trials", "forget", "--db", one, "--shape", "512")
    assert "would forget study 1: 512x512x512:NN, recorded on" in run(*shape, code=2).stderr
    assert run(*shape, "--yes").stdout.startswith("forgotten: study 1: 512x512x512:NN")
    assert "no such study (`trials" in run("trials", "forget", "--db", one, "--study", "1", code=2).stderr
    assert "holds no trials" in run("trials", "best", "--db", one, code=2).stderr
    assert "nothing to forget" in run("trials", "forget", "--db", one, code=2).stderr


def test_trials_are_printed_for_spreadsheets(recording: Path, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    run("search", "--gpu", f"replay:{recording}", "--db", db, "--trials", "40", "--quiet")
    listed = json.loads(run("trials", "history", "--db", db, "--limit", "80", "--json").stdout)["trials"]
    table = list(csv.DictReader(io.StringIO(run("trials", "history", "--db", db, "--csv").stdout)))
    assert {(row["id"], row["shape"], row["outcome"]) for row in table} == {
        (str(trial["id"]), trial["shape"], trial["outcome"]) for trial in listed
    }
    (first,) = (trial for trial in listed if str(trial["id"]) == table[0]["id"])
    assert json.loads(table[0]["samples_us"]) == first["samples_us"]
    assert {name: table[0][f"config.{name}"] for name in first["config"]} == {
        name: str(value) for name, value in first["config"].items()
    }
    failed = list(csv.DictReader(io.StringIO(run("trials", "failures", "--db", db, "--csv").stdout)))
    assert len(failed) == sum(trial["outcome"] != "ok" for trial in listed) > 0
    latest = run("trials", "history", "--db", db, "--csv", "--limit", "3").stdout.splitlines()
    assert len(latest) == 4
    best = list(csv.DictReader(io.StringIO(run("trials", "best", "--db", db, "--csv").stdout)))
    assert {row["shape"] for row in best} == {"512x512x512:NN", "16x512x4096:NN"}
    assert best[0]["config.bm"] and "ask for one" in run(
        "trials", "best", "--db", db, "--csv", "--json", code=2
    ).stderr  # fmt: skip


def test_a_search_tells_programs_what_happens(recording: Path, tmp_path: Path) -> None:
    arguments = ("--gpu", f"replay:{recording}", "--shape", "512", "--trials", "12", "--quiet")
    events = tmp_path / "events.jsonl"
    run("search", *arguments, "--db", tmp_path / "a.db", "--events", events)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    names = [line["event"] for line in lines]
    assert names == ["shape_started", *["trial_done"] * 12, "final_started", "final_done", "result"]
    assert lines[0]["gemm"] == "512x512x512:NN" and lines[0]["study"] == 1
    done = next(line for line in lines[::-1] if line["event"] == "trial_done")
    assert done["best"]["speedup"] > 0 and done["measurement"]["outcome"] and done["point"]["bm"]
    assert lines[-1]["num_new"] == 12
    done = run("search", *arguments, "--db", tmp_path / "b.db", "--events", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (lines[0]["event"], lines[-1]["event"]) == ("shape_started", "result")
    assert "Next: autotune export-table" in done.stderr
    bad = run("search", *arguments, "--db", tmp_path / "c.db", "--events", tmp_path / "no" / "x", code=2)
    assert "--events" in bad.stderr and "cannot be written" in bad.stderr


def test_two_databases_or_tables_are_compared_by_shape(recording: Path, tmp_path: Path) -> None:
    one, other, table = tmp_path / "one.db", tmp_path / "other.db", tmp_path / "table"
    arguments = ("--gpu", f"replay:{recording}", "--trials", "48", "--quiet")
    run("search", *arguments, "--db", one)
    run("search", *arguments, "--shape", "512", "--db", other, "--where", "order=zigzag")
    facts = json.loads(run("trials", "compare", one, other, "--json").stdout)
    (row,) = facts["shapes"]
    assert row["shape"] == "512x512x512:NN" and row["faster"] == "first" and row["interval"][0] > 1
    assert row["ratio"] == pytest.approx(row["second_us"] / row["first_us"])
    assert (facts["only_in_first"], facts["only_in_second"]) == (["16x512x4096:NN"], [])
    same = run("trials", "compare", f"{one}#1", one, "--shape", "512").stdout
    assert "1.000x" in same and "neither" in same and "the first is faster on 0" in same
    run("export-table", "--db", one, "--shape", "512", "--max-kernels", "0", "--out", table)
    message = json.loads(run("trials", "compare", other, table, "--json").stdout)["shapes"][0]
    assert message["ratio"] < 1 and message["interval"] is None
    bad = run("trials", "compare", one, other, "--shape", "64", code=2)
    assert "share no shape" in bad.stderr
    assert f"{other} holds no study 99" in run("trials", "compare", one, f"{other}#99", code=2).stderr
    bad = run("trials", "compare", one, f"{other}#runs", code=2)
    assert f"'runs' is neither a run nor a study; write {other}#run3 or {other}#3" in bad.stderr


def test_the_dashboard_is_served_over_the_database(db, monkeypatch, capsys):
    """By whatever makes an application of a storage: here one that tells the names of its studies."""
    dashboard = ModuleType("optuna_dashboard")

    def wsgi(storage):
        def app(environment, start_response):
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [" ".join(study.study_name for study in storage.get_all_studies()).encode()]

        return app

    dashboard.wsgi = wsgi
    monkeypatch.setitem(sys.modules, "optuna_dashboard", dashboard)
    answers = []

    def serve_once(server):
        requesting = threading.Thread(target=lambda: answers.append(_page(server.server_port)))
        requesting.start()
        server.handle_request()
        requesting.join()

    monkeypatch.setattr(view._Server, "serve_forever", serve_once)
    view.show_dashboard(DashboardRequest(str(db), 0), is_json=True)
    assert json.loads(capsys.readouterr().out)["address"].startswith("http://127.0.0.1:")
    assert "4096x4096x4096:NN NVIDIA H200 cold" in answers[0]
    with socket.socket() as taken, pytest.raises(UsageError, match="Address already in use"):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        view.show_dashboard(DashboardRequest(str(db), taken.getsockname()[1]), is_json=True)
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(EnvironmentProblem, match="pip install 'optuna-dashboard"):
        view.show_dashboard(DashboardRequest(str(db), 0), is_json=True)


def _page(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        return answer.read().decode()


def test_a_single_sample_decides_no_comparison_and_an_unknown_driver_is_not_told(tmp_path: Path) -> None:
    """As in files of other tools: their times may be rounded, and name no driver."""
    point = {"x": 1, "y": 2}
    for name, gpu, time_us in (("a.db", "B", 1666.6667), ("b.db", "A", 1666.667)):
        with Store.open(tmp_path / name) as store:
            environment = Environment(gpu, "", (0, 0), "", "", "", "", "2026-01-01")
            study = store.study(environment, "other-kernel:conv", "", OtherProblem.of("conv", (9, 8)))
            found = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,))
            store.add_trial(study, "x=1,y=2", point, found, "record")
    compared = ("trials", "compare", tmp_path / "a.db", tmp_path / "b.db")
    assert "measured on B / A\n" in run(*compared).stdout
    message = json.loads(run(*compared, "--json").stdout)
    assert (message["shapes"][0]["interval"], message["shapes"][0]["faster"]) == (None, None)
    assert "driver" not in run("trials", "best", "--db", tmp_path / "a.db").stdout
