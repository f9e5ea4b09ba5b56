"""The finalists of a study with intervals: how they compare, and how surely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..facts.stats import median, median_interval
from ..kernel.config import Value, brief
from ..store import Final

Point = Mapping[str, Value]


@dataclass(frozen=True)
class Finalist:
    """A config of the final, or cuBLAS (rank 0). `ratio`: median of its time over the winner's within each
    round, `low` and `high` hold it in 19 of 20 cases; None where there are no samples of the same rounds."""

    rank: int
    label: str
    key: str
    is_tied: bool
    time_us: float
    joules: float | None
    ratio: float | None
    low: float | None
    high: float | None


def finalists(final: Final) -> tuple[Finalist, ...]:
    """By rank, cuBLAS behind them if it was timed in the same rounds."""
    winner = final.winner.samples_us
    named = labels([entry.point for entry in final.entries])
    found = []
    for e, label in zip(final.entries, named, strict=True):
        over = _over(winner, e.samples_us, e.time_us, final)
        found.append(Finalist(e.rank, label, e.key, e.is_tied, e.time_us, e.joules, *over))
    baseline = final.baseline
    if baseline and baseline.time_us:
        over = _over(winner, baseline.samples_us, baseline.time_us, final)
        found.append(Finalist(0, "cuBLAS", "", False, baseline.time_us, None, *over))
    return tuple(found)


def _over(
    winner: Sequence[float], samples: Sequence[float], time_us: float, final: Final
) -> tuple[float | None, float | None, float | None]:
    """Ratio to the winner, and its interval. Rounds match from the first on: who was out early has fewer."""
    ratios = [own_us / best for own_us, best in zip(samples, winner, strict=False)]
    if not ratios:
        return time_us / final.winner.time_us, None, None
    low, high = median_interval(ratios)
    return median(ratios), low, high


def labels(points: Sequence[Point]) -> list[str]:
    """What `brief` says of each; behind it, where several share that, the parameters that differ."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(brief(point), []).append(point)
    return [" ".join([brief(point), *_distinct(point, groups[brief(point)])]) for point in points]


def _distinct(point: Point, groups: Sequence[Point]) -> list[str]:
    """`name=value` of each parameter that does not have one value in all of them."""
    return [
        f"{name}={value}"
        for name, value in point.items()
        if any(other.get(name) != value for other in groups)
    ]
