"""Idle seconds of a GPU spent on kernels that are compiled already.

A kernel that was compiled for one shape serves every shape of the same layout, in any number of splits; those
for batches serve batches alone. While a search waits for its compiler, trying such a kernel elsewhere costs
nothing that is scarce.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np

from ...kernel.config import PARAMETER, Config
from ...measurement import Outcome
from ...target import Point, Reusing
from ..shape import ShapeSearch
from .pipeline import Kept, Pipeline

AHEAD_S = 0.6  # of the GPU's work queued: it must not run dry in the longest ask, which takes 0.4 s
LEAST_BATCH, MOST_BATCH = 8, 24  # asked for at once: a model takes hardly longer for many than for one
LEAST_TRIAL_S = 0.005  # a trial is taken to last at least so long: a shape's first trials tell little
NUM_DRAWN = 300  # kernels that a model looks at, drawn from those that led somewhere, and as many of all
NUM_SPLITS = 3  # numbers of splits looked at with each kernel that splits k, besides its own
LED = 1.1  # a kernel has led if its time was at most so many times the best of a shape
MORE = 1.1  # a shape that had nothing left to try looks again once there are so many times as many kernels
MOST_TRIAL_S = 0.15  # a trial that takes longer would keep candidates, and so the compiler, waiting
_FINE = (Outcome.OK, Outcome.INACCURATE)  # elsewhere the same kernel may be accurate enough
_HARMFUL = (Outcome.FAULTED, Outcome.TIMED_OUT, Outcome.WRONG_RESULT, Outcome.TOO_FAST)


class Kernels:
    """Kernels of one family that were compiled in this run and are not known to do harm."""

    def __init__(self) -> None:
        self._codes: dict[Config, np.ndarray] = {}  # (parameters,) of the first point that ran with it
        self._leading: dict[Config, np.ndarray] = {}
        self._banned: set[Config] = set()

    def __len__(self) -> int:
        return len(self._codes)

    def __contains__(self, kernel: Config) -> bool:
        return kernel in self._codes

    def add(self, kernel: Config, codes: np.ndarray, *, has_led: bool) -> None:
        """Take one in; codes: (parameters,)."""
        if kernel in self._banned:
            return
        self._codes.setdefault(kernel, codes)
        if has_led:
            self._leading[kernel] = codes

    def ban(self, kernel: Config) -> None:
        """One that faulted, hung, or gave a wrong result: nowhere else is it tried."""
        self._banned.add(kernel)
        self._codes.pop(kernel, None)
        self._leading.pop(kernel, None)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Some of those that led, and some of all; (q, parameters)."""
        drawn = (_some(rng, list(found.values())) for found in (self._leading, self._codes))
        return np.array([*chain.from_iterable(drawn)], dtype=np.int64).reshape(-1, len(PARAMETER))


def _some(rng: np.random.Generator, codes: list[np.ndarray]) -> list[np.ndarray]:
    if len(codes) <= NUM_DRAWN:
        return codes
    return [codes[i] for i in rng.choice(len(codes), NUM_DRAWN, replace=False)]


class Reuser:
    """Keeps a few points queued for idle moments. Used by one thread, the coordinator's."""

    def __init__(self, target: Reusing, pipeline: Pipeline, seed: int) -> None:
        self._target, self._pipeline = target, pipeline
        self._families: dict[Hashable, Kernels] = {}
        self._rng = np.random.default_rng(seed)
        self._used_up: dict[ShapeSearch, int] = {}  # kernels there were when a shape had tried all it saw
        self._is_closed = False

    def learn(self, kept: Kept) -> None:
        """Take in the kernel of a candidate that was settled."""
        shape, ask, found = kept.candidate.shape, kept.candidate.ask, kept.measurement
        if kept.candidate.is_reused and found.compile_s > 0:
            self._is_closed = True  # the cache keeps nothing: what was taken for free is not
        if set(shape.space.names) == set(PARAMETER):
            kernel, kernels = Config.from_dict(ask.point).kernel, self._kernels(shape)
            if found.outcome in _FINE:
                best_us = shape.cutoff_us
                has_led = found.time_us is not None and best_us is not None and found.time_us < LED * best_us
                kernels.add(kernel, shape.space.codes(ask.number), has_led=has_led)
            elif found.outcome in _HARMFUL:
                kernels.ban(kernel)

    def fill(self, shapes: Sequence[ShapeSearch]) -> None:
        """Queue points, of the shape that had the least of the idle seconds. One shape a call: the
        candidates that are to be compiled must not wait for this."""
        lacking_s = AHEAD_S - sum(_trial_s(candidate.shape) for candidate in self._pipeline.reused)
        if self._is_closed or lacking_s < AHEAD_S / 2:
            return
        ready = [shape for shape in shapes if self.serves(shape) and self._has_more(shape)]
        if not ready:
            return
        shape = min(ready, key=lambda s: (s.expected_reused_s, s.num_reused + s.num_reused_open))
        kernels = self._kernels(shape)
        asks = shape.take(self._champions(shape, shapes))
        asks = asks or shape.pick(self._with_splits(kernels.draw(self._rng), shape), _batch(lacking_s, shape))
        if not asks:
            self._used_up[shape] = len(kernels)
        for ask in asks:
            self._pipeline.submit_compiled(self._target, shape, ask)

    def serves(self, shape: ShapeSearch) -> bool:
        """Whether idle seconds are for this shape, too: then it tries here what does best for others."""
        is_started = shape.cutoff_us is not None
        return is_started and not self._is_closed and shape.gpu_s_per_trial <= MOST_TRIAL_S

    def _has_more(self, shape: ShapeSearch) -> bool:
        return len(self._kernels(shape)) > MORE * self._used_up.get(shape, 0)

    def _champions(self, shape: ShapeSearch, shapes: Sequence[ShapeSearch]) -> list[Point]:
        """What does best for others of this shape's family, and has been compiled."""
        kernels = self._kernels(shape)
        others = [other for other in shapes if other is not shape and self._kernels(other) is kernels]
        points = [champion.point for other in others if (champion := other.ranking.champion) is not None]
        return [point for point in points if Config.from_dict(point).kernel in kernels]

    def _kernels(self, shape: ShapeSearch) -> Kernels:
        family = (self._target.kernel_family(shape.gemm), shape.space.names, shape.space.values)
        return self._families.setdefault(family, Kernels())

    def _with_splits(self, codes: np.ndarray, shape: ShapeSearch) -> np.ndarray:
        """These points, and some of them with other numbers of splits: (q, parameters) -> (more, parameters).
        Those that are clusters have theirs compiled in; those that do not split have one."""
        names, values = shape.space.names, shape.space.values
        reduction, split_k = names.index("reduction"), names.index("split_k")
        is_free = [word not in ("none", "cluster") for word in values[reduction]]
        again = np.repeat(codes[np.array(is_free)[codes[:, reduction]]], NUM_SPLITS, axis=0)
        again[:, split_k] = self._rng.integers(len(values[split_k]), size=len(again))
        return np.concatenate([codes, again])


def _trial_s(shape: ShapeSearch) -> float:
    return max(shape.gpu_s_per_trial, LEAST_TRIAL_S)


def _batch(lacking_s: float, shape: ShapeSearch) -> int:
    """How many points of a shape are so many seconds of the GPU's work, within bounds."""
    return min(MOST_BATCH, max(LEAST_BATCH, math.ceil(lacking_s / _trial_s(shape))))
