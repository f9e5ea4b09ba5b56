"""`autotune ladder` with a recording in the place of the GPU: what is told, drawn and left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from autotune import target_finder as targets
from autotune.cli import ladder
from autotune.files.errors import TrialFailure, UsageError
from autotune.gpu.protocol import KernelCode, RaceResult
from autotune.kernel.launch import LaunchSpec, Variant
from autotune.kernel.rungs import STEPS
from autotune.recording.replay import ReplayTarget

from .runner import run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ladder_picture

SPEC = LaunchSpec(32, 32, 8, 64, 0, 1, 1, 1, False, "none", 1, Variant())


class FakeGpu(ReplayTarget):
    """Builds what it is not told to refuse, and makes each kernel twice as fast as the one before."""

    def __init__(self, path: Path, rejected: dict[str, Exception], *, wrong: int = -1) -> None:
        super().__init__(path)
        self.gpu = SimpleNamespace(index=0)
        self.builder = self.worker = self
        self.by_key: list[KernelCode] = []
        self._rejected, self._wrong = rejected, wrong

    def build(self, gemm, config):
        if error := self._rejected.get(f"{config.bm}x{config.bn}"):
            raise error
        return KernelCode(b"", config.key, SPEC)

    def build_source(self, source, entry, spec):
        assert f"{entry}(" in source
        return KernelCode(b"", "reference", spec, entry)

    def race(self, problem, kernels, rounds, slowest_over_limit):
        self.by_key = list(kernels)
        drift = [1.0 + 0.1 * r for r in range(rounds)]
        times = [tuple(1000.0 / 2**i * d for d in drift) for i in range(len(kernels))]
        if self._wrong >= 0:
            times[self._wrong] = ()
        return RaceResult(tuple(times), tuple(4.0 * d for d in drift))


@pytest.fixture
def play(recording: Path, monkeypatch: pytest.MonkeyPatch):
    def fake(rejected: dict[str, Exception] | None = None, **options: int) -> FakeGpu:
        target = FakeGpu(recording, rejected or {}, **options)
        monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: target)
        return target

    return fake


def climb(db: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    ladder.run(ladder.LadderRequest("0", "512", 5, max_error=None, db=str(db)), is_json=True)
    return json.loads(capsys.readouterr().out)


def test_all_steps_stand_beside_the_tuned_kernel_and_cublas(
    play, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = play()
    where = ("--gpu", f"replay:{recording}", "--db", tmp_path / "a.db")
    run("search", *where, "--shape", "512", "--trials", "9")
    facts = climb(tmp_path / "a.db", capsys)
    names = [*(step.name for step in STEPS), "tuned", "cuBLAS"]
    assert [row["name"] for row in facts["steps"]] == names
    entries = [code.entry for code in target.by_key[:4]]
    assert entries == ["sgemm_naive", "sgemm_coalesced", "sgemm_shared", "sgemm"]
    tuned, cublas = facts["steps"][-2:]
    assert tuned["kernel"]["bm"] == 64
    assert cublas["time_us"] == pytest.approx(4.8)  # the median round
    assert facts["steps"][0]["speedup"] == pytest.approx(4.0 / 1000.0)  # within rounds: drift cancels
    assert facts["steps"][0]["gflops"] == pytest.approx(2 * 512**3 / 1200.0 / 1e3)
    assert facts["environment"]["gpu_name"] == "NVIDIA H200"
    texts = {t.text for t in ElementTree.fromstring(ladder_picture.draw(facts)).iter() if t.text}
    assert set(names) <= texts


def test_without_a_database_the_steps_are_timed_alone(
    play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play()
    requested = ladder.LadderRequest("0", "512", 5, max_error=None, db=str(tmp_path / "no.db"))
    ladder.run(requested, is_json=False)
    captured = capsys.readouterr()
    assert "autotune search --gpu 0 --shape 512" in captured.err
    assert "tuned" not in captured.out
    assert "GFLOP/s" in captured.out
    assert not (tmp_path / "no.db").exists()


def test_what_cannot_run_here_is_told_with_its_reason(
    play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rejected = {
        "128x256": UsageError("async-device: cp.async needs sm_80 or later"),
        "64x64": TrialFailure("compile_failed", "no"),
    }
    target = play(rejected, wrong=0)
    facts = climb(tmp_path / "no.db", capsys)
    rows = {row["name"]: row for row in facts["steps"]}
    assert len(target.by_key) == 7
    assert rows["cp.async 128x256x8"]["reason"].startswith("async-device")
    assert rows["1D thread tile"]["reason"] == "compile_failed: no"
    assert rows["naive"]["reason"] == "gives a wrong result here"
    assert rows["naive"]["time_us"] is None
    assert rows["coalesced"]["time_us"] == pytest.approx(600.0)
    assert "not here" in ladder_picture.draw(facts)


def test_shapes_without_a_ladder_are_refused_before_a_gpu_is_requested_for(tmp_path: Path) -> None:
    done = run("ladder", "--shape", "512:NT", code=2, cwd=tmp_path)
    assert "NN problems only" in done.stderr
