"""The one time that a search tells of a shape's best kernel, and the time of cuBLAS beside it."""

from __future__ import annotations

from ...store import Final, TrialRecord
from ..progress import Best


def verdict(
    fastest: TrialRecord | None, cublas_us: float | None, final: Final | None, limit_us: float | None
) -> Best | None:
    """The winner of the final, against cuBLAS in the same rounds; before a final the fastest trial, against
    cuBLAS as it was timed at the start. None where no trial ran."""
    if final is not None:
        beside_us = final.baseline.time_us if final.baseline else cublas_us
        return Best(final.winner.point, final.winner.time_us, beside_us, limit_us)
    if fastest is None or fastest.measurement.time_us is None:
        return None
    return Best(fastest.point, fastest.measurement.time_us, cublas_us, limit_us)
