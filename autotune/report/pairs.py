"""Which pairs of parameters matter: how much of the variance of log time two of them explain together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..store import TrialRecord
from .importance import Importance, explained_share

MOST_PARAMETERS = 8  # the most important ones; pairs grow with the square


@dataclass(frozen=True)
class Pair:
    """Two parameters and the share of the variance of log time that they explain together, 0 ... 1."""

    first: str
    second: str
    share: float


def pairs(ok: Sequence[TrialRecord], important: Sequence[Importance]) -> tuple[Pair, ...]:
    """Every pair of the most important parameters over ok trials, those that explain most first."""
    names = [parameter.name for parameter in important[:MOST_PARAMETERS]]
    log_times = np.log([trial.measurement.time_us or 1.0 for trial in ok])
    values = {name: [str(trial.point[name]) for trial in ok] for name in names}
    found = [
        Pair(
            a, b, explained_share([f"{x}|{y}" for x, y in zip(values[a], values[b], strict=True)], log_times)
        )
        for a, b in combinations(names, 2)
    ]
    return tuple(sorted(found, key=lambda pair: -pair.share))
