"""What a table knows of cuBLAS: from times of this GPU, or of one of its kind that ship with autotune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..device import DeviceLimits
from ..gemm import LAYOUTS, Gemm
from ..models import cublas_model
from ..recording.matrix import TimeMatrix
from ..runtime.table import CublasFigures
from .tuned import TunedResults

LEAST_TIMES = 100  # of a layout, to learn from


def known_of_cublas(results: TunedResults, matrices: Sequence[TimeMatrix]) -> dict[str, CublasFigures]:
    """By layout, where enough was timed: here, or else on a GPU of this kind, under the same policy."""
    own = dict(results.cublas_us) | {s.gemm: s.cublas_us for s in results.shapes if s.cublas_us}
    sources = [(results.environment.cublas_version, own)]
    for matrix in matrices:
        if matrix.limits.name == results.limits.name and matrix.facts["policy"] == results.policy:
            shipped = {gemm: time_us for gemm, time_us in matrix.cublas_us.items() if time_us is not None}
            sources.append((matrix.environment.cublas_version, shipped))
    found: dict[str, CublasFigures] = {}
    for layout in LAYOUTS:
        for version, times_us in sources:
            known = {gemm: time_us for gemm, time_us in times_us.items() if gemm.layout == layout}
            if layout not in found and len(known) >= LEAST_TIMES:
                found[layout] = _figures(version, known, results.limits)
    return found


def _figures(version: str, times_us: Mapping[Gemm, float], limits: DeviceLimits) -> CublasFigures:
    return CublasFigures.of(version, times_us, cublas_model.learn(times_us, limits))
