"""How well a table's way of choosing serves shapes that it does not know: shapes left out of choice and fit.

The shapes that kernels were timed on, here or on a GPU of this model, are divided into folds. For the shapes
of each fold kernels are chosen (portfolio.py), and their times and cuBLAS's modelled, from all other shapes;
kernels that no search of another shape found are left out, too. On a shape only those kernels count that were
timed on it, and a shape only where most of the chosen were. Winners of tuned shapes, and defaults, which a
table holds besides, are not among them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import geometric_mean
from types import MappingProxyType

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.distribution import KINDS, signature_of_shape
from ..facts.gemm import LAYOUTS, Gemm
from ..perf_model import cublas_model
from ..perf_model.fit import Sample
from ..perf_model.launches import Shapes
from ..runtime.choose.chooser import NUM_FIRST
from ..runtime.table.table import AgainstCublas, HeldOut
from .figures import LEAST_TIMES, error_of
from .portfolio import LEAST_SHAPES, TimedCandidates, TimedKernel, chosen, general

NUM_FOLDS = 3  # five take twice as long (0045)
ALL = "all"
SLOWER = 0.98  # of cuBLAS's speed: less counts as slower
LEAST_COLUMNS = 3 * LEAST_SHAPES // 2  # shapes of a layout: without a third no kernel of fewer may be chosen
LEAST_SHARE = 0.05  # of the kernels that may be chosen: a shape that fewer were timed on tells nothing, too
LEAST_CHOSEN = 0.5  # of those that were chosen and may serve a shape, as matrices overlap in part

Cells = Mapping[Gemm, Mapping[int, float]]  # times of a kernel in us, by shape and number of splits


@dataclass(frozen=True)
class Evaluation:
    """One shape that was left out: times in us, infinite where no chosen kernel serves it."""

    gemm: Gemm
    best_us: float  # of all kernels
    chosen_us: float  # the best of the chosen
    picked_us: float
    first_us: float  # the best of the first four
    cublas_us: float | None
    served_us: float  # picked, or cuBLAS's where that is the provider

    @property
    def is_by_cublas(self) -> bool:
        return self.cublas_us is not None and self.served_us == self.cublas_us


def held_out(
    known: Sequence[TimedKernel],
    cublas_us: Mapping[Gemm, float],
    limits: DeviceLimits,
    most: int,
    calls: Mapping[Gemm, int] = MappingProxyType({}),
    num_folds: int = NUM_FOLDS,
) -> list[Evaluation]:
    """All shapes that the candidates of a layout were timed on, each judged without those of its fold; none
    where they are too few. `most`: kernels that are chosen; `calls`: how often a program asks for a shape."""
    columns = _columns(known)
    if len(columns) < max(LEAST_COLUMNS, num_folds) or not most:
        return []
    best: dict[Gemm, float] = {}
    for sample in chain.from_iterable(map(_measured, known)):
        best[sample.gemm] = min(sample.time_us, best.get(sample.gemm, math.inf))
    cublas = cublas_model.TimedCublas(cublas_us, limits) if len(cublas_us) >= LEAST_TIMES else None
    folds = [columns[fold::num_folds] for fold in range(num_folds)]
    timed = TimedCandidates.of(columns[0].layout, general(known), limits)
    return [
        one
        for apart in folds
        for one in _Without(timed, apart, cublas_us, cublas, most, calls).evaluated(best)
    ]


def _measured(kernel: TimedKernel) -> Iterator[Sample]:
    """On a GPU of this model, in this layout."""
    return (sample for sample in kernel.samples if not sample.deviation)


def _cells(kernel: TimedKernel) -> Cells:
    found: dict[Gemm, dict[int, float]] = {}
    for sample in _measured(kernel):
        found.setdefault(sample.gemm, {})[sample.spec.split_k] = sample.time_us
    return found


def _columns(known: Iterable[TimedKernel]) -> list[Gemm]:
    """The shapes that enough of the kernels were timed on that may be chosen."""
    timed = [dict.fromkeys(sample.gemm for sample in _measured(kernel)) for kernel in known]
    general = [gemms for gemms in timed if len(gemms) >= LEAST_SHAPES]
    nums = Counter(chain.from_iterable(general))
    return [gemm for gemm, num in nums.items() if num >= LEAST_SHARE * len(general)]


class _Without:
    """The choice and the models without some shapes of a layout."""

    def __init__(
        self,
        known: TimedCandidates,
        apart: Sequence[Gemm],
        cublas_us: Mapping[Gemm, float],
        cublas: cublas_model.TimedCublas | None,
        most: int,
        calls: Mapping[Gemm, int],
    ) -> None:
        self._apart, self._cublas_us, self._limits = apart, cublas_us, known.limits
        hidden = frozenset(apart)
        rest = known.without(hidden)
        configs = [] if rest is None else chosen(rest, most, calls)
        whole = {kernel.config: kernel for kernel in known.found}
        left = (whole[config].without(hidden) for config in configs)
        self._chosen = [kernel for kernel in left if kernel is not None]
        self._cells = [_cells(whole[config]) for config in configs]
        num_left = len(cublas_us.keys() - hidden)
        self._cublas = cublas.model(hidden) if cublas and num_left >= LEAST_TIMES else None
        if self._chosen:
            left_over = TimedCandidates.of(known.layout, self._chosen, known.limits)
            figures, self._prediction = left_over.learned()
            self._errors = [
                error_of(one, kernel.samples) for one, kernel in zip(figures, self._chosen, strict=True)
            ]

    def evaluated(self, best: Mapping[Gemm, float]) -> Iterator[Evaluation]:
        """Judges the shapes that were left out, by the times measured on them."""
        for gemm in self._apart:
            if self._is_known(gemm):
                yield self._judge(gemm, best[gemm])

    def _is_known(self, gemm: Gemm) -> bool:
        """Whether enough of the chosen kernels were timed on a shape; or none may serve it, which counts."""
        if not self._chosen:
            return True
        serves = np.isfinite(self._prediction.least_us(Shapes.of(gemm)))
        num_timed = sum(gemm in cells for cells in self._cells)
        return num_timed >= LEAST_CHOSEN * float(serves.sum())

    def _judge(self, gemm: Gemm, best_us: float) -> Evaluation:
        cublas_us = self._cublas_us.get(gemm)
        cells = [of_kernel.get(gemm, {}) for of_kernel in self._cells]
        every = list(chain.from_iterable(of_kernel.values() for of_kernel in cells))
        if not every:
            return Evaluation(gemm, best_us, math.inf, math.inf, math.inf, cublas_us, math.inf)
        expected = self._prediction.expected(Shapes.of(gemm))
        launches: dict[tuple[int, int], float] = {}  # a number of splits may occur twice
        for at in np.argsort(expected.time_us, kind="stable"):
            launches.setdefault((int(expected.kernel[at]), int(expected.split_k[at])), expected.time_us[at])
        timed = [
            (cells[kernel][split_k], kernel, expected_us)
            for (kernel, split_k), expected_us in launches.items()
            if split_k in cells[kernel]
        ]
        if not timed:
            return Evaluation(gemm, best_us, min(every), math.inf, math.inf, cublas_us, math.inf)
        picked_us, kernel, expected_us = timed[0]
        first_us = min(time_us for time_us, _, _ in timed[:NUM_FIRST])
        served_us = picked_us
        if cublas_us is not None and self._is_by_cublas(gemm, kernel, expected_us):
            served_us = cublas_us
        return Evaluation(gemm, best_us, min(every), picked_us, first_us, cublas_us, served_us)

    def _is_by_cublas(self, gemm: Gemm, kernel: int, expected_us: float) -> bool:
        if self._cublas is None:
            return False
        margin = self._cublas.margin(gemm, self._errors[kernel])
        return self._cublas.expected_us(gemm, self._limits) < expected_us * math.exp(margin)


# ------------------------------------------------------------------------------------------------
# Figures


def figures_of(evaluated: Sequence[Evaluation]) -> tuple[HeldOut, ...]:
    """Of each kind of shape, of each layout, and of all, where there are any."""
    groups: dict[str, list[Evaluation]] = {name: [] for name in (*KINDS, *LAYOUTS, ALL)}
    for one in evaluated:
        for name in (signature_of_shape(one.gemm), one.gemm.layout, ALL):
            groups[name].append(one)
    return tuple(_figures(name, some) for name, some in groups.items() if some)


def _figures(group: str, evaluated: Sequence[Evaluation]) -> HeldOut:
    return HeldOut(
        group=group,
        num_shapes=len(evaluated),
        portfolio=mean_ratio((one.best_us, one.chosen_us) for one in evaluated),
        pick=mean_ratio((one.chosen_us, one.picked_us) for one in evaluated),
        first=mean_ratio((one.chosen_us, one.first_us) for one in evaluated),
        cublas=_against([one for one in evaluated if one.cublas_us is not None]),
    )


def _against(evaluated: Collection[Evaluation]) -> AgainstCublas | None:
    if not evaluated:
        return None
    pairs = {
        "kernels": [(one.cublas_us or 0.0, one.picked_us) for one in evaluated],
        "served": [(one.cublas_us or 0.0, one.served_us) for one in evaluated],
    }
    means = {name: mean_ratio(found) for name, found in pairs.items()}
    slower = {
        f"{name}_slower": sum(a < SLOWER * b for a, b in found) / len(found) for name, found in pairs.items()
    }
    by_cublas = sum(one.is_by_cublas for one in evaluated) / len(evaluated)
    return AgainstCublas(num_shapes=len(evaluated), by_cublas=by_cublas, **means, **slower)


def mean_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The geometric mean of the ratios of these times; 0 if one of the second is infinite: no kernel serves
    that shape. Raises StatisticsError without any."""
    ratios = [0.0 if math.isinf(second) else first / second for first, second in pairs]
    return 0.0 if 0.0 in ratios else geometric_mean(ratios)
