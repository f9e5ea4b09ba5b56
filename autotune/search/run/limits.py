"""How long to search: what was asked for, and why no more points are to be asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ...errors import UsageError
from ...gemm import Gemm
from ...stats import Patience
from ..compare import final
from ..propose.samplers import DEFAULT_SAMPLER
from ..shape import ShapeSearch

_FINAL_SHARE = 0.1  # of the seconds granted, kept for the final
_FINAL_MOST_S = 4.0  # per shape
_POLISH_SHARE = 0.15  # of the seconds to search, at their end


class StopReason(StrEnum):
    """Why a search asked for no more points."""

    TRIALS = "trials"  # as many as were asked for
    SECONDS = "seconds"
    PATIENCE = "patience"  # nothing better is likely
    EXHAUSTED = "exhausted"  # every feasible point was tried
    INTERRUPTED = "interrupted"

    @property
    def is_at_once(self) -> bool:
        """Whether points under way are not waited for."""
        return self in (StopReason.INTERRUPTED, StopReason.SECONDS)


@dataclass(frozen=True)
class Options:
    """How to search, and for how long.

    `trials` counts per shape, trials of earlier runs included: the same command, interrupted and run
    again, ends with as many. `seconds` counts this run on the target's clock, the final included,
    shared out fairly between shapes. With neither, each shape ends when nothing better is likely.
    Shapes of `without_final` are searched like others, but their best are not re-ranked: nobody calls them.
    """

    sampler: str = DEFAULT_SAMPLER
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    num_finalists: int = final.NUM_FINALISTS
    patience: Patience = field(default_factory=Patience)
    without_final: frozenset[Gemm] = frozenset()

    def seconds_to_search(self, gemms: Sequence[Gemm]) -> float | None:
        """The seconds granted less what the finals of these shapes are to have of them."""
        if self.seconds is None:
            return None
        num_finals = sum(gemm not in self.without_final for gemm in gemms)
        return self.seconds - min(_FINAL_SHARE * self.seconds, _FINAL_MOST_S * num_finals)

    def polishes(self, gemms: Sequence[Gemm], elapsed_s: float) -> bool:
        """Whether it is time to try all that is one step from the best tiles: of a shape whose hill was found
        late, that is where something is still to be gained. Only where the seconds are given."""
        seconds = self.seconds_to_search(gemms)
        return seconds is not None and self.trials is None and elapsed_s >= (1 - _POLISH_SHARE) * seconds

    def why_enough(self, shape: ShapeSearch) -> StopReason | None:
        """Why no more points of this shape are to be asked for now, or None."""
        if shape.is_exhausted:
            return StopReason.EXHAUSTED
        if self.num_left(shape) <= 0:
            return StopReason.TRIALS
        is_patient = self.trials is None and self.seconds is None
        if is_patient and self.patience.is_over(shape.times_us):
            return StopReason.PATIENCE
        return None

    def num_left(self, shape: ShapeSearch) -> float:
        """Points of this shape that may still be asked for; infinite where no number was set."""
        return math.inf if self.trials is None else self.trials - shape.num_total - shape.num_open


def check(gemms: Sequence[Gemm], options: Options) -> None:
    """Raises UsageError for shapes or options that cannot be."""
    if not gemms:
        raise UsageError("no shape to search; name at least one")
    if options.trials is not None and options.trials < 1:
        raise UsageError(f"--trials {options.trials}: at least 1")
    if options.seconds is not None and not 0 < options.seconds < math.inf:
        raise UsageError(f"--seconds {options.seconds}: more than 0, and finite; leave it out for no limit")
