"""Bounds of a number, stated where its field is declared: `num_sms: Annotated[int, Within(1, 4096)]`.

Who reads records from a file (strict.py) holds every number to them. They are wide: they keep what
no GPU has, and what arithmetic cannot take, out of everything behind. Copied into exported tables: standard
library only.
"""

from __future__ import annotations

from typing import NamedTuple


class Within(NamedTuple):
    """From `least` to `most`, both included."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:,} ... {self.most:,}"
