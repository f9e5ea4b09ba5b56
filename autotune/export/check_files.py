"""Is an exported folder as it was written? All that can be said of it without a GPU.

The table's schema, checksum and launch specs, the SHA-256 of every cubin, and of every file in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import DispatchError
from ..runtime.cubin_files import load_cubins
from ..runtime.table import Table, load
from . import manifest


@dataclass(frozen=True)
class Files:
    """What a folder holds; `code` are cubins by their SHA-256.

    `unlisted` is what no export wrote. Without a manifest (exports of older versions) nothing tells whether
    Python files are as they were.
    """

    table: Table
    code: dict[str, bytes]
    num_files: int  # that an export wrote
    has_manifest: bool
    unlisted: tuple[str, ...]


def check_files(folder: Path) -> Files:
    """Read a folder and hold it against its own manifest. Raises DispatchError, naming what is wrong."""
    table = load(folder)
    code = load_cubins(folder, table)
    try:
        has_manifest = manifest.read(folder) is not None
        found = manifest.take_inventory(folder)
    except OSError as error:
        raise DispatchError(f"{folder} cannot be read ({error}); check its permissions") from error
    changed = (*found.damaged, *found.edited)
    if has_manifest and (changed or found.missing):
        faults = [
            f"{what}: {manifest.listing(names)}"
            for what, names in (("changed", changed), ("missing", found.missing))
            if names
        ]
        raise DispatchError(
            f"{folder} is not as it was exported ({'; '.join(faults)}); move it away and export again"
        )
    return Files(table, code, len(found.intact) + len(changed), has_manifest, found.foreign)
