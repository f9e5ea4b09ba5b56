"""The starting points of a shape's search: kernels of shipped matrices, by their expected times on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product, zip_longest
from typing import Any, TypeVar

import numpy as np

from ..export.portfolio import Costs, TimedCandidates, TimedKernel, candidates
from ..facts.accuracy_class import FP32, FP32_RANGE
from ..facts.device import DeviceLimits
from ..facts.gemm import FP32 as FLOATS
from ..facts.gemm import LAYOUTS, MAX_EXTENT, Gemm, per_word
from ..kernel.config import Config
from ..kernel.mma_config import MmaConfig
from ..kernel.relatives import example, within
from ..kernel.resources import launch_spec, residency, threads
from ..kernel.rules import broken_rules
from ..kernel.scaled_config import HalvesConfig, OnTensorCores, ScaledConfig
from ..kernel.summation_order import SummationOrder
from ..kernel.templates import searched_for
from ..kernel.tensor_config import (
    BF16X6,
    BK,
    BM,
    LEAST_DEPTH,
    PACK_USES,
    PARAMETER,
    SCHEMES,
    TF32X3,
    TensorConfig,
)
from ..perf_model.launches import Launches, Shapes, grids
from ..perf_model.model_figures import ModelFigures
from ..perf_model.time_model import Speeds, TimeModel, modelled_us
from ..recording.matrix import TimeMatrix

_FLUSH_K = 256  # without warpgroups, where k is twice as deep: then errors are as small as promised
_SMS = 132  # of the GPUs that run kernels on tensor cores
_MOST_AHEAD = 6  # tiles, of narrow ones
Mma = TypeVar("Mma", MmaConfig, HalvesConfig)


class StartingPoints:
    """Kernels that were timed on drawn shapes, here or on another GPU, as configs for any shape on this GPU.
    A layout is learned at its first use, which takes about a second. Any thread may call it."""

    def __init__(self, matrices: Sequence[TimeMatrix], limits: DeviceLimits) -> None:
        self._matrices, self._limits = matrices, limits
        self._kernels: dict[str, list[TimedKernel]] = {}
        self._costs: dict[str, Costs] = {}
        self._within: dict[tuple[str, int], _Within] = {}
        self._learning = {layout: threading.RLock() for layout in LAYOUTS}

    def kernels(self, layout: str) -> list[TimedKernel]:
        """All that serve a layout, with their times."""
        with self._learning[layout]:
            if layout not in self._kernels:
                self._kernels[layout] = candidates(layout, (), self._matrices, self._limits)
            return self._kernels[layout]

    def __call__(self, gemm: Gemm, order: SummationOrder | None = None) -> list[Config]:
        """Configs, most promising first, each with its best number of splits; within an order of sums in turn
        with what stands for the best there, by its own expected time. For a batch, those of one product with
        as many tiles."""
        single = as_single(gemm)
        layout = single.layout
        with self._learning[layout]:
            kernels = self.kernels(layout)
            if not kernels:
                return []
            if layout not in self._costs:
                self._costs[layout] = Costs(TimedCandidates.of(layout, kernels, self._limits))
            costs = self._costs[layout]
            if order is None:
                return costs.ranked(single)
            key = layout, 0 if order.is_chain(gemm.k) else order.chunk
            if key not in self._within:
                self._within[key] = _Within(costs, *key, self._limits)
            found = zip_longest(self._within[key].ranked(single), costs.ranked(single))
            return [config for pair in found for config in pair if config is not None]


class _Within:
    """What stands for kernels where all sums are chains of this length, or one chain (0), by its expected
    times: those of the kernel's figures, in proportion to the work of a step (of a block, what threads issue;
    of a thread, the root of what it issues for a k, as it waits for each step, whatever its depth)."""

    def __init__(self, costs: Costs, layout: str, chunk: int, limits: DeviceLimits) -> None:
        found: dict[Config, ModelFigures] = {}
        for config, figures in zip(costs.configs, costs.figures, strict=True):
            for other in within(config, chunk):
                found.setdefault(other, _scaled(figures, config, other))
        self._configs = list(found)
        blocks = [residency(config, limits, example(layout)) for config in found]
        specs = [launch_spec(config, example(layout), limits) for config in found]
        self._launches, self._speeds = Launches.of(specs, blocks), Speeds.of(list(found.values()))
        self._model = TimeModel(self._launches, limits)

    def ranked(self, gemm: Gemm) -> list[Config]:
        """The most promising first."""
        shapes = Shapes.of(gemm)
        times_us = modelled_us(self._speeds, self._model.work(shapes, grids(self._launches, shapes)))
        return [self._configs[at] for at in np.argsort(times_us, kind="stable").tolist()]


def _scaled(figures: ModelFigures, config: Config, other: Config) -> ModelFigures:
    """Figures of a config, from those of another."""

    def issued(c: Config) -> float:
        """FMAs and loads of a thread for a k."""
        return float(c.tm * c.tn + c.tm + c.tn)

    by_thread = issued(other) / issued(config)
    by_depth = (other.bk / other.slice_k) / (config.bk / config.slice_k)
    by_block = by_thread * by_depth * threads(other) / threads(config)
    return replace(figures, round_us=figures.round_us * by_thread**0.5, step_us=figures.step_us * by_block)


def on_tensor_cores(
    gemm: Gemm, accuracy: str = FP32, limits: DeviceLimits | None = None
) -> list[OnTensorCores]:
    """Configs of the kernel on tensor cores that a search for a class searches, on a GPU model (None: one
    with warpgroups)."""
    its = searched_for(accuracy, limits) if limits else None
    if limits and its in (MmaConfig, HalvesConfig):
        found = _without_warpgroups(gemm, limits) if its is MmaConfig else _in_halves(gemm, limits)
        return [one for one in found if not broken_rules(one, limits, gemm)]
    return list(_scaled_operands(gemm) if accuracy == FP32_RANGE else _operands_as_they_are(gemm))


def _scaled_operands(gemm: Gemm) -> Iterator[ScaledConfig]:
    """Wide tiles first, and as many splits as let all SMs work: there cuBLAS splits k, too, and errs so
    little on uniform operands that sums must leave the tensor cores more often."""
    for promote_k in (64, 32, 16):
        for bn, stages in ((128, 3), (192, 2), (64, 4)):
            config = ScaledConfig(bn, stages, promote_k, vec_c=2 - gemm.ldc % 2)
            splits = _splits(gemm, bn)
            if splits > 1:
                yield replace(config, reduction="two_pass", split_k=splits)
            if promote_k > 16:
                yield config


def _operands_as_they_are(gemm: Gemm) -> Iterator[TensorConfig]:
    """Those first that were the fastest (docs/notes/0076), and then those whose errors are smaller, in so
    many splits that all SMs work. A split of few tiles waits for memory once, as all of them are on their way
    at the same time."""
    sums: tuple[tuple[str, int, int], ...] = (
        *((TF32X3, 32, 0), (BF16X6, 32, 0), (BF16X6, 64, 0), (BF16X6, 32, 256)),
        *((TF32X3, 32, 512), (TF32X3, 16, 512), (TF32X3, 16, 256)),
    )
    if gemm.a_type == "bf16":  # of which three products of BF16 take less than two of TF32
        sums = tuple(sorted(sums, key=lambda one: one[0] != BF16X6))
    for scheme, promote_k, flush_k in sums:
        for bn, loaders in ((128, 2), (64, 1), (128, 1)):
            config = TensorConfig(bn, promote_k=promote_k, flush_k=flush_k, loaders=loaders, scheme=scheme)
            config = replace(config, **_operands(gemm))
            splits = _splits(gemm, bn)
            if splits > 1:
                split = replace(config, reduction="two_pass", split_k=splits)
                if bn == 64 and flush_k == 0 and config.vec_a > 1 and gemm.k <= _MOST_AHEAD * BK * splits:
                    yield replace(split, stages=_MOST_AHEAD, ahead=_MOST_AHEAD)
                yield split
            yield config


def _operands(gemm: Gemm) -> dict[str, Any]:
    """The widest vectors that the operands allow, packed where that gives wider ones."""
    pack_a, pack_b = (
        int(lead % 4 != 0 and uses >= PACK_USES) for lead, uses in ((gemm.lda, gemm.n), (gemm.ldb, gemm.m))
    )
    pack_a = pack_a if gemm.a_type == FLOATS else 0
    return {
        "pack_a": pack_a,
        "pack_b": pack_b,
        "vec_a": 4 if pack_a or gemm.lda % (4 * per_word(gemm.a_type)) == 0 else 1,
        "vec_b": 4 if pack_b or gemm.ldb % 4 == 0 else 1,
        "vec_c": 2 - gemm.ldc % 2,
    }


def _without_warpgroups(gemm: Gemm, limits: DeviceLimits) -> Iterator[MmaConfig]:
    """Large tiles first, packed and split as others are. None was timed on such a GPU."""
    tiles = (
        (128, 128, 16, 64, 32, 4),
        (128, 128, 32, 64, 32, 2),
        (128, 64, 16, 64, 32, 4),
        (64, 64, 32, 32, 32, 3),
    )
    flushes = (0,) if gemm.k < 2 * _FLUSH_K else (_FLUSH_K, 0)
    for tile, flush_k, scheme in product(tiles, flushes, SCHEMES):
        yield from _and_in_splits(
            MmaConfig(*tile, flush_k=flush_k, scheme=scheme, **_operands(gemm)), gemm, limits
        )


def _in_halves(gemm: Gemm, limits: DeviceLimits) -> Iterator[HalvesConfig]:
    """As `_without_warpgroups`; those whose sums leave the tensor cores less often have smaller tiles."""
    for tile in (
        (128, 128, 64, 16),
        (64, 128, 32, 32),
        (128, 64, 64, 16),
        (64, 64, 32, 32),
        (64, 64, 32, 16),
    ):
        yield from _and_in_splits(HalvesConfig(*tile, vec_c=2 - gemm.ldc % 2), gemm, limits)


def _and_in_splits(config: Mma, gemm: Gemm, limits: DeviceLimits) -> Iterator[Mma]:
    """In so many splits that all SMs work, and then as it is."""
    splits = _splits(gemm, config.bn, config.bm, limits.num_sms)
    if splits > 1:
        yield replace(config, reduction="two_pass", split_k=splits)
    yield config


def _splits(gemm: Gemm, bn: int, bm: int = BM, num_sms: int = _SMS) -> int:
    """With so many, the tiles of C fill a GPU once: an H100 or H200, where nothing else is said."""
    tiles = -(-gemm.m // bm) * -(-gemm.n // bn) * gemm.batch
    most = min(num_sms // tiles, gemm.k // LEAST_DEPTH)
    return max((int(value) for value in PARAMETER["split_k"].values if int(value) <= most), default=1)


def as_single(gemm: Gemm) -> Gemm:
    """One product of as many tiles as a batch: that much longer on its longer side; in FP32."""
    m, n = (gemm.m * gemm.batch, gemm.n) if gemm.m >= gemm.n else (gemm.m, gemm.n * gemm.batch)
    m, n = min(m, MAX_EXTENT), min(n, MAX_EXTENT)
    return Gemm(m, n, gemm.k, gemm.trans_a, gemm.trans_b)
