"""What replaces something is on the disk before, and the exchange before the old is removed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from table_cases import make_kernel, make_spec, make_table, write_table

from autotune.export import exchange
from autotune.files import output_file
from autotune.files.errors import AutotuneError
from autotune.files.output_file import write_file

PROCESS = Path(__file__).parents[1] / "recording_process.py"
TABLE = make_table(make_kernel("plain", make_spec()))
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int fsync(int file) {
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t length = readlink(link, name, sizeof name - 1);
    fprintf(stderr, "sync %.*s\n", (int)length, name);
    return 0;
}
int rename(const char *from, const char *to) {
    fprintf(stderr, "move %s\n", to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
"""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced, moved and removed, in order, by name."""
    found: list[tuple[str, str]] = []

    def note(step: str, made: Callable[..., Any], at: int) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            found.append((step, str(arguments[at])))
            return made(*arguments, **options)

        return run

    def sync(file: int) -> None:
        found.append(("sync", os.readlink(f"/proc/self/fd/{file}")))  # noqa: PTH115

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", note("move", os.rename, 1))
    monkeypatch.setattr(os, "replace", note("move", os.replace, 1))
    monkeypatch.setattr(os, "unlink", note("remove", os.unlink, 0))
    monkeypatch.setattr(exchange, "_exchange", note("move", exchange._exchange, 1))
    return found


def test_a_file_is_synced_before_it_takes_its_place_and_its_folder_after(tmp_path: Path, steps: Any) -> None:
    (tmp_path / "out.txt").write_text("old")
    write_file(tmp_path / "out.txt", "new")
    (part, synced_part), moved, folder = ((step, path) for step, path in steps)
    assert part == "sync" and Path(synced_part).name.startswith(".out.txt.")
    assert [moved, folder] == [("move", str(tmp_path / "out.txt")), ("sync", str(tmp_path))]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_export_is_synced_before_it_takes_its_place_and_removes_the_old_after(
    tmp_path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    folder = tmp_path / "t"
    for _ in range(2):  # into an empty place, and into one that is taken
        if not can_exchange:
            monkeypatch.setattr(exchange, "_exchange", lambda one, other: False)
        steps.clear()
        write_table(TABLE, folder)
        taken = steps.index(("move", str(folder)))
        before = {Path(path).name for step, path in steps[:taken] if step == "sync"}
        assert {path.name for path in folder.rglob("*")} | {exchange.NEW} == before
        parent = steps.index(("sync", str(tmp_path)))
        removed = [at for at, (step, _) in enumerate(steps) if step == "remove"]
        assert taken < parent < min(removed)
        assert any(
            step == "sync" and Path(path).parent == tmp_path for step, path in steps[taken : min(removed)]
        )


def _recording(tmp_path: Path, num: int) -> subprocess.Popen[str]:
    """A process that records by the core, and tells its syncs and moves on stderr."""
    shim, folder = tmp_path / "shim.so", write_table(TABLE, tmp_path / "t")
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(shim), "-ldl"]
    subprocess.run(command, input=_SHIM, text=True, check=True)
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, str(PROCESS), str(folder), str(tmp_path / "calls.json"), str(num), "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": paths, "LD_PRELOAD": str(shim), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def test_a_record_of_the_core_is_synced_before_it_takes_its_place(tmp_path: Path) -> None:
    done = _recording(tmp_path, 3).communicate(timeout=60)[1]
    place = tmp_path / "calls.json.d"
    (record,) = place.iterdir()
    assert done.splitlines()[:3] == [f"sync {place}/.{record.name}", f"move {record}", f"sync {place}"]


def test_the_core_waits_for_the_disk_at_first_and_then_seldom(tmp_path: Path) -> None:
    with _recording(tmp_path, 0) as process:
        assert process.stderr is not None
        steps = [process.stderr.readline().split()[0] for _ in range(5)]
        process.kill()
    assert steps == ["sync", "move", "sync", "move", "move"]


@pytest.mark.parametrize(
    ("code", "is_refused"), [(errno.EINVAL, False), (errno.EIO, True), (errno.ENOSPC, True)]
)
def test_a_disk_that_fails_to_sync_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_refused: bool
) -> None:
    """The old file stays; but a file system that has no disk is as good as it can be."""

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "out.txt"
    path.write_text("old")
    if is_refused:
        with pytest.raises(AutotuneError, match=r"out\.txt cannot be written"):
            write_file(path, "new")
    else:
        write_file(path, "new")
    assert path.read_text() == ("old" if is_refused else "new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_may_not_be_read_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(output_file.os, "open", refuse)
    output_file.sync_folder(tmp_path)
