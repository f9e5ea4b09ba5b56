"""`verify` of a folder where no GPU can be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from table_cases import make_kernel, make_spec, make_table, write_table

from autotune import target_finder as targets
from autotune.cli import verify
from autotune.export.manifest import check_files
from autotune.files.errors import DispatchError, EnvironmentProblem

TABLE = make_table(make_kernel("fast", make_spec()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(TABLE, tmp_path / "my_table")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EnvironmentProblem("the NVIDIA driver sees no GPU; install one")

    monkeypatch.setattr(targets, "open_gpu", fail)


def test_a_folder_is_as_it_was_written(folder: Path) -> None:
    found = check_files(folder)
    there = [path for path in folder.rglob("*") if path.is_file()]
    assert (found.num_files, found.unexpected) == (len(there), ())
    [model] = found.models
    assert (model.folder, model.table) == (folder, TABLE)
    assert set(model.code) == {kernel.sha256 for kernel in TABLE.kernels}


@pytest.mark.parametrize("name", ["__init__.py", "_autotune/runtime/launch/planner.py", "py.typed"])
def test_every_file_that_was_changed_or_lost_is_named(folder: Path, name: str) -> None:
    with (folder / name).open("a") as file:
        file.write("# another byte")
    with pytest.raises(DispatchError, match=rf"not as it was exported \(changed: {name}\); move it away"):
        check_files(folder)
    (folder / name).unlink()
    with pytest.raises(DispatchError, match=rf"not as it was exported \(missing: {name}\)"):
        check_files(folder)


def test_what_is_not_of_the_export_is_told_and_no_fault(
    folder: Path, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.txt").touch()
    verify.run(folder, "none", is_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["unlisted"] == ["mine.txt"]
    assert "not of the export and were not checked: mine.txt" in said.err


def test_without_a_gpu_the_files_are_checked_and_the_rest_is_named(
    folder: Path, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EnvironmentProblem, match=r"no kernel was run: .* sees no GPU.*--gpu none"):
        verify.run(folder, "auto", is_json=False)
    out = capsys.readouterr().out
    assert "5 kernels in 5 cubins for NVIDIA H200: schema, checksums, launch specs and what cubins" in out
    assert "Not checked: what the kernels compute, whether the driver takes them." in out
    (folder / "cubins.gz").write_bytes(b"damaged")
    with pytest.raises(DispatchError, match="is damaged"):
        verify.run(folder, "auto", is_json=False)


def test_requested_for_no_gpu_nothing_is_amiss(
    folder: Path, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    verify.run(folder, "none", is_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["gpu"], facts["num_kernels"], facts["checks"]) == (None, 5, [])
    assert facts["not_checked"]


@pytest.mark.parametrize("selector", ["none", "auto"])
def test_a_folder_without_its_manifest_is_refused(folder: Path, no_gpu: None, selector: str) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(DispatchError, match=r"lacks its manifest\.json, .*restore it .* or .*export again"):
        verify.run(folder, selector, is_json=False)
