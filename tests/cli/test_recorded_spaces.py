"""Recording the same configs on several shapes, searching all of a recording, and writing trials as T4."""

from __future__ import annotations

import itertools
import json
import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from same_code_record import know_as_same
from typer.testing import CliRunner

from autotune import target_finder as targets
from autotune.cli import record, recorder
from autotune.cli.app import app
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import UsageError
from autotune.kernel import template
from autotune.kernel.config import Config
from autotune.recording.replay import ReplayTarget, read_recording
from autotune.store import Store

from .conftest import CUBLAS_US, RECORDED_ON, SQUARE, measured, points, trials_of, write
from .runner import run

ODD = Gemm(512, 513, 512)  # rows of B and C are no whole vectors
NARROW = [replace(config, vec_b=1, vec_c=1) for config in points(SQUARE)[:12]]


class FakeGpu(ReplayTarget):
    """A recording that answers as a GPU of its model, and remembers what it was asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, capacity=3)
        self.builder = SimpleNamespace(compiler=SimpleNamespace(num_threads=5))
        self.submitted: list[tuple[Gemm, dict, float | None]] = []

    def submit(self, gemm, point, cutoff_us) -> Future[Measurement]:
        self.submitted.append((gemm, dict(point), cutoff_us))
        return super().submit(gemm, point, cutoff_us)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """60 configs for a square problem, of which 12 are legal for an odd one."""
    trials = trials_of([*points(SQUARE), *NARROW])
    problems = {SQUARE: trials, ODD: trials[48:]}
    target = FakeGpu(write(tmp_path / "played.gz", problems, without_cublas=(ODD,)))
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: target)
    return target


def request(out: Path, **changes: object) -> record.RecordRequest:
    options = {"out": out, "gpu": "0", "shapes": ("512", str(ODD)), "suites": (), "configs": None}
    options |= {"seconds": None, "seed": 0, "cache": "cold", "db": None, "max_error": None}
    return record.RecordRequest(**(options | changes))


def test_every_shape_is_recorded_over_the_same_configs(fake: FakeGpu, tmp_path: Path) -> None:
    record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    written = read_recording(tmp_path / "new.gz")
    square, odd = written.problems[SQUARE], written.problems[ODD]
    assert square.codes.tolist() == odd.codes.tolist() and len(odd.codes) == 60
    assert (len(written.space(SQUARE)), len(written.space(ODD))) == (60, 12)
    illegal = [m.reason for m in odd.measurements if m.outcome is Outcome.ILLEGAL]
    assert illegal == ["breaks extent-b, extent-c"] * 48
    assert len(fake.submitted) == 72  # what is illegal is not sent to the GPU
    assert written.compile_threads == 5


def test_all_shapes_wait_for_one_compile(fake: FakeGpu, tmp_path: Path) -> None:
    record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    keys = [Config.from_dict(point).key for _, point, _ in fake.submitted]
    runs = [key for key, _ in itertools.groupby(keys)]
    assert len(runs) == len(set(runs)) == 60


def test_a_compile_time_is_told_for_every_shape(fake: FakeGpu, tmp_path: Path, monkeypatch) -> None:
    """Whoever came second found the kernel in the cache; to replay its shape alone, it must be paid."""
    submit, paid = fake.submit, set()

    def submit_cached(gemm, point, cutoff_us):
        found = submit(gemm, point, cutoff_us).result()
        key = str(point)
        future: Future[Measurement] = Future()
        future.set_result(replace(found, compile_s=0.0 if key in paid else found.compile_s))
        paid.add(key)
        return future

    monkeypatch.setattr(fake, "submit", submit_cached)
    record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    for problem in read_recording(tmp_path / "new.gz").problems.values():
        assert {m.compile_s for m in problem.measurements if m.outcome is not Outcome.ILLEGAL} == {0.5}


def test_the_too_slow_are_cut_by_the_best_so_far(fake: FakeGpu, tmp_path: Path) -> None:
    record.run(request(tmp_path / "new.gz", shapes=("512",)), is_json=False, is_quiet=True)
    cutoffs = [cutoff for _, _, cutoff in fake.submitted]
    assert cutoffs[0] == recorder.CUTOFF_FACTOR * CUBLAS_US
    assert (
        min(cutoffs) == cutoffs[-1] == pytest.approx(recorder.CUTOFF_FACTOR * measured(20).time_us, rel=1e-4)
    )
    assert cutoffs[1:] == sorted(cutoffs[1:], reverse=True)


def test_after_so_many_seconds_it_writes_what_is_complete_and_goes_on_later(
    fake: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "time", SimpleNamespace(monotonic=itertools.count().__next__))
        record.run(request(tmp_path / "new.gz", seconds=6), is_json=False, is_quiet=True)
    partial = read_recording(tmp_path / "new.gz").problems
    assert 0 < len(partial[SQUARE].codes) == len(partial[ODD].codes) < 60
    assert "configs are not timed yet" in capsys.readouterr().err
    record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    assert len(read_recording(tmp_path / "new.gz").problems[ODD].codes) == 60
    assert len(fake.submitted) == 72  # nothing twice


def test_without_time_there_is_nothing_to_record(fake: FakeGpu, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to record"):
        record.run(request(tmp_path / "new.gz", seconds=0), is_json=False, is_quiet=True)


def test_a_space_that_would_take_days_is_refused(fake: FakeGpu, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(record, "MOST_CONFIGS", 50)
    with pytest.raises(UsageError, match=r"72 configs would take days; .* --configs"):
        record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    assert not fake.submitted


def searched(tmp_path: Path) -> list[str]:
    """Configs that a search tried and that ran, by key, the fastest first; its trials are in a.db."""
    db = tmp_path / "a.db"
    fake = f"replay:{tmp_path / 'played.gz'}"
    run("search", "--gpu", fake, "--shape", "512", "--db", db, "--trials", "12", "--quiet")
    with Store.open(db) as store:
        (study,) = [summary.study for summary in store.studies() if summary.study.gemm == SQUARE]
        times = {trial.key: trial.measurement.time_us for trial in store.trials(study)}
    return sorted((key for key, time_us in times.items() if time_us), key=lambda key: times[key])


def recorded_keys(path: Path) -> set[str]:
    space = read_recording(path).space(SQUARE)
    return {Config.from_dict(space.point(number)).key for number in range(len(space))}


def test_what_a_search_found_is_part_of_the_sample(fake: FakeGpu, tmp_path: Path) -> None:
    fastest, new = searched(tmp_path), tmp_path / "new.gz"
    record.run(request(new, db=str(tmp_path / "a.db"), configs=20), is_json=False, is_quiet=True)
    kept = recorded_keys(new)
    assert len(kept) == 20
    assert set(fastest[: round(0.3 * 20)]) <= kept
    submitted = {Config.from_dict(point).key for gemm, point, _ in fake.submitted if gemm == SQUARE}
    assert not submitted & set(fastest)


def test_what_was_found_on_another_gpu_of_the_kind_is_sampled_and_timed_anew(
    fake: FakeGpu, tmp_path: Path
) -> None:
    fastest, new = searched(tmp_path), tmp_path / "new.gz"
    fake.environment = replace(fake.environment, gpu_uuid="GPU-2")
    record.run(request(new, db=str(tmp_path / "a.db"), configs=20), is_json=False, is_quiet=True)
    submitted = {Config.from_dict(point).key for gemm, point, _ in fake.submitted if gemm == SQUARE}
    assert set(fastest[: round(0.3 * 20)]) <= recorded_keys(new) & submitted


def test_without_shapes_all_of_a_recording_is_searched(recording: Path, tmp_path: Path) -> None:
    done = run("search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--trials", "5", "--json")
    shapes = [facts["shape"] for facts in json.loads(done.stdout)["shapes"]]
    assert shapes == [str(gemm) for gemm in read_recording(recording).problems]


def test_recordings_of_this_kernel_and_of_others_can_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All go into one database, with what was recorded of the kernel that is here."""
    know_as_same(monkeypatch, tmp_path, (template.source_hash(), "0" * 64))
    message = {}
    for source_hash in (None, "0" * 64, "1" * 64):
        path = tmp_path / "space.json.gz"
        write(path, {SQUARE: trials_of(points(SQUARE))}, source_hash=source_hash)
        arguments = ["search", "--gpu", f"replay:{path}", "--db", str(tmp_path / "a.db"), "--trials", "30"]
        message[source_hash] = CliRunner().invoke(app, arguments).stdout
    new = {source_hash: re.findall(r"(\d+) new trials", text) for source_hash, text in message.items()}
    assert new == {None: ["30"], "0" * 64: ["0"], "1" * 64: ["30"]}
    assert all("Next: autotune export-table" in text for text in message.values())


