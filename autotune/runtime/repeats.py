"""Finds the step of a program that repeats: in the sequence of its calls, and in the time between them.

Copied into exported tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

FEWEST = 3  # repeats that a period needs


def period_of(items: Sequence[object]) -> int | None:
    """The length of the shortest sequence that all items repeat, `FEWEST` times or more; None if none does.

    The last repeat need not be whole. It takes time in proportion to the number of items: the longest proper
    prefix that is a suffix, too, is what remains of them without one period (Knuth, Morris and Pratt, 1977).
    """
    lengths = [0] * len(items)  # of that prefix, for each number of items
    for i in range(1, len(items)):
        length = lengths[i - 1]
        while length and items[i] != items[length]:
            length = lengths[length - 1]
        lengths[i] = length + (items[i] == items[length])
    if not items:
        return None
    period = len(items) - lengths[-1]
    return period if FEWEST * period <= len(items) else None


def quietest(times: Sequence[float], period: int) -> int:
    """Before which item of a period most time passes, where `times` are those of the items: there one step
    of a program ends, if anywhere."""
    gaps = [after - before for before, after in pairwise(times)]
    return max(range(period), key=lambda item: statistics.median(gaps[(item - 1) % period :: period]))
