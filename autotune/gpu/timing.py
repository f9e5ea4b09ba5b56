"""How to time, and how long that may take: only decisions, no CUDA. `timer` carries them out.

One sample is the mean of a batch: a graph of launches that takes about BATCH_US, replayed between two
events. When cold, a batch goes through all operand sets, so that nothing it reads is in L2. The first
replay warms up and is not counted. The second decides whether the candidate is hopeless: then it is the only
sample. Of a short kernel a shorter batch decides that. Others are sampled until their median is accurate or
BUDGET_US is spent. A candidate whose launches one by one already take far too long is not timed in batches.
Raise `measurement.POLICY_VERSION` when this changes the time of a candidate that is sampled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from ..facts.device import DeviceLimits
from ..facts.disturbance import MAX_REPEATS
from ..facts.fitted import number
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy
from ..target import Cell

BATCH_US = 1500.0  # events resolve 0.5 us and replays start about 1 us apart: below 0.1 % of a batch
BUDGET_US = 25_000.0
PROBE_US = 200.0  # of a batch, and their number, when many kernels are timed on many problems
PROBE_SAMPLES = 3
LONG_US = 2000.0  # of a launch: its latency is half a percent of it, so that launches are timed one by one
GROUP = 5  # replays queued at once
MIN_SAMPLES = 4
MAX_SAMPLES = 40
TARGET_ERROR = 0.001  # relative standard error of the median at which sampling stops
TOO_SLOW_AT_PROBE = 2.0  # `stats.TOO_SLOW` for a single launch, cold in every respect
# Usual time of a single launch between events above its kernel's time
LAUNCH_LATENCY_US = number("LAUNCH_LATENCY_US")
MOST_LATENCY_US = number("MOST_LATENCY_US")  # and at most, of the least of a few launches
LOADING_US = number("LOADING_US")  # and the first launch of a kernel over its later ones, at most
LONG_FIRST_US = LONG_US + LOADING_US  # of a first launch: that of a long kernel
LEAST_US = 0.5  # of a kernel
LATENCY_FACTOR = 8  # times what a short kernel takes: what a launch of it may take
LEAD_IN_BELOW_US = 5000.0  # a batch shorter than that is preceded by an uncounted one: the first starts late
MIN_STEPS = 3  # of the energy counter
# The limits of known GPUs are measured ones, up to a tenth below the data sheet
FLOOR_SLACK = number("FLOOR_SLACK")
LEAP = 0.5  # of the best known time: possible, and rare enough to check again


@dataclass(frozen=True)
class Timing:
    """Samples of one candidate in us, in the order taken."""

    samples_us: tuple[float, ...]
    is_cut_short: bool = False

    @property
    def time_us(self) -> float:
        return median(self.samples_us)


def batch_launches(launch_us: float, num_sets: int) -> int:
    """Launches per batch: about BATCH_US of them, and every operand set equally often. `launch_us` is what a
    single launch took, latency included."""
    return launches_in(BATCH_US, _expected_us(launch_us), num_sets)


def few_launches(launch_us: float, num_sets: int, cutoff_us: float | None) -> int:
    """For a look at a kernel: about PROBE_US of them, even if it is as fast as the best one, and nearly all
    that a single launch took is latency."""
    kernel_us = _expected_us(launch_us)
    if cutoff_us is not None:
        kernel_us = min(kernel_us, max(cutoff_us, launch_us / LATENCY_FACTOR))
    return launches_in(PROBE_US, kernel_us, num_sets)


def _expected_us(launch_us: float) -> float:
    """Of a kernel of which a single launch took so long."""
    return max(launch_us - LAUNCH_LATENCY_US, launch_us / 4)


def launches_in(batch_us: float, kernel_us: float, num_sets: int) -> int:
    """Launches of a kernel that takes so long in a batch, every operand set equally often."""
    return num_sets * max(1, round(batch_us / (max(kernel_us, LEAST_US) * num_sets)))


def is_too_slow_at_probe(launch_us: float, cutoff_us: float | None) -> bool:
    """Whether a launch, latency included, already took far too long."""
    return cutoff_us is not None and launch_us - MOST_LATENCY_US > TOO_SLOW_AT_PROBE * cutoff_us


def is_too_slow_at_first(launch_us: float, cutoff_us: float | None) -> bool:
    """Whether the launch that loads a kernel already took far too long."""
    return is_too_slow_at_probe(launch_us - LOADING_US, cutoff_us)


def relative_error(samples: Sequence[float]) -> float:
    """Standard error of the median, relative to it, from the quartiles (as for normal noise). The
    interquartile range of a normal distribution is 1.349 deviations; the median's standard error is 1.253
    deviations over the root of the number of samples."""
    if len(samples) < 2:
        return math.inf
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(samples)) / median(samples)


def more_samples(samples: Sequence[float], batch_us: float) -> int:
    """How many batches to time next; 0 when the median is accurate enough or the budget is spent."""
    taken = len(samples)
    missing = max(MIN_SAMPLES - taken, 0)
    in_budget = int(BUDGET_US / max(batch_us, 1.0)) - taken
    if taken >= MAX_SAMPLES or (not missing and relative_error(samples) < TARGET_ERROR):
        return 0
    return max(missing, min(GROUP, in_budget, MAX_SAMPLES - taken))


def mean_power_w(readings: Sequence[tuple[float, float | None]], from_s: float) -> float | None:
    """Mean power between the first and the last step of an energy counter after `from_s`. `readings`:
    (seconds, joules), frequent against the steps: between steps the counter stands still, so that only the
    moments at which it advances tell anything. None below three steps."""
    known = [(s, energy_j) for s, energy_j in readings if energy_j is not None]
    steps = [after for before, after in pairwise(known) if after[1] > before[1] and after[0] >= from_s]
    if len(steps) < MIN_STEPS:
        return None
    (first_s, first_j), (last_s, last_j) = steps[0], steps[-1]
    return (last_j - first_j) / (last_s - first_s)


def is_too_fast(time_us: float, floor_us: float) -> bool:
    """Whether no kernel can be that fast: `floor_us` is what the hardware needs at least (roofline)."""
    return time_us < FLOOR_SLACK * floor_us


def is_suspicious(time_us: float, floor_us: float, known_us: float | None) -> bool:
    """Whether a time must be checked again: impossible, or far below the best known."""
    is_leap = known_us is not None and time_us < LEAP * known_us
    return is_leap or is_too_fast(time_us, floor_us)


def floor_us(gemm: Gemm, limits: DeviceLimits, policy: CachePolicy, num_sets: int, tflops: float) -> float:
    """The least us of a launch at this rate of arithmetic; memory counts only if the sets do not fit L2."""
    is_from_memory = policy is CachePolicy.COLD and num_sets * gemm.num_bytes > 2 * limits.l2_bytes
    return gemm.limit_us(tflops, limits.bandwidth_gbs if is_from_memory else math.inf)


def round_orders(num: int, rounds: int, seed: int) -> list[list[int]]:
    """For each round the order in which `num` candidates run: shuffled, so that none always follows
    the same one; the same for the same seed."""
    generator = random.Random(seed)
    return [generator.sample(range(num), num) for _ in range(rounds)]


TRIAL_DEADLINE_S = 5.0  # and ALLOWANCE times the expected time
ALLOWANCE = 100.0
SLOWEST_OVER_LIMIT = 10.0  # a candidate's expected time over the roofline while no better one is known
RACE_DEADLINE_S = 30.0  # and RACE_BATCH_S, or ten times the roofline, for each batch
RACE_BATCH_S = 0.1


def trial_deadline_s(expected_us: float) -> float:
    """Seconds after which a candidate counts as hung, where the best known takes `expected_us`."""
    return TRIAL_DEADLINE_S + ALLOWANCE * expected_us / 1e6


class Deadlines:
    """Those of a GPU with these limits, in seconds."""

    def __init__(self, limits: DeviceLimits) -> None:
        self._limits = limits

    def trial_s(self, gemm: Gemm, known_us: float | None) -> float:
        """For one candidate; `known_us` is the best time known, if any."""
        return trial_deadline_s(self._expected_us(gemm, known_us))

    def cells_s(self, cells: Sequence[Cell]) -> float:
        """For cells that are timed one after another."""
        return trial_deadline_s(sum(self._expected_us(cell.gemm, cell.cutoff_us) for cell in cells))

    def race_s(
        self, gemm: Gemm, num_kernels: int, rounds: int, slowest_over_limit: float, energy_s: float
    ) -> float:
        """For kernels and cuBLAS in the same rounds, none of which takes more than so many times the
        roofline, and for `energy_s` of each."""
        batch_s = self._batch_s(gemm, slowest_over_limit)
        num_batches = (num_kernels + 1) * (rounds + 1) * (1 + MAX_REPEATS)
        return RACE_DEADLINE_S + num_batches * batch_s + num_kernels * (2 * energy_s + batch_s)

    def comparison_s(self, gemm: Gemm, rounds: int) -> float:
        """For rounds of two candidates."""
        return RACE_DEADLINE_S + 2 * (rounds + 1) * self._batch_s(gemm, SLOWEST_OVER_LIMIT)

    def _expected_us(self, gemm: Gemm, known_us: float | None) -> float:
        """About how long a launch may take: the best known, else ten times the roofline."""
        return known_us or SLOWEST_OVER_LIMIT * self._limit_us(gemm)

    def _batch_s(self, gemm: Gemm, slowest_over_limit: float) -> float:
        """What a batch of launches may take."""
        return max(slowest_over_limit * self._limit_us(gemm) / 1e6, RACE_BATCH_S)

    def _limit_us(self, gemm: Gemm) -> float:
        return gemm.limit_us(self._limits.fma_tflops, self._limits.bandwidth_gbs)
