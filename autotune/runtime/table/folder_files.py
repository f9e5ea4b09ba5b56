"""Reads the files of an exported folder: regular ones, of a size that such a file can have.

A folder from elsewhere may hold anything. Opening or reading a FIFO would block, and a device has no end:
neither is read. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
from pathlib import Path
from typing import Any

from ...files.errors import DispatchError
from ...files.strict import Mismatch

MAX_TABLE_BYTES = 64 << 20  # 400 kernels take 0.6 MB
MAX_CUBIN_BYTES = 16 << 20  # a kernel takes 10 to 200 KB
_PART_BYTES = 1 << 16  # that are read at a time if a file's size is not what the system reports


def read_file(path: Path | str, max_bytes: int, advice: str) -> bytes:
    """The content of a file. Raises DispatchError, which ends with `advice`, if it cannot be read, is not a
    regular file, or holds more than `max_bytes`; FileNotFoundError if it does not exist."""
    descriptor, found = _opened(path, advice)
    try:
        return _read(descriptor, found.st_size, path, max_bytes, advice)
    except OSError as error:
        raise _invalid(path, error, advice) from error
    finally:
        os.close(descriptor)


class KeptFile:
    """A file that stays open as long as this is referred to: it can be read when another took its place.

    Threads and forked processes may share it, as reading moves no position. A program that closes all
    descriptors, as a daemon does, has it opened again where it still is the same. Raises as `read_file`, but
    has no bound: `size` is in bytes.
    """

    def __init__(self, path: str, advice: str) -> None:
        self._path, self._advice = path, advice
        descriptor, found = _opened(path, advice)
        self.size, self._identity = found.st_size, _identity(found)
        self._keep(descriptor)

    def read(self, start: int, num_bytes: int) -> bytes:
        """This part of it; less, if the file has become shorter. Raises DispatchError."""
        try:
            if not _is_open(self._descriptor, self._identity):
                self._reopen()
            content = os.pread(self._descriptor, num_bytes, start)
            while len(content) < num_bytes and (
                part := os.pread(self._descriptor, num_bytes - len(content), start + len(content))
            ):
                content += part
            return content
        except OSError as error:
            raise _invalid(self._path, error, self._advice) from error

    def _keep(self, descriptor: int) -> None:
        self._descriptor = descriptor
        at_end = weakref.finalize(self, _close, descriptor, self._identity)
        at_end.atexit = False  # what runs at the exit may still read, and the system closes it

    def _reopen(self) -> None:
        descriptor, found = _opened(self._path, self._advice)
        if _identity(found) != self._identity:
            os.close(descriptor)
            raise OSError("it was replaced after this program had closed it")
        self._keep(descriptor)


def _opened(path: Path | str, advice: str) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and what the system tells of it."""
    try:
        # without O_NONBLOCK, opening a FIFO waits for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _invalid(path, error, advice) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise DispatchError(f"{path} is no regular file; {advice}")
    return descriptor, found


def _invalid(path: Path | str, error: Exception, advice: str) -> DispatchError:
    if isinstance(error, NotADirectoryError):
        file = next((one for one in Path(path).parents if one.is_file()), path)
        what = f"{file} is a file, not a folder; unpack an archive first"
        return DispatchError(f"{path} cannot be read: {what}")
    return DispatchError(f"{path} cannot be read ({error}); {advice}")


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_open(descriptor: int, identity: tuple[int, int]) -> bool:
    """Whether the descriptor still is of this file: a program may have closed it, and opened another."""
    try:
        return _identity(os.fstat(descriptor)) == identity
    except OSError:
        return False


def _close(descriptor: int, identity: tuple[int, int]) -> None:
    if _is_open(descriptor, identity):
        os.close(descriptor)


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


BLANK = "0" * 64  # stands in the text while its checksum is computed


def with_checksum(text: str) -> str:
    """A text that holds BLANK, with its SHA-256 instead."""
    return text.replace(BLANK, _digest(text), 1)


def is_hex(text: str) -> bool:
    """Whether all of it is pairs of digits of hexadecimal numbers, in small letters. Converting it there and
    back takes a third of the time of a regular expression."""
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def is_sha256(text: str) -> bool:
    """Whether it can be one, as it is written here."""
    return len(text) == len(BLANK) and is_hex(text)


def verify(text: str, checksum: Any) -> None:
    """Raises Misfit where this is not the checksum of a text that it stands in."""
    if type(checksum) is not str or not is_sha256(checksum):
        raise Mismatch("it has no checksum")
    content, stated = text.encode(), checksum.encode()
    begin = content.find(stated)
    found, view = hashlib.sha256(), memoryview(content)  # parts, as another copy takes longer than the sum
    for part in (view[:begin], BLANK.encode(), view[begin + len(stated) :]):
        found.update(part)
    if begin < 0 or found.hexdigest() != checksum:
        raise Mismatch("its checksum does not match its content")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
