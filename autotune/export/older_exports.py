"""Exports from before there was a manifest: which files are theirs.

They hold a table, cubins named by their SHA-256, and the modules listed here. Nothing new belongs in this
file: newer exports list their own files.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from ..runtime.table.table import FORMAT, TABLE_FILE

_MODULES = (
    "__init__", "errors", "gemm", "device", "launch",
    *(
        f"dispatch/{name}"
        for name in (
            "__init__", "strict", "table", "model", "depth", "select", "driver", "arrays", "problem",
            "workspace", "devices", "engine", "host", "runtime",
        )
    ),
)  # fmt: skip
CUBIN_FOLDER = "cubins"
_CUBIN = re.compile(r"[0-9a-f]{64}\.cubin")
_MOST_HEAD = 1 << 20  # characters of `__init__.py`: it had about 1,200
# Of `__init__.py` from its first import on; before that stand the table's facts.
_CODE_SHA256 = "acdcfc55871cfa688e0b923126795049785d3413b5938fe36470983d3756610a"
_EDITED = ""  # the SHA-256 of no content


def files(folder: Path, *, is_partial: bool = False) -> dict[str, str | None]:
    """SHA-256 sums by name for `manifest.take_inventory` (None: any content); empty where this is no export.

    `is_partial`: an export was killed while it wrote the folder, so its table may be missing.
    """
    if not is_partial and not _has_table(folder):
        return {}
    cubins = folder / CUBIN_FOLDER
    names = [path.name for path in cubins.iterdir()] if cubins.is_dir() else []
    known: dict[str, str | None] = dict.fromkeys(
        [
            TABLE_FILE,
            "py.typed",
            *(f"_autotune/{module}.py" for module in _MODULES),
            *(f"{CUBIN_FOLDER}/{name}" for name in names if _CUBIN.fullmatch(name)),
        ]
    )
    return {"__init__.py": None if _is_as_written(folder / "__init__.py") else _EDITED, **known}


def _has_table(folder: Path) -> bool:
    path = folder / TABLE_FILE
    if path.is_symlink() or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return f'"format": "{FORMAT}"' in file.read(len(FORMAT) + 100)


def _is_as_written(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return True  # there is nothing of ours to be edited
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        _, start, code = file.read(_MOST_HEAD).partition("\nfrom pathlib import Path\n")
    return hashlib.sha256((start + code).encode()).hexdigest() == _CODE_SHA256
