"""A table's data on cuBLAS: from times of this GPU, or shipped times of one of its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import LAYOUTS, Gemm
from ..perf_model import cublas_model
from ..recording.matrix import TimeMatrix
from ..runtime.table.table import CublasFigures
from .figures import weights_text
from .tuned import TunedResults

LEAST_TIMES = 100  # of a layout, to learn from
MOST_TIMES = 1400  # each n-th of more: learning takes memory by the square of their number


class CublasTimes(NamedTuple):
    """Times on one layout, in us, and their version of cuBLAS."""

    version: str
    times_us: dict[Gemm, float]


def times_of_cublas(results: TunedResults, matrices: Sequence[TimeMatrix]) -> dict[str, CublasTimes]:
    """By layout, if enough shapes were timed: here, or else on a GPU of this model, under the same policy."""
    own = dict(results.cublas_us) | {s.gemm: s.cublas_us for s in results.shapes if s.cublas_us}
    sources: list[tuple[str, Mapping[Gemm, float]]] = [(results.environment.cublas_version, own)]
    for matrix in matrices:
        if matrix.limits.name == results.limits.name and matrix.facts["policy"] == results.policy:
            shipped = {gemm: time_us for gemm, time_us in matrix.cublas_us.items() if time_us is not None}
            sources.append((matrix.environment.cublas_version, shipped))
    return _by_layout(sources)


def times_as_it_adds(results: TunedResults) -> dict[str, CublasTimes]:
    """The same of cuBLAS as torch has it add a bias: no shipped times are of that."""
    return _by_layout([(results.environment.cublas_version, results.adding_us)])


def _by_layout(sources: Iterable[tuple[str, Mapping[Gemm, float]]]) -> dict[str, CublasTimes]:
    """Of the first source that has enough of a layout."""
    found: dict[str, CublasTimes] = {}
    for layout in LAYOUTS:
        for version, times_us in sources:
            known = {
                gemm: time_us
                for gemm, time_us in times_us.items()
                if gemm.layout == layout and not gemm.is_batched
            }
            if layout not in found and len(known) >= LEAST_TIMES:
                spread = islice(known, 0, None, -(-len(known) // MOST_TIMES))
                found[layout] = CublasTimes(version, {gemm: known[gemm] for gemm in spread})
    return found


def known_of_cublas(times: Mapping[str, CublasTimes], limits: DeviceLimits) -> dict[str, CublasFigures]:
    """The part of these times that a table stores."""
    return {
        layout: figures_of(version, times_us, cublas_model.learn(times_us, limits))
        for layout, (version, times_us) in times.items()
    }


def figures_of(version: str, gemms: Iterable[Gemm], model: cublas_model.CublasModel) -> CublasFigures:
    """A model learned from times on these shapes."""
    places = np.array([(gemm.m, gemm.n, gemm.k) for gemm in gemms], "<u4").tobytes().hex()
    weights = weights_text(model.missed.weights)
    return CublasFigures(version, places, weights, model.level, model.deviation, model.tile_apart)
