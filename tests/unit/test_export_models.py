"""Exports that add the table of another GPU model: what is there stays as it is, and both are found."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from kind_cases import FIRST, H100, H200, SECOND, TUNED, add, driver_of_kinds, table_for
from table_cases import code_of, write_older, write_table
from test_export_replaced import snapshot
from test_gpu_models import multiply

from autotune.export import exchange, package
from autotune.export.manifest import check_files
from autotune.export.package import prepare, write_folder
from autotune.files.errors import DispatchError
from autotune.files.folder_files import KeptFile
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.gpu_models import GpuModel, load_models
from autotune.runtime.table.table import Table

NEW = "2027-02-02T00:00:00+00:00"
THIRD = table_for("Tesla T4!", "of-t4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(FIRST, tmp_path / "my_table")


def tables_of(folder: Path) -> list[Table]:
    return [table for _, table in load_models(folder)]


def contents(folder: Path) -> dict[str, bytes | str]:
    """What a kind's folder holds of its own."""
    names = ("table.json", "cubins")
    return {name: text for name, text in snapshot(folder).items() if name.startswith(names)}


def test_what_is_there_stays_byte_for_byte(folder: Path) -> None:
    before = contents(folder)
    assert add(SECOND, folder) == []
    assert contents(folder) == before and tables_of(folder) == [FIRST, SECOND]
    second = contents(folder / "kinds" / "nvidia_h100_sm_90")
    assert add(THIRD, folder) == []
    assert contents(folder / "kinds" / "nvidia_h100_sm_90") == second and contents(folder) == before
    assert {GpuModel.of_table(table).name for table in tables_of(folder)} == {
        "NVIDIA H200", "NVIDIA H100", "Tesla T4!",
    }  # fmt: skip
    found = check_files(folder)
    assert not found.unexpected and [model.table for model in found.models] == tables_of(folder)


@pytest.mark.parametrize("older", [FIRST, SECOND], ids=["first", "second"])
def test_a_kind_that_is_there_is_replaced_and_told(folder: Path, older: Table) -> None:
    add(SECOND, folder)
    other = SECOND if older is FIRST else FIRST
    places = {GpuModel.of_table(table): path for path, table in load_models(folder)}
    before = contents(places[GpuModel.of_table(other)])
    newer = replace(older, created_at=NEW)
    (notes,) = add(newer, folder)
    assert f"held a table for {GpuModel.of_table(older)}: it is replaced" in notes
    assert sorted(tables_of(folder), key=str) == sorted([newer, other], key=str)
    assert contents(places[GpuModel.of_table(other)]) == before
    assert {GpuModel.of_table(table): path for path, table in load_models(folder)} == places


def test_a_slice_is_of_its_gpu_s_kind(folder: Path) -> None:
    (notes,) = add(table_for("NVIDIA H200 MIG 1g.18gb", "of-slice"), folder)
    assert "is replaced" in notes and len(tables_of(folder)) == 1


