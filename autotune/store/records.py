"""What the store returns: plain frozen records, never objects tied to a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..facts.device import Environment
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy, Discarded, Measurement, Outcome
from ..kernel.config import Value
from ..target import Baseline
from .this_process import is_gone

PREFIX = "config."  # of the columns of parameters in a table of trials


class Period(NamedTuple):
    """From when to when (UTC), both included."""

    since: datetime
    until: datetime


EVER = Period(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


@dataclass(frozen=True)
class StudyRef:
    """One problem measured in one environment with one kernel source: its trials compare.

    `id` is the row in the database; the rest are the conditions of the study's times.
    """

    id: int
    environment: Environment
    source_hash: str
    compiler: str
    gemm: Gemm
    policy: CachePolicy
    policy_version: int


@dataclass(frozen=True)
class TrialRecord:
    """One point and its result. `id` grows with time; `created_at` is UTC."""

    id: int
    key: str
    point: Mapping[str, Value]
    measurement: Measurement
    origin: str  # what proposed it: seed, random, transfer, ...
    created_at: datetime

    def flat(self) -> dict[str, Any]:
        """As a row of a table: a column for each fact, then one for each parameter."""
        found = self.measurement  # not `to_dict`, which copies in depth: this runs for each of a million
        facts = {**vars(found), "discarded": tuple(map(asdict, found.discarded))}
        state = vars(facts.pop("state"))
        point = {f"{PREFIX}{name}": value for name, value in self.point.items()}
        made = {"id": self.id, "created_at": self.created_at.isoformat(), "origin": self.origin}
        return {**made, **facts, **state, **point}


class TriedPoint(NamedTuple):
    """As much of a trial as a search takes up: named as in a measurement, `time_us` None if it failed."""

    key: str
    point: Mapping[str, Value]
    time_us: float | None
    error_over_cublas: float | None
    compile_s: float
    verify_s: float
    measure_s: float
    samples_us: Sequence[object]  # not read: only counted
    origin: str

    @property
    def is_ok(self) -> bool:
        return self.time_us is not None


class TrialFacts(NamedTuple):
    """As much of a trial as files of others hold: named as in a measurement, `created_at` as ISO 8601."""

    items: Sequence[str]  # JSON of each parameter and its value
    values: Sequence[str]  # as text
    outcome: Outcome
    reason: str
    time_us: float | None
    samples_us: Sequence[float]
    error_ratio: float | None
    registers: int | None
    spill_bytes: int | None
    smem_bytes: int | None
    compile_s: float
    verify_s: float
    measure_s: float
    created_at: str

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK


class TrialColumns(NamedTuple):
    """As much of trials as sums and curves take: each a column of many."""

    id: Any
    failure: Any  # outcome:reason; None if it is ok: there is a time
    time_us: Any
    error_over_cublas: Any
    is_cut_short: Any
    compile_s: Any
    verify_s: Any
    measure_s: Any
    created_at: Any  # UTC, of numpy: no object of each


@dataclass(frozen=True)
class SearchRecord:
    """The options of one search of a study: the proposer, the seed, a `SearchPolicy` by name; when (UTC)."""

    sampler: str
    seed: int
    policy: Mapping[str, float]
    created_at: datetime


@dataclass(frozen=True)
class RunRecord:
    """Times are UTC; `ended_at` and `num_trials`, those that it stored, are None until it ends in order."""

    id: int
    name: str  # of its process
    environment: Environment
    host: str
    login: str
    command: str
    versions: Mapping[str, str]
    shapes: tuple[str, ...]
    num_trials: int | None
    began_at: datetime
    ended_at: datetime | None

    @property
    def state(self) -> str:
        """Whether it ended in order, was ended (which only its own host knows), or may still run."""
        return "ended" if self.ended_at else "was ended" if is_gone(self.name) else "not ended"


@dataclass(frozen=True)
class StudySummary:
    """What a study holds. `counts` lists only outcomes that occurred."""

    study: StudyRef
    counts: Mapping[Outcome, int]
    updated_at: datetime  # of the newest trial, or of the study itself (UTC)

    @property
    def num_trials(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class ComparisonRecord:
    """Two configs timed in the same rounds while the GPU had nothing else to do; `winner` is 0 or 1, None if
    the rounds did not tell them apart. `samples_us[i][r]` is config i in round r."""

    keys: tuple[str, str]
    samples_us: tuple[tuple[float, ...], tuple[float, ...]]
    winner: int | None


@dataclass(frozen=True)
class FinalEntry:
    """One config of a final. `is_tied`: cannot be told apart from the winner (rank 1)."""

    key: str
    point: Mapping[str, Value]
    rank: int  # 1 is the winner
    is_tied: bool  # true for the winner too
    time_us: float  # median of samples_us
    samples_us: tuple[float, ...] = ()
    joules: float | None = None  # of one launch; None if it was not measured
    discarded: tuple[Discarded, ...] = ()


@dataclass(frozen=True)
class Final:
    """`baseline` is cuBLAS, interleaved in the same rounds; `marks` name what disturbed them."""

    entries: tuple[FinalEntry, ...]  # by rank
    baseline: Baseline | None
    created_at: datetime  # UTC
    marks: tuple[str, ...] = ()

    @property
    def winner(self) -> FinalEntry:
        return self.entries[0]

    @property
    def tied(self) -> tuple[FinalEntry, ...]:
        """The winner and all that cannot be told apart from it."""
        return tuple(entry for entry in self.entries if entry.is_tied)
