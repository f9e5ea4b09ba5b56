"""Decisions about times: intervals, ties, hopeless candidates, when to stop. Pure: no clock, no GPU.

Sources: order-statistic interval and signed ranks: W. J. Conover, Practical Nonparametric Statistics
(1999), 3.2 and 5.7; Bonferroni's inequality and its use for looks at growing data: C. Jennison, B. W.
Turnbull, Group Sequential Methods (2000), 2.8; rule of succession: Laplace, as in E. T. Jaynes,
Probability Theory (2003), ch. 18.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

TOO_SLOW = 1.1  # times the incumbent: more than any observed noise between samples
EXACT_ROUNDS = 60  # signed ranks: exact distribution up to here, normal approximation beyond


def median(samples: Sequence[float]) -> float:
    """Middle value. Raises ValueError without samples."""
    if not len(samples):
        raise ValueError("no samples to take a median of")
    return float(statistics.median(samples))  # of a few: a tenth of the time that NumPy takes


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of samples, equally far from both ends, that contains the true median. Assumes
    independent samples and nothing about their distribution: how many lie below the median is Binomial(n,
    1/2). Below 6 samples even the extremes contain it with less than 95 %; they are returned anyway."""
    ordered = np.sort(np.asarray(samples, dtype=float))
    n = len(ordered)
    if not n:
        raise ValueError("no samples to take an interval of")
    depth, below = 0, _half_chance(n, 0)  # below: chance that the median lies under this sample
    while depth + 1 < n - depth - 1:
        next_level = below + _half_chance(n, depth + 1)
        if 2 * next_level > 1 - confidence:
            break
        depth, below = depth + 1, next_level
    return float(ordered[depth]), float(ordered[n - 1 - depth])


def ratio_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """An interval that holds the true median of the second over that of the first, not paired. By
    Bonferroni's inequality it holds if both medians lie in intervals that miss with half the chance each.
    None if there are too few samples."""
    each = (1 + confidence) / 2
    if any(2 * _half_chance(len(samples), 0) > 1 - each for samples in (first, second)):
        return None
    (low, high), (other_low, other_high) = median_interval(first, each), median_interval(second, each)
    return other_low / high, other_high / low


