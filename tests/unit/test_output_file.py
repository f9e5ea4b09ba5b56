"""Writing the file that the user named loses nothing of the user's."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.files.output_file import check_writable, write_file

ROOT = Path(__file__).resolve().parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "out.txt", "für alle")
    finally:
        os.umask(before)
    assert (tmp_path / "out.txt").read_bytes() == "für alle".encode()
    assert stat.S_IMODE((tmp_path / "out.txt").stat().st_mode) == 0o640
    assert names(tmp_path) == ["out.txt"]


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    path.chmod(0o604)
    with path.open() as reader:
        write_file(path, b"new")
        assert reader.read() == "old"  # a browser may be showing it
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o604)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_roots_report_leaves_a_users_file_the_users(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.touch()
    os.chown(path, 1234, 4321)
    write_file(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


@pytest.mark.parametrize("is_there", [True, False])
def test_links_are_written_through(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "target.txt"
    if is_there:
        target.write_text("old")
    (tmp_path / "there" / "second").symlink_to("target.txt")
    (tmp_path / "first").symlink_to("there/second")
    write_file(tmp_path / "first", "new")
    assert target.read_text() == "new"
    assert (tmp_path / "first").is_symlink() and (tmp_path / "there" / "second").is_symlink()
    assert names(tmp_path) == ["first", "there"] and names(tmp_path / "there") == ["second", "target.txt"]


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    check_writable(fifo)
    write_file(fifo, "through the pipe")
    reader.join(10)
    assert received == [b"through the pipe"]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


def test_devices_stay_devices() -> None:
    write_file(Path("/dev/null"), "nothing")
    with pytest.raises(
        EnvironmentProblem, match=r"/dev/full cannot be written: the disk is full .*; free some"
    ):
        write_file(Path("/dev/full"), "nothing")
    for name in ("null", "full"):
        assert stat.S_ISCHR(Path("/dev", name).lstat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_appended_to_and_not_replaced(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    log.write_text("what was there\n")
    code = f"from autotune.files.output_file import *; write_file(Path({name!r}), 'new')"
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=out, check=True, timeout=60)
    assert log.read_text() == "what was there\nnew"
    piped = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    assert piped.stdout == b"new"


@pytest.mark.parametrize(
    ("name", "message"),
    [("folder", "it is a folder"), ("missing/out.txt", "its folder does not exist"),
     ("file/out.txt", "Not a directory"), ("loop", "Too many levels of symbolic links"),
     ("link", "it is a folder")],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_early_and_late(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("folder")
    before = names(tmp_path)
    for act in (
        lambda path: write_file(path, "x", option="--svg"),
        lambda path: check_writable(path, option="--svg"),
    ):
        with pytest.raises(UsageError, match=f"cannot be written: ({message}); name another file with --svg"):
            act(tmp_path / name)
    assert names(tmp_path) == before and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failure_while_writing_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fchmod", fail)
    expected = UsageError if code == errno.EIO else EnvironmentProblem
    with pytest.raises(expected, match=r"out\.txt cannot be written"):
        write_file(path, "new")
    assert path.read_text() == "old" and names(tmp_path) == ["out.txt"]


def test_a_pipe_that_nobody_reads_is_no_wrong_usage(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        write_file(Path(f"/proc/self/fd/{writer}"), "x")
    os.close(writer)
