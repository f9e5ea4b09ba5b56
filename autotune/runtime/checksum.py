"""A checksum over the text that contains it: it detects damage, not intent. Copied into exported tables."""

from __future__ import annotations

import hashlib
from typing import Any

from ..files.strict import Misfit

BLANK = "0" * 64  # stands in the text while its checksum is computed


def sealed(text: str) -> str:
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
        raise Misfit("it has no checksum")
    content, told = text.encode(), checksum.encode()
    begin = content.find(told)
    found, view = hashlib.sha256(), memoryview(content)  # parts, as another copy takes longer than the sum
    for part in (view[:begin], BLANK.encode(), view[begin + len(told) :]):
        found.update(part)
    if begin < 0 or found.hexdigest() != checksum:
        raise Misfit("its checksum does not match its content")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
