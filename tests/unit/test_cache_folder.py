"""Whose folders are trusted with code that is run."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.files.output_file import NotOwn, check_own, own_folder


def test_no_umask_lets_others_write_what_is_made(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = own_folder(tmp_path / "user" / ".cache" / "autotune", "choices")
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (made, *made.parents[:3])] == [0o700] * 4


def test_a_group_s_right_to_write_is_taken(tmp_path: Path) -> None:
    own = own_folder(tmp_path / "cache", "router")
    for folder in (own, own.parent):
        folder.chmod(0o2775)
    assert own_folder(tmp_path / "cache", "router") == own
    assert [folder.stat().st_mode & 0o7777 for folder in (own, own.parent)] == [0o2755] * 2


def test_a_folder_where_others_of_the_group_wrote_is_refused_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_folder(tmp_path, "router")
    (own / "planted.so").touch()
    own.chmod(0o770)
    uid = own.stat().st_uid
    lstat = Path.lstat
    other = os.stat_result((0o644, 0, 0, 1, uid + 1, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda path: other if path.suffix == ".so" else lstat(path))
    for _ in range(2):
        with pytest.raises(NotOwn, match="router: it may be written by other users; remove it"):
            own_folder(tmp_path, "router")


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o777, True), (0o702, True), (0o1777, False), (0o755, False)]
)
def test_a_cache_that_others_may_exchange_is_refused(tmp_path: Path, mode: int, is_refused: bool) -> None:
    """By a folder above it, or above the place that a link leads to. A sticky one, like /tmp, is none."""
    above, link = tmp_path / "above", tmp_path / "link"
    own_folder(above / "user" / "cache")
    link.symlink_to(above / "user")
    above.chmod(mode)
    for cache in (above / "user" / "cache", link / "cache"):
        text = f"may exchange it, since they may write {above}; name another"
        with pytest.raises(NotOwn, match=text) if is_refused else nullcontext():
            check_own(cache)


def test_the_cache_itself_stands_above_its_folders(tmp_path: Path) -> None:
    own_folder(tmp_path / "cache", "router").chmod(0o700)
    (tmp_path / "cache").chmod(0o707)
    with pytest.raises(NotOwn, match="cache: it may be written by other users"):
        own_folder(tmp_path / "cache", "router")


@pytest.mark.parametrize(
    ("user", "group", "members", "is_own"),
    [
        ("ann", "ann", [], True), ("ann", "ann", ["ann"], True), ("ann", "ann", ["ann", "ben"], False),
        ("ann", "users", [], False), ("", "ann", [], False),
    ],
)  # fmt: skip
def test_only_a_user_s_own_group_may_write_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, group: str, members: list[str], is_own: bool
) -> None:
    """So it does in ~/.cache where the umask is 002. A user of a container may have no name."""
    gid = own_folder(tmp_path / "above" / "cache").stat().st_gid
    (tmp_path / "above").chmod(0o775)

    def entry(_: int) -> SimpleNamespace:
        if not user:
            raise KeyError
        return SimpleNamespace(pw_name=user, pw_gid=gid, gr_name=group, gr_mem=members)

    monkeypatch.setattr(pwd, "getpwuid", entry)
    monkeypatch.setattr(grp, "getgrgid", entry)
    with nullcontext() if is_own else pytest.raises(NotOwn, match="may exchange it"):
        check_own(tmp_path / "above" / "cache")
