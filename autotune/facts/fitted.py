"""Numbers that were fitted or assumed, not derived: `fitted.json` says of each group on which GPU, when, from
what and by which command. Modules give them names and say what they mean. And defaults that commands and
functions share. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("fitted.json")
FITTED: dict[str, float] = {}
assert __spec__ is not None
for _group in json.loads(__spec__.loader.get_data(str(FILE))):  # type: ignore[union-attr] # also in an archive
    FITTED.update(_group["values"])


def number(name: str) -> float:
    return FITTED[name]


def numbers(names: str) -> list[float]:
    """Those of these names, which spaces part."""
    return [FITTED[name] for name in names.split()]


DEFAULT_DB = "autotune.db"  # of trials
MOST_DRAWN = 16384  # rows or columns of the shapes for which nobody asked
MAX_ERROR = 1.5  # times cuBLAS's: the limit for winners, and for what settling chooses
MAX_KERNELS = 252  # of a table for shapes that nobody tuned; with a default of each layout 256
MAX_MEGABYTES = 5.0  # that the files of these take