class MeanRatio(NamedTuple):
    """The geometric mean of the ratios of pairs, with an interval that holds the true one."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_ratio(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> MeanRatio:
    """Of the first over the second, which were timed in pairs: Student's t on the logarithms. Raises
    ValueError for fewer than two pairs."""
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    if len(logs) < 2:
        raise ValueError("an interval takes two pairs or more")
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    half = error * _t_quantile(confidence, len(logs) - 1)
    return MeanRatio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _t_quantile(confidence: float, degrees: int) -> float:
    """Which size Student's t stays below with this chance."""
    low, high = 0.0, 1.0
    while _t_chance(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_chance(middle, degrees) < confidence else (low, middle)
    return high


def _t_chance(t: float, degrees: int) -> float:
    """The chance that Student's t is smaller than this in size (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    square, is_odd = math.cos(angle) ** 2, degrees % 2
    term = total = math.cos(angle) if is_odd else 1.0
    for i in range(2 + is_odd, degrees - 1, 2):
        term *= square * (i - 1) / i
        total += term
    if not is_odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))


def _half_chance(n: int, i: int) -> float:
    """Chance that exactly i of n fair coins fall on heads."""
    return math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2))


def is_too_slow(samples: Sequence[float], incumbent_us: float | None) -> bool:
    """Whether even the fastest sample so far is clearly slower than the incumbent. Noise adds time far more
    often than it takes some away, so one sample may decide."""
    return incumbent_us is not None and len(samples) > 0 and min(samples) > TOO_SLOW * incumbent_us


# -------------------------------------------------------------------------------- paired comparison


def slower_p_value(differences: Sequence[float]) -> float:
    """One-sided p of Wilcoxon's signed-rank test that the differences lie above zero. Zeros are dropped,
    equal sizes share their mean rank. The distribution is exact (given the ranks) up to `EXACT_ROUNDS`
    differences."""
    kept = np.array([d for d in differences if d != 0.0])
    n = len(kept)
    if n == 0:
        return 1.0
    doubled = _doubled_ranks(np.abs(kept))
    lost = int(doubled[kept < 0].sum())
    if n > EXACT_ROUNDS:
        mean, variance = doubled.sum() / 2, float((doubled.astype(float) ** 2).sum()) / 4
        return 0.5 * math.erfc((mean - lost) / math.sqrt(2 * variance))
    counts = np.zeros(int(doubled.sum()) + 1)
    counts[0] = 1.0
    for rank in doubled:  # each difference is negative or not, with equal chance
        shifted = np.zeros_like(counts)
        shifted[rank:] = counts[: len(counts) - rank]
        counts = (counts + shifted) / 2
    return float(counts[: lost + 1].sum())


def _doubled_ranks(sizes: np.ndarray) -> np.ndarray:
    """Twice the mean rank of each size: whole numbers even where sizes are equal."""
    ordered = np.sort(sizes)
    first = np.searchsorted(ordered, sizes, side="left")
    last = np.searchsorted(ordered, sizes, side="right")
    return (first + last + 1).astype(int)


@dataclass(frozen=True)
class Comparison:
    """Candidates by rank. `ratios[i]`: how many times the best's time candidate i takes (1 = the best)."""

    order: tuple[int, ...]  # candidates, fastest first
    ratios: tuple[float, ...]  # by candidate
    tied: frozenset[int]  # the best and all tied with it

    @property
    def best(self) -> int:
        return self.order[0]


def num_hypotheses(num_candidates: int, num_looks: int = 1) -> int:
    """How many comparisons may go wrong when the best of this many is sought: whichever is best, each other
    one is compared with it, at every look."""
    return max(1, num_candidates * (num_candidates - 1) * num_looks)


def compare(
    rounds: Sequence[Sequence[float]], error_rate: float = 0.05, num_comparisons: int | None = None
) -> Comparison:
    """Rank candidates timed in interleaved rounds; shape of `rounds`: (candidates, rounds).

    Times are compared within a round only, so that drift of the GPU cancels. A candidate drops out if its log
    ratios to the best are above zero by Wilcoxon's test with p <= error_rate / num_comparisons (by default
    `num_hypotheses` of these candidates). By Bonferroni's inequality the chance of dropping any that is truly
    as fast as the fastest is then at most `error_rate`, although the best was picked by the same samples;
    over several looks too, if all of them are counted."""
    times = np.log(np.asarray(rounds, dtype=float))
    if times.ndim != 2 or not times.size:
        raise ValueError("a comparison needs candidates, each timed in the same rounds")
    level = np.median(times - times.mean(axis=0), axis=1)
    best = int(level.argmin())
    ratios = np.exp(np.median(times - times[best], axis=1))
    threshold = error_rate / (num_comparisons or num_hypotheses(len(times)))
    others = [i for i in range(len(times)) if i != best]
    slower = {i for i in others if slower_p_value((times[i] - times[best]).tolist()) <= threshold}
    order = (best, *sorted(others, key=lambda i: (level[i], i)))
    return Comparison(order, tuple(map(float, ratios)), frozenset({best, *others} - slower))


def is_equivalent(
    one: Sequence[float], other: Sequence[float], margin: float, confidence: float = 0.99
) -> bool:
    """Whether two, timed in the same rounds, are known to differ by less than the margin (0.01: 1 %). Seven
    rounds or fewer never say so: their interval holds the median with less than 99 %."""
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    low, high = median_interval(ratios, confidence)
    is_sure = 2 * _half_chance(len(ratios), 0) <= 1 - confidence
    return is_sure and 1 / (1 + margin) < low and high < 1 + margin


# ------------------------------------------------------------------------------------- when to stop


@dataclass(frozen=True)
class Patience:
    """When nothing better is likely.

    A gain is a new best by more than `gain`. If each trial brought one with a constant unknown chance
    (uniform before any is seen), then after s trials without, the chance of a gain within the next `horizon`
    trials is horizon / (s + 1 + horizon). Below `risk`, the search may stop.

    How true that is depends on what is tried next. Of the positions where a search might have stopped, in 60
    that went on, the rule told 7.4 % on average, and a gain came in 7.7 %: in 3.0 % while a model proposed
    all, in 15.6 % where steps of `polish` came (docs/decisions/0046). So they come before a search ends."""

    gain: float = 0.005
    horizon: int = 25
    risk: float = 0.1
    min_trials: int = 100

    def chance(self, num_since_gain: int) -> float:
        """Chance of a gain within the horizon, after so many trials without one."""
        return self.horizon / (num_since_gain + 1 + self.horizon)

    def is_over(self, times_us: Sequence[float | None]) -> bool:
        """Whether to stop after these trials in their order (None: failed)."""
        return len(times_us) >= self.min_trials and self.is_gain_unlikely(times_us)

    def is_gain_unlikely(self, times_us: Sequence[float | None]) -> bool:
        """After these trials in their order, however few."""
        return self.chance(num_since_gain(times_us, self.gain)) < self.risk


def num_since_gain(times_us: Sequence[float | None], gain: float) -> int:
    """Trials after the last that was faster than the best before it by more than `gain`. Gains smaller than
    that add up until they count as one."""
    reference, since = math.inf, 0
    for time_us in times_us:
        since += 1
        if time_us is not None and time_us < reference * (1 - gain):
            reference, since = time_us, 0
    return since


# ------------------------------------------------------------ one pair, looked at after every round


def evidence(num_for: int, num_against: int) -> float:
    """The evidence of signs for one side: the value of a bet of 1 after them.

    The bet is fair or worse as long as the next sign is for it with a chance of at most 1/2, whatever came
    before. Then the chance that it ever reaches x is at most 1/x (Ville's inequality), so it may be evaluated
    after every sign and stopped at will. It is spread evenly over all chances from 1/2 to 1, which gives
    sum_{j <= for} C(n+1, j) / ((n+1) C(n, for)) after n signs. Sources: J. Ville, Etude critique de la notion
    de collectif (1939); H. Robbins, Ann. Math. Statist. 41 (1970) 1397."""
    n = num_for + num_against
    return sum(math.comb(n + 1, j) for j in range(num_for + 1)) / ((n + 1) * math.comb(n, num_for))


def min_rounds(error_rate: float) -> int:
    """After how many rounds, all for the same side, `faster_of` names it."""
    return next(n for n in itertools.count(1) if evidence(n, 0) >= 2 / error_rate)


def faster_of(first: Sequence[float], second: Sequence[float], error_rate: float) -> int | None:
    """Which of two timed in the same rounds is faster: 0, 1, or None while that is open. May be called after
    every round. The chance that it ever names one that is not faster is at most `error_rate`. Rounds with
    equal times are ignored."""
    pairs = list(zip(first, second, strict=True))
    first_wins, second_wins = sum(a < b for a, b in pairs), sum(b < a for a, b in pairs)
    if evidence(first_wins, second_wins) >= 2 / error_rate:
        return 0
    return 1 if evidence(second_wins, first_wins) >= 2 / error_rate else None
