"""The folder for files that autotune can make again: compiled kernels and routers, and choices that tables
settled.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """`$AUTOTUNE_CACHE`, else `autotune/` in the user's cache directory.

    Raises RuntimeError if the user has no home.
    """
    if explicit := os.environ.get("AUTOTUNE_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"
