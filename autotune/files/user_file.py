"""Reads a file that a user names: a regular one, small enough to be held in memory.

Anything else is refused before it is read, but for its first bytes: a pipe may never be written to, and a
device never ends.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .errors import UsageError
from .strict import NewerVersion

MOST_TOML = 256 << 10  # bytes: some 6,000 shapes of a suite
LONGEST_LINE = 1000  # characters: reading a dotted key of TOML takes time that grows as its square
T = TypeVar("T")
_GZIP = b"\x1f\x8b"
_PACKED = {  # by the first bytes, what is not unpacked here
    b"PK\x03\x04": "zip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
}  # fmt: skip
_SQLITE = b"SQLite format 3\0"
_KINDS = (  # of what can be opened; folders and sockets cannot
    (stat.S_ISFIFO, "a pipe"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)


def read_file(path: Path, what: str, most_bytes: int) -> bytes:
    """The content of a file that is to hold a `what`, at most so many bytes; decompressed if gzip made it.
    Raises UsageError, naming the file, if it is missing, damaged, too large or no regular file."""
    try:
        content = _read(path, what, most_bytes)
        if content[: len(_GZIP)] == _GZIP:
            with gzip.open(io.BytesIO(content)) as compressed:
                content = compressed.read(most_bytes + 1)
    except FileNotFoundError:
        raise UsageError(f"no {what} at {path}; name an existing file") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} is no readable {what}: {reason}; name another file") from error
    if len(content) > most_bytes:
        raise _too_large(path, what, most_bytes)
    if tool := next((tool for begin, tool in _PACKED.items() if content.startswith(begin)), None):
        raise UsageError(f"{path} is packed by {tool}; unpack the {what}, or compress it with gzip")
    return content


def decoded(content: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark, which is left out. Raises ValueError."""
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf_16 else "utf-8-sig")


def read_toml(path: Path, what: str, made_of: Callable[[dict[str, Any]], T], how: str) -> T:
    """What is made of a file of TOML that is to hold a `what`. Raises UsageError as `read_file`, where the
    file is no TOML, and where `made_of` raises ValueError or UsageError for what it holds; `how` says what to
    write."""
    content = read_file(path, what, MOST_TOML)
    try:
        return made_of(_parsed(decoded(content)))
    except (ValueError, RecursionError, UsageError) as error:
        raise unusable(path, what, error, how) from error


def unusable(path: Path, what: str, error: Exception, how: str) -> UsageError:
    """The error of a file that does not hold a `what`, or one of a newer version; `how` says what to do."""
    if isinstance(error, NewerVersion):
        return UsageError(f"{path} is a {what} of {error}; use a newer autotune")
    return UsageError(f"{path} is not a {what}: {error}; {how}")


def _parsed(text: str) -> dict[str, Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has more than {LONGEST_LINE:,} characters")
    return tomllib.loads(text)


def _read(path: Path, what: str, most_bytes: int) -> bytes:
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        for is_kind, name in _KINDS:
            if is_kind(status.st_mode):
                raise UsageError(f"{path} is {name}, and a {what} is a regular file; name one")
        begin = file.read(len(_SQLITE))
        if begin == _SQLITE:
            raise UsageError(
                f"{path} is a database, not a {what}: commands take it as --db {path}; name a {what} here"
            )
        if status.st_size > most_bytes:
            raise _too_large(path, what, most_bytes)
        return begin + file.read(most_bytes + 1 - len(begin))  # what the kernel makes up has no size


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting for somebody to write into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _too_large(path: Path, what: str, most_bytes: int) -> UsageError:
    return UsageError(f"{path} holds more than {most_bytes >> 10:,} KiB, too much for a {what}; split it up")
