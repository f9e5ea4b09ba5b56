"""The folder for files that autotune can make again: compiled kernels and routers, and choices that tables
settled.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_REFUSED = "it may be written by other users; remove it, or name another with AUTOTUNE_CACHE"


def default_cache_dir() -> Path:
    """`$AUTOTUNE_CACHE`, else `autotune/` in the user's cache directory.

    Raises RuntimeError if the user has no home.
    """
    if explicit := os.environ.get("AUTOTUNE_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"


def own_folder(folder: Path) -> Path:
    """A folder of the cache, made if needed, whose content is trusted: see `check_own`. Raises OSError."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    check_own([folder])
    return folder


def check_own(folders: Iterable[Path]) -> None:
    """Raises PermissionError if one of them may be written by other users: what lies there is run. Raises
    OSError if one is not there."""
    for folder in folders:
        found = folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, _REFUSED, str(folder))
