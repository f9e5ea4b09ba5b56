"""What lies in a folder instead of a table or a cubin is refused at once: nothing is waited for, nothing
is read without end."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from table_cases import make_table, write_table

from autotune.files import folder_files
from autotune.files.errors import DispatchError
from autotune.runtime.table import table
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import load, parse


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


ODD = {
    "fifo": (_fifo, "no regular file"),
    "endless": (_endless, "no regular file"),
    "folder": (_folder, "cannot be read|no regular file"),
    "loop": (_loop, "cannot be read"),
    "nowhere": (_nowhere, "no table.json|is not there"),
}
# In a process of its own: before, the first of these never came back.
LOAD = """
import sys
from pathlib import Path
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import load
from autotune.files.errors import DispatchError
folder = Path(sys.argv[1])
try:
    load_cubins(folder, load(folder))
except DispatchError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("is_cubin", [False, True], ids=["table", "cubin"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, is_cubin: bool) -> None:
    folder = write_table(make_table(), tmp_path / "t")
    put, message = ODD[name]
    path = folder / ("cubins.gz" if is_cubin else "table.json")
    path.unlink()
    put(path)
    if name in ("fifo", "endless"):
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.startswith("refused:") and message in done.stdout
        return
    with pytest.raises(DispatchError, match=message):
        load_cubins(folder, load(folder))


def test_no_more_is_read_than_a_table_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_table(make_table(), tmp_path / "t")
    monkeypatch.setattr(table, "MAX_TABLE_BYTES", 10)
    with pytest.raises(DispatchError, match=r"table\.json is larger than 0 MiB"):
        load(folder)


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_file_of_just_the_size_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    if size <= 10:
        assert folder_files.read_file(path, 10, "advice") == b"x" * size
    else:
        with pytest.raises(DispatchError, match="advice"):
            folder_files.read_file(path, 10, "advice")


def test_a_link_to_a_table_is_followed(tmp_path: Path) -> None:
    folder = write_table(make_table(), tmp_path / "t")
    (folder / "table.json").rename(tmp_path / "elsewhere.json")
    (folder / "table.json").symlink_to(tmp_path / "elsewhere.json")
    assert load(folder) == make_table()


@pytest.mark.parametrize("inside", ["", "t", "t/kinds"])
def test_a_table_in_an_archive_is_to_be_unpacked(tmp_path: Path, inside: str) -> None:
    archive = tmp_path / "tables.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("t/table.json", "{}")
    with pytest.raises(DispatchError, match=f"{archive} is a file, not a folder; unpack an archive first"):
        load(archive / inside)


NUMBERS: dict[str, Callable[[], str]] = {
    "5,000 digits": lambda: "9" * 5000,
    "5,000 digits under a wrong checksum": lambda: '{"a": ' + "9" * 5000 + "}",
    "100,000 brackets": lambda: "[" * 100_000,
    "brackets that end": lambda: "[" * 900 + "]" * 900,
    "half a surrogate": lambda: '{"format": "autotune dispatch table", "\ud800": 1}',
}


def test_what_may_not_be_read_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_table(make_table(), tmp_path / "t")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder_files.os, "open", refuse)
    with pytest.raises(DispatchError, match=r"table.json cannot be read .*; let this user read it"):
        load(folder)


@pytest.mark.parametrize("name", NUMBERS)
def test_what_python_cannot_take_is_refused(name: str) -> None:
    with pytest.raises(DispatchError):
        parse(NUMBERS[name]())


@pytest.mark.parametrize("shown", [0, 1, 9, 10, 11, 1 << 40])
def test_what_the_system_tells_of_a_size_is_not_taken_on_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int
) -> None:
    """As of a file that is written meanwhile, or of one of /proc."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[6] = shown  # st_size
        return os.stat_result(found)

    monkeypatch.setattr(folder_files.os, "fstat", fstat)
    assert folder_files.read_file(path, 10, "") == b"0123456789"
    with pytest.raises(DispatchError, match="larger"):
        folder_files.read_file(path, 9, "")
