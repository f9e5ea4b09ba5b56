"""The compiled kernels of an exported folder: found with its table, unpacked and checked at their first use.

`cubins.gz` holds the cubins of a table, each packed by gzip, one after the other in the order in which its
kernels first name them (`zcat` shows them all). The table states the SHA-256 of each, and its size before and
after packing. The import opens the file and compares its size. It stays open, so that a running program keeps
the kernels of the old table when a new one is exported. Files are not trusted: no more is unpacked than the
size in the table. Copied into exported tables.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from ...files.errors import DispatchError
from ...files.strict import Mismatch
from .folder_files import KeptFile
from .soundness import check_identity
from .table import CUBIN_FILE, Table

_HINT = "export the table again with `autotune export-table`"
_GZIP = 16 + zlib.MAX_WBITS  # zlib's word for that format
_LEVEL = 6  # 9 takes nine times as long and packs 2 % more


def packed(code: bytes) -> bytes:
    """A cubin as it is in a file: the same for the same code."""
    packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return packer.compress(code) + packer.flush()


def unpacked(content: bytes, num_bytes: int) -> bytes:
    """The unpacked content, of exactly this many bytes. Raises Misfit if it differs; at most one byte more is
    unpacked."""
    decompressor = zlib.decompressobj(wbits=_GZIP)
    try:
        code = decompressor.decompress(content, num_bytes + 1)
    except zlib.error as error:
        raise Mismatch(f"it cannot be unpacked ({error})") from error
    if len(code) != num_bytes or not decompressor.eof or decompressor.unused_data:
        raise Mismatch(f"it does not hold {num_bytes} bytes, all packed as one")
    return code


def sums(table: Table) -> list[str]:
    """SHA-256 of the cubins, in the order in which the kernels first name them."""
    return list(dict.fromkeys(kernel.sha256 for kernel in table.kernels))


class CubinFiles(Mapping[str, bytes]):
    """The code of every cubin of a table by its SHA-256, as it is asked for. Threads may share it.

    Raises DispatchError at once if a file is missing or, by its kind or size, cannot be that of the table;
    and when a cubin is requested that is damaged, or holds another kernel than the table says.
    """

    def __init__(self, folder: Path, table: Table) -> None:
        self._folder, self._kernels = folder, table.kernels
        self._of = {kernel.sha256: kernel for kernel in reversed(table.kernels)}  # any of those that share it
        self._contents = _Slices(folder, table)

    def __getitem__(self, sha256: str) -> bytes:
        kernel = self._of[sha256]
        content = self._contents[sha256]
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


class _Slices:
    """What the file of all cubins holds of each, by its SHA-256."""

    def __init__(self, folder: Path, table: Table) -> None:
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
        return self._file.read(*self._places[sha256])