def test_trials_and_recordings_are_written_as_t4(recording: Path, tmp_path: Path) -> None:
    db, out = tmp_path / "a.db", tmp_path / "t4.json"
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", db, "--trials", "20", "--quiet")
    facts = json.loads(run("trials", "t4", "--db", db, "--out", out, "--json").stdout)
    assert (facts["num_results"], len(json.loads(out.read_text())["results"])) == (20, 20)
    whole = run("trials", "t4", "--recording", recording, "--shape", "512", "--out", out)
    assert "48 results, 41 of them correct" in whole.stdout
    results = json.loads(out.read_text())["results"]
    best = min((r for r in results if r["invalidity"] == "correct"), key=lambda r: r["times"]["runtimes"])
    assert best["configuration"] == points(SQUARE)[20].to_dict()
    assert {r["timestamp"] for r in results} == {RECORDED_ON}


def test_t4_of_no_or_several_problems_is_refused(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "t4.json"
    several = run("trials", "t4", "--recording", recording, "--out", out, code=2)
    assert "add --shape: 16x512x4096:NN, 512x512x512:NN" in several.stderr
    assert "holds no 64x64x64:NN" in run(
        "trials", "t4", "--recording", recording, "--shape", "64", "--out", out, code=2
    ).stderr  # fmt: skip
    assert "no database" in run("trials", "t4", "--db", tmp_path / "none.db", "--out", out, code=5).stderr
    devnull = run(
        "trials", "t4", "--recording", recording, "--shape", "512", "--out", tmp_path / "no/x", code=2
    )
    assert "cannot be written" in devnull.stderr
    assert not out.exists()
