"""`autotune contribute`: one file of a card, which says nothing of its owner and serves others."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from exports import EXPORTS

from autotune import gpu
from autotune import target_finder as targets
from autotune.cli import contribute
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import UsageError
from autotune.store import Store, this_process

from .conftest import ENVIRONMENT, SQUARE
from .runner import run
from .test_on_a_gpu_fake import FakeGpu

pytestmark = EXPORTS
REASON = "/home/ada/kernels/sgemm.cu(7): error: ada@laptop has no C:\\\\cuda\\\\bin, see ~/notes and ./a/b"


class Owned(FakeGpu):
    """A card of somebody, on whose machine some configs fail with words of that machine."""

    def look_up(self, gemm, point, cutoff_us) -> Measurement:
        found = super().look_up(gemm, point, cutoff_us)
        fails = point["stages"] == 4 and found.is_ok
        return Measurement(Outcome.COMPILE_FAILED, REASON, compile_s=0.5) if fails else found


@pytest.fixture
def bundle(recording: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> Path:
    monkeypatch.setattr(this_process, "login", lambda: "ada")
    monkeypatch.setattr(this_process, "host", lambda: "laptop")
    monkeypatch.setattr(gpu, "find_gpu", lambda selector: SimpleNamespace(name="NVIDIA H200"))
    target = Owned(recording)
    target.environment = replace(ENVIRONMENT, recorded_on="", gpu_uuid="GPU-secret")
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: target)
    out = tmp_path / "card.json.gz"
    request = contribute.ContributeRequest("0", ["512", "16x512x4096"], seconds=5.0, out=out)
    contribute.run(request, is_json=False, is_quiet=True)
    return out


def test_it_says_what_the_file_holds_and_nothing_of_its_owner(bundle: Path, capsys) -> None:
    message = capsys.readouterr().err
    at_end = "was read back: 2 shapes of NVIDIA H200"
    assert message.index("will hold: GPU's name and limits") < message.index(at_end)
    assert "no name of a user or host, no path, no UUID" in message
    text = gzip.decompress(bundle.read_bytes()).decode()
    assert not re.search(r"ada|laptop|/home|notes|secret|cuda.{1,4}bin", text)
    assert ": error: ...@... has no" in text
    held = json.loads(text)
    assert held["environment"]["gpu_uuid"] == "" and held["environment"]["driver_version"] == "580.1"
    problem = held["problems"][0]
    assert all(problem["cublas_us"]) and any(problem["samples_us"]) and problem["error_over_cublas"]


@pytest.mark.parametrize(
    ("reason", "cleaned"),
    [
        ("/home/ada b/k.cu(7): error", "...(7): error"),
        ("ADA@Laptop: no", "...@...: no"),
        ("laptop.corp.example, Laptop", "..., ..."),
        ("GPU-12345678-1234-1234-1234-123456789abc lost", "... lost"),
        ("no adapter for laptops", "no adapter for laptops"),
    ],
)
def test_words_say_nothing_of_the_owner_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch, reason: str, cleaned: str
) -> None:
    monkeypatch.setenv("HOME", "/home/ada b")
    monkeypatch.setattr(this_process, "login", lambda: "ada")
    monkeypatch.setattr(this_process, "host", lambda: "laptop.corp.example")
    assert contribute.clean(reason) == cleaned


@pytest.mark.stress
def test_it_is_replayed_merged_and_exported(bundle: Path, tmp_path: Path) -> None:
    db = tmp_path / "others.db"
    merged = json.loads(run("trials", "merge", bundle, "--db", db, "--json").stdout)
    assert (merged["num_studies"], merged["num_known"]) == (2, 0) and merged["num_new"] > 60
    again = json.loads(run("trials", "merge", bundle, "--db", db, "--json").stdout)
    assert (again["num_new"], again["num_known"]) == (0, merged["num_new"])
    with Store.open(db) as store:
        (square,) = [one for one in store.studies() if one.study.gemm == SQUARE]
        assert square.study.environment.recorded_on and store.cublas_us(square.study) == 13.0
        (best,) = store.best(square.study)
        assert best.measurement.samples_us
    run("export-table", "--max-kernels", "0", "--db", db, "--out", tmp_path / "table")
    found = run("search", "--gpu", f"replay:{bundle}", "--shape", "512", "--db", tmp_path / "c.db", "--json")
    best_us = json.loads(found.stdout)["best_time_us"]
    assert best_us == pytest.approx(best.measurement.time_us, rel=0.01)


def test_a_recording_contributes_nothing() -> None:
    with pytest.raises(UsageError, match="a recording cannot run kernels; name a GPU"):
        contribute.run(contribute.ContributeRequest("replay:a.json"), is_json=False, is_quiet=True)


@pytest.mark.stress
def test_what_is_no_recording_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b'{"format": "other"}'))
    rejected = run("trials", "merge", tmp_path / "a.gz", "--db", tmp_path / "b.db", code=2)
    assert "neither an autotune-recording" in rejected.stderr and not (tmp_path / "b.db").exists()
