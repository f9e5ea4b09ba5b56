"""The search: `tune` finds the best kernels for shapes on a target, and keeps every trial in a store."""

from .progress import StopReason
from .propose.samplers import DEFAULT_SAMPLER, SAMPLERS
from .result import SearchResult, ShapeResult
from .run.interrupt import InterruptHandler
from .run.limits import Options
from .shape import study_of
from .tuner import tune

__all__ = [
    "DEFAULT_SAMPLER",
    "SAMPLERS",
    "InterruptHandler",
    "Options",
    "SearchResult",
    "ShapeResult",
    "StopReason",
    "study_of",
    "tune",
]
