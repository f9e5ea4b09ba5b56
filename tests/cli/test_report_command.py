"""`autotune report` over a database that a search has left."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from .conftest import RECORDED_ON
from .runner import REPOSITORY, run

_DOCUMENT = re.compile(r'<script type="application/json" data-document="([^"]+)">(.*?)</script>', re.DOTALL)


@pytest.fixture(scope="module")
def db(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "searched.db"
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--shape", "16x512x4096",
        "--trials", "30", "--db", path, "--quiet")  # fmt: skip
    return path


def test_one_file_tells_all_studies_and_that_they_are_recorded(db: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = run("report", "--db", db, cwd=tmp_path)
    assert "wrote report.html: 2 studies, 60 trials" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    found = {name: json.loads(text) for name, text in _DOCUMENT.findall(out.read_text(encoding="utf-8"))}
    overview = found["overview"]
    assert {study["recorded_on"] for study in overview["studies"]} == {RECORDED_ON}
    assert {study["shape"] for study in overview["studies"]} == {"512x512x512:NN", "16x512x4096:NN"}
    assert [run_["num_trials"] for run_ in overview["runs"]] == [60]
    square = next(study for study in overview["studies"] if study["shape"] == "512x512x512:NN")
    in_full = found[f"study/{square['id']}"]
    assert in_full["trials"]["count"] == 30
    assert any("bytes spilled to local memory" in group["reason"] for group in in_full["failures"])


def test_json_holds_the_same_facts(db: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.html"
    facts = json.loads(run("report", "--db", db, "--shape", "512", "--out", out, "--json").stdout)
    (study,) = facts["studies"]
    assert out.is_file()
    assert facts["out"] == str(out)
    assert (study["shape"], study["num_trials"], study["is_recorded"]) == ("512x512x512:NN", 30, True)
    assert sum(group["count"] for group in study["failures"]) == study["num_failed"] > 0
    assert study["ledger"]["compile_s"] == pytest.approx(0.5 * 30)
    assert set(study["importance"]) == {"bk", "unroll_k", "stages", "order", "frag_buffers"}
    assert study["best_so_far"][-1]["time_us"] <= study["best_so_far"][0]["time_us"]


def test_without_jinja_it_says_what_to_install(db: Path, tmp_path: Path) -> None:
    (tmp_path / "jinja2").mkdir()
    (tmp_path / "jinja2" / "__init__.py").write_text("raise ImportError('no jinja2 here')", encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
    done = run("report", "--db", db, "--out", tmp_path / "none.html", code=3, is_new=True, PYTHONPATH=path)
    assert "pip install 'jinja2>=3.1'" in done.stderr
    assert not (tmp_path / "none.html").exists()


def test_a_file_that_cannot_be_written_leaves_nothing(db: Path, tmp_path: Path) -> None:
    done = run("report", "--db", db, "--out", tmp_path / "missing" / "report.html", code=2)
    assert "--out" in done.stderr
    (tmp_path / "folder.html").mkdir()
    run("report", "--db", db, "--out", tmp_path / "folder.html", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_nothing_to_report(db: Path, tmp_path: Path) -> None:
    assert "autotune search" in run("report", "--db", tmp_path / "none.db", code=5).stderr
    assert "7x7x7" in run("report", "--db", db, "--shape", "7", code=2).stderr
