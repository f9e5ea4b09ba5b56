"""Which of the tied kernels of each shape a table takes: as few as serve all shapes, then those that need
least energy, then winners.

A set cover over the tied sets, by the greedy method (V. Chvatal, Math. Oper. Res. 4 (1979) 233): at most 1 +
ln(s) times the smallest number that serves s shapes, and never more than one per shape.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..facts.fitted import number

S = TypeVar("S", bound=Hashable)  # what names a shape
MAX_LOSS = 0.005  # tied, and slower than the fastest by more than this in the median: noise hid a difference
SAME_ENERGY = number("SAME_ENERGY")  # less than the difference of two readings of one kernel's energy

Kernel = tuple[str, ...]
_Loss = tuple[float, float, float]  # relative energy; 0 for the winner, else 1; relative time


@dataclass(frozen=True)
class Option:
    """A kernel that may serve a shape. `kernel` names it across shapes; names of one type sort."""

    kernel: Kernel
    time_us: float
    joules: float | None = None  # of one launch; None where it was not measured
    is_winner: bool = False  # what the search announced as the best


def choose(tied: Mapping[S, Sequence[Option]]) -> dict[S, Option]:
    """For each shape one of its options; shapes without any are left out.

    First come kernels that serve the most shapes, then those that need less energy, then winners, then time
    and name: the same choice in every run, whatever order shapes and options come in.
    """
    near = {shape: _near(options) for shape, options in tied.items() if options}
    losses: dict[Kernel, dict[S, _Loss]] = {}
    for shape, options in near.items():
        for option in options:
            losses.setdefault(option.kernel, {})[shape] = _loss(option, options)
    ranks = {kernel: (*_mean(list(by_shape.values())), kernel) for kernel, by_shape in losses.items()}
    taken: set[Kernel] = set()
    left = set(near)
    while left:
        best = min(losses, key=lambda kernel: (-len(left & losses[kernel].keys()), ranks[kernel]))
        taken.add(best)
        left -= losses[best].keys()
    return {
        shape: min(
            (o for o in options if o.kernel in taken), key=lambda o: (*_mean([_loss(o, options)]), o.kernel)
        )
        for shape, options in near.items()
    }


def _near(options: Sequence[Option]) -> list[Option]:
    """The winner and the options without a significant loss, each kernel once."""
    least_us = min(option.time_us for option in options)
    near = sorted(
        (o for o in options if o.is_winner or o.time_us <= least_us * (1 + MAX_LOSS)),
        key=lambda o: (o.kernel, not o.is_winner, o.time_us, math.inf if o.joules is None else o.joules),
    )
    return list({option.kernel: option for option in reversed(near)}.values())


def _loss(option: Option, options: Sequence[Option]) -> _Loss:
    """Energy and time of an option are relative to the least of all. Energy counts where it is known of
    all."""
    known = [o.joules for o in options if o.joules is not None]
    is_known = option.joules is not None and len(known) == len(options)
    energy = option.joules / min(known) if is_known and option.joules is not None else 1.0
    return energy, float(not option.is_winner), option.time_us / min(o.time_us for o in options)


def _mean(losses: Sequence[_Loss]) -> tuple[int, float, float]:
    """Mean energy in steps of its accuracy, the share of shapes it did not win, and mean time. Exact sums:
    their order does not matter."""
    energy, lost, time_us = (math.fsum(column) / len(losses) for column in zip(*losses, strict=True))
    return round((energy - 1) / SAME_ENERGY), lost, time_us
