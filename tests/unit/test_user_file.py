"""What is no regular file of a sensible size is refused at once, before it is read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.files.errors import UsageError
from autotune.files.user_file import read_file

MOST = 1 << 20


@pytest.mark.timeout(20)  # a pipe that nobody writes to is waited on for ever
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    with listening:
        for name, kind in (("fifo", "a pipe"), ("link", "a device")):
            with pytest.raises(UsageError, match=f"is {kind}, and a suite is a regular file"):
                read_file(tmp_path / name, "suite", MOST)
        for name in ("socket", "."):
            with pytest.raises(UsageError, match="no readable suite"):
                read_file(tmp_path / name, "suite", MOST)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("shapes")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link", "suite", MOST) == b"shapes"


def test_compressed_files_are_read_as_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
    assert read_file(tmp_path / "file", "recording", MOST) == b"onetwo"


@pytest.mark.parametrize(
    ("content", "tool"),
    [(lzma.compress(b"1,2,3"), "xz"), (bz2.compress(b"1,2,3"), "bzip2"), (b"PK\x03\x04..", "zip")],
)
def test_what_is_packed_otherwise_is_told_by_its_tool(tmp_path: Path, content: bytes, tool: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UsageError, match=f"file is packed by {tool}; unpack the suite, or compress it with"):
        read_file(tmp_path / "file", "suite", MOST)


def test_enormous_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "bomb").write_bytes(gzip.compress(b"0" * (MOST + 1)))
    for name in ("sparse", "bomb", "/proc/kallsyms" if Path("/proc/kallsyms").exists() else "sparse"):
        with pytest.raises(UsageError, match="holds more than 1,024 KiB, too much for a recording"):
            read_file(tmp_path / name, "recording", MOST)


def test_a_database_is_named_as_one_and_where_it_goes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (zeroblob(?))", (MOST,))
        connection.commit()
    for most_bytes in (MOST, 2 * MOST):
        with pytest.raises(UsageError, match=f"{path} is a database, not a suite: commands take it as --db"):
            read_file(path, "suite", most_bytes)


@pytest.mark.parametrize("name", ["none", "none\0", "n" * 5000, "none/none"])
def test_a_name_of_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name an"):
        read_file(tmp_path / name, "suite", MOST)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(range(256)))
    for kept in range(3, len(whole)):
        (tmp_path / "cut").write_bytes(whole[:kept])
        with pytest.raises(UsageError, match="no readable recording"):
            read_file(tmp_path / "cut", "recording", MOST)
