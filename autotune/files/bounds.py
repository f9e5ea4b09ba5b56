"""Bounds of a number, stated where its field is declared: `num_sms: Annotated[int, Within(1, 4096)]`.

Code that reads records from a file (strict.py) checks every number against them. They are wide: they exclude
values that no GPU has, or that arithmetic cannot handle. Copied into exported tables: standard
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
