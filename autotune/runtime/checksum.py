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
    if _digest(text.replace(checksum, BLANK, 1)) != checksum:
        raise Misfit("its checksum does not match its content")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
