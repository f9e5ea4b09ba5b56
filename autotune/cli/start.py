"""Where the command line begins. From here on Ctrl-C ends it without a traceback, imports included.

While modules load there is nothing to put in order, and an exception in their middle would come out as
something else: the process ends at once. A command asks for `KeyboardInterrupt` once it is loaded.
"""

from __future__ import annotations

import gc

from .ctrl_c import leave_at_once

GARBAGE_AT = 50_000  # objects; at Python's 700 a tenth of the time on a million trials goes to looking for it


def main() -> None:
    """Entry point of `autotune` and `python -m autotune`."""
    leave_at_once()
    gc.set_threshold(GARBAGE_AT)
    from .app import main

    main()
