"""Bounds of a number, stated where its field is declared: `num_sms: Annotated[int, Within(1, 4096)]`.

Who reads records from a file (strict.py) holds every number to them. They are wide: they keep what
no GPU has, and what arithmetic cannot take, out of everything behind. Copied into exported tables: standard
library only.
"""

from __future__ import annotations


class Within:
    """From `least` to `most`, both included.

    Equal to itself only: typing keeps one `Annotated[int, Within(1, 4)]` for all that are equal, and the
    copies of this class in exported folders are other classes.
    """

    __slots__ = ("least", "most")

    def __init__(self, least: float, most: float) -> None:
        self.least = least
        self.most = most

    def __str__(self) -> str:
        return f"{self.least:,} ... {self.most:,}"
