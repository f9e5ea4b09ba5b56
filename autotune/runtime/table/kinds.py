"""The GPU models that an exported folder holds tables for, one table each.

    table.json, cubins.gz               of the kind that was exported first
    kinds/NAME/table.json, cubins.gz    of each other kind

A folder with one kind is the same as before there could be several, and the folder of each kind also works as
an exported folder. A GPU's name and compute capability alone decide which table serves it. Copied into
exported tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...facts.gpu_alias import LIKE, names_for
from ...files.errors import DispatchError
from ..launch.conditions import without_slice
from .table import Table, load

KINDS_FOLDER = "kinds"
FALLBACK = "AUTOTUNE_FALLBACK"  # of the environment: what serves a GPU without a table
_Read = TypeVar("_Read")


class GpuModel(NamedTuple):
    """The GPUs that one table is for. Slices of a GPU belong to its kind."""

    name: str
    compute_capability: tuple[int, int]

    @classmethod
    def of(cls, gpu_name: str, compute_capability: tuple[int, int]) -> GpuModel:
        return cls(without_slice(gpu_name), compute_capability)

    @classmethod
    def of_table(cls, table: Table) -> GpuModel:
        return cls.of(table.environment.gpu_name, table.environment.compute_capability)

    @property
    def accepted(self) -> tuple[GpuModel, ...]:
        """The kinds whose tables serve such a GPU, its own first (facts/gpu_alias.py)."""
        return tuple(self._replace(name=name) for name in names_for(self.name))

    def __str__(self) -> str:
        return f"{self.name} (sm_{''.join(map(str, self.compute_capability))})"


def load_kinds(folder: Path) -> list[tuple[Path, Table]]:
    """The table of each kind, and the folder of the table and its cubins, the first kind's first. Raises
    DispatchError if one cannot be read, or if two are for one kind."""
    found = [(path, load(path)) for path in _folders(folder)]
    kinds = [GpuModel.of_table(table) for _, table in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise DispatchError(f"{folder} holds two tables for {kind}; export it again")
    return found


def read_whole(folder: Path, read: Callable[[], _Read]) -> _Read:
    """Reads a folder in one state: again, if another folder took its place meanwhile."""
    while True:
        before = _identity(folder)
        try:
            found = read()
        except DispatchError:
            if _identity(folder) == before:
                raise
            continue
        if _identity(folder) == before:
            return found


def no_table(tables: Sequence[Table], device: int, here: GpuModel) -> str:
    """Says that no table is for a GPU, and what to do."""
    kinds = " and ".join(str(GpuModel.of_table(table)) for table in tables)
    what = "this table is" if len(tables) == 1 else "the tables of this folder are"
    return (
        f"{what} for {kinds}, but GPU {device} is {here}: tune on it with `autotune search --gpu {device}` "
        "and add its table with `autotune export-table --add`, or have cuBLAS serve it: fallback='cublas' or "
        f"{FALLBACK}=cublas. If it is nearly one of those, accept it as such: {LIKE}="
        f"'{tables[0].environment.gpu_name}'"
    )


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder / KINDS_FOLDER) as entries:
            return [folder, *sorted(Path(entry.path) for entry in entries if entry.is_dir())]
    except (FileNotFoundError, NotADirectoryError):
        return [folder]
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise DispatchError(f"{folder} cannot be read ({error}); export it again") from error


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except (OSError, ValueError):  # ValueError: a null byte
        return None
    return found.st_dev, found.st_ino


def names_of(tables: Sequence[Table]) -> str:
    """Names of the GPUs that tables are for."""
    return ", ".join(table.environment.gpu_name for table in tables)
