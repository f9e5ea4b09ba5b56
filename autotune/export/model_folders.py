"""The files of each GPU model in an exported folder, and what happens to them when a table is exported.

A table that stays keeps its files byte for byte, whatever schema it is of; it is first read and checked as a
whole, so that nothing damaged is copied.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from ..facts.accuracy_class import STRICT
from ..files.errors import DispatchError
from ..files.folder_files import BLANK, MAX_CUBIN_BYTES, MAX_TABLE_BYTES, read_file, with_checksum
from ..files.words import option
from ..runtime.table.gpu_models import GZIP, MODELS_FOLDER, GpuModel, load_models
from ..runtime.table.table import (
    CUBIN_FILE,
    FORMAT,
    KERNEL_LISTS,
    SCHEMA_VERSION,
    TABLE_FILE,
    Table,
    launchable,
)
from .exchange import Note
from .manifest import GpuModelFiles, check_files

_MOST_NAME = 60  # characters of a model's folder
_HINT = "export it again"
_PACKED = 1024  # cubins that are remembered: an export asks first for their sizes, then for what it writes
_LEVEL = 6  # of zlib: 9 takes nine times as long and packs 2 % more


@dataclass(frozen=True)
class ModelContent:
    """One model's table, its cubins by SHA-256, and its files by their names in the model's folder."""

    table: Table
    code: Mapping[str, bytes]
    files: Mapping[str, bytes]

    @property
    def gpu(self) -> GpuModel:
        return GpuModel.of_table(self.table)


def with_table(
    folder: Path, table: Table, code: Mapping[str, bytes], note: Note, *, adds: bool
) -> list[ModelContent]:
    """The future content of the folder: this table, with `adds` beside its present tables of other models.
    Raises DispatchError if one of those is damaged."""
    new = _written(table, code)
    if not holds_any(folder):
        return [new]
    if not adds:
        _tell_of_others(folder, new.gpu, note)
        return [new]
    models = [_as_it_is(model) for model in check_files(folder).models]
    if any(model.gpu == new.gpu for model in models):
        note(f"{folder} held a table for {new.gpu}: it is replaced")
        return [new if model.gpu == new.gpu else model for model in models]
    return [*models, new]


def holds_any(folder: Path) -> bool:
    """Whether the folder holds anything that could be kept or lost."""
    return folder.is_dir() and any(folder.iterdir())


def files_of(models: Sequence[ModelContent]) -> dict[str, bytes]:
    """All of them, by names relative to the exported folder."""
    files = dict(models[0].files)
    taken: list[str] = []
    for model in models[1:]:
        taken.append(_name_of(model.gpu, taken))
        files |= {f"{MODELS_FOLDER}/{taken[-1]}/{name}": content for name, content in model.files.items()}
    return files


def _name_of(gpu: GpuModel, taken: Sequence[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", str(gpu).lower()).strip("_")[-_MOST_NAME:]
    names = [words, *(f"{words}_{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def _written(table: Table, code: Mapping[str, bytes]) -> ModelContent:
    """A table with the sizes of its cubins. Kernels may share one, which is written once."""
    cubins = {name: packed(code[name]) for name in sums(table)}
    kernels = tuple(
        replace(kernel, code_bytes=len(code[kernel.sha256]), packed_bytes=len(cubins[kernel.sha256]))
        for kernel in table.kernels
    )
    table = replace(table, kernels=kernels)
    files = {TABLE_FILE: render(table).encode(), CUBIN_FILE: b"".join(cubins.values())}
    return ModelContent(table, code, files)


def _as_it_is(model: GpuModelFiles) -> ModelContent:
    most = {TABLE_FILE: MAX_TABLE_BYTES, CUBIN_FILE: MAX_CUBIN_BYTES * len(model.code)}
    files = {name: read_file(model.folder / name, num_bytes, _HINT) for name, num_bytes in most.items()}
    return ModelContent(model.table, model.code, files)


def _tell_of_others(folder: Path, new: GpuModel, note: Note) -> None:
    """A user who exports for one GPU model may not want to remove the others."""
    try:
        others = [model for _, table in load_models(folder) if (model := GpuModel.of_table(table)) != new]
    except DispatchError:
        return  # what is damaged is replaced
    if others:
        held = " and ".join(map(str, others))
        note(f"{folder} held the table for {held}, which is gone: {option('adds')} keeps it")


def names_of(tables: Sequence[Table]) -> str:
    """Names of the GPUs that tables are for."""
    return ", ".join(table.environment.gpu_name for table in tables)


@lru_cache(_PACKED)
def packed(code: bytes) -> bytes:
    """A cubin as it is in a file: the same for the same code."""
    packer = zlib.compressobj(_LEVEL, wbits=GZIP)
    return packer.compress(code) + packer.flush()


def sums(table: Table) -> list[str]:
    """SHA-256 of the cubins, in the order in which the kernels first name them."""
    return list(dict.fromkeys(kernel.sha256 for kernel in table.kernels))


def render(table: Table) -> str:
    """The text of `table.json`, with a checksum over all of it.

    Raises DispatchError for a kernel whose spec or identity is not that of its config: it could not be read
    back.
    """
    for kernel in table.kernels:
        source = table.source_hash if kernel.accuracy == STRICT else table.tensor_source_hash
        if kernel != launchable(kernel, table.limits, source, table.max_workspace, table.order):
            raise DispatchError(
                f"kernel {kernel.id!r} is compiled or launched otherwise than its config says; {_HINT}"
            )
    head = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "checksum": BLANK}
    body = asdict(table)
    for record in body["kernels"]:
        del record["spec"], record["source_hash"]
    pairs = list(zip(body["kernels"], table.kernels, strict=True))
    for name, one in KERNEL_LISTS.items():
        body[name] = [record for record, kernel in pairs if isinstance(kernel.config, one)]
    text = json.dumps(head | body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return with_checksum(text)
