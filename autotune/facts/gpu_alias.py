"""A GPU that its user accepts as another one, nearly identical and of the same compute capability, such as an
H200 NVL as an H200: AUTOTUNE_LIKE names the other. Its tables serve here, its trials are lent to searches.

No result depends on it, only times do. The core in C reads the variable, too. Copied into exported tables:
standard library only.
"""

from __future__ import annotations

import os

LIKE = "AUTOTUNE_LIKE"


def names_for(gpu_name: str) -> tuple[str, ...]:
    """The names that count for a GPU: its own, then the one that it is accepted as."""
    return tuple(dict.fromkeys((gpu_name, os.environ.get(LIKE) or gpu_name)))


def describe(gpu_name: str) -> str:
    """That a GPU is accepted as another, in words; "" if it is not."""
    other = names_for(gpu_name)[-1]
    return "" if other == gpu_name else f"{gpu_name} is accepted as {other} ({LIKE})"
