"""After an upgrade: which times no longer hold, and only their finalists are timed again. What is lent to
another GPU that is accepted as the first."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from exports import EXPORTS

from autotune.store import Store

from .runner import run


def upgraded(recording: Path, folder: Path, **changes: Any) -> Path:
    """The same recording, of a machine where something else is installed."""
    data = json.loads(gzip.decompress(recording.read_bytes()))
    data["environment"].update(changes)
    path = folder / "upgraded.json.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"driver_version": "590.2"}, "driver 580.1 is now 590.2"),
        ({"cublas_version": "13.9"}, "cuBLAS 13.1 is now 13.9"),
        ({"nvrtc_version": "13.9"}, "compiler nvrtc 13.4 is now nvrtc 13.9"),
    ],
)
def test_only_finalists_of_stale_shapes_are_timed_again(
    recording: Path, tmp_path: Path, changes: dict[str, str], text: str
) -> None:
    db = tmp_path / "a.db"
    first = run("search", "--gpu", f"replay:{recording}", "--db", db, "--trials", "40", "--quiet", "--json")
    tied = {shape["shape"]: shape["tied"] for shape in json.loads(first.stdout)["shapes"]}
    again = ("search", "--gpu", f"replay:{recording}", "--db", db, "--stale", "--quiet")
    assert "nothing is stale: no shape with a final was measured under anything else" in run(*again).stdout
    assert json.loads(run(*again, "--json").stdout) == {"shapes": []}
    (line,) = run(*again, "--events", "-").stdout.splitlines()
    assert json.loads(line)["event"] == "result"

    assert "may no longer hold" not in run("trials", "best", "--db", db).stderr
    now = (
        "search",
        "--gpu",
        f"replay:{upgraded(recording, tmp_path, **changes)}",
        "--db",
        db,
        "--stale",
        "--quiet",
    )
    done = run(*now, "--shape", "512", "--json")
    assert f"512x512x512:NN: {text}; " in done.stderr
    (shape,) = json.loads(done.stdout)["shapes"]
    assert shape["num_trials"] == int(re.findall(r"; (\d+) finalist", done.stderr)[0])
    assert shape["best_time_us"] is not None
    told = run("trials", "best", "--db", db)
    assert ": 2 shapes in 3 studies, " in told.stdout
    assert f"times of 1 shape may no longer hold: {text} (16x512x4096:NN). `autotune search" in told.stderr
    listed = json.loads(run("trials", "best", "--db", db, "--json").stdout)["studies"]
    stale = {(one["shape"], *one["stale"]) for one in listed if one["stale"]}
    assert stale == {("16x512x4096:NN", text)}
    again = json.loads(run(*now, "--json").stdout)
    assert [shape["shape"] for shape in again["shapes"]] == ["16x512x4096:NN"]
    assert set(again["shapes"][0]["tied"]) <= {*tied["16x512x4096:NN"], *again["shapes"][0]["tied"]}
    assert "no shape with a final" in run(*now).stdout


def test_nothing_is_stale_in_a_database_that_is_not_there(recording: Path, tmp_path: Path) -> None:
    typo = tmp_path / "typo.db"
    asked = run("search", "--gpu", f"replay:{recording}", "--db", typo, "--stale", code=5)
    assert f"no database {typo}" in asked.stderr and not typo.exists()


@pytest.mark.stress
def test_a_gpu_accepted_as_another_borrows_its_best(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_LIKE", "")
    db = tmp_path / "a.db"
    run("search", "--gpu", f"replay:{recording}", "--db", db, "--trials", "40", "--quiet")
    nvl = upgraded(recording, tmp_path, gpu_name="NVIDIA H200 NVL")
    data = json.loads(gzip.decompress(nvl.read_bytes()))
    data["limits"]["name"] = "NVIDIA H200 NVL"
    nvl.write_bytes(gzip.compress(json.dumps(data).encode()))
    few = ("--shape", "512", "--trials", "8", "--seeds", "none", "--quiet")
    search = ("search", "--gpu", f"replay:{nvl}", "--db", db, *few)

    def origins(db: Path) -> set[str]:
        with Store.open(db) as store:
            trials = [t for one in store.studies() if "NVL" in one.study.environment.gpu_name
                      for t in store.trials(one.study)]  # fmt: skip
        return {trial.origin for trial in trials}

    alone = tmp_path / "alone.db"
    shutil.copy(db, alone)
    run(*(alone if one == db else one for one in search))
    assert "transfer" not in origins(alone)
    done = run(*search, "--like", "h200")
    assert "NVIDIA H200 NVL is accepted as NVIDIA H200 (AUTOTUNE_LIKE)" in done.stderr
    assert "transfer" in origins(db)
    (last,) = json.loads(run("runs", "--db", db, "--limit", "1", "--json").stdout)["runs"]
    assert last["versions"]["NVIDIA H200 NVL accepted as"] == "NVIDIA H200"
    unknown = run(*search, "--like", "h20", code=2)
    told = "no GPU 'h20' is known that NVIDIA H200 NVL could be accepted as (did you mean 'h200'?)"
    assert told in unknown.stderr
    wrong = run(*search, "--like", "rtx-4090", code=2)
    assert "sm_90 and NVIDIA GeForce RTX 4090 sm_89: it cannot be accepted as that" in wrong.stderr


@EXPORTS
def test_an_export_says_which_times_no_longer_hold(recording: Path, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    run("search", "--gpu", f"replay:{recording}", "--db", db, "--trials", "20", "--quiet")
    newer = upgraded(recording, tmp_path, driver_version="590.2")
    run("search", "--gpu", f"replay:{newer}", "--shape", "512", "--db", db, "--trials", "20", "--quiet")
    done = run("export-table", "--max-kernels", "0", "--db", db, "--out", tmp_path / "table")
    assert "may no longer hold: driver 580.1 is now 590.2 (16x512x4096:NN)" in done.stderr


def test_runs_of_one_database_are_compared(recording: Path, tmp_path: Path) -> None:
    """A run counts what was stored while it ran: the second continues the first's study."""
    db = tmp_path / "a.db"
    for trials in ("8", "40"):
        search = ("search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", db, "--quiet", "--json")
        best_us = json.loads(run(*search, "--trials", trials).stdout)["best_time_us"]
    found = json.loads(run("trials", "compare", f"{db}#run1", f"{db}#run2", "--json").stdout)
    (shape,) = found["shapes"]
    assert shape["shape"] == "512x512x512:NN" and shape["interval"] is not None
    assert shape["second_us"] == pytest.approx(best_us) and shape["first_us"] > 0
    wrong = run("trials", "compare", f"{db}#run1", f"{db}#run9", code=2)
    assert "holds no run 9 (`autotune runs` lists them)" in wrong.stderr


def test_an_empty_file_is_no_database_and_stays_empty(tmp_path: Path) -> None:
    empty = tmp_path / "card.json.gz"
    empty.touch()
    for command in (("trials", "merge", empty, "--db", tmp_path / "a.db"), ("trials", "best", "--db", empty)):
        assert "card.json.gz is empty: no database" in run(*command, code=5).stderr
    assert empty.stat().st_size == 0
