"""Which search tries which config, and the results of other searches.

Searches on one database share the configs of a problem if they measure on GPUs of one model, under the same
driver, kernel and policy. Those on the same GPU share their trials, too: they work on one study. Those on
different GPUs of the kind keep a study each, and only hear of each other's times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from ..facts.measurement import Outcome, is_accurate, is_time
from ..kernel import same_code
from ..kernel.config import Value
from . import leases, optuna_rows, queries, rows
from .columns import InvalidValue
from .database import Closing, Database, each_retried
from .models import (
    ConfigRow,
    EnvironmentRow,
    KernelRow,
    OptunaStudyRow,
    OptunaTrialRow,
    StudyRow,
    TrialRow,
)
from .optuna_rows import Requested
from .records import StudyRef

_OVERLAP = 200  # trial ids that are read again: on a server, a smaller one may be committed later
_TIME = (case((queries.IS_OK, TrialRow.time_us)), TrialRow.error_over_cublas)  # see _time_of
# What the studies of searches that divide configs have in common: a problem, a policy, a GPU model
_POOL = (
    StudyRow.m, StudyRow.n, StudyRow.k, StudyRow.trans_a, StudyRow.trans_b, StudyRow.batch,
    StudyRow.shares_a, StudyRow.shares_b, StudyRow.policy, StudyRow.policy_version, KernelRow.source_hash,
    KernelRow.compiler, EnvironmentRow.gpu_name, EnvironmentRow.cc_major, EnvironmentRow.cc_minor,
    EnvironmentRow.driver_version, EnvironmentRow.recorded_on,
)  # fmt: skip
_LOCAL = Outcome.OUT_OF_MEMORY.value  # depends on that GPU's free memory, not on the config


@dataclass(frozen=True)
class Known:
    """Another search's result of a config. `time_us` is None for a failure. `is_here`: in this study."""

    time_us: float | None
    is_here: bool
    origin: str


@dataclass(frozen=True)
class Claimed:
    """The result of a claim. A key in neither is under way elsewhere."""

    owned: frozenset[str] = frozenset()  # trials of this search, which run from now on
    known: dict[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class NewTrials:
    """A trial in one of this search's studies."""

    study_id: int
    key: str
    point: dict[str, Value]
    time_us: float | None  # None: it failed
    origin: str


@each_retried()
class Claims(Closing):
    """One search's claims. Use it as a context manager, or close it: then it is at nothing any more.

    Others' results count as failed if their error is more than `max_error` times cuBLAS's.
    """

    def __init__(self, database: Database, max_error: float | None = None) -> None:
        self._database, self._max_error = database, max_error
        self._worker = leases.Worker(database)

    def claim(
        self,
        study: StudyRef,
        requested: Mapping[str, Requested],
        is_settled: Callable[[str, Known], bool] = lambda key, found: found.is_here,
    ) -> Claimed:
        """Begin those of these trials whose configs no other search is trying, and of which nothing is known
        that settles them, all in one transaction."""
        if not requested:
            return Claimed()
        self._worker.renew_heartbeat()
        with self._database.writing() as session:
            lock_pool(session, study)
            free = requested.keys() - held(session, study, self._worker.id)
            # After these: any search that stored a trial before its config was free has committed it.
            known = _known(session, study, free, self._max_error)
            settled = {key for key, found in known.items() if is_settled(key, found)}
            owned = {key: one for key, one in requested.items() if key in free - settled}
            if owned:
                its_id = optuna_rows.optuna_study_id(session, study)
                optuna_rows.begin(session, its_id, self._worker.id, owned)
        return Claimed(frozenset(owned), known)

    def given_up(self, study: StudyRef, keys: Collection[str]) -> dict[str, Known | None]:
        """Those of these configs that no other search is trying any more, each with what is known of it."""
        with self._database.reading() as session:
            free = set(keys) - held(session, study, self._worker.id)
            known = _known(session, study, free, self._max_error)
            return {key: known.get(key) for key in keys if key in free}

    def release_all(self) -> None:
        """This search will try nothing more."""
        with self._database.writing() as session:
            leases.release_all(session, self._worker.id)

    def new_trials(self, known: Mapping[int, Container[str]], after: int) -> list[NewTrials]:
        """Trials of studies whose id is about `after` or larger, by id, without those whose keys are known,
        by the id of the study. Most are this search's own, whose points are not read: that takes longest."""
        named = (
            select(TrialRow.id, TrialRow.study_id, ConfigRow.key)
            .join(ConfigRow)
            .where(TrialRow.study_id.in_(known), TrialRow.id > after - _OVERLAP)
        )
        with self._database.reading() as session:
            new = [number for number, study, key in session.execute(named) if key not in known[study]]
            return [
                NewTrials(study_id, key, point, _time_of(time_us, error, self._max_error), origin)
                for ids in queries.chunks(new)
                for study_id, key, point, origin, time_us, error in session.execute(_NEW_TRIALS, {"ids": ids})
                if isinstance(key, str) and isinstance(point, dict)  # the row is not damaged
            ]

    def waiting(self, studies: Iterable[StudyRef]) -> list[tuple[int | None, dict[str, Value]]]:
        """Points that somebody lined up in Optuna's way, each with the id of its study, in this order: an
        empty one for what names only some parameters, was tried before, or cannot be read."""
        with self._database.reading() as session:
            found = session.execute(optuna_rows.WAITING_POINTS, {"studies": [study.id for study in studies]})
            return [(study_id, point if isinstance(point, dict) else {}) for study_id, point in found]

    def latest(self) -> int:
        """The id of the newest trial of all; 0 if there is none."""
        with self._database.reading() as session:
            return session.scalar(select(func.max(TrialRow.id))) or 0

    def close(self) -> None:
        self._worker.close()


@cache
def _pool_of(study: StudyRef) -> Mapping[str, Any]:
    """The pool of a study, as `_in_pool` takes it. Sources with the same code share one."""
    names = {
        **rows.gemm_columns(study.gemm), **rows.environment_columns(study.environment),
        "policy": study.policy.value, "policy_version": study.policy_version,
        "source_hash": same_code.equivalents(study.source_hash), "compiler": study.compiler,
    }  # fmt: skip
    return {f"its_{column.key}": names[column.key] for column in _POOL}


def _in_pool(query: Any) -> Any:
    """What a query finds of studies, of those of a pool."""
    for column in _POOL:
        is_source = column.key == "source_hash"
        its: Any = bindparam(f"its_{column.key}", expanding=is_source)
        query = query.where(column.in_(its) if is_source else column == its)
    return query.join(EnvironmentRow).join(KernelRow)


def lock_pool(session: Session, study: StudyRef) -> None:
    """Nobody else begins a trial of a study's pool until the transaction ends. SQLite has one writer."""
    if session.get_bind().dialect.name == "postgresql":
        pool = repr(list(_pool_of(study).values()))
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(pool, 0))))


