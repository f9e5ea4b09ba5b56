"""Which search tries which config: leases of trials, and the results of other searches.

Searches on one database share the configs of a problem if they measure on GPUs of one model, under the same
driver, kernel and policy. Those on the same GPU share their trials, too: they work on one study. Those on
different GPUs of the kind keep a study each, and only hear of each other's times.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from ..facts.measurement import Outcome, is_accurate
from ..kernel import same_code
from ..kernel.config import Value
from . import leases, optuna_rows, queries, rows
from .columns import InvalidValue, is_time
from .database import Closing, Database, retry_while_away
from .models import ConfigRow, EnvironmentRow, KernelRow, StudyRow, TrialRow
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
    """Another search's result of a config. `time_us` is None for a failure. `is_here`: in this study; else on
    another GPU of the kind. `origin`: what proposed it there."""

    time_us: float | None
    is_here: bool
    origin: str


@dataclass(frozen=True)
class Claimed:
    """The result of a claim. A key in neither is under way elsewhere."""

    owned: frozenset[str] = frozenset()  # leased to this search
    known: dict[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class NewTrials:
    """A trial in one of this search's studies."""

    trial_id: int
    study_id: int
    key: str
    point: dict[str, Value]
    time_us: float | None  # None: it failed
    origin: str


class Claims(Closing):
    """One search's claims. Use it as a context manager, or close it: then all its leases end.

    Others' results count as failed if their error is more than `max_error` times cuBLAS's.
    """

    def __init__(self, database: Database, max_error: float | None = None) -> None:
        self._database, self._max_error = database, max_error
        self._worker = leases.Worker(database)

    @retry_while_away
    def claim(
        self,
        study: StudyRef,
        keys: Collection[str],
        requested: Mapping[str, Requested] = MappingProxyType({}),
    ) -> Claimed:
        """Lease the configs that no other search is trying or has tried in this study, all in one
        transaction. Those of `asked` are running trials from then on.

        One that was tried only on another GPU of the kind is leased, and known.
        """
        if not keys:
            return Claimed()
        self._worker.renew_heartbeat()
        with self._database.writing() as session:
            owned = leases.acquire(session, self._worker.id, scope_of(study), keys)
            # After the leases: any search that stored a trial before they were free has committed it.
            known = _known(session, study, owned, self._max_error)
            done = {key for key, found in known.items() if found.is_here}
            leases.release(session, scope_of(study), done)
            if started := {key: requested[key] for key in keys if key in requested and key in owned - done}:
                its_id = optuna_rows.optuna_study_id(session, study)
                optuna_rows.begin(session, its_id, self._worker.id, started)
        return Claimed(frozenset(owned - done), known)

    @retry_while_away
    def release(self, study: StudyRef, keys: Collection[str]) -> None:
        """These configs will not be tried after all."""
        if keys:
            with self._database.writing() as session:
                leases.release(session, scope_of(study), keys)
                optuna_rows.drop(session, study, keys)

    @retry_while_away
    def release_all(self) -> None:
        """This search will try nothing more."""
        with self._database.writing() as session:
            leases.release_all(session, self._worker.id)

    @retry_while_away
    def held_in_studies(self, studies: Iterable[StudyRef]) -> dict[StudyRef, set[str]]:
        """Keys that other searches are trying, by study."""
        by_pool = {scope_of(study): study for study in studies}
        held: dict[StudyRef, set[str]] = {study: set() for study in by_pool.values()}
        if not held:
            return held
        with self._database.reading() as session:
            for pool, key in leases.held_by_others(session, self._worker.id, list(by_pool)):
                held[by_pool[pool]].add(key)
        return held

    @retry_while_away
    def new_trials(self, known: Mapping[int, Container[str]], after: int) -> list[NewTrials]:
        """Trials of studies, by any search, whose id is about `after` or larger, by id, without those whose
        keys are known. `known`: these keys, by the id of the study.

        Most are this search's own. Their points are not read: reading them takes most of the time.
        """
        named = (
            select(TrialRow.id, TrialRow.study_id, ConfigRow.key)
            .join(ConfigRow)
            .where(TrialRow.study_id.in_(known), TrialRow.id > after - _OVERLAP)
        )
        with self._database.reading() as session:
            new = [number for number, study, key in session.execute(named) if key not in known[study]]
            return [
                NewTrials(trial_id, study_id, key, point, _time_of(time_us, error, self._max_error), origin)
                for ids in queries.chunks(new)
                for trial_id, study_id, key, point, origin, time_us, error in session.execute(
                    _NEW_TRIALS, {"ids": ids}
                )
                if isinstance(key, str) and isinstance(point, dict)  # the row is not damaged
            ]

    @retry_while_away
    def waiting(self, studies: Iterable[StudyRef]) -> list[tuple[int | None, dict[str, Value]]]:
        """Points that somebody lined up in Optuna's way, each with the id of its study, in this order."""
        with self._database.reading() as session:
            found = session.execute(optuna_rows.WAITING_POINTS, {"studies": [study.id for study in studies]})
            return [(study_id, point) for study_id, point in found if isinstance(point, dict)]

    @retry_while_away
    def latest(self) -> int:
        """The id of the newest trial of all; 0 if there is none."""
        with self._database.reading() as session:
            return session.scalar(select(func.max(TrialRow.id))) or 0

    def close(self) -> None:
        self._worker.close()


