"""Copies a study's trials into Optuna's tables, for `optuna-dashboard` and Optuna's own analysis.

Optuna makes its tables and the study; the trials are then inserted straight into those tables, many
per transaction. `Study.add_trials` would ask the database twice for each parameter: 34 ms for a trial
of 24 parameters, 20 s for a search of 600, against 0.8 ms here. The tables are reflected, not
imported, and a test reads what was written back through Optuna.

Each transaction takes the write lock, reads which trials are there, and adds the next ones. So a kill
at any moment, or two publishers at once, neither lose nor repeat a trial.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, MetaData, Table, func, insert, make_url, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from ..config import PARAMETER, Value
from ..errors import StoreError
from . import connect
from .records import StudyRef, TrialRecord
from .repository import DEFAULT_TIMEOUT_S, Store

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

TRIAL_ID = "autotune_trial_id"  # user attribute: the trial's id in our tables
_BATCH = 250  # trials per transaction: a search that writes meanwhile waits about 0.2 s at most
_ATTEMPTS = 5
_TABLES = ("studies", "trials", "trial_params", "trial_values", "trial_user_attributes")


def study_name(study: StudyRef) -> str:
    """Name of the study in Optuna: readable, and different for whatever makes times incomparable."""
    identity = repr((study.environment, study.source_hash, study.compiler, study.policy_version))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{study.gemm} {study.environment.gpu_name} {study.policy.value} {digest}"


def publish(store: Store, study: StudyRef, storage_url: str | None = None) -> int:
    """Copy all trials that Optuna's storage (by default the store's own database) does not have yet.

    Ok trials become COMPLETE with `time_us` as their value, all others FAIL; outcome, reason and
    origin are user attributes. Returns how many were copied. Raises StoreError if the storage is
    locked, of another Optuna, or cannot be written.
    """
    url = storage_url or store.url
    trials = store.trials(study)
    with connect.errors_explained(make_url(url)), _study_in_optuna(url, study) as (engine, study_id):
        mirror = _Mirror(engine, study_id)
        num_copied = 0
        while num_new := mirror.copy(trials, limit=_BATCH):
            num_copied += num_new
        return num_copied


@contextmanager
def _study_in_optuna(url: str, study: StudyRef) -> Iterator[tuple[Engine, int]]:
    """Optuna's engine for this storage, and the number of the study in it; made if missing."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it reports a new study on stderr
    try:
        storage = _open_storage(url)
        try:
            yield storage.engine, _study_id(storage, study)
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except optuna.exceptions.StorageInternalError as error:
        if isinstance(error.__cause__, SQLAlchemyError):
            raise connect.explain(error.__cause__, make_url(url)) from error
        raise StoreError(f"Optuna's storage {make_url(url)}: {error}") from error
    finally:
        optuna.logging.set_verbosity(verbosity)


