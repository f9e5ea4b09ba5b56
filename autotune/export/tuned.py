"""The results of searches as input of an export: plain data, which `from_store.py` reads from a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import LAYOUTS, Gemm

MOST_MODELLED = 160  # shapes of a layout whose times models learn from


@dataclass(frozen=True)
class TunedPoint:
    """One ranked config of a tuned shape, of one of the templates (kernel/templates.py). `is_tied`: it cannot
    be told apart from the best."""

    config: Any
    time_us: float
    is_tied: bool
    joules: float | None = None  # of one launch, where it was measured


@dataclass(frozen=True)
class TunedShape:
    """What a search found for one shape: `ranked` best first, empty for a drawn shape; `times` of all ok
    trials, for the model; `own`: those of its configs that were not found on other shapes."""

    gemm: Gemm
    ranked: tuple[TunedPoint, ...]
    times: tuple[tuple[Any, float], ...] = ()
    cublas_us: float | None = None
    own: Collection[Any] = frozenset()

    @property
    def all_times(self) -> dict[Any, float]:
        """Every ok time; for a ranked config the later and more accurate time counts."""
        return dict(self.times) | {point.config: point.time_us for point in self.ranked}


@dataclass(frozen=True)
class TunedResults:
    """All results for one GPU model and one kernel source."""

    environment: Environment
    limits: DeviceLimits
    source_hash: str
    policy: str
    policy_version: int
    shapes: tuple[TunedShape, ...]
    power_limit_w: float | None = None  # of the GPU that was measured, where that is known
    cublas_us: Mapping[Gemm, float] = field(default_factory=dict)  # of shapes that nobody searched
    adding_us: Mapping[Gemm, float] = field(default_factory=dict)  # of cuBLAS as torch has it add a bias
    batched_us: Mapping[Gemm, float] = field(default_factory=dict)  # of batches that nobody searched


def spread(gemms: Iterable[Gemm]) -> set[Gemm]:
    """The shapes whose times are used; where a layout has very many, each n-th of them."""
    known = list(gemms)
    by_layout = ([gemm for gemm in known if gemm.layout == layout] for layout in LAYOUTS)
    return {gemm for some in by_layout for gemm in some[:: -(-len(some) // MOST_MODELLED) or 1]}
