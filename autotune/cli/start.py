"""Where the command line begins. From here on Ctrl-C ends it without a traceback, imports included.

While modules load there is nothing to put in order, and an exception in their middle would come out as
something else: the process ends at once. A command asks for `KeyboardInterrupt` once it is loaded.
"""

from __future__ import annotations

import gc
import os
import sys

from .ctrl_c import leave_at_once

GARBAGE_AT = 50_000  # objects; at Python's 700 a tenth of the time on a million trials goes to looking for it


def main() -> None:
    """Entry point of `autotune` and `python -m autotune`."""
    leave_at_once()
    _open_streams()
    gc.set_threshold(GARBAGE_AT)
    from .app import main

    main()


def _open_streams() -> None:
    """Where a standard stream is closed (`>&-`, some daemons), what is printed goes nowhere;
    else the next file that is opened would get its number, and what processes print that are started here."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
