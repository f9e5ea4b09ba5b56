"""The machine code in a cubin, an ELF file of 64 bits: for each function the section `.text.FUNCTION`, and
beside it the constants and the shared memory that it uses.

What else a cubin holds names its compiler, its source and its symbols. So no two compilers give equal files,
while the code in them is often the same to the byte, and then takes the same time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..files.errors import UsageError

# Of each function: code, its parameters, constants that it reads, shared memory.
COMPARED = (".text.", ".nv.constant0.", ".nv.constant2.", ".nv.constant3", ".nv.shared.")
_NOT_IN_FILE = 8  # SHT_NOBITS: a section that only has a length, as shared memory has
_SYMBOL = 0xFFFFFF  # the bits of a section's `info` that number its function
# An entry of a section `.nv.info`: a format, an attribute (as nvdisasm names them), then 16 bits that are the
# value or, for _SIZED, the size of what follows.
_SIZED = 0x04
REGISTERS = 0x2F  # EIATTR_REGCOUNT: the number of a function, its registers


class Section(NamedTuple):
    """A section: what its `info` says of it, its length in bytes, and what the file holds of it."""

    info: int
    length: int
    content: bytes


@contextmanager
def _damage_explained() -> Iterator[None]:
    try:
        yield
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UsageError(f"this cubin is damaged ({error}); compile it again") from error


@_damage_explained()
def sections(cubin: bytes) -> dict[str, Section]:
    """The sections by name. Raises UsageError for what is no cubin, or a damaged one."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise UsageError("this is no cubin: an ELF file of 64 bits, little-endian, was expected")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", cubin, table + i * size) for i in range(count)]
    names, found = headers[names_at][4], {}
    for label, kind, _, _, offset, length, _, info in headers:
        end = cubin.index(b"\0", names + label)
        is_there = kind != _NOT_IN_FILE and offset + length <= len(cubin)
        content = cubin[offset : offset + length] if is_there else b""
        found[cubin[names + label : end].decode()] = Section(info, length, content)
    return found


def attributes(section: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The attributes in a section `.nv.info`, with their values. Raises struct.error."""
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            yield attribute, struct.unpack_from(f"<{value // 4}I", section, at)
            at += value
        else:
            yield attribute, (value,)


@_damage_explained()
def registers(found: dict[str, Section]) -> dict[str, int]:
    """Registers of a thread, by function. Raises UsageError."""
    common = found.get(".nv.info", Section(0, 0, b"")).content
    by_number = {value[0]: value[1] for name, value in attributes(common) if name == REGISTERS}
    functions = {name.removeprefix(".text."): one.info for name, one in found.items() if name[:6] == ".text."}
    return {name: by_number.get(info & _SYMBOL, 0) for name, info in functions.items()}


def code_hash(cubin: bytes) -> str:
    """Equal for cubins with the same functions of the same code, registers, constants and shared memory.
    Raises UsageError for what is no cubin."""
    found = sections(cubin)
    compared = {name: found[name] for name in sorted(found) if name.startswith(COMPARED)}
    parts = [sorted(registers(found).items()), [(name, one.length) for name, one in compared.items()]]
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=16)
    for one in compared.values():
        digest.update(one.content)
    return digest.hexdigest()
