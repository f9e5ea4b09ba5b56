"""Uses idle seconds of a GPU for kernels that are already compiled.

One that was compiled for a shape serves every shape of its layout, with any number of splits (those for
batches only batches): trying it elsewhere while the search waits for its compiler costs nothing."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np

from ...facts.distribution import LEADING
from ...facts.measurement import Outcome
from ...kernel.config import PARAMETER, Config
from ...search_policy import SearchPolicy
from ...target import Point, Reusing
from ..shape import ShapeSearch
from .pipeline import Candidate, Pipeline

_FINE = (Outcome.OK, Outcome.INACCURATE)  # on another shape the same kernel may be accurate enough
NUM_SPLITS = 3  # of k that are tried with a kernel at a time
_HARMFUL = (Outcome.FAULTED, Outcome.TIMED_OUT, Outcome.WRONG_RESULT, Outcome.TOO_FAST)


class Kernels:
    """Kernels of one family that were compiled in this run and are not known to fail."""

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
        """A kernel that faulted, hung, or gave a wrong result: it is not tried again anywhere."""
        self._banned.add(kernel)
        self._codes.pop(kernel, None)
        self._leading.pop(kernel, None)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """At most this many of those that led, and as many of all; (q, parameters)."""
        drawn = (_some(rng, list(found.values()), size) for found in (self._leading, self._codes))
        return np.array([*chain.from_iterable(drawn)], dtype=np.int64).reshape(-1, len(PARAMETER))


def _some(rng: np.random.Generator, codes: list[np.ndarray], size: int) -> list[np.ndarray]:
    if len(codes) <= size:
        return codes
    return [codes[i] for i in rng.choice(len(codes), size, replace=False)]


class ReuseQueue:
    """Keeps a few points queued for idle moments. Used by one thread, the coordinator's."""

    def __init__(self, target: Reusing, pipeline: Pipeline, policy: SearchPolicy, seed: int) -> None:
        self._target, self._pipeline, self._policy = target, pipeline, policy
        self._families: dict[Hashable, Kernels] = {}
        self._rng = np.random.default_rng(seed)
        self._used_up: dict[ShapeSearch, int] = {}  # number of kernels when a shape had tried all of them
        self._taken: dict[ShapeSearch, set[str]] = {}  # keys of other shapes' best that a shape was given
        self._is_closed = False

    def learn(self, candidate: Candidate) -> None:
        """Take in the kernel of a candidate that was settled."""
        shape, ask, found = candidate.shape, candidate.ask, candidate.measurement
        if ask.is_reused and found.compile_s > 0:
            self._is_closed = True  # the cache keeps nothing: reuse would not be free
        if shape.space.is_autotune:
            kernel, kernels = Config.from_dict(ask.point).kernel, self._kernels(shape)
            if found.outcome in _FINE:
                best_us = shape.findings.cutoff_us
                has_led = best_us is not None and (found.time_us or math.inf) < LEADING * best_us
                kernels.add(kernel, shape.space.codes(ask.number), has_led=has_led)
            elif found.outcome in _HARMFUL:
                kernels.ban(kernel)

    def top_up(self, shapes: Sequence[ShapeSearch]) -> None:
        """Queue points of the shape that has had the fewest idle seconds. One shape per call: candidates that
        must be compiled must not wait for this."""
        ahead_s = self._policy.ahead_s
        missing_s = ahead_s - sum(self._trial_s(candidate.shape) for candidate in self._pipeline.reused)
        if self._is_closed or missing_s < ahead_s / 2:
            return
        ready = [shape for shape in shapes if self.serves(shape) and self._has_more(shape)]
        if not ready:
            return
        shape = min(ready, key=lambda s: s.idle_share)
        kernels = self._kernels(shape)
        requests = shape.points.take(self._incumbents(shape, shapes))
        if not requests:
            num = math.ceil(missing_s / self._trial_s(shape))
            size = 1 + self._policy.num_drawn // (2 * (1 + NUM_SPLITS))  # in all about `num_drawn`
            requests = shape.points.pick(self._with_splits(kernels.draw(self._rng, size), shape), num)
        if not requests:
            self._used_up[shape] = len(kernels)
        for ask in requests:
            self._pipeline.submit(shape, ask)

    def serves(self, shape: ShapeSearch) -> bool:
        """Whether idle seconds also serve this shape: then they try here the best kernels of others."""
        is_ready = shape.findings.incumbent is not None and not self._is_closed
        return is_ready and shape.time_usage.gpu_s_per_trial <= self._policy.most_trial_s

    def _has_more(self, shape: ShapeSearch) -> bool:
        return len(self._kernels(shape)) > self._policy.growth * self._used_up.get(shape, 0)

    def _incumbents(self, shape: ShapeSearch, shapes: Sequence[ShapeSearch]) -> list[Point]:
        """The best compiled kernels of other shapes of this shape's family; each comes once."""
        kernels, taken = self._kernels(shape), self._taken.setdefault(shape, set())
        others = [other for other in shapes if other is not shape and self._kernels(other) is kernels]
        incumbents = [incumbent for other in others if (incumbent := other.findings.incumbent) is not None]
        new = [c for c in incumbents if c.key not in taken and Config.from_dict(c.point).kernel in kernels]
        taken.update(incumbent.key for incumbent in new)
        return [incumbent.point for incumbent in new]

    def _kernels(self, shape: ShapeSearch) -> Kernels:
        family = (self._target.kernel_family(shape.gemm), shape.space.names, shape.space.values)
        return self._families.setdefault(family, Kernels())

    def _trial_s(self, shape: ShapeSearch) -> float:
        """GPU seconds per trial, at least `batch_s`: a shape's first trials say little."""
        return max(shape.time_usage.gpu_s_per_trial, self._policy.batch_s)

    def _with_splits(self, codes: np.ndarray, shape: ShapeSearch) -> np.ndarray:
        """These points, and some of them with other numbers of splits: (q, parameters) -> (more, parameters).
        Those that are clusters have theirs compiled in; those that do not split have one."""
        names, values = shape.space.names, shape.space.values
        reduction, split_k = names.index("reduction"), names.index("split_k")
        is_free = [word not in ("none", "cluster", "chunks") for word in values[reduction]]
        repeated = np.repeat(codes[np.array(is_free)[codes[:, reduction]]], NUM_SPLITS, axis=0)
        repeated[:, split_k] = self._rng.integers(len(values[split_k]), size=len(repeated))
        return np.concatenate([codes, repeated])