@cache
def _pool_of(study: StudyRef) -> Mapping[str, Any]:
    """The pool of a study: the value of each column of _POOL by its name. Sources with the same code share
    one."""
    names = {
        **rows.gemm_columns(study.gemm), **rows.environment_columns(study.environment),
        "policy": study.policy.value, "policy_version": study.policy_version,
        "source_hash": same_code.kept_as(study.source_hash), "compiler": study.compiler,
    }  # fmt: skip
    return {column.key: names[column.key] for column in _POOL}


@cache
def scope_of(study: StudyRef) -> str:
    """The scope of the leases of a study's pool."""
    return "|".join(map(str, ("trial", *_pool_of(study).values())))


_NEW_TRIALS = (
    select(TrialRow.id, TrialRow.study_id, ConfigRow.key, ConfigRow.point, TrialRow.origin, *_TIME)
    .join(ConfigRow)
    .where(TrialRow.id.in_(bindparam("ids", expanding=True)))
    .order_by(TrialRow.id)
)
# Trials of these configs in all studies of a pool. Made once, as leases._UPSERTS is.
_KIN = (
    select(ConfigRow.key, TrialRow.study_id, TrialRow.outcome, TrialRow.origin, *_TIME)
    .join(TrialRow, TrialRow.config_id == ConfigRow.id)
    .join(StudyRow, TrialRow.study_id == StudyRow.id)
    .join(EnvironmentRow, StudyRow.environment_id == EnvironmentRow.id)
    .join(KernelRow, StudyRow.kernel_id == KernelRow.id)
    .where(ConfigRow.key.in_(bindparam("keys", expanding=True)))
    .where(*(column == bindparam(f"its_{column.key}") for column in _POOL if column.key != "source_hash"))
    .where(KernelRow.source_hash.in_(bindparam("sources", expanding=True)))
)


def _known(
    session: Session, study: StudyRef, keys: Collection[str], max_error: float | None
) -> dict[str, Known]:
    """What studies of this pool know of these configs: this study before others, a time before a failure."""
    its = {f"its_{name}": value for name, value in _pool_of(study).items()}
    its |= {"keys": list(keys), "sources": same_code.equivalents(study.source_hash)}
    known: dict[str, Known] = {}
    found_rows = session.execute(_KIN, its).all() if keys else []
    for key, study_id, outcome, origin, time_us, error in found_rows:
        found = Known(_time_of(time_us, error, max_error), study_id == study.id, origin)
        if found.is_here or outcome != _LOCAL:
            known[key] = max(known.get(key, found), found, key=_weight)
    return known


def _time_of(time_us: Any, error_over_cublas: Any, max_error: float | None) -> float | None:
    """None for a trial that cannot win: a failure, one that is not accurate enough, or unreadable."""
    if not is_time(time_us) or isinstance(error_over_cublas, InvalidValue):
        return None
    return float(time_us) if is_accurate(error_over_cublas, max_error) else None


def _weight(known: Known) -> tuple[bool, bool]:
    return known.is_here, known.time_us is not None
