"""How far a product in FP32 may be off: |C - C64| <= min(k + 2, ZERO_MEAN) u |a|.|b|, for data of zero mean.

Derived in gpu/verification.py, which holds every candidate to it. Copied into exported tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_UNIT_ROUNDOFF = 2.0**-24
_ZERO_MEAN = 24.0

_Floats = np.ndarray[Any, Any]


def worst_ratio(k: int, result: _Floats, exact: _Floats, size: _Floats) -> float:
    """The largest |C - C64| over its bound; above 1 it is wrong. `exact` is C64 and `size` |a|.|b|, with
    scales, as float64, of the elements of `result`."""
    gamma = min(k + 2.0, _ZERO_MEAN) * _UNIT_ROUNDOFF
    return float(np.max(np.abs(result - exact) / (gamma * size + np.finfo(np.float32).tiny)))
