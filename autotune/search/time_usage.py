"""The use of the target by the search of one shape: trials and seconds, of candidates and of idle moments."""

from __future__ import annotations

from ..facts.measurement import Measurement
from ..store import TriedPoint
from .propose import origins


class TimeUsage:
    """Of one shape, on a target that works on `num_places` candidates at once."""

    def __init__(self, num_places: int) -> None:
        self.num_new = 0  # trials of this run
        self.num_reused = 0  # of these, whose kernels were compiled before
        self._num_places = num_places
        self._earlier_s = 0.0  # as _spent_s, of earlier runs
        self._spent_s = 0.0  # of candidates
        self._reused_s = 0.0  # of the target's idle moments
        self._on_gpu_s = 0.0  # of both, the GPU's alone
        self._num_timed, self._num_samples = 0, 0  # trials that were timed, earlier runs included
        self._verify_s, self._measure_s = 0.0, 0.0  # of these

    def add_earlier(self, origin: str, measurement: Measurement | TriedPoint) -> None:
        """A trial of an earlier run. Kernels that were found elsewhere took no seconds from another shape."""
        self._learn(measurement)
        if origin not in origins.TRANSFERRED:
            self._earlier_s += self._seconds_of(measurement)

    def add(self, origin: str, measurement: Measurement) -> None:
        """A trial of this run."""
        self._learn(measurement)
        on_gpu_s = measurement.verify_s + measurement.measure_s
        self.num_new += 1
        self._on_gpu_s += on_gpu_s
        if origin == origins.REUSE:
            self.num_reused += 1
            self._reused_s += on_gpu_s
        else:
            self._spent_s += self._seconds_of(measurement)

    def expected_s(self, num_open: int) -> float:
        """Of candidates once this many more are done, those of earlier runs included."""
        return self._earlier_s + _expected(self._spent_s, self.num_new - self.num_reused, num_open)

    def expected_idle_s(self, num_open: int) -> float:
        """As `expected_s`, of idle moments."""
        return _expected(self._reused_s, self.num_reused, num_open)

    @property
    def gpu_s_per_trial(self) -> float:
        """Seconds of the GPU that a trial of this run took, on average; 0 before the first."""
        return self._on_gpu_s / self.num_new if self.num_new else 0.0

    def _learn(self, measurement: Measurement | TriedPoint) -> None:
        if measurement.samples_us:
            self._num_timed += 1
            self._num_samples += len(measurement.samples_us)
            self._verify_s += measurement.verify_s
            self._measure_s += measurement.measure_s

    def race_s(self, num: int, rounds: int) -> float:
        """To verify so many kernels and time each, and cuBLAS, so often, by trials; 0 before the first."""
        if not self._num_timed:
            return 0.0
        verify_s, sample_s = self._verify_s / self._num_timed, self._measure_s / self._num_samples
        return num * verify_s + (num + 1) * rounds * sample_s

    def _seconds_of(self, measurement: Measurement | TriedPoint) -> float:
        on_gpu_s = measurement.verify_s + measurement.measure_s
        return on_gpu_s + measurement.compile_s / self._num_places


def _expected(spent_s: float, num_done: int, num_open: int) -> float:
    return spent_s + (spent_s / num_done * num_open if num_done else 0.0)
