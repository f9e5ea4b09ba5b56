"""The final: the best handful timed again, interleaved with cuBLAS, until the winner is decided.

Times taken minutes apart carry the drift of the GPU between them; rounds that hold every finalist do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import stats
from ..gemm import Gemm
from ..store import FinalEntry, TrialRecord
from ..target import Baseline, Point, Target

NUM_FINALISTS = 8
BATCH_ROUNDS = 15  # enough for Holm's correction over 7 rivals to decide
MAX_ROUNDS = 60  # a winner that these do not tell from another is tied with it
ERROR_RATE = 0.05  # chance of declaring any truly equal finalist slower


@dataclass(frozen=True)
class Race:
    """What the rounds came to: finalists by rank, and cuBLAS in the same rounds."""

    entries: tuple[FinalEntry, ...]
    baseline: Baseline

    @property
    def num_tied(self) -> int:
        return sum(entry.is_tied for entry in self.entries)


def race(
    target: Target,
    gemm: Gemm,
    finalists: Sequence[TrialRecord],
    should_stop: Callable[[], bool] = lambda: False,
) -> Race | None:
    """Time the finalists until one is left or `MAX_ROUNDS` are over. Whoever is clearly slower than the
    best drops out after each batch. None if none of them passes verification again.

    `should_stop` is asked between batches. Raises what `target.compare` raises.
    """
    running = list(finalists)
    samples: dict[str, tuple[float, ...]] = {}
    out: list[list[TrialRecord]] = []  # who dropped out, by batch, fastest first
    cublas_us: tuple[float, ...] = ()
    for batch in range(MAX_ROUNDS // BATCH_ROUNDS):
        points: list[Point] = [trial.point for trial in running]
        timed, baseline = target.compare(gemm, points, BATCH_ROUNDS)
        cublas_us += baseline.samples_us
        for trial, times in zip(running, timed, strict=True):
            samples[trial.key] = samples.get(trial.key, ()) + times
        running = [t for t in running if len(samples[t.key]) == (batch + 1) * BATCH_ROUNDS]
        if not running:
            break
        comparison = stats.compare([samples[t.key] for t in running], ERROR_RATE)
        ranked = [running[i] for i in comparison.order]
        tied = {running[i].key for i in comparison.tied}
        out.append([t for t in ranked if t.key not in tied])
        running = [t for t in ranked if t.key in tied]
        if len(running) == 1 or should_stop():
            break
    ranking = [*running, *(trial for dropped in reversed(out) for trial in dropped)]
    if not ranking:
        return None
    entries = tuple(
        _entry(trial, rank, samples[trial.key], is_tied=rank <= len(running))
        for rank, trial in enumerate(ranking, 1)
    )
    return Race(entries, Baseline(stats.median(cublas_us) if cublas_us else None, cublas_us))


def _entry(trial: TrialRecord, rank: int, samples_us: tuple[float, ...], *, is_tied: bool) -> FinalEntry:
    return FinalEntry(trial.key, trial.point, rank, is_tied, stats.median(samples_us), samples_us)
