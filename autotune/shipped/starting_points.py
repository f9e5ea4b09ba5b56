"""The starting points of a shape's search: kernels of shipped matrices, by their expected times on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..export.portfolio import Costs, TimedKernel, candidates
from ..facts.device import DeviceLimits
from ..facts.gemm import LAYOUTS, Gemm
from ..kernel.config import Config
from ..kernel.tensor_config import TensorConfig
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


def on_tensor_cores(gemm: Gemm) -> list[TensorConfig]:
    """Configs of the kernel on tensor cores with the widest vectors that the operands allow, those first that
    were the fastest (docs/notes/0076), and then those whose errors are smaller."""
    vectors: dict[str, Any] = {
        name: most if lead % most == 0 else 1
        for name, most, lead in (("vec_a", 4, gemm.lda), ("vec_b", 4, gemm.ldb), ("vec_c", 2, gemm.ldc))
    }
    tiles = ((128, 2), (64, 1), (128, 1))
    sums = ((32, 0), (32, 512), (16, 512), (16, 256))
    return [
        TensorConfig(bn=bn, loaders=loaders, promote_k=promote_k, flush_k=flush_k, **vectors)
        for promote_k, flush_k in sums
        for bn, loaders in tiles
    ]


def as_single(gemm: Gemm) -> Gemm:
    """One product of as many tiles as a batch: that much longer on its longer side."""
    single = Gemm(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
    if gemm.m >= gemm.n:
        return replace(single, m=gemm.m * gemm.batch)
    return replace(single, n=gemm.n * gemm.batch)