def held(session: Session, study: StudyRef, worker_id: int) -> set[str]:
    """Keys of configs that other living workers are trying, on whatever GPU of the kind."""
    return set(session.scalars(_HELD, {**_pool_of(study), "worker": worker_id}))


_NEW_TRIALS = (
    select(TrialRow.study_id, ConfigRow.key, ConfigRow.point, TrialRow.origin, *_TIME)
    .join(ConfigRow)
    .where(TrialRow.id.in_(bindparam("ids", expanding=True)))
    .order_by(TrialRow.id)
)
# Trials of these configs in all studies of a pool, and configs that others are at there. Made once, as in
# optuna_rows.py.
_KIN = _in_pool(
    select(ConfigRow.key, TrialRow.study_id, TrialRow.outcome, TrialRow.origin, *_TIME)
    .join(TrialRow, TrialRow.config_id == ConfigRow.id)
    .join(StudyRow, TrialRow.study_id == StudyRow.id)
    .where(ConfigRow.key.in_(bindparam("keys", expanding=True)))
)
_HELD = _in_pool(
    select(ConfigRow.key)
    .join(OptunaTrialRow, OptunaTrialRow.config_id == ConfigRow.id)
    .join(OptunaStudyRow, OptunaStudyRow.id == OptunaTrialRow.optuna_study_id)
    .join(StudyRow, OptunaStudyRow.study_id == StudyRow.id)
    .where(OptunaTrialRow.state == optuna_rows.RUNNING)  # by an index: studies have thousands of others
    .where(OptunaTrialRow.worker_id.in_(leases.live_workers()))
    .where(OptunaTrialRow.worker_id != bindparam("worker"))
)


def _known(
    session: Session, study: StudyRef, keys: Collection[str], max_error: float | None
) -> dict[str, Known]:
    """What studies of this pool know of these configs: this study before others, a time before a failure."""
    its = {**_pool_of(study), "keys": list(keys)}
    known: dict[str, Known] = {}
    found_rows = session.execute(_KIN, its).all() if keys else []
    for key, study_id, outcome, origin, time_us, error in found_rows:
        found = Known(_time_of(time_us, error, max_error), study_id == study.id, origin)
        if found.is_here or outcome != _LOCAL:
            known[key] = max(
                known.get(key, found), found, key=lambda one: (one.is_here, one.time_us is not None)
            )
    return known


def _time_of(time_us: Any, error_over_cublas: Any, max_error: float | None) -> float | None:
    """None for a trial that cannot win: a failure, one that is not accurate enough, or unreadable."""
    if not is_time(time_us) or isinstance(error_over_cublas, InvalidValue):
        return None
    return float(time_us) if is_accurate(error_over_cublas, max_error) else None
