"""Is an exported folder as it was written? All checks without a GPU.

The schema, checksum and launch specs of each model's table, the SHA-256 of every cubin, and of every file in
the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..files.errors import DispatchError
from ..runtime.table.gpu_models import load_cubins, load_models
from ..runtime.table.table import Table
from . import manifest


class GpuModelFiles(NamedTuple):
    """The table of one GPU model, where it lies, and the code of its cubins by their SHA-256."""

    folder: Path
    table: Table
    code: dict[str, bytes]


@dataclass(frozen=True)
class Files:
    """What a folder holds, the first model's first. `unexpected` are files that no export wrote."""

    models: tuple[GpuModelFiles, ...]
    num_files: int  # that an export wrote
    unexpected: tuple[str, ...]


def check_files(folder: Path) -> Files:
    """Read a folder and compare it with its own manifest. Raises DispatchError, naming what is wrong."""
    models = tuple(
        GpuModelFiles(path, table, load_cubins(path, table)) for path, table in load_models(folder)
    )
    try:
        is_listed = manifest.read(folder) is not None
        found = manifest.take_inventory(folder)
    except OSError as error:
        raise DispatchError(f"{folder} cannot be read ({error}); check its permissions") from error
    if not is_listed:
        raise DispatchError(
            f"{folder} lacks its {manifest.MANIFEST_FILE}, by which its files are checked; restore it from "
            "where the folder was copied, or move the folder away and export again"
        )
    changed = (*found.corrupted, *found.edited)
    if changed or found.missing:
        faults = [
            f"{what}: {manifest.listing(names)}"
            for what, names in (("changed", changed), ("missing", found.missing))
            if names
        ]
        raise DispatchError(
            f"{folder} is not as it was exported ({'; '.join(faults)}); move it away and export again"
        )
    return Files(models, len(found.intact) + len(changed), found.foreign)
