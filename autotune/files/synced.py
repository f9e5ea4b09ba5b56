"""Puts files and folders on the disk, so that a power cut after a rename finds the old or the new, and whole.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

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
