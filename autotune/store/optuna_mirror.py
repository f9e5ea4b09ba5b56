"""Copies a study's trials into Optuna's tables, for `optuna-dashboard` and Optuna's own analysis.

Optuna makes its tables and the study; the trials are then inserted straight into those tables, many
per transaction. `Study.add_trials` would ask the database twice for each parameter: 34 ms for a trial
of 24 parameters, 20 s for a search of 600, against 0.4 ms here. The tables are reflected, not imported, and a
test reads the written trials through Optuna.

Each transaction takes the write lock, reads which trials are there, and adds the next ones. So a kill
at any moment, or two publishers at once, neither lose nor repeat a trial. While a search runs, `Publisher`
does this from time to time, so that the dashboard can follow it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Engine,
    MetaData,
    Table,
    delete,
    func,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from ..files.errors import StoreError
from ..files.words import option
from ..kernel.config import PARAMETER, Value
from . import connect
from .records import StudyRef, TrialRecord
from .repository import DEFAULT_TIMEOUT_S, Store

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

TRIAL_ID = "autotune_trial_id"  # user attribute: the trial's id in our tables
_BATCH = 25  # trials per transaction: a search that writes meanwhile waits some 10 ms
_ATTEMPTS = 5
_TABLES = ("studies", "trials", "trial_params", "trial_values", "trial_user_attributes")


def study_name(study: StudyRef) -> str:
    """Name of the study in Optuna: readable, and different if times are not comparable."""
    identity = repr((study.environment, study.source_hash, study.compiler, study.policy_version))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{study.gemm} {study.environment.gpu_name} {study.policy.value} {digest}"


def publish(store: Store, studies: Iterable[StudyRef], storage_url: str | None = None) -> int:
    """Copy all trials of these studies that Optuna's storage (by default the store's own database) does
    not have yet.

    Ok trials become COMPLETE with `time_us` as their value, all others FAIL; outcome, reason and
    origin are user attributes. Returns how many were copied. Raises StoreError if the storage is
    locked, of another Optuna, or cannot be written.
    """
    mirror = Mirror(store, storage_url)
    try:
        return mirror.copy(studies)
    finally:
        mirror.close()


def forget(store: Store, study: StudyRef) -> None:
    """Delete the copy of a study, if there is one: ids of trials may come again. Raises StoreError."""
    import optuna

    engine = connect.connect(connect.parse_url(store.url), DEFAULT_TIMEOUT_S)
    has_copies = inspect(engine).has_table("studies")
    engine.dispose()
    if not has_copies:
        return
    mirror = Mirror(store)
    try:
        with suppress(KeyError):
            optuna.delete_study(study_name=study_name(study), storage=mirror.open())
    finally:
        mirror.close()


class Mirror:
    """Optuna's tables, held open for as many copies as are wanted. Used by one thread at a time."""

    def __init__(self, store: Store, storage_url: str | None = None) -> None:
        self._store = store
        self._url = storage_url or store.url
        self._storage: RDBStorage | None = None
        self._tables: Mapping[str, Table] = {}
        self._studies: dict[int, _StudyMirror] = {}

    def open(self) -> RDBStorage:
        """Make Optuna's tables if there are none, so that the dashboard opens: takes 0.1 s or longer."""
        with self._explained():
            if self._storage is None:
                if self._url != self._store.url:
                    connect.make_file(make_url(self._url))
                self._storage = _open_storage(self._url)
                self._tables = _reflect(self._storage.engine)
            return self._storage

    def copy(self, studies: Iterable[StudyRef], should_stop: Callable[[], bool] = lambda: False) -> int:
        """Copy the trials that Optuna does not have yet; returns their number. `should_stop` is called
        between transactions. Raises what `publish` does."""
        storage = self.open()
        num_copied = 0
        with self._explained():
            for study in studies:
                if study.id not in self._studies:
                    number = _study_id(storage, study)
                    self._studies[study.id] = _StudyMirror(storage.engine, self._tables, number)
                num_copied += self._studies[study.id].copy(self._store, study, should_stop)
        return num_copied

    def close(self) -> None:
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
        self._storage, self._studies = None, {}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of Optuna and its database into a StoreError."""
        import optuna

        url = make_url(self._url)
        try:
            with connect.errors_explained(url):
                yield
        except optuna.exceptions.StorageInternalError as error:
            if isinstance(error.__cause__, SQLAlchemyError):
                raise connect.explain(error.__cause__, url) from error
            raise StoreError(f"Optuna's storage {connect.shown(url)}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"Optuna's tables in {connect.place(url)} are damaged ({error!r}); restore a copy of the"
                f" database, or go on without {option('has_dashboard')}"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna reports a new study on stderr."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _open_storage(url: str) -> RDBStorage:
    """Open Optuna's storage. It makes its tables one by one: two at once collide, so this retries."""
    from optuna.storages import RDBStorage

    options = connect.engine_options(make_url(url), DEFAULT_TIMEOUT_S)
    for attempt in range(_ATTEMPTS):
        try:
            with _quiet():
                return RDBStorage(url, engine_kwargs=options)
        except (OperationalError, IntegrityError, ProgrammingError) as error:
            if ("exist" not in str(error) and "UNIQUE" not in str(error)) or attempt + 1 == _ATTEMPTS:
                raise
        except RuntimeError as error:  # the storage was made by another version of Optuna
            raise StoreError(f"Optuna cannot use {connect.shown(url)}: {error}") from error
        time.sleep(0.1 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def _study_id(storage: RDBStorage, study: StudyRef) -> int:
    import optuna

    name = study_name(study)
    try:  # looked up first: a kill while Optuna made its tables may have left names without their index
        study_id = storage.get_study_id_from_name(name)
    except KeyError:
        with _quiet():
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


def _reflect(engine: Engine) -> Mapping[str, Table]:
    metadata = MetaData()
    metadata.reflect(engine, only=_TABLES)
    return metadata.tables


class _StudyMirror:
    """Optuna's tables as the place of one study's trials."""

    def __init__(self, engine: Engine, tables: Mapping[str, Table], study_id: int) -> None:
        self._engine = engine
        self._study_id = study_id
        self._studies, self._trials, self._params, self._values, self._attributes = (
            tables[name] for name in _TABLES
        )
        # The stored state, by the trial with the highest number; None: not read yet.
        self._newest: int | None = None
        self._present: set[int] = set()
        self._complete: dict[int, int] = {}  # Optuna's ids of trials that are COMPLETE there, by ours
        self._choices: dict[str, list[Value]] = {}

    def copy(self, store: Store, study: StudyRef, should_stop: Callable[[], bool]) -> int:
        """Add all trials that are missing, some per transaction; returns their number."""
        num_copied = 0
        outcomes = store.outcomes(study)
        if self._newest is None:
            with self._locked() as connection:
                self._catch_up(connection)
        wanted = [trial_id for trial_id in outcomes if trial_id not in self._present]
        for first in range(0, len(wanted), _BATCH):
            if should_stop():
                return num_copied
            num_copied += self._copy_some(store.trials_by_id(study, wanted[first : first + _BATCH]))
        self._condemn({trial_id for trial_id, is_ok in outcomes.items() if not is_ok}, store, study)
        return num_copied

    def _copy_some(self, trials: Sequence[TrialRecord]) -> int:
        with self._locked() as connection:
            self._catch_up(connection)
            missing = [trial for trial in trials if trial.id not in self._present]
            if missing:
                self._insert(connection, missing)
        return len(missing)

    def _condemn(self, failed: set[int], store: Store, study: StudyRef) -> None:
        """Trials that were ok when they were copied, and no longer are, by the result of a final."""
        ids = {ours: theirs for ours, theirs in self._complete.items() if ours in failed}
        if not ids:
            return
        found = {ids[trial.id]: trial for trial in store.trials_by_id(study, list(ids))}
        with self._locked() as connection:
            for table in (self._values, self._attributes):
                connection.execute(delete(table).where(table.c.trial_id.in_(found)))
            of_them = self._trials.c.trial_id.in_(found)
            connection.execute(update(self._trials).where(of_them).values(state="FAIL"))
            connection.execute(insert(self._attributes), _attribute_rows(found))
        for ours in ids:
            del self._complete[ours]

    @contextmanager
    def _locked(self) -> Iterator[Connection]:
        """A transaction that no other publisher interrupts."""
        with self._engine.connect() as connection:
            self._lock(connection)
            yield connection
            connection.commit()

    def _catch_up(self, connection: Connection) -> None:
        """Read the stored state, if another publisher has changed it since: reading it before every batch
        would cost the square of the number of trials."""
        of_study = self._trials.c.study_id == self._study_id
        newest = connection.scalar(select(func.max(self._trials.c.number)).where(of_study))
        if newest == self._newest:
            return
        present = self._own(self._attributes, "value_json", "trial_id").add_columns(self._trials.c.state)
        rows = connection.execute(present.where(self._attributes.c.key == TRIAL_ID)).all()
        stored = self._own(self._params, "param_name", "distribution_json").distinct()
        self._newest = newest
        self._present = {int(ours) for ours, _, _ in rows}
        self._complete = {int(ours): theirs for ours, theirs, state in rows if state == "COMPLETE"}
        self._choices = {
            name: json.loads(text)["attributes"]["choices"] for name, text in connection.execute(stored)
        }

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

    def _insert(self, connection: Connection, trials: Sequence[TrialRecord]) -> None:
        self._learn_choices(connection, trials)
        first = 0 if self._newest is None else self._newest + 1
        rows = [self._trial_row(trial, number) for number, trial in enumerate(trials, first)]
        identity = self._trials.c.trial_id
        inserted = insert(self._trials).returning(identity, sort_by_parameter_order=True)
        by_id = dict(zip(connection.scalars(inserted, rows), trials, strict=True))
        connection.execute(insert(self._params), _param_rows(by_id, self._choices))
        connection.execute(insert(self._attributes), _attribute_rows(by_id))
        if values := _value_rows(by_id):
            connection.execute(insert(self._values), values)
        self._newest = first + len(trials) - 1
        self._present.update(trial.id for trial in trials)
        self._complete.update((t.id, theirs) for theirs, t in by_id.items() if t.measurement.is_ok)

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

    def _learn_choices(self, connection: Connection, trials: Sequence[TrialRecord]) -> None:
        """Add the values of these trials to the choices of every parameter.

        Optuna wants them equal in all trials of a study and stores a choice by its position. So known
        ones keep their place, new ones go to the end, and what is stored learns of them.
        """
        for name in dict.fromkeys(name for trial in trials for name in trial.point):
            stored = self._choices.get(name)
            known = stored or (PARAMETER[name].values if name in PARAMETER else ())
            met = (trial.point[name] for trial in trials if name in trial.point)
            self._choices[name] = list(dict.fromkeys([*known, *met]))
            if stored and self._choices[name] != stored:
                self._widen(connection, name, self._choices[name])

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
