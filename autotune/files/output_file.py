"""Writes the file that the user named, so that nothing of the user's is lost.

A regular or new file is written under another name and renamed: the old file stays whole until the new one
is, and on the disk. A symbolic link is followed. A device, a FIFO, or standard output as /dev/stdout is
written directly. A power cut after a rename finds the old or the new, and whole.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .errors import EnvironmentProblem, UsageError

_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system that keeps nothing


def sync(descriptor: int) -> None:
    """Wait until a file, or a folder's names, are on the disk, if its file system can. Raises OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise


def sync_path(path: Path) -> None:
    """The same of a file or folder that is not open."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """The same of a folder, if it may be read: one may write into it without."""
    with suppress(PermissionError):
        sync_path(folder)


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_LINKS = 40  # as Linux follows


def write_file(path: Path, content: str | bytes | Iterable[str], *, option: str = "--out") -> None:
    """Write a file; a text, which may come in pieces, in UTF-8. `option` is what the user named it with.

    Keeps the mode of an existing file, and its owner if that is allowed. Raises EnvironmentProblem if the
    disk is full, BrokenPipeError if a pipe has no reader any more, and UsageError if this path cannot be
    written for another reason."""
    pieces = [content] if isinstance(content, str | bytes) else content
    try:
        _write(path, (piece.encode() if isinstance(piece, str) else piece for piece in pieces))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _explain(error, path, option) from error


def check_writable(path: Path, *, option: str = "--out") -> None:
    """Refuse a path that cannot be written, before any work is done. Raises UsageError."""
    try:
        target = _target(path)
        if isinstance(target, Path):
            _look_at(target)
    except OSError as error:
        raise _explain(error, path, option) from error


def disk_full(path: Path, reason: object) -> EnvironmentProblem:
    """The error of a file or folder for which there is no room."""
    hint = "free some and run the same command again"
    return EnvironmentProblem(f"{path} cannot be written: the disk is full ({reason}); {hint}")


def _explain(error: OSError, path: Path, option: str) -> UsageError | EnvironmentProblem:
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL:
        return disk_full(path, reason)
    return UsageError(f"{path} cannot be written: {reason}; name another file with {option}")


def _write(path: Path, data: Iterable[bytes]) -> None:
    target = _target(path)
    if isinstance(target, int):
        with os.fdopen(os.dup(target), "wb") as file:
            file.writelines(data)
        return
    there = _look_at(target)
    if there is None or stat.S_ISREG(there.st_mode):
        _replace(target, data, there)
    else:
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CLOEXEC), "wb") as file:
            file.writelines(data)


def _target(path: Path) -> Path | int:
    """The target of links, or the open descriptor behind a path such as /dev/stdout. A descriptor is written
    directly: opened again, a file that it appends to would be overwritten."""
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == os.path.realpath("/proc/self/fd") and path.name.isdecimal():
            return int(path.name)
        path = Path(folder, path.name)
        if not path.is_symlink():
            return path
        path = Path(folder, path.readlink())
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _look_at(target: Path) -> os.stat_result | None:
    """The status of what is there, if anything. Raises OSError for a folder, or without a parent."""
    try:
        there = target.lstat()
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "its folder does not exist") from None
        return None
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    return there


def _replace(target: Path, data: Iterable[bytes], there: os.stat_result | None) -> None:
    part = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o666), "wb") as file:
            file.writelines(data)
            if there is not None:
                with suppress(OSError):  # only root gives files away
                    os.fchown(file.fileno(), there.st_uid, there.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))
            file.flush()
            sync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


_ADVICE = "name another with AUTOTUNE_CACHE"


class NotOwn(PermissionError):
    """Other users may write a folder of the cache, or exchange it. `strerror`: why; what to do."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(folder))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def default_cache_dir() -> Path:
    """`$AUTOTUNE_CACHE`, else `autotune/` in the user's cache. Raises RuntimeError without a home."""
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
    run. Those that are not there, or cannot be looked at, are passed over. Where only a group may write, as
    folders made under a umask of 002 allow, it no longer may, and nothing is raised, unless files of others
    are there."""
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
