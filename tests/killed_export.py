"""An export that is killed before a step: `main(FOLDER, STEP, CAN_EXCHANGE, CREATED_AT, ADDS)`.

A step is anything that the export does to the files beside its place: opening, renaming, removing, listing.
One that has fewer steps ends with exit code 0.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from unittest.mock import patch

from kind_cases import SECOND, add
from table_cases import make_kernel, make_spec, make_table, write_table

from autotune.export import exchange, package
from autotune.export.package import runtime_files

STEPS = ("open", "fcntl.flock", "os.")
COPIED = "files/errors.py", "runtime/__init__.py", "runtime/table/table.py"


@cache
def _copied() -> dict[str, bytes]:
    """A few of the files of the runtime, in a folder and beside it: each of the others takes the same steps
    again."""
    return {name: runtime_files()[name] for name in COPIED}


def make(folder: Path, created_at: str) -> None:
    """Export a small table. Its cubin names depend on when it was made, as a search's next winners do."""
    kernel = make_kernel(f"made-{created_at}", make_spec())
    with patch.object(package, "runtime_files", _copied):
        write_table(replace(make_table(kernel), created_at=created_at), folder)


def make_beside(folder: Path, created_at: str) -> None:
    """The same for another GPU model, added to what is there."""
    with patch.object(package, "runtime_files", _copied):
        add(replace(SECOND, created_at=created_at), folder)


def main(folder: str, step: int, can_exchange: bool, created_at: str, adds: bool = False) -> None:
    exchange._sync_tree = lambda folder: None  # it changes nothing
    if not can_exchange:
        exchange._exchange = lambda one, other: False
    place = str(Path(folder).parent)
    numbers = count(1)

    def kill_at_step(event: str, arguments: tuple[object, ...]) -> None:
        where = arguments[0] if arguments else None
        is_here = event == "fcntl.flock" or (isinstance(where, str | Path) and str(where).startswith(place))
        if event.startswith(STEPS) and is_here and next(numbers) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at_step)
    (make_beside if adds else make)(Path(folder), created_at)
    sys.stdout.flush()
    os._exit(0)
