"""Which parameters matter: how much of the variance of log time each explains alone (its main effect).

For a parameter with L values among n trials, the share is 1 - (W / (n - L)) / (T / (n - 1)): W is the sum of
squares of log time within equal values, T that of all. This is epsilon squared, the correlation ratio less
what chance alone would explain, so that many values and few trials do not look important.

It is a description of the trials made, no more: a search tries good regions more often, what two parameters
do only together is in neither share, and shares of parameters that vary together overlap.

Source: T. L. Kelley, "An unbiased correlation ratio measure", Proc. Natl. Acad. Sci. 21 (1935) 554."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from ..kernel.config import Value
from ..store import TrialRecord

MIN_TRIALS = 20  # with fewer, shares say more of the draw than of the kernel
# Log times that differ by no more than this are alike. A log is rounded by some 1e-15. Against a smaller
# spread that would show in the sixth digit of a share; a spread of nothing but rounding makes any share.
ALIKE = 1e-7
T = TypeVar("T")


@dataclass(frozen=True)
class ByValue:
    """The trials that had this value of a parameter."""

    value: Value
    num_trials: int
    best_us: float
    median_us: float


@dataclass(frozen=True)
class Importance:
    """A parameter, the share of the variance of log time that it explains (0 ... 1), and its values."""

    name: str
    share: float
    values: tuple[ByValue, ...]  # in their order


def explained_share(values: Sequence[Value], log_times: np.ndarray) -> float:
    """Share of the variance of `log_times` (n,) that lies between equal `values` (n); 0 ... 1. 0 where times
    are alike: there is nothing to explain. The unit of the times changes nothing."""
    return _explained_share(_rows_by_value(values), log_times)


def _explained_share(rows: Mapping[Any, Sequence[int]], log_times: np.ndarray) -> float:
    n = len(log_times)
    groups = [log_times[some] for some in rows.values()]
    if n <= len(groups) or np.ptp(log_times) <= ALIKE:
        return 0.0
    total, within = _scatter(log_times), sum(map(_scatter, groups))
    return float(np.clip(1 - (within / (n - len(groups))) / (total / (n - 1)), 0.0, 1.0))


def _scatter(values: np.ndarray) -> float:
    """The sum of squares around the mean; without `mean` and `sum`, which take longer than what they call."""
    add = np.add.reduce
    return float(add(np.square(values - add(values) / len(values))))


def importance(points: Sequence[Mapping[str, Value]], times_us: Sequence[float]) -> tuple[Importance, ...]:
    """Every parameter that took more than one value, the most important first; none below MIN_TRIALS."""
    if len(points) < MIN_TRIALS:
        return ()
    times = np.asarray(times_us, dtype=float)
    log_times = np.log(times)
    found = []
    for name in points[0]:
        values = [point[name] for point in points]
        rows = _rows_by_value(values)
        if len(rows) > 1:
            own = ((value, np.sort(times[rows[value]]).tolist()) for value in sorted(rows, key=_rank))
            by_value = tuple(ByValue(v, len(t), t[0], _middle(t)) for v, t in own)
            found.append(Importance(name, _explained_share(rows, log_times), by_value))
    return tuple(sorted(found, key=lambda i: -i.share))


def _middle(ordered: Sequence[float]) -> float:
    """The median, a tenth of the time that NumPy takes for few."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _rows_by_value(values: Sequence[T]) -> dict[T, list[int]]:
    rows: dict[T, list[int]] = {}
    for row, value in enumerate(values):
        rows.setdefault(value, []).append(row)
    return rows


def _rank(value: Value) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    return (True, 0.0, value) if isinstance(value, str) else (False, value, "")


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
    found = []
    for a, b in combinations(names, 2):
        rows = _rows_by_value([*zip(values[a], values[b], strict=True)])
        found.append(Pair(a, b, _explained_share(rows, log_times)))
    return tuple(sorted(found, key=lambda pair: -pair.share))
