"""The compiled kernels of an exported folder: read with its table, unpacked and checked at their first use.

`cubins/<sha256>.cubin.gz` is a cubin packed by gzip (`zcat` shows it), named by the SHA-256 of its content.
Tables before schema 7 hold `cubins/<sha256>.cubin`, unpacked. All files are read at once: this takes a
millisecond or two, and a running program keeps the kernels of the old table when a new one is exported. Files
are not trusted: no more is unpacked than the size in the table. Copied into exported
tables.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import DispatchError
from ..strict import Misfit
from .files import MAX_CUBIN_BYTES, read_file
from .soundness import check_identity
from .table import Table

_AGAIN = "export the table again with `autotune export-table`"
_GZIP = 16 + zlib.MAX_WBITS  # zlib's word for that format
_LEVEL = 6  # 9 takes nine times as long and packs 2 % more


def packed(code: bytes) -> bytes:
    """What the file of a cubin holds: the same for the same code."""
    packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return packer.compress(code) + packer.flush()


def unpacked(content: bytes, num_bytes: int) -> bytes:
    """The unpacked content, of exactly this many bytes. Raises Misfit if it differs; at most one byte more is
    unpacked."""
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        code = unpacker.decompress(content, num_bytes + 1)
    except zlib.error as error:
        raise Misfit(f"it cannot be unpacked ({error})") from error
    if len(code) != num_bytes or not unpacker.eof or unpacker.unused_data:
        raise Misfit(f"it does not hold {num_bytes} bytes, all packed as one")
    return code


class CubinFiles(Mapping[str, bytes]):
    """The code of every cubin of a table by its SHA-256, as it is asked for. Threads may share it.

    Raises DispatchError at once if a file is missing or, by its kind or size, cannot be a cubin; and when a
    cubin is requested that is damaged, or holds another kernel than the table says.
    """

    def __init__(self, folder: Path, table: Table) -> None:
        self._folder, self._kernels = folder, table.kernels
        self._of = {kernel.sha256: kernel for kernel in reversed(table.kernels)}  # any of those that share it
        self._files = {sha256: _read(f"{folder}/{kernel.cubin_file}") for sha256, kernel in self._of.items()}

    def __getitem__(self, sha256: str) -> bytes:
        kernel, content = self._of[sha256], self._files[sha256]
        try:
            code = content if kernel.code_bytes is None else unpacked(content, kernel.code_bytes)
            if hashlib.sha256(code).hexdigest() != sha256:
                raise Misfit(f"its SHA-256 is not {sha256[:12]}...")
        except Misfit as misfit:
            path = self._folder / kernel.cubin_file
            raise DispatchError(f"{path} is damaged: {misfit}; {_AGAIN}") from misfit
        try:
            check_identity(self._kernels, sha256, code)
        except Misfit as misfit:
            raise DispatchError(
                f"{self._folder} is damaged: {misfit}; it was not loaded: {_AGAIN}"
            ) from misfit
        return code

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def load_cubins(folder: Path, table: Table) -> dict[str, bytes]:
    """The code of every cubin of a table by its SHA-256, all checked. Raises DispatchError."""
    return dict(CubinFiles(folder, table))


def _read(path: str) -> bytes:
    try:
        return read_file(path, MAX_CUBIN_BYTES, _AGAIN)
    except FileNotFoundError:
        raise DispatchError(f"{path} is not there; {_AGAIN}") from None
