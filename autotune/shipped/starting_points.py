"""The starting points of a shape's search: kernels of shipped matrices, by their expected times on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from ..export.portfolio import Costs, TimedKernel, candidates
from ..facts.device import DeviceLimits
from ..facts.gemm import LAYOUTS, Gemm
from ..kernel.config import Config
from ..recording.matrix import TimeMatrix


class StartingPoints:
    """Kernels that were timed on drawn shapes, here or on another GPU, as configs for any shape on this GPU.
    A layout is learned at its first use, which takes about a second. Any thread may call it."""

    def __init__(self, matrices: Sequence[TimeMatrix], limits: DeviceLimits) -> None:
        self._matrices, self._limits = matrices, limits
        self._kernels: dict[str, list[TimedKernel]] = {}
        self._costs: dict[str, Costs] = {}
        self._learning = {layout: threading.RLock() for layout in LAYOUTS}

    def kernels(self, layout: str) -> list[TimedKernel]:
        """All that serve a layout, with their times."""
        with self._learning[layout]:
            if layout not in self._kernels:
                self._kernels[layout] = candidates(layout, (), self._matrices, self._limits)
            return self._kernels[layout]

    def __call__(self, gemm: Gemm) -> list[Config]:
        """Configs, most promising first, each with its best number of splits. For a batch, those of one
        product with as many tiles."""
        with self._learning[gemm.layout]:
            kernels = self.kernels(gemm.layout)
            if kernels and gemm.layout not in self._costs:
                self._costs[gemm.layout] = Costs(gemm.layout, kernels, self._limits)
        return self._costs[gemm.layout].ranked(as_single(gemm)) if kernels else []


def as_single(gemm: Gemm) -> Gemm:
    """One product of as many tiles as a batch: that much longer on its longer side."""
    single = Gemm(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
    if gemm.m >= gemm.n:
        return replace(single, m=gemm.m * gemm.batch)
    return replace(single, n=gemm.n * gemm.batch)
