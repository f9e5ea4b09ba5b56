"""Exports killed with -9 at every step: a table is at its place at every moment, and nothing stays hidden."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import killed_export
import pytest
from kills import TESTS
from zygote import Zygote

from autotune.export import exchange
from autotune.runtime.table.gpu_models import load_cubins, load_models
from autotune.runtime.table.table import load

OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-02T00:00:00+00:00"


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS / "unit")))
    made = Zygote("killed_export", os.environ | {"PYTHONPATH": path})
    yield made
    made.close()


def whole(folder: Path) -> str:
    """When the table was made that is here, whole."""
    table = load(folder)
    load_cubins(folder, table)
    return table.created_at


def run_to(zygote: Zygote, folder: Path, step: int, *, can_exchange: bool, adds: bool = False) -> bool:
    """Whether an export is killed at this step."""
    child = zygote.start([str(folder), step, can_exchange, NEW, adds], folder.parent.parent)
    code = child.wait(60)
    said = (folder.parent.parent / "err").read_text()
    assert code in (0, -signal.SIGKILL), said
    return code != 0


@pytest.mark.stress
def test_a_kill_at_any_step_of_adding_loses_no_kind(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "place" / "table"
    killed_export.make(folder, OLD)
    first, num_steps = load(folder), 0
    while run_to(zygote, folder, num_steps + 1, can_exchange=True, adds=True):
        num_steps += 1
        kinds = load_models(folder)
        assert kinds[0] == (folder, first) and [table.created_at for _, table in kinds[1:]] in ([], [NEW])
        for path, table in kinds:
            load_cubins(path, table)
        if num_steps % 4 == 0:  # a kind that is there is replaced in the steps between
            killed_export.make(folder, OLD)
    killed_export.make_beside(folder, NEW)
    assert len(load_models(folder)) == 2 and num_steps > 20
    assert [path.name for path in folder.parent.iterdir()] == ["table"]


@pytest.mark.stress
@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchanged", "renamed"])
def test_a_kill_at_any_step_loses_no_table(zygote: Zygote, tmp_path: Path, can_exchange: bool) -> None:
    folder = tmp_path / "place" / "table"
    num_steps, found = 0, {OLD: 0, NEW: 0, "hidden": 0}
    killed_export.make(folder, OLD)
    while run_to(zygote, folder, num_steps + 1, can_exchange=can_exchange):
        num_steps += 1
        if folder.exists():
            found[whole(folder)] += 1
        else:
            found["hidden"] += 1
            exchange.recover(folder, pytest.fail)
            assert whole(folder) == OLD
        killed_export.make(folder, OLD)
        assert [path.name for path in folder.parent.iterdir()] == ["table"]
        assert whole(folder) == OLD
    assert whole(folder) == NEW
    assert min(found[OLD], found[NEW]) > 10 and sum(found.values()) == num_steps
    assert found["hidden"] == (0 if can_exchange else 1)


def test_a_kill_of_the_first_export_leaves_all_or_nothing(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "place" / "table"
    folder.parent.mkdir()
    step = 1
    while run_to(zygote, folder, step, can_exchange=True):
        assert not folder.exists() or whole(folder) == NEW
        killed_export.make(folder, OLD)
        assert [path.name for path in folder.parent.iterdir()] == ["table"]
        exchange.manifest.remove(folder, exchange.manifest.take_inventory(folder))
        step += 1
    assert step > 20


def test_what_a_living_export_holds_is_left_alone(tmp_path: Path) -> None:
    folder, scratch = tmp_path / "table", tmp_path / ".table-abcd1234"
    (scratch / exchange.NEW).mkdir(parents=True)
    with (scratch / exchange.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        killed_export.make(folder, OLD)
        assert [path.name for path in scratch.iterdir()] != []
    killed_export.make(folder, NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_where_there_are_no_locks_it_is_told_and_nothing_more_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".table-abcd1234" / exchange.NEW).mkdir(parents=True)
    (tmp_path / ".table-abcd1234" / exchange.LOCK).touch()
    notes: list[str] = []
    exchange.recover(tmp_path / "table", notes.append)
    exchange.replace(tmp_path / "table", lambda new: None, notes.append)
    of_left, of_new = notes
    assert ".table-abcd1234 is of an export under way, or of a killed one" in of_left
    assert f"{tmp_path} lies on a file system without locks (No locks available); let only one" in of_new
    assert sorted(path.name for path in tmp_path.iterdir()) == [".table-abcd1234", "table"]


@pytest.mark.parametrize("name", [".table-mybackup", ".table-abcd12345", ".other-abcd1234", "table-abcd1234"])
def test_a_hidden_folder_of_the_user_is_left_alone(tmp_path: Path, name: str) -> None:
    mine = tmp_path / name / "notes.txt"
    mine.parent.mkdir()
    mine.touch()
    killed_export.make(tmp_path / "table", OLD)
    assert mine.exists()


def test_a_file_of_the_user_in_a_stale_scratch_folder_is_kept_and_told(tmp_path: Path) -> None:
    scratch = tmp_path / ".table-abcd1234"
    killed_export.make(scratch / "made", OLD)
    (scratch / "lock").touch()
    (scratch / "made" / "mine.txt").write_text("years of work")
    notes: list[str] = []
    exchange.recover(tmp_path / "table", notes.append)
    kept = tmp_path / "table-kept-abcd1234"
    assert [p.relative_to(tmp_path) for p in tmp_path.rglob("*.txt")] == [
        Path("table-kept-abcd1234/made/mine.txt")
    ]
    assert sorted(p.name for p in kept.rglob("*")) == ["made", "mine.txt"]
    assert str(kept) in notes[0]


def test_a_file_system_that_cannot_exchange_is_told_from_one_that_fails(tmp_path: Path) -> None:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    assert not exchange._exchange(tmp_path / "one", tmp_path / "one" / "inner")  # EINVAL, as file systems say
    with pytest.raises(FileNotFoundError):
        exchange._exchange(tmp_path / "one", tmp_path / "none")


def test_a_failure_between_two_renames_puts_the_old_table_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "table"
    killed_export.make(folder, OLD)
    monkeypatch.setattr(exchange, "_exchange", lambda one, other: False)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == exchange.MADE and target == folder:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        killed_export.make(folder, NEW)
    assert whole(folder) == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
