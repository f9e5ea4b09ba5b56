"""A checksum over the text that it stands in: it tells damage, not intent. Copied into exported tables."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ..strict import Misfit

BLANK = "0" * 64  # stands in the text while its checksum is computed
_SHA256 = re.compile(r"[0-9a-f]{64}")


def sealed(text: str) -> str:
    """A text that holds BLANK, with its SHA-256 instead."""
    return text.replace(BLANK, _digest(text), 1)


def verify(text: str, checksum: Any) -> None:
    """Raises Misfit where this is not the checksum of a text that it stands in."""
    if type(checksum) is not str or not _SHA256.fullmatch(checksum):
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
