"""Reads the files of an exported folder: regular ones, of a size that such a file can have.

A folder from elsewhere may hold anything. Opening or reading a FIFO would block, and a device has no end:
neither is read. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import DispatchError

MAX_TABLE_BYTES = 64 << 20  # 400 kernels take 0.6 MB
MAX_CUBIN_BYTES = 16 << 20  # a kernel takes 10 to 200 KB
_PART_BYTES = 1 << 16  # that are read at a time if a file's size is not what the system reports


def read_file(path: Path | str, max_bytes: int, advice: str) -> bytes:
    """The content of a file. Raises DispatchError, which ends with `advice`, if it cannot be read, is not a
    regular file, or holds more than `max_bytes`; FileNotFoundError if it does not exist."""
    try:
        # without O_NONBLOCK, opening a FIFO waits for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DispatchError(f"{path} is no regular file; {advice}")
            return _read(descriptor, found.st_size, path, max_bytes, advice)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise DispatchError(f"{path} cannot be read ({error}); {advice}") from error


def _read(descriptor: int, size: int, path: Path | str, max_bytes: int, advice: str) -> bytes:
    """The content up to the file's end, in one read if the system's size is right; at most `max_bytes` and
    one more."""
    part = os.read(descriptor, min(size, max_bytes) + 1)
    if len(part) == size <= max_bytes:
        return part
    parts, left = [part], max_bytes + 1 - len(part)
    while part and left:
        part = os.read(descriptor, min(left, _PART_BYTES))
        parts.append(part)
        left -= len(part)
    if not left:
        raise DispatchError(f"{path} is larger than {max_bytes >> 20} MiB; {advice}")
    return b"".join(parts)
