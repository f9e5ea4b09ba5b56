"""How long to search: the requested limits, and the reasons to propose no more points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...facts.gemm import Gemm
from ...facts.stats import Patience
from ...files.words import number, option, whole
from ...kernel.scaled_config import AnyConfig
from ...kernel.where import ANY, Where
from ...search_policy import SearchPolicy
from ..compare.final import wanted_s
from ..part import Part
from ..progress import StopReason
from ..propose.samplers import DEFAULT_SAMPLER, Sampler, need_sampler
from ..shape import ShapeSearch


@dataclass(frozen=True)
class Options:
    """How to search, and for how long.

    `trials` counts per shape, trials of earlier runs included: the same command, interrupted and run again,
    ends with as many. `seconds` counts this run on the target's clock, the final included, divided between
    shapes in proportion to `weights`, or equally. With neither, each shape ends when nothing better is
    likely; also with seconds, unless the search `insists` on them. `starts` gives the configs expected to do
    well on a shape, most promising first; threads call it. Shapes of `without_final` are searched like
    others, but have no final: no program calls them.
    """

    sampler: Sampler = DEFAULT_SAMPLER
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    starts: Callable[[Gemm], Sequence[AnyConfig]] = lambda gemm: ()
    policy: SearchPolicy = field(default_factory=SearchPolicy)
    patience: Patience = field(default_factory=Patience)
    without_final: frozenset[Gemm] = frozenset()
    insists: bool = True
    weights: Mapping[Gemm, float] = field(default_factory=dict)  # of shapes; 1 by default
    same_code_share: float = 0.2  # of the seconds, at most, to compile an earlier compiler's trials; 0: none
    should_stop: Callable[[], bool] = lambda: False  # asked from time to time
    where: Where = ANY  # what is proposed, reported and chosen by finals obeys it
    part: Part | None = None  # where several processes divide the shapes

    def __post_init__(self) -> None:
        """Raises UsageError for an invalid value."""
        need_sampler(self.sampler)
        put = partial(object.__setattr__, self)
        put("seed", whole(option("seed"), self.seed))
        if self.trials is not None:
            put("trials", whole(option("trials"), self.trials, 1))
        if self.seconds is not None:
            put("seconds", number(option("seconds"), self.seconds, is_above=True))

    def seconds_to_search(self, shapes: Sequence[ShapeSearch]) -> float | None:
        """The granted seconds less what the finals of these shapes take, as expected, or their share."""
        if self.seconds is None:
            return None
        finals = [shape.time_usage for shape in shapes if shape.gemm not in self.without_final]
        finals_s = wanted_s(finals, self.policy) if finals else 0.0
        return self.seconds - min(self.policy.final_share * self.seconds, finals_s)

    def weighted_share(self, shape: ShapeSearch) -> tuple[float, float]:
        """The part of its share that a shape has had, for comparison with others."""
        weight = self.weights.get(shape.gemm, 1.0)
        seconds, num_requested = shape.share
        return seconds / weight, num_requested / weight

    def should_polish(self, shapes: Sequence[ShapeSearch], elapsed_s: float) -> bool:
        """Whether it is time to try all points one step from the best tiles, if seconds were given: a shape
        whose best region was found late can still gain there. Never with a number of trials."""
        seconds = self.seconds_to_search(shapes)
        if seconds is None or self.trials is not None:
            return False
        return elapsed_s >= (1 - self.policy.polish_share) * seconds

    def is_patience_over(self, shape: ShapeSearch) -> bool:
        """Whether a gain is unlikely, unless a step of `polish` brings one, and that ends the search."""
        is_patient = self.trials is None and (self.seconds is None or not self.insists)
        return is_patient and self.patience.is_over(shape.findings.times_us)

    def why_enough(self, shape: ShapeSearch) -> StopReason | None:
        """Why no more points of this shape are to be proposed now, or None."""
        if shape.points.is_exhausted:
            return StopReason.EXHAUSTED
        if self.num_left(shape) <= 0:
            return StopReason.TRIALS
        if self.is_patience_over(shape) and shape.points.is_polished:
            return StopReason.PATIENCE
        return None

    def num_left(self, shape: ShapeSearch) -> float:
        """Points of this shape that may still be proposed; infinite if no number was set."""
        if self.trials is None:
            return math.inf
        return self.trials - shape.findings.num_total - shape.points.num_open
