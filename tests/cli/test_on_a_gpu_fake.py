"""`record` and `verify` with a recording in the place of the GPU that they insist on.

tests/gpu/test_cli.py runs both on a real one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exports import EXPORTS
from table_cases import make_table, with_tensor_kernel, write_table
from typer.testing import CliRunner

from autotune import target_finder as targets
from autotune.cli import record, verify
from autotune.cli.app import app
from autotune.export.check import KernelCheck
from autotune.facts.accuracy_class import FP32, STRICT
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.files.errors import DeviceLost, DispatchError, EnvironmentProblem, UsageError
from autotune.gpu.protocol import Problem
from autotune.kernel import template
from autotune.recording.replay import ReplayTarget, read_recording
from autotune.runtime.launch.cuda_driver import CudaFault
from autotune.runtime.table.table import Kernel, load
from autotune.store import Store

from .conftest import ENVIRONMENT, SQUARE, measured, points
from .runner import run

pytestmark = EXPORTS
WRONG = Measurement(Outcome.WRONG_RESULT, "C[0][0] is 1.0, not 2.0", error_ratio=7.0)


class FakeGpu(ReplayTarget):
    """A recording that answers as a GPU of its model; `dies_after` so many candidates it is lost."""

    def __init__(self, path: Path, dies_after: int = 10**9) -> None:
        super().__init__(path, capacity=3)
        self.gpu = SimpleNamespace(index=0, name=ENVIRONMENT.gpu_name, compute_capability=(9, 0))
        self.builder = SimpleNamespace(compiler=SimpleNamespace(num_threads=3))
        self.worker = SimpleNamespace(check=self._check)
        self.num_submitted = 0
        self.checked: list[tuple[Gemm, str]] = []
        self.classes: list[tuple[str, str]] = []  # of each check: of its kernel, and what it is held to
        self.failing: dict[str, Measurement] = {}  # by the checksum of the cubin
        self._dies_after = dies_after

    def submit(self, gemm, point, cutoff_us):
        self.num_submitted += 1
        if self.num_submitted > self._dies_after:
            raise DeviceLost("the GPU worker died 5 times in a row")
        return super().submit(gemm, point, cutoff_us)

    def problem(self, gemm):
        return Problem(gemm, self.policy)

    def _check(self, problem, code):
        self.checked.append((problem.gemm, code.sha256))
        self.classes.append((code.accuracy, problem.accuracy))
        right = Measurement(Outcome.OK, time_us=5.0, samples_us=(5.0,), error_ratio=0.25)
        return self.failing.get(code.sha256, right)


@pytest.fixture
def fake(recording: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    target = FakeGpu(recording)
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: target)
    return target


def request(out: Path, **changes: object) -> record.RecordRequest:
    options = {"out": out, "gpu": "0", "shapes": ("512",), "suites": (), "configs": None, "seconds": None}
    options |= {"seed": 0, "cache": "cold", "db": None, "max_error": None}
    return record.RecordRequest(**(options | changes))


def test_a_whole_space_is_recorded_with_its_failures(fake: FakeGpu, tmp_path: Path) -> None:
    record.run(request(tmp_path / "new.gz", shapes=("512", "16x512x4096")), is_json=False, is_quiet=True)
    written = read_recording(tmp_path / "new.gz")
    assert list(written.problems) == [SQUARE, Gemm(16, 512, 4096)]
    measurements = written.problems[SQUARE].measurements
    assert len(measurements) == 48
    assert sum(m.outcome is Outcome.SPILLED for m in measurements) == 7
    assert written.source_hash == template.source_hash()
    found = dict(zip(map(str, points(SQUARE)), map(measured, range(48)), strict=True))
    space = written.space(SQUARE)
    for number, measurement in enumerate(measurements):
        key = ",".join(f"{n}={space.point(number)[n]}" for n in points(SQUARE)[0].to_dict())
        expected = next(m for k, m in found.items() if set(k.split(",")) == set(key.split(",")))
        assert measurement.samples_us == pytest.approx(expected.samples_us, rel=1e-4)


def test_a_subset_is_decided_by_the_seed(fake: FakeGpu, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record.run(request(tmp_path / name, configs=10, seed=seed), is_json=False, is_quiet=True)
    a, b, c = (read_recording(tmp_path / name).problems[SQUARE].codes.tolist() for name in "abc")
    assert len(a) == 10
    assert a == b != c


def test_interrupted_it_goes_on_where_it_was(
    recording: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = FakeGpu(recording, dies_after=20), FakeGpu(recording)
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: first)
    with pytest.raises(DeviceLost):
        record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    assert not (tmp_path / "new.gz").exists()
    with Store.open(tmp_path / "new.gz.db") as store:
        (study,) = store.studies()
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: second)
    record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    assert 17 <= study.num_trials <= 20  # at most what was in flight is lost
    assert second.num_submitted == 48 - study.num_trials
    assert len(read_recording(tmp_path / "new.gz").problems[SQUARE].codes) == 48


def test_two_gpus_record_one_space_and_where_one_is_lost_the_other_goes_on(
    recording: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus = {"0": FakeGpu(recording, dies_after=10), "1": FakeGpu(recording)}
    monkeypatch.setattr(targets, "select", lambda _: [targets.Selected(one, "played") for one in gpus])
    monkeypatch.setattr(targets, "open_gpu", lambda one, *_, **__: gpus[one])
    for uuid, gpu in gpus.items():
        gpu.environment = replace(gpu.environment, gpu_uuid=uuid)
    record.run(request(tmp_path / "new.gz", gpu="all"), is_json=False, is_quiet=True)
    assert len(read_recording(tmp_path / "new.gz").problems[SQUARE].codes) == 48
    assert gpus["0"].num_submitted == 11 and 38 <= gpus["1"].num_submitted <= 48


def test_a_recording_is_written_through_a_link_and_never_over_a_device(fake: FakeGpu, tmp_path: Path) -> None:
    (tmp_path / "link.gz").symlink_to("target.gz")
    record.run(request(tmp_path / "link.gz"), is_json=False, is_quiet=True)
    assert (tmp_path / "link.gz").is_symlink() and read_recording(tmp_path / "target.gz").problems
    full = Path("/dev/full")
    with pytest.raises(EnvironmentProblem, match="the disk is full"):
        record.run(request(full, db=str(tmp_path / "link.gz.db")), is_json=False, is_quiet=True)
    assert full.is_char_device()


def test_a_place_that_cannot_be_written_is_refused_before_a_gpu_is_requested_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: pytest.fail("asked for a GPU"))
    for out in (tmp_path, tmp_path / "missing" / "new.gz"):
        with pytest.raises(UsageError, match="cannot be written: it"):
            record.run(request(out), is_json=False, is_quiet=True)
    assert not list(tmp_path.iterdir())


def test_what_was_recorded_is_searched(fake: FakeGpu, tmp_path: Path) -> None:
    record.run(request(tmp_path / "new.gz"), is_json=False, is_quiet=True)
    done = run(
        "search",
        "--gpu",
        f"replay:{tmp_path / 'new.gz'}",
        "--shape",
        "512",
        "--db",
        tmp_path / "a.db",
        "--json",
    )
    facts = json.loads(done.stdout)
    assert facts["best_config"] == points(SQUARE)[20].to_dict()


@pytest.fixture(scope="module")
def folder(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("verify")
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--trials", "30", "--db", here / "a.db")
    run("export-table", "--max-kernels", "8", "--db", here / "a.db", "--out", here / "table")
    return here / "table"


@pytest.fixture
def fine_epilogues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime, which checks kernels with an epilogue, finds all of them right."""

    def check(path: Path, **_: Any) -> Iterator[KernelCheck]:
        for kernel in load(path).kernels:
            if not kernel.is_plain:
                yield KernelCheck(kernel.id, SQUARE, 1.0, 0.0, 0.5, "")

    monkeypatch.setattr(verify, "verify_table", check)


