"""The GPU models that an exported folder holds tables for, one table each.

    table.json, cubins.gz               of the model that was exported first
    kinds/NAME/table.json, cubins.gz    of each other model

The folder of each model also works as an exported folder. A GPU's name and compute capability alone decide
which table serves it. The cubins of a table lie in one file, each packed, and are read when a product first
needs them.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...facts.device import LIKE, names_for, without_slice
from ...files.errors import DispatchError
from ...files.folder_files import KeptFile, identity_of
from ...files.strict import Mismatch
from .soundness import check_identity
from .table import CUBIN_FILE, Table, load

MODELS_FOLDER = "kinds"
FALLBACK = "AUTOTUNE_FALLBACK"  # of the environment: what serves a GPU without a table
_Read = TypeVar("_Read")


class GpuModel(NamedTuple):
    """The GPUs that one table is for. Slices of a GPU belong to its model."""

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
        """The models whose tables serve such a GPU, its own first (facts/device.py)."""
        return tuple(self._replace(name=name) for name in names_for(self.name))

    def __str__(self) -> str:
        return f"{self.name} (sm_{''.join(map(str, self.compute_capability))})"


def load_models(folder: Path) -> list[tuple[Path, Table]]:
    """The table of each model, and the folder of the table and its cubins, the first model's first. Raises
    DispatchError if one cannot be read, or if two are for one model."""
    found = [(path, load(path)) for path in _folders(folder)]
    models = [GpuModel.of_table(table) for _, table in found]
    for model in models:
        if models.count(model) > 1:
            raise DispatchError(f"{folder} holds two tables for {model}; export it again")
    return found


def read_whole(folder: Path, read: Callable[[], _Read]) -> _Read:
    """Reads a folder in one state: again, if another folder took its place meanwhile."""
    while True:
        before = identity_of(folder)
        try:
            found = read()
        except DispatchError:
            if identity_of(folder) == before:
                raise
            continue
        if identity_of(folder) == before:
            return found


def no_table(tables: Sequence[Table], device: int, here: GpuModel) -> str:
    """Says that no table is for a GPU, and what to do."""
    models = " and ".join(str(GpuModel.of_table(table)) for table in tables)
    what = "this table is" if len(tables) == 1 else "the tables of this folder are"
    return (
        f"{what} for {models}, but GPU {device} is {here}: tune on it with `autotune search --gpu {device}` "
        "and add its table with `autotune export-table --add`, or have cuBLAS serve it: fallback='cublas' or "
        f"{FALLBACK}=cublas. If it is nearly one of those, accept it as such: {LIKE}="
        f"'{tables[0].environment.gpu_name}'"
    )


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder / MODELS_FOLDER) as entries:
            return [folder, *sorted(Path(entry.path) for entry in entries if entry.is_dir())]
    except (FileNotFoundError, NotADirectoryError):
        return [folder]
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise DispatchError(f"{folder} cannot be read ({error}); export it again") from error


_HINT = "export the table again with `autotune export-table`"
GZIP = 16 + zlib.MAX_WBITS  # zlib's word for that format


def unpacked(content: bytes, num_bytes: int) -> bytes:
    """The content, of exactly this many bytes. Raises Mismatch for others; one more is unpacked at most."""
    decompressor = zlib.decompressobj(wbits=GZIP)
    try:
        code = decompressor.decompress(content, num_bytes + 1)
    except zlib.error as error:
        raise Mismatch(f"it cannot be unpacked ({error})") from error
    if len(code) != num_bytes or not decompressor.eof or decompressor.unused_data:
        raise Mismatch(f"it does not hold {num_bytes} bytes, all packed as one")
    return code


class CubinFiles(Mapping[str, bytes]):
    """The code of every cubin of a table by its SHA-256, as it is asked for. Threads may share it.

    Raises DispatchError at once if a file is missing or, by its kind or size, cannot be that of the table;
    and when a cubin is requested that is damaged, or holds another kernel than the table says."""

    def __init__(self, folder: Path, table: Table) -> None:
        self._folder, self._kernels = folder, table.kernels
        self._of = {kernel.sha256: kernel for kernel in reversed(table.kernels)}  # any of those that share it
        path = f"{folder}/{CUBIN_FILE}"
        try:
            self._file = KeptFile(path, _HINT)
        except FileNotFoundError:
            raise DispatchError(f"{path} is not there; {_HINT}") from None
        sizes = {kernel.sha256: kernel.packed_bytes or 0 for kernel in table.kernels}
        *starts, end = accumulate(sizes.values(), initial=0)
        self._places = dict(zip(sizes, zip(starts, sizes.values(), strict=True), strict=True))
        if self._file.size != end:
            size_mismatch = f"it holds {self._file.size:,} bytes, and its table tells of {end:,}"
            raise DispatchError(f"{path} is damaged: {size_mismatch}; {_HINT}")

    def __getitem__(self, sha256: str) -> bytes:
        kernel = self._of[sha256]
        content = self._file.read(*self._places[sha256])
        try:
            code = unpacked(content, kernel.code_bytes)
            if hashlib.sha256(code).hexdigest() != sha256:
                raise Mismatch(f"its SHA-256 is not {sha256[:12]}...")
        except Mismatch as mismatch:
            path = self._folder / CUBIN_FILE
            raise DispatchError(
                f"the cubin of kernel {kernel.id!r} in {path} is damaged: {mismatch}; {_HINT}"
            ) from mismatch
        try:
            check_identity(self._kernels, sha256, code)
        except Mismatch as mismatch:
            raise DispatchError(
                f"{self._folder} is damaged: {mismatch}; it was not loaded: {_HINT}"
            ) from mismatch
        return code

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def load_cubins(folder: Path, table: Table) -> dict[str, bytes]:
    """The code of every cubin of a table by its SHA-256, all checked. Raises DispatchError."""
    return dict(CubinFiles(folder, table))
