"""Writes the file that the user named, so that nothing of the user's is lost.

A regular or new file is written under another name and renamed: the old file stays whole until the new one
is, and on the disk. A symbolic link is followed. A device, a FIFO, or standard output as /dev/stdout is
written directly. A power cut after a rename finds the old or the new, and whole.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .errors import EnvironmentProblem, UsageError

_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system that keeps nothing


def sync(descriptor: int) -> None:
    """Wait until a file's content, or a folder's names, are on the disk. Raises OSError, except where the
    file system cannot do that."""
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
    written for another reason.
    """
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
    """The target of links, or the open descriptor behind a path such as /dev/stdout.

    A descriptor is written directly: opened again, a file that it appends to would be overwritten.
    """
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
    """The status of what exists there, if anything. Raises OSError for a folder, and if its parent folder
    does not exist."""
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
