"""The search: `tune` finds the best kernels for shapes on a target, and keeps every trial in a store."""

from .asker import DEFAULT_SAMPLER, SAMPLERS
from .limits import Options, StopReason
from .result import Result, ShapeResult
from .shape import point_key, study_of
from .tuner import tune

__all__ = [
    "DEFAULT_SAMPLER",
    "SAMPLERS",
    "Options",
    "Result",
    "ShapeResult",
    "StopReason",
    "point_key",
    "study_of",
    "tune",
]
