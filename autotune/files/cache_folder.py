"""The folder for files that autotune can make again: compiled kernels and routers, and choices that tables
settled.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

_ADVICE = "name another with AUTOTUNE_CACHE"


class NotOwn(PermissionError):
    """Other users may write a folder of the cache, or exchange it. `strerror`: why; what to do."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(folder))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def default_cache_dir() -> Path:
    """`$AUTOTUNE_CACHE`, else `autotune/` in the user's cache directory.

    Raises RuntimeError if the user has no home.
    """
    if explicit := os.environ.get("AUTOTUNE_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"


def own_folder(cache: Path, name: str = "") -> Path:
    """A cache, or a folder in it, whose content is trusted: see `check_own`. Whatever the umask, nobody else
    may write what is made here. Raises OSError."""
    folder = cache / name
    for part in (*reversed(cache.parents), cache, folder):
        part.mkdir(mode=0o700, exist_ok=True)
    check_own(cache, folder)
    return folder


def check_own(cache: Path, *folders: Path) -> None:
    """Raises NotOwn if other users may write a cache, or folders in it, or exchange it: what lies there is
    run. Those that are not there, or cannot be looked at, are passed over.

    Where only a group may write, as folders made under a umask of 002 allow, it no longer may, and nothing
    is raised, unless files of others are there.
    """
    for parent in {*cache.absolute().parents, *cache.resolve().parents}:
        if (found := _stat(parent)) is not None and _is_writable_by_others(found):
            raise NotOwn(cache, f"other users may exchange it, since they may write {parent}; {_ADVICE}")
    for folder in (cache, *folders):
        if (found := _stat(folder)) is None:
            continue
        if found.st_uid != os.geteuid():
            owner_note = f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
            raise NotOwn(folder, f"{owner_note}; run as its owner, or {_ADVICE} that is this user's")
        if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _closed(folder, found)):
            raise NotOwn(folder, f"it may be written by other users; remove it, or {_ADVICE}")


def _stat(folder: Path) -> os.stat_result | None:
    try:
        return folder.stat()
    except OSError:
        return None


def _is_writable_by_others(parent: os.stat_result) -> bool:
    """Whether other users may rename what lies there: not in one like /tmp, nor by a user's own group."""
    if parent.st_mode & stat.S_ISVTX:
        return False
    is_groups = bool(parent.st_mode & stat.S_IWGRP) and not _is_users_own(parent.st_gid)
    return is_groups or bool(parent.st_mode & stat.S_IWOTH)


def _is_users_own(group: int) -> bool:
    """Whether a group is there for this user alone, as systems with a umask of 002 have one for each."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (group, found.gr_name) and set(found.gr_mem) <= {user.pw_name}


def _closed(folder: Path, found: os.stat_result) -> bool:
    """Take a group's right to write; given back where others have already written."""
    mode = stat.S_IMODE(found.st_mode)
    try:
        folder.chmod(mode & ~stat.S_IWGRP)
        if all(path.lstat().st_uid == found.st_uid for path in folder.iterdir()):
            return True
        folder.chmod(mode)
    except OSError:  # such as a disk that is read-only
        return False
    return False
