"""What takes seconds to make is made by one process of a test run, and read by the others."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")
RUN = "AUTOTUNE_TEST_RUN"  # names a folder of this run alone, which is gone with it


def kept(make: Callable[[], Made]) -> Callable[[], Made]:
    """Decorates a function that always makes the same. Where no test run goes on, each process calls it."""

    @functools.cache
    def read_or_make() -> Made:
        return once(f"{make.__module__}.{make.__qualname__}", make) if RUN in os.environ else make()

    return read_or_make


def once(name: str, make: Callable[[], Made]) -> Made:
    """What a process of this test run made under this name, or makes now."""
    path = Path(os.environ[RUN]) / name
    if not path.exists():
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_bytes(pickle.dumps(make()))
        written.rename(path)
    made: Made = pickle.loads(path.read_bytes())
    return made
