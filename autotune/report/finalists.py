"""The finalists of a study with intervals: how they compare, and how surely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..facts.stats import median, median_interval
from ..kernel.config import Value
from ..store import Final
from .labels import labels


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


def finalists(final: Final, describe: Callable[[Mapping[str, Value]], str]) -> tuple[Finalist, ...]:
    """By rank, cuBLAS behind them if it was timed in the same rounds."""
    winner = final.winner.samples_us
    named = labels([entry.point for entry in final.entries], describe)
    found = [
        Finalist(
            e.rank,
            label,
            e.key,
            e.is_tied,
            e.time_us,
            e.joules,
            *_over(winner, e.samples_us, e.time_us, final),
        )
        for e, label in zip(final.entries, named, strict=True)
    ]
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