def test_added_to_nothing_a_table_is_the_first(tmp_path: Path) -> None:
    for place in (tmp_path / "new", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert add(FIRST, place) == [] and tables_of(place) == [FIRST]


def test_a_folder_of_the_schema_before_is_added_to(tmp_path: Path) -> None:
    folder = write_older(FIRST, 10, tmp_path / "older")
    before = contents(folder)
    add(SECOND, folder)
    assert contents(folder) == before and tables_of(folder)[1] == SECOND


def test_a_folder_of_an_older_schema_is_replaced_and_not_added_to(tmp_path: Path) -> None:
    folder = write_older(FIRST, 9, tmp_path / "older")
    with pytest.raises(DispatchError, match=r"is of schema 9, .*export the table again"):
        add(SECOND, folder)
    assert tables_of(write_table(SECOND, folder)) == [SECOND]


def test_names_that_are_alike_get_folders_of_their_own(folder: Path) -> None:
    similar = [table_for(name, f"k{at}") for at, name in enumerate(("GPU-1", "GPU 1", "gpu/1", "!!", "?"))]
    for table in similar:
        add(table, folder)
    assert sorted(map(str, tables_of(folder))) == sorted(map(str, [FIRST, *similar]))
    assert sorted(path.name for path in (folder / "kinds").iterdir()) == [
        "gpu_1_sm_90", "gpu_1_sm_90_2", "gpu_1_sm_90_3", "sm_90", "sm_90_2",
    ]  # fmt: skip


def test_an_export_without_add_tells_what_goes(folder: Path) -> None:
    add(SECOND, folder)
    notes: list[str] = []
    code = {kernel.sha256: code_of(kernel) for kernel in SECOND.kernels}
    write_folder(SECOND, code, folder, notes.append)
    assert tables_of(folder) == [SECOND] and not (folder / "kinds").exists()
    assert "held the table for NVIDIA H200 (sm_90), which is gone: adds keeps it" in notes[0]


@pytest.mark.parametrize(
    "name", ["table.json", "cubins.gz", "kinds/nvidia_h100_sm_90/table.json", "py.typed"]
)
def test_what_is_damaged_is_not_passed_on(folder: Path, name: str) -> None:
    """It is told before anything is compiled, too."""
    add(SECOND, folder)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    before = snapshot(folder)
    for rejected in (lambda: add(THIRD, folder), lambda: prepare(folder, adds=True)):
        with pytest.raises(DispatchError, match=r"damaged|not as it was exported"):
            rejected()
        assert snapshot(folder) == before
    write_table(THIRD, folder)  # alone
    assert tables_of(folder) == [THIRD]


def test_a_table_that_is_lost_is_no_folder_without_it(folder: Path) -> None:
    add(SECOND, folder)
    (folder / "table.json").unlink()
    with pytest.raises(DispatchError, match=r"no table\.json"):
        add(THIRD, folder)
    (folder / "kinds" / "nvidia_h100_sm_90" / "table.json").unlink()
    with pytest.raises(DispatchError, match=r"no table\.json"):
        load_models(folder)


def test_two_tables_for_one_kind_are_refused(folder: Path) -> None:
    twin = folder / "kinds" / "twin"
    twin.mkdir(parents=True)
    (twin / "table.json").write_bytes((folder / "table.json").read_bytes())
    with pytest.raises(DispatchError, match=r"two tables for NVIDIA H200 \(sm_90\)"):
        Dispatcher(folder)


def test_exports_at_once_lose_no_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads what is there, and puts all of it in its place, one after another."""
    monkeypatch.setattr(package, "runtime_files", lambda: {"errors.py": b""})
    tables = [table_for(f"NVIDIA X{number}", f"of-x{number}") for number in range(6)]
    start = threading.Barrier(len(tables))

    def export(table: Table) -> None:
        start.wait()
        add(table, folder)

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(export, tables))
    assert sorted(map(str, tables_of(folder))) == sorted(map(str, [FIRST, *tables]))
    assert [path.name for path in folder.parent.iterdir()] == ["my_table"]


def test_an_export_that_is_stopped_is_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_WAIT_S", 0.1)
    before = snapshot(folder)
    with exchange.alone(folder), pytest.raises(DispatchError, match="end it if it is stopped, and export"):
        add(SECOND, folder)
    assert snapshot(folder) == before and add(SECOND, folder) == []


def test_a_program_that_runs_keeps_what_it_has_read(folder: Path) -> None:
    """Cubins are unpacked when one is first needed: those of the folder that was read, of all kinds."""
    add(SECOND, folder)
    driver = driver_of_kinds(FIRST, SECOND)
    runtime = Dispatcher(folder, driver=driver, cublas=False)
    multiply(runtime, driver, H200)
    write_table(THIRD, folder)
    assert not (folder / "kinds").exists()
    for device, name in ((H100, "of-h100"), (H200, "of-h200")):
        multiply(runtime, driver, device)
        assert driver.launches[-1].kernel_id == name
    multiply(runtime, driver, H100, replace(TUNED, trans_a=False, m=100, n=52, k=17))


@pytest.mark.every(3)
@pytest.mark.parametrize("way", ["as it is", "through a link"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_modules_that_are_imported_later_are_those_of_the_start(
    folder: Path, is_replaced: bool, way: str
) -> None:
    """What launches is imported at the first product; here another version's would stop it, or the core's.
    What is replaced lies in the folder that is imported from, or in one that a link there leads to."""
    other = write_table(FIRST, folder.parent / "other_table")
    for path in other.glob("_autotune/**/*.py"):
        path.write_text("raise RuntimeError('of another version')")
    for path in other.glob("_autotune/**/*.so"):
        path.write_bytes(b"of another version")
    other.rename(folder.parent / "other")
    place = folder.parent if way == "as it is" else folder.parent / "link"
    if way != "as it is":
        place.symlink_to(folder.parent)
    code = f"""
import importlib, os, sys
from pathlib import Path
sys.path.remove("")
import my_table
private = "my_table._autotune.runtime"
late = ["native.core", "launch.planner", "settle.settling", "torch.torch_routing",
        "torch.torch_program", "calls.multiply", "calls.arrays", "launch.cuda_driver"]
assert not [name for name in late if f"{{private}}.{{name}}" in sys.modules]
if {is_replaced}:
    os.rename("my_table", "gone")
    os.rename("other", "my_table")
    __import__("shutil").rmtree("gone")
for name in late:
    importlib.import_module(f"{{private}}.{{name}}")
core = sys.modules[f"{{private}}.native.core"]
print(core.loaded() is not None, my_table.pick(128, 128, 64).kernel_id, Path(core.__file__).name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(place)}, timeout=60,
        capture_output=True, text=True, check=False, cwd=folder.parent,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "of-h200", "core.py"], done.stderr