def _open_storage(url: str) -> RDBStorage:
    """Open Optuna's storage. It makes its tables one by one: two at once collide, so this retries."""
    from optuna.storages import RDBStorage

    is_sqlite = make_url(url).get_backend_name() == "sqlite"
    options = {"connect_args": {"timeout": DEFAULT_TIMEOUT_S}} if is_sqlite else {}
    for attempt in range(_ATTEMPTS):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (OperationalError, IntegrityError) as error:
            if ("exist" not in str(error) and "UNIQUE" not in str(error)) or attempt + 1 == _ATTEMPTS:
                raise
        except RuntimeError as error:  # the storage was made by another version of Optuna
            raise StoreError(f"Optuna cannot use {make_url(url)}: {error}") from error
        time.sleep(0.1 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def _study_id(storage: RDBStorage, study: StudyRef) -> int:
    import optuna

    name = study_name(study)
    try:  # looked up first: a kill while Optuna made its tables may have left names without their index
        study_id = storage.get_study_id_from_name(name)
    except KeyError:
        optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
        study_id = storage.get_study_id_from_name(name)
    known = storage.get_study_user_attrs(study_id)
    for key, value in _study_attributes(study).items():
        if key not in known:
            storage.set_study_user_attr(study_id, key, value)
    return study_id


def _study_attributes(study: StudyRef) -> dict[str, Any]:
    return {
        "gemm": str(study.gemm),
        "environment": study.environment.to_dict(),
        "source_hash": study.source_hash,
        "compiler": study.compiler,
        "policy": f"{study.policy.value} {study.policy_version}",
    }


class _Mirror:
    """Optuna's tables, seen as the place of one study's trials."""

    def __init__(self, engine: Engine, study_id: int) -> None:
        self._engine = engine
        self._study_id = study_id
        metadata = MetaData()
        metadata.reflect(engine, only=_TABLES)
        tables = (metadata.tables[name] for name in _TABLES)
        self._studies, self._trials, self._params, self._values, self._attributes = tables

    def copy(self, trials: Sequence[TrialRecord], limit: int) -> int:
        """Add the first `limit` trials that are missing, in one transaction; returns their number."""
        with self._engine.connect() as connection:
            self._lock(connection)
            present = self._present(connection)
            missing = [trial for trial in trials if trial.id not in present][:limit]
            if missing:
                self._insert(connection, missing)
            connection.commit()
        return len(missing)

    def _lock(self, connection: Connection) -> None:
        """Keep other writers out until the commit: the study's row, or in SQLite the whole database."""
        if self._engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        of_study = self._studies.c.study_id == self._study_id
        connection.execute(select(self._studies).where(of_study).with_for_update())

    def _own(self, table: Table, *columns: str) -> Any:
        """Columns of a table that hangs on `trials`, for trials of this study."""
        picked = select(*(table.c[name] for name in columns))
        joined = picked.join(self._trials, table.c.trial_id == self._trials.c.trial_id)
        return joined.where(self._trials.c.study_id == self._study_id)

    def _present(self, connection: Connection) -> set[int]:
        query = self._own(self._attributes, "value_json").where(self._attributes.c.key == TRIAL_ID)
        return {int(value) for value in connection.scalars(query)}

    def _insert(self, connection: Connection, trials: Sequence[TrialRecord]) -> None:
        choices = self._choices(connection, trials)
        of_study = self._trials.c.study_id == self._study_id
        newest = connection.scalar(select(func.max(self._trials.c.number)).where(of_study))
        first = 0 if newest is None else newest + 1
        rows = [self._trial_row(trial, first + i) for i, trial in enumerate(trials)]
        identity = self._trials.c.trial_id
        inserted = insert(self._trials).returning(identity, sort_by_parameter_order=True)
        by_id = dict(zip(connection.scalars(inserted, rows), trials, strict=True))
        connection.execute(insert(self._params), _param_rows(by_id, choices))
        connection.execute(insert(self._attributes), _attribute_rows(by_id))
        if values := _value_rows(by_id):
            connection.execute(insert(self._values), values)

    def _trial_row(self, trial: TrialRecord, number: int) -> dict[str, Any]:
        """Optuna keeps naive UTC."""
        measurement = trial.measurement
        spent_s = measurement.compile_s + measurement.verify_s + measurement.measure_s
        completed = trial.created_at.astimezone(UTC).replace(tzinfo=None)
        return {
            "study_id": self._study_id,
            "number": number,
            "state": "COMPLETE" if measurement.is_ok else "FAIL",
            "datetime_start": completed - timedelta(seconds=spent_s),
            "datetime_complete": completed,
        }

    def _choices(self, connection: Connection, trials: Sequence[TrialRecord]) -> dict[str, list[Value]]:
        """The choices of every parameter, with those of these trials among them.

        Optuna wants them equal in all trials of a study and stores a choice by its position. So known
        ones keep their place, new ones go to the end, and what is stored learns of them.
        """
        stored = {
            name: json.loads(text)["attributes"]["choices"]
            for name, text in connection.execute(
                self._own(self._params, "param_name", "distribution_json").distinct()
            )
        }
        choices: dict[str, list[Value]] = {}
        for name in dict.fromkeys(name for trial in trials for name in trial.point):
            known = stored.get(name) or (PARAMETER[name].values if name in PARAMETER else ())
            met = (trial.point[name] for trial in trials if name in trial.point)
            choices[name] = list(dict.fromkeys([*known, *met]))
            if name in stored and choices[name] != stored[name]:
                self._widen(connection, name, choices[name])
        return choices

    def _widen(self, connection: Connection, name: str, choices: Sequence[Value]) -> None:
        own = select(self._trials.c.trial_id).where(self._trials.c.study_id == self._study_id)
        old = (self._params.c.param_name == name) & self._params.c.trial_id.in_(own)
        connection.execute(update(self._params).where(old).values(distribution_json=_distribution(choices)))


def _distribution(choices: Sequence[Value]) -> str:
    from optuna.distributions import CategoricalDistribution, distribution_to_json

    return distribution_to_json(CategoricalDistribution(choices))


def _param_rows(
    by_id: Mapping[int, TrialRecord], choices: Mapping[str, Sequence[Value]]
) -> list[dict[str, Any]]:
    distributions = {name: _distribution(values) for name, values in choices.items()}
    return [
        {
            "trial_id": trial_id,
            "param_name": name,
            "param_value": float(choices[name].index(value)),
            "distribution_json": distributions[name],
        }
        for trial_id, trial in by_id.items()
        for name, value in trial.point.items()
    ]


def _value_rows(by_id: Mapping[int, TrialRecord]) -> list[dict[str, Any]]:
    return [
        {"trial_id": trial_id, "objective": 0, "value": trial.measurement.time_us, "value_type": "FINITE"}
        for trial_id, trial in by_id.items()
        if trial.measurement.is_ok
    ]


def _attribute_rows(by_id: Mapping[int, TrialRecord]) -> list[dict[str, Any]]:
    return [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
        for trial_id, trial in by_id.items()
        for key, value in _attributes(trial).items()
    ]


def _attributes(trial: TrialRecord) -> dict[str, Any]:
    measurement = trial.measurement
    attributes = {
        TRIAL_ID: trial.id,
        "outcome": measurement.outcome.value,
        "reason": measurement.reason or None,
        "origin": trial.origin,
        "is_cut_short": measurement.is_cut_short,
        "registers": measurement.registers,
        "spill_bytes": measurement.spill_bytes,
        "smem_bytes": measurement.smem_bytes,
    }
    return {key: value for key, value in attributes.items() if value is not None}
