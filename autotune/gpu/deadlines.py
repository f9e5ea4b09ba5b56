"""How long the GPU's worker may take for an answer, before what it runs counts as hung."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.device import DeviceLimits
from ..facts.disturbance import MAX_REPEATS
from ..facts.gemm import Gemm
from ..target import Cell

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