def test_every_kernel_is_checked_on_its_shapes_and_on_ragged_ones(
    fake: FakeGpu, folder: Path, fine_epilogues: None, capsys: pytest.CaptureFixture[str]
) -> None:
    verify.run(folder, "0", is_json=True)
    exported = load(folder)
    facts = json.loads(capsys.readouterr().out)
    assert facts["not_checked"] == facts["unlisted"] == []
    assert {check["kernel"] for check in facts["checks"]} == {k.id for k in exported.kernels}
    assert {sha for _, sha in fake.checked} == {k.sha256 for k in exported.kernels if k.is_plain}
    assert SQUARE in {gemm for gemm, _ in fake.checked}
    default = next(k for k in exported.kernels if k.id == exported.defaults["TN"])
    ragged = {(g.m, g.n, g.k, g.layout) for g, sha in fake.checked if sha == default.sha256}
    assert {(*extents, "TN") for extents in verify.ODD_EXTENTS} <= ragged


def test_kernels_are_held_to_the_units_and_to_the_promise_of_their_class(
    fake: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The promise on tuned shapes alone: an odd one may be too small to show an error."""
    table = with_tensor_kernel(make_table(environment=ENVIRONMENT), gemm=Gemm(512, 512, 512))
    write_table(table, tmp_path / "t")
    verify.run(tmp_path / "t", "0", is_json=True)
    capsys.readouterr()
    found = {name: fake.classes.count(name) for name in set(fake.classes)}
    assert found.pop((FP32, FP32)) == 1
    assert found.pop((FP32, STRICT))
    assert set(found) == {(STRICT, STRICT)}


@pytest.mark.stress
def test_kernels_with_an_epilogue_are_checked_by_the_runtime(
    fake: FakeGpu, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would launch them without a bias."""
    own = ("export-table", "--max-kernels", "0", "--db", folder.parent / "a.db", "--out", tmp_path / "t")
    run(*own, "--epilogue", "bias")
    table, requested = load(tmp_path / "t"), []

    def check(path: Path, *, device: int, is_checked: Callable[[Kernel], bool]) -> Iterator[KernelCheck]:
        kernels = [kernel for kernel in table.kernels if is_checked(kernel)]
        requested.append((path, device, len(kernels)))
        checks = [KernelCheck(kernel.id, SQUARE, 1.0, 0.0, 0.5, "") for kernel in kernels]
        yield from (*checks[1:], replace(checks[0], error_ratio=7.0, reason="C is off"))

    monkeypatch.setattr(verify, "verify_table", check)
    with pytest.raises(DispatchError, match=r"-bias_columns on .*wrong_result: C is off"):
        verify.run(tmp_path / "t", "0", is_json=False)
    assert requested == [(tmp_path / "t", 0, len(table.kernels) // 2)]
    plain = {kernel.sha256 for kernel in table.kernels if kernel.is_plain}
    assert {sha for _, sha in fake.checked} == plain


def test_a_wrong_kernel_is_told_with_its_shape(
    fake: FakeGpu, folder: Path, fine_epilogues: None, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel_id = load(folder).entries[0].ranked[0].kernel
    fake.failing[next(k.sha256 for k in load(folder).kernels if k.id == kernel_id)] = WRONG
    with pytest.raises(DispatchError, match=r"wrong_result: C\[0\]\[0\]"):
        verify.run(folder, "0", is_json=False)
    line = next(row for row in capsys.readouterr().out.splitlines() if row.startswith(kernel_id))
    assert line.split()[-1] == "7.00"


def test_no_memory_for_a_check_is_not_a_wrong_kernel(
    fake: FakeGpu, folder: Path, fine_epilogues: None
) -> None:
    kernels = {kernel.id: kernel.sha256 for kernel in load(folder).kernels if kernel.is_plain}
    first, second, *_ = kernels
    reason = "CUDA_ERROR_OUT_OF_MEMORY (2) in cuGraphInstantiate"
    fake.failing[kernels[second]] = Measurement(Outcome.OUT_OF_MEMORY, reason)
    with pytest.raises(EnvironmentProblem, match=rf"found no memory .*{second} on .*; all others were"):
        verify.run(folder, "0", is_json=False)
    fake.failing[kernels[first]] = WRONG
    with pytest.raises(DispatchError, match=rf"first {first} on .*wrong_result.*do not use"):
        verify.run(folder, "0", is_json=False)


@pytest.mark.stress
def test_no_memory_for_an_epilogue_hides_no_wrong_kernel(
    fake: FakeGpu, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ("export-table", "--max-kernels", "0", "--db", folder.parent / "a.db", "--out", tmp_path / "t")
    run(*own, "--epilogue", "bias")
    table = load(tmp_path / "t")
    *_, last = (kernel for kernel in table.kernels if not kernel.is_plain)
    first: list[KernelCheck] = []

    def find_no_memory(*_: Any, **__: Any) -> Iterator[KernelCheck]:
        yield from first
        raise CudaFault("allocating 4 bytes", 2, "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(verify, "verify_table", find_no_memory)
    with pytest.raises(EnvironmentProblem, match=r"found no memory .*-bias_columns on .*verify again"):
        verify.run(tmp_path / "t", "0", is_json=False)
    first.append(KernelCheck(last.id, SQUARE, 1.0, 0.0, 7.0, "C is off"))
    with pytest.raises(DispatchError, match=rf"first {last.id} on .*wrong_result: C is off"):
        verify.run(tmp_path / "t", "0", is_json=False)
    first.clear()
    plain = next(kernel for kernel in table.kernels if kernel.is_plain)
    fake.failing[plain.sha256] = WRONG
    with pytest.raises(DispatchError, match=rf"first {plain.id} on .*wrong_result.*do not use"):
        verify.run(tmp_path / "t", "0", is_json=False)


def test_a_table_for_another_gpu_is_refused_before_anything_runs(fake: FakeGpu, folder: Path) -> None:
    fake.gpu.name = "NVIDIA GeForce RTX 4090"
    with pytest.raises(DispatchError, match="RTX 4090"):
        verify.run(folder, "0", is_json=False)
    assert fake.checked == []


def test_a_changed_table_is_refused_before_a_gpu_is_requested_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    text = (copy / "table.json").read_text(encoding="utf-8")
    (copy / "table.json").write_text(text.replace('"m": 512', '"m": 513', 1), encoding="utf-8")
    monkeypatch.setattr(targets, "open_gpu", lambda *_, **__: pytest.fail("asked for a GPU"))
    with pytest.raises(DispatchError, match="checksum"):
        verify.run(copy, "0", is_json=False)


def test_a_recording_is_no_gpu() -> None:
    with pytest.raises(Exception, match="recording cannot run kernels"):
        targets.open_gpu("replay:x.gz", CachePolicy.COLD, note=print)


@pytest.mark.parametrize(
    ("arguments", "limit"), [((), 1.5), (("--max-error", "2"), 2.0), (("--max-error", "0"), None)]
)
@pytest.mark.parametrize("command", ["search", "record"])
def test_the_limit_on_errors_reaches_the_gpu(
    command: str,
    arguments: tuple[str, ...],
    limit: float | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    requested = []

    def open_gpu(*given: object, **named: object) -> None:
        requested.append(named["max_error"])
        raise EnvironmentProblem("no GPU after all")

    monkeypatch.setattr(targets, "GpuTarget", open_gpu)
    monkeypatch.setattr(targets, "_need_memory", lambda *_: None)
    files = ("--out", str(tmp_path / "new.gz")) if command == "record" else ("--db", str(tmp_path / "a.db"))
    done = CliRunner().invoke(app, [command, "--gpu", "0", "--shape", "512", *files, *arguments])
    assert isinstance(done.exception, EnvironmentProblem)
    assert requested == [limit]
