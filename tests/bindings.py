"""What the real CUDA bindings document: doubles of them are held to it."""

from __future__ import annotations

import re

from cuda.bindings import driver


def arity(name: str) -> int:
    """How many arguments the binding of a function of the driver takes."""
    inside = driver.__dict__[name].__doc__.splitlines()[0].partition("(")[2].rpartition(")")[0]
    while "[" in inside:
        inside = re.sub(r"\[[^\[\]]*\]", "", inside)
    return len(inside.split(",")) if inside.strip() else 0
