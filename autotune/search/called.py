"""The time of a program's calls: which shapes are searched first, for how long, and the gain."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from ..facts.device import names_for
from ..facts.gemm import Gemm
from ..kernel.templates import is_alike
from ..perf_model.cublas_model import least_us
from ..store import Store
from ..target import Target
from .result import ShapeResult

SEARCHED_SHARE = 0.99  # of the time of all calls: the remaining shapes are left to kernels of others


def expected_us(target: Target, store: Store, gemms: Collection[Gemm]) -> dict[Gemm, float]:
    """The time of one call of each shape: the best of earlier searches on such a GPU, else cuBLAS's time
    then, else the hardware's limit and a launch."""
    known: dict[Gemm, float] = {}
    names = names_for(target.environment.gpu_name)
    for of in (one.study for one in sorted(store.studies(gemms), key=lambda one: one.updated_at)):
        is_similar = is_alike(of.source_hash, target.source_hash)
        if of.environment.gpu_name in names and of.policy == target.policy and is_similar:
            best = store.best(of, 1, target.max_error)
            if time_us := best[0].measurement.time_us if best else store.cublas_us(of):
                known[of.gemm] = time_us
    return {gemm: known.get(gemm) or least_us(gemm, target.limits) for gemm in gemms}


def in_order(seconds: Mapping[Gemm, float]) -> list[Gemm]:
    """Those whose calls take most, in descending order: as few as make up SEARCHED_SHARE of all seconds."""
    ordered = sorted(seconds, key=lambda gemm: -seconds[gemm])
    before = accumulate((seconds[gemm] for gemm in ordered), initial=0.0)
    most = SEARCHED_SHARE * sum(seconds.values())
    return [gemm for gemm, so_far in zip(ordered, before, strict=False) if so_far < most]


def weights(seconds: Mapping[Gemm, float]) -> dict[Gemm, float]:
    """Each shape's share of the seconds, 1 on average: the root of the time of its calls (decision 0051)."""
    mean = sum(map(math.sqrt, seconds.values())) / max(len(seconds), 1)
    return {gemm: math.sqrt(taken) / mean for gemm, taken in seconds.items()}


@dataclass(frozen=True)
class Gain:
    """The gain of a search for a program, in seconds of all its calls of searched shapes, packed as they were
    timed. `cublas_s`: None if cuBLAS was absent for some; with a bias that cuBLAS adds, where that was timed.
    `left_calls`: calls of shapes that were not searched, and their expected seconds."""

    num_calls: int
    tuned_s: float
    cublas_s: float | None
    left_shapes: int
    left_calls: int
    left_s: float

    @property
    def speedup(self) -> float | None:
        """Over cuBLAS on the searched shapes."""
        return self.cublas_s / self.tuned_s if self.cublas_s and self.tuned_s else None


def gain_of(
    shapes: Iterable[ShapeResult],
    calls: Mapping[Gemm, int],
    expected: Mapping[Gemm, float],
    adding: Mapping[Gemm, int] = MappingProxyType({}),
    adding_us: Mapping[Gemm, float] = MappingProxyType({}),
) -> Gain:
    """Of shapes that were searched. `calls`: of all shapes; `expected`: us of one call of each; `adding`: how
    many of these have cuBLAS add a bias, which takes `adding_us`."""
    best = {shape.gemm: shape.verdict for shape in shapes if shape.verdict is not None}
    searched = [gemm for gemm in calls if gemm in best]
    left = [gemm for gemm in calls if gemm not in best]
    cublas_us = [best[gemm].cublas_us for gemm in searched]
    cublas = [
        calls[gemm] * us + adding.get(gemm, 0) * (adding_us.get(gemm, us) - us)
        for gemm, us in zip(searched, cublas_us, strict=True)
        if us is not None
    ]
    return Gain(
        num_calls=sum(calls[gemm] for gemm in searched),
        tuned_s=sum(calls[gemm] * best[gemm].time_us for gemm in searched) / 1e6,
        cublas_s=sum(cublas) / 1e6 if cublas and len(cublas) == len(searched) else None,
        left_shapes=len(left),
        left_calls=sum(calls[gemm] for gemm in left),
        left_s=sum(calls[gemm] * expected[gemm] for gemm in left) / 1e6,
    )
