"""An export replaces what exports wrote, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from table_cases import make_kernel, make_spec, make_table, write_table

from autotune.export import exchange, manifest
from autotune.export.package import prepare, write_folder
from autotune.files.errors import DispatchError, UsageError
from autotune.runtime.table.table import load

TABLE = make_table(make_kernel("fast", make_spec()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(TABLE, tmp_path / "my_table")


def snapshot(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder, links as what they lead to."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def rejected(folder: Path, message: str) -> None:
    """An export is refused, and leaves all as it is."""
    before = snapshot(folder.parent)
    with pytest.raises(DispatchError, match=message):
        write_table(TABLE, folder)
    assert snapshot(folder.parent) == before


def test_the_manifest_lists_every_other_file(folder: Path) -> None:
    listed = manifest.read(folder)
    assert listed is not None
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert there == {*listed, manifest.MANIFEST_FILE}
    found = manifest.take_inventory(folder)
    assert set(found.intact) == there
    assert not (found.corrupted or found.edited or found.foreign or found.missing)


def _file(path: Path) -> None:
    path.write_text("years of work", encoding="utf-8")


def _link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


FOREIGN: dict[str, tuple[str, Callable[[Path], None]]] = {
    "file": ("mine.txt", _file),
    "hidden file": (".notes", _file),
    "module of the private package": ("_autotune/mine.py", _file),
    "folder": ("notes", Path.mkdir),
    "link": ("link", _link),
    "link to a folder": ("_autotune/other", lambda path: path.symlink_to("/etc")),
    "FIFO": ("fifo", os.mkfifo),
    "compiled module of nobody": ("__pycache__/mine.cpython-312.pyc", _file),
    "source beside compiled ones": ("__pycache__/mine.py", _file),
    "link as a compiled module": ("__pycache__/__init__.cpython-312.pyc", _link),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_no_export_wrote_is_never_replaced(folder: Path, case: str) -> None:
    name, put = FOREIGN[case]
    (folder / name).parent.mkdir(exist_ok=True)
    put(folder / name)
    rejected(folder, f"holds more than an exported table: .*{Path(name).name}.*; move that elsewhere or pass")


def test_many_files_are_counted(folder: Path) -> None:
    for number in range(8):
        _file(folder / f"{number}.txt")
    rejected(folder, r"0\.txt, 1\.txt, 2\.txt and 5 more; move")


@pytest.mark.parametrize("name", ["__init__.py", "_autotune/runtime/launch/planner.py"])
def test_a_module_that_was_edited_is_never_replaced(folder: Path, name: str) -> None:
    with (folder / name).open("a") as file:
        file.write("# my own\n")
    rejected(folder, f"was edited after it was exported: {name}; move that elsewhere")
    (folder / name).unlink()
    assert load(write_table(TABLE, folder)) == TABLE


@pytest.mark.parametrize("name", ["table.json", "cubins.gz", "py.typed"])
def test_what_is_damaged_is_replaced(folder: Path, name: str) -> None:
    """Messages about damaged tables say to export again."""
    (folder / name).write_bytes(b"damaged")
    assert load(write_table(TABLE, folder)) == TABLE
    assert (folder / name).read_bytes() != b"damaged"


def _not_a_manifest(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:99]), "is damaged .*move the folder away"),
        (lambda path: path.write_text('{"format": 1}'), "is damaged .*move the folder away"),
        (
            lambda path: path.write_text(path.read_text().replace('"version": 1', '"version": 2')),
            "of version 2, newer than 1, which this code reads; use the autotune that wrote it",
        ),
    ],
)
def test_a_manifest_that_cannot_be_read_protects_the_folder(
    folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder / manifest.MANIFEST_FILE)
    rejected(folder, message)


def test_a_fifo_in_the_place_of_the_manifest_does_not_hang(folder: Path) -> None:
    _not_a_manifest(folder / manifest.MANIFEST_FILE)
    with pytest.raises(DispatchError, match="not a regular file"):
        write_table(TABLE, folder)


def test_names_that_lead_out_of_the_folder_delete_nothing(folder: Path) -> None:
    victim = folder.parent / "victim.txt"
    _file(victim)
    listed = manifest.render({**snapshot(folder), "../victim.txt": victim.read_bytes()})  # type: ignore[dict-item]
    (folder / manifest.MANIFEST_FILE).write_bytes(listed)
    write_table(TABLE, folder)
    assert victim.exists()


def test_what_python_compiled_is_replaced_too(folder: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(folder.parent)!r}); import my_table"
    for options in ((), ("-O",)):
        subprocess.run([sys.executable, *options, "-P", "-c", code], check=True, env={"PATH": ""}, timeout=60)
    compiled = {path.name for path in folder.rglob("*.pyc")}
    assert any(".opt-1." in name for name in compiled)
    (folder / "__pycache__" / f"{next(iter(compiled)).partition('.')[0]}.cpython-312.pyc.140220").touch()
    (folder / "__pycache__" / "__init__.cpython-312.pyc.140220").touch()
    for path in (folder / "__pycache__").glob("*.140220"):
        if not path.name.startswith("__init__"):
            path.unlink()
    write_table(TABLE, folder)
    assert not list(folder.rglob("*.pyc*"))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_link_to_a_table_is_refused(folder: Path) -> None:
    link = folder.with_name("current")
    link.symlink_to(folder.name)
    rejected(link, "is a symbolic link; name the folder that it leads to")


def test_what_turns_up_while_the_table_is_replaced_is_kept_and_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = exchange._put

    def late(made: Path, place: Path, old: Path) -> None:
        _file(place / "mine.txt")
        with (place / "__init__.py").open("a") as file:
            file.write("# my own\n")
        put(made, place, old)

    monkeypatch.setattr(exchange, "_put", late)
    notes: list[str] = []
    write_folder(TABLE, {k.sha256: b"" for k in TABLE.kernels}, folder, notes.append)
    (kept,) = (path for path in folder.parent.iterdir() if path != folder)
    assert kept.name.startswith("my_table-kept-") and str(kept) in notes[0]
    left = snapshot(kept)
    assert sorted(left) == ["made/__init__.py", "made/mine.txt"]
    assert left["made/mine.txt"] == b"years of work"
    assert not (folder / "mine.txt").exists()


def test_a_table_that_another_export_replaces_meanwhile_is_looked_at_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_table(make_table(make_kernel("other", make_spec())), folder.parent / "other")
    read = manifest.read

    def late(place: Path) -> dict[str, str] | None:
        found = read(place)
        if other.exists():
            assert exchange._exchange(folder, other)
            other.rename(other.with_name("gone"))
        return found

    monkeypatch.setattr(manifest, "read", late)
    found = manifest.take_inventory(folder)
    assert not (found.foreign or found.missing)


def test_the_folders_mode_is_kept(folder: Path) -> None:
    folder.chmod(0o750)
    write_table(TABLE, folder)
    assert folder.stat().st_mode & 0o777 == 0o750


def test_a_table_without_a_manifest_is_left_alone(folder: Path) -> None:
    """As autotune wrote it before there was one: nothing tells what of it is the user's."""
    (folder / manifest.MANIFEST_FILE).unlink()
    rejected(folder, "is there and is no exported table: .*; move that elsewhere or pass another")


# Names


@pytest.mark.parametrize(
    ("name", "example"),
    [("my-table", "my_table"), ("2nd", "sgemm_2nd"), ("class", "sgemm_class"), ("a b", "a_b"),
     ("v1.2", "v1_2"), ("json", "sgemm_json"), ("numpy", "sgemm_numpy"), ("autotune", "sgemm_autotune"),
     ("if-", "sgemm_if"), ("-", "sgemm"), ("\N{LATIN SMALL LIGATURE FI}le", "file")],
)  # fmt: skip
def test_a_name_that_python_cannot_import_is_refused_with_one_that_it_can(
    tmp_path: Path, name: str, example: str
) -> None:
    with pytest.raises(UsageError, match=f"{name!r} is .*; pass another folder, such as {example}$"):
        write_table(TABLE, tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert prepare(tmp_path / example) == tmp_path / example
