"""Replaces an old folder by a new one, so that one of the two exists at every moment.

The new folder is made in a hidden scratch folder beside its place, `.NAME-xxxxxxxx`:

    lock   held by the process that exports: as long as it is held, nobody else touches the scratch folder
    new    being written
    made   complete; once the two are exchanged, what was replaced
    old    what was replaced, where the file system cannot exchange: it is moved here first

A kill leaves the scratch folder behind. The next export to the same place puts `old` back if its place is
empty, then removes what exports wrote. Other files are kept, in a folder that is not hidden. A power cut is
as a kill: what is moved to its place is on the disk before, and the move before anything is removed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ..files.errors import DispatchError
from ..files.output_file import sync_folder, sync_path
from ..runtime.table.table import TABLE_FILE
from . import manifest

LOCK, NEW, MADE, OLD = "lock", "new", "made", "old"
_RANDOM = r"[a-z0-9_]{8}"  # what tempfile appends
_NUM_ATTEMPTS = 3
MAX_WAIT_S = 60.0  # for another export that writes the same folder, which takes a second or two
_PAUSE_S = 0.02
_SYNCED_AT_ONCE = 8  # files: together they take a tenth of the time, as the disk is asked less often
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

Note = Callable[[str], None]


def replace(folder: Path, fill: Callable[[Path], None], note: Note) -> None:
    """Replace `folder` by what `fill` writes into an empty folder.

    `note` receives files that appeared in the old folder meanwhile, and where they are kept. Raises OSError;
    then `folder` is unchanged.
    """
    scratch, lock = _make_scratch(folder, note)
    try:
        new, made = scratch / NEW, scratch / MADE
        new.mkdir()
        fill(new)
        if folder.is_dir():
            new.chmod(stat.S_IMODE(folder.stat().st_mode))
        _sync_tree(new)
        new.rename(made)
        _put(made, folder, scratch / OLD)
        for changed in (folder.parent, scratch):
            sync_folder(changed)
    finally:
        _clear(scratch, note)
        if lock is not None:
            os.close(lock)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other export is between reading a folder and replacing it. If the folder was replaced
    meanwhile, it waits again for the new one. It does not wait if the file system has no locks, or the folder
    does not exist yet. Raises DispatchError after MAX_WAIT_S: an export may be stopped.
    """
    descriptor = _wait_for(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _wait_for(folder: Path) -> int | None:
    until_s = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:  # no locks here, or the folder is being moved
            os.close(descriptor)
            return None
        os.close(descriptor)
        if time.monotonic() > until_s:
            raise DispatchError(
                f"another export has been writing {folder} for {MAX_WAIT_S:g} s; end it if it is stopped, "
                "and export again"
            )


def recover(folder: Path, note: Note) -> None:
    """Put back what a killed export to `folder` moved away, then remove the remains of killed exports.

    Raises OSError if the old table cannot be put back.
    """
    for scratch in _scratch_folders(folder):
        try:
            lock = _lock_of_the_dead(scratch)
        except NoLocks:
            note(
                f"{scratch} is of an export under way, or of a killed one, which only a lock would tell, and"
                " this file system has none; if no export runs, look for a table in it, then remove it"
            )
            continue
        except OSError:
            continue  # it is gone, or not ours to open
        if lock is None:
            continue
        try:
            if (scratch / OLD / TABLE_FILE).is_file() and not os.path.lexists(folder):
                (scratch / OLD).rename(folder)
                sync_folder(folder.parent)
            _clear(scratch, note)
        finally:
            os.close(lock)


def _scratch_folders(folder: Path) -> list[Path]:
    if not folder.parent.is_dir():
        return []
    pattern = re.compile(rf"\.{re.escape(folder.name)}-{_RANDOM}")
    with os.scandir(folder.parent) as entries:
        found = [e for e in entries if pattern.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        return sorted(Path(entry.path) for entry in found)


# ------------------------------------------------------------------------------------------------
# The lock: it ends with the process that holds it


class NoLocks(OSError):
    """The file system has none."""


def _make_scratch(folder: Path, note: Note) -> tuple[Path, int | None]:
    """A new scratch folder and its lock, which is None if the file system has no locks; a note says so."""
    for _ in range(_NUM_ATTEMPTS):
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            lock = _lock(scratch / LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # before it was locked, it looked like the remains of a killed export
        except NoLocks as error:
            note(
                f"{folder.parent} lies on a file system without locks ({error}); let only one export at a"
                f" time write {folder.name}"
            )
            return scratch, None
        if lock is not None:
            break
    return scratch, lock


def _lock(path: Path, flags: int) -> int | None:
    """A descriptor that holds the lock of a file, or None if another process holds it. Raises NoLocks."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):  # and not removed meanwhile
            return descriptor
    except (FileNotFoundError, BlockingIOError):
        pass
    except OSError as error:
        os.close(descriptor)
        raise NoLocks(error.strerror) from error
    os.close(descriptor)
    return None


def _lock_of_the_dead(scratch: Path) -> int | None:
    """The lock of a scratch folder whose process is gone, else None. Raises OSError."""
    names = {path.name for path in scratch.iterdir()}
    if LOCK in names:
        return _lock(scratch / LOCK, os.O_RDWR)
    if not names:  # killed before there was a lock, or after
        scratch.rmdir()
    return None


# ------------------------------------------------------------------------------------------------
# The exchange


def _put(made: Path, folder: Path, old: Path) -> None:
    """Move `made` to `folder`. The old folder is at the path of `made` afterwards."""
    if not folder.exists():
        made.rename(folder)  # refuses to replace a folder that has appeared there, unless it is empty
    elif not _exchange(made, folder):
        folder.rename(old)
        try:
            made.rename(folder)
        except BaseException:
            old.rename(folder)
            raise
        old.rename(made)


def _sync_tree(folder: Path) -> None:
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as threads:
        list(threads.map(sync_path, folder.rglob("*")))
    sync_folder(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if the system or its file system cannot. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


# ------------------------------------------------------------------------------------------------
# Clearing up


def _clear(scratch: Path, note: Note) -> None:
    """Remove a scratch folder and what exports wrote into it; report what is kept."""
    try:
        for name in (NEW, MADE, OLD):
            _remove_owned(scratch / name, is_partial=name == NEW)
        if not {path.name for path in scratch.iterdir()} - {LOCK}:
            (scratch / LOCK).unlink(missing_ok=True)
            scratch.rmdir()
            return
        name, _, random = scratch.name.removeprefix(".").rpartition("-")
        kept = scratch.with_name(f"{name}-kept-{random}")
        scratch.rename(kept)
        (kept / LOCK).unlink(missing_ok=True)
    except OSError as error:
        note(f"{scratch} is left of an export and cannot be removed ({error}); look into it and remove it")
        return
    note(f"what turned up in the table while it was replaced is kept in {kept}; move it where it belongs")


def _remove_owned(folder: Path, *, is_partial: bool) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    try:
        found = manifest.take_inventory(folder, is_partial=is_partial)
    except DispatchError:
        return  # nothing tells what is ours
    manifest.remove(folder, found)
