"""Where the command line begins. From here on Ctrl-C ends it without a traceback, imports included.

While modules load there is nothing to put in order, and an exception in their middle would come out as
something else: the process ends at once. A command asks for `KeyboardInterrupt` once it is loaded.
"""

from __future__ import annotations

from .ctrl_c import leave_at_once


def main() -> None:
    """Entry point of `autotune` and `python -m autotune`."""
    leave_at_once()
    from .app import main

    main()