@pytest.mark.parametrize(("way", "version"), [("import", "new"), ("reload", "old")])
def test_modules_of_a_table_that_is_imported_anew_are_of_one_version(
    folder: Path, way: str, version: str
) -> None:
    """Modules that are gone are imported from the new folder; `reload` leaves all but the first."""
    other = write_table(FIRST, folder.parent / "other_table")
    for place, notes in ((folder, "old"), (other, "new")):
        for name in ("calls/multiply", "dispatcher"):
            with (place / f"_autotune/runtime/{name}.py").open("a") as file:
                file.write(f"VERSION = {notes!r}\n")
    code = f"""
import importlib, os, sys
import my_table
os.rename("my_table", "gone")
os.rename("other_table", "my_table")
if "{way}" == "import":
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_table"]:
        del sys.modules[name]
    import my_table
else:
    for _ in range(20):
        importlib.reload(my_table)
kept = [finder for finder in sys.meta_path if type(finder).__name__ == "KeptModules"]
from my_table._autotune.runtime import dispatcher
from my_table._autotune.runtime.calls import multiply
print(dispatcher.VERSION, multiply.VERSION, len(kept))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(folder.parent)}, timeout=60,
        capture_output=True, text=True, check=False, cwd=folder.parent,
    )  # fmt: skip
    assert done.stdout.split() == [version, version, "1"], done.stderr


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(SECOND, folder)
    other = write_table(THIRD, tmp_path / "other")

    def late(path: str, advice: str) -> KeptFile:
        if other.exists():
            assert exchange._exchange(folder, other)
            other.rename(other.with_name("gone"))
        return KeptFile(path, advice)

    monkeypatch.setattr("autotune.runtime.table.gpu_models.KeptFile", late)
    runtime = Dispatcher(folder)
    assert list(runtime.tables) == [THIRD]


def test_all_kinds_are_told_of(folder: Path) -> None:
    add(replace(SECOND, created_at=NEW), folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert "NVIDIA H200, NVIDIA H100" in project["description"] and project["version"] == "2027.2.2.0.0"
    code = (
        "import my_table as t; print(t.__doc__); print(*(x.environment.gpu_name for x in t.tables), sep='|');"
        "print(t.pick(128, 128, 64).kernel_id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(folder.parent)}, timeout=60,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "NVIDIA H100 (sm_90): 1 tuned shape" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["NVIDIA H200|NVIDIA H100", "of-h200"]


def test_sources_in_c_are_of_all_kinds_and_stay(folder: Path) -> None:
    add(SECOND, folder, with_c=True)
    text = (folder / "c" / "exported_table.c").read_text()
    assert "NVIDIA H200" in text and "NVIDIA H100" in text
    add(THIRD, folder)
    assert "Tesla T4!" in (folder / "c" / "exported_table.c").read_text()
    write_table(FIRST, folder)
    assert not (folder / "c").exists()
