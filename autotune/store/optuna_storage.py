"""Optuna's storage over the tables of this store.

    study = optuna.load_study(study_name=None, storage=OptunaStorage("autotune.db"))

Each study of a search is a study of Optuna, whatever process searches it: its trials are those that were
stored and those under way, each with its number. What somebody asks for and tells is a trial of the search as
well: none is tried twice. Studies of Optuna's own, of anything, may lie beside them.

A process that dies leaves no trial: what it was at is free again (`leases.py`).
"""

from __future__ import annotations

import copy
import functools
import threading
import uuid
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy  # what `get_all_studies` is to return; it has no public name
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from ..facts.measurement import Measurement, Outcome, is_time
from ..files.errors import StoreError, UsageError
from ..kernel.config import PARAMETER, Value
from ..target import point_key
from . import leases, optuna_rows, queries, rows
from .bad_rows import BadRowError
from .claims import held, lock_pool
from .columns import POINT
from .database import Transaction, each_retried
from .models import ConfigRow, OptunaStudyRow, OptunaTrialRow, StudyRow, TrialRow, utc_now
from .optuna_rows import FINISHED
from .records import StudyRef, TrialRecord
from .repository import Store, find_or_add_trial

TRIAL_ID = "autotune_trial_id"  # user attribute: the trial's id in `autotune trials`
ORIGIN = "asked"  # what proposed a point that somebody asked for, unless a sampler of ours says
_UNNAMED = "no-name-"  # as Optuna names studies that nobody named
_FACTS = ("outcome", "reason", "samples_us", "is_cut_short", "error_ratio", "error_over_cublas", "registers",
          "spill_bytes", "smem_bytes")  # fmt: skip
_STORED = (TrialRow.study_id == OptunaStudyRow.study_id) & (TrialRow.config_id == OptunaTrialRow.config_id)
_ROWS = (
    select(OptunaTrialRow, OptunaStudyRow.study_id, TrialRow, ConfigRow)
    .join(OptunaStudyRow, OptunaStudyRow.id == OptunaTrialRow.optuna_study_id)
    .join(ConfigRow, ConfigRow.id == OptunaTrialRow.config_id, isouter=True)
    .join(TrialRow, _STORED, isouter=True)
    .where(optuna_rows.is_alive())
    .order_by(OptunaTrialRow.id)
)
_STATES = _ROWS.with_only_columns(OptunaTrialRow.id, OptunaTrialRow.state, TrialRow.id, TrialRow.outcome)
_distribution = functools.cache(json_to_distribution)


class _Taken(Exception):
    """Another trial is of this config. Never leaves the storage."""


@each_retried()
class OptunaStorage(BaseStorage):
    """`db` is an open store, or the name of a database, which is made where there is none. Threads may share
    it, and copies of it may go to other processes. Raises what `Store` does."""

    def __init__(self, db: Store | str | Path) -> None:
        store = db if isinstance(db, Store) else Store.open(db)
        self._store, self._database = store, store._database
        self._workers: list[leases.Worker] = []  # this process, once it claims something
        # Not `remove_session`: Optuna calls that at the end of each thread of a study.
        self.close = weakref.finalize(self, _end, self._workers, None if store is db else store)
        self._lock = threading.RLock()
        # By study and row: trials that are finished, None for one that is damaged, and what they were made of
        self._known: dict[int, dict[int, tuple[Any, FrozenTrial | None]]] = {}
        self._spaces: dict[int, dict[str, CategoricalDistribution]] = {}  # of studies of ours
        self._claimed: dict[int, Mapping[str, Value]] = {}  # points of this process's running trials
        self._refs: dict[int, StudyRef | None] = {}  # what each study of Optuna is of ours

    def __getstate__(self) -> str:
        return self._store.url

    def __setstate__(self, url: str) -> None:
        self.__init__(url)  # type: ignore[misc]

    def _worker(self) -> leases.Worker:
        """This process; made before a transaction, since it begins one."""
        with self._lock:
            if not (self._workers and self._workers[0].is_own):  # else forked, and its parent is at others
                self._workers[:] = [leases.Worker(self._database)]
            return self._workers[0]

    # ---- studies

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        name = f"{_UNNAMED}{uuid.uuid4()}" if study_name is None else study_name
        rest = {"directions": [one.name for one in directions], "facts": {}, "num_given": 0}
        self._adopt_studies()
        with self._database.writing() as session:
            its_id, is_new = queries.find_or_add(session, OptunaStudyRow, rest, name=name)
        if not is_new:
            raise DuplicatedStudyError(f"there is a study {name!r} already")
        return its_id

    def delete_study(self, study_id: int) -> None:
        with self._database.writing() as session:
            self._study(session, study_id)
            optuna_rows.delete_study(session, study_id)
        self._known.pop(study_id, None)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        with self._database.writing() as session:
            _add(self._study(session, study_id, is_locked=True), "user", key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        with self._database.writing() as session:
            _add(self._study(session, study_id, is_locked=True), "system", key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        self._adopt_studies()
        with self._database.reading() as session:
            found = queries.find(session, OptunaStudyRow, name=study_name)
        if found is None:
            raise KeyError(f"no study {study_name!r}")
        return found

    def get_study_name_from_id(self, study_id: int) -> str:
        with self._database.reading() as session:
            return self._study(session, study_id).name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        with self._database.reading() as session:
            return [StudyDirection[name] for name in self._study(session, study_id).directions]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        with self._database.reading() as session:
            return self._user_attrs(session, self._study(session, study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        with self._database.reading() as session:
            return _part(self._study(session, study_id), "system")

    def get_all_studies(self) -> list[FrozenStudy]:
        self._adopt_studies()
        with self._database.reading() as session:
            every = select(OptunaStudyRow).order_by(OptunaStudyRow.id)
            return list(session.readable(every, functools.partial(self._frozen_study, session)))

    def _frozen_study(self, session: Transaction, row: OptunaStudyRow) -> FrozenStudy:
        rows.check(row)
        user = self._user_attrs(session, row)
        directions = [StudyDirection[name] for name in row.directions]
        return FrozenStudy(row.name, None, user, _part(row, "system"), row.id, directions=directions)

    def _adopt_studies(self) -> None:
        """A row for each study of ours that has none."""
        with self._database.reading() as session:
            refs = list(session.readable(optuna_rows.UNNAMED, rows.study_ref))
        if refs:
            with self._database.writing() as session:
                for ref in refs:
                    optuna_rows.optuna_study_id(session, ref)

    def _study(self, session: Session, study_id: int, *, is_locked: bool = False) -> OptunaStudyRow:
        row = session.get(OptunaStudyRow, study_id, with_for_update=is_locked)
        if row is None:
            raise KeyError(f"no study of id {study_id}")
        try:
            rows.check(row)
        except BadRowError as error:
            raise StoreError(f"{error.bad_row} is damaged; delete it, or restore a copy") from None
        return row

    def _ref(self, session: Transaction, its_id: int) -> StudyRef | None:
        """The study of ours; None if it is somebody's own."""
        if its_id not in self._refs:
            number = self._study(session, its_id).study_id
            its = queries.STUDIES.where(StudyRow.id == number)
            self._refs[its_id] = next(session.readable(its, rows.study_ref), None)
        return self._refs[its_id]

    def _user_attrs(self, session: Transaction, row: OptunaStudyRow) -> dict[str, Any]:
        ref, given = self._ref(session, row.id), _part(row, "user")
        if ref is None:
            return given
        policy = f"{ref.policy.value} {ref.policy_version}"
        environment = ref.environment.to_dict()
        kernel = {"source_hash": ref.source_hash, "compiler": ref.compiler, "policy": policy}
        return {"gemm": str(ref.gemm), "environment": environment, **kernel, **given}

    # ---- trials: writing

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        template = template_trial or create_trial(state=TrialState.RUNNING)
        facts = {
            "values": template.values,
            "params": _all_stored(template.distributions, template.params),
            "user": template.user_attrs,
            "system": template.system_attrs,
            "steps": template.intermediate_values,
        }
        with self._database.writing() as session:
            number = optuna_rows.give_numbers(session, study_id, 1)
            if number is None:
                raise KeyError(f"no study of id {study_id}")
            row = OptunaTrialRow(
                optuna_study_id=study_id, number=number, state=template.state.name,
                facts={name: one for name, one in facts.items() if one},
                began_at=template.datetime_start, ended_at=template.datetime_complete,
            )  # fmt: skip
            session.add(row)
            session.flush()
            if template.state is TrialState.WAITING:
                self._place(session, row, _part(row, "system").get("fixed_params", {}))
            elif template.state.is_finished():
                self._settle(session, row)
            return row.id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        claimed = self._claimed.get(trial_id, {})
        value = distribution.to_external_repr(param_value_internal)
        if param_name in claimed and claimed[param_name] == value:
            return
        with self._changing(trial_id) as (session, row):
            if row.config_id is not None:
                raise ValueError(f"this trial is at {param_name}={claimed.get(param_name)!r}, not {value!r}")
            study, text = self._study(session, row.optuna_study_id), distribution_to_json(distribution)
            if known := _part(study, "space").get(param_name):
                check_distribution_compatibility(_distribution(known), distribution)
            else:
                session.refresh(study, with_for_update=True)
                _add(study, "space", param_name, text)
            _add(row, "params", param_name, [param_value_internal, text])

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        if is_begun := state is TrialState.RUNNING:
            self._worker().renew_heartbeat()
        with suppress(_Taken), self._changing(trial_id, is_claim=is_begun) as (session, row):
            if is_begun:
                if row.state != optuna_rows.WAITING:
                    return False
                if row.config_id is not None:
                    self._take(session, row, session.get_one(ConfigRow, row.config_id))
                row.began_at = utc_now()
            row.state = state.name
            if values is not None:
                row.facts = {**row.facts, "values": [float(value) for value in values]}
            if state.is_finished():
                row.ended_at = utc_now()
                self._settle(session, row)
            return True
        return False

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        with self._changing(trial_id) as (_, row):
            _add(row, "steps", str(step), intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        with self._changing(trial_id) as (_, row):
            _add(row, "user", key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        with self._changing(trial_id) as (_, row):
            _add(row, "system", key, value)

    @contextmanager
    def _changing(self, trial_id: int, *, is_claim: bool = False) -> Iterator[tuple[Any, OptunaTrialRow]]:
        """The row of a trial that is not finished, locked; to claim a config, its study's pool before."""
        with self._database.writing() as session:
            its = select(OptunaTrialRow.optuna_study_id).where(OptunaTrialRow.id == trial_id)
            if is_claim and (study_id := session.scalar(its)) is not None:
                ref = self._ref(session, study_id)
                if ref is not None:
                    lock_pool(session, ref)
            row = session.get(OptunaTrialRow, trial_id, with_for_update=True)
            if row is None:
                raise KeyError(f"no trial of id {trial_id}")
            if row.state in FINISHED:
                raise UpdateFinishedTrialError(f"trial {row.number} is finished: nothing of it changes")
            yield session, row

    # ---- trials of a point

    def claim(
        self,
        trial_id: int,
        point: Mapping[str, Value],
        distributions: Mapping[str, BaseDistribution],
        origin: str = ORIGIN,
    ) -> bool:
        """Let a running trial be of this point. False, and the trial is as it was, if another trial of the
        study is or was of it, in whatever process."""
        key = point_key(point)
        self._worker().renew_heartbeat()
        with suppress(_Taken), self._changing(trial_id, is_claim=True) as (session, row):
            config = session.get_one(ConfigRow, queries.config_id(session, key, point))
            self._take(session, row, config)
            self._need_free(session, row.optuna_study_id, config.id)
            row.config_id = config.id
            if self._ref(session, row.optuna_study_id) is None:
                row.facts = {**row.facts, "params": _all_stored(distributions, point)}
            _add(row, "user", "origin", origin)
            return True
        return False

    def _take(self, session: Transaction, row: OptunaTrialRow, config: ConfigRow) -> None:
        """Let this process be at a config. Raises _Taken if another is, on whatever GPU of the kind."""
        worker_id, ref = self._worker().id, self._ref(session, row.optuna_study_id)
        if ref is not None and config.key in held(session, ref, worker_id):
            raise _Taken
        row.worker_id, self._claimed[row.id] = worker_id, dict(config.point)

    def _need_free(self, session: Transaction, its_id: int, config_id: int) -> None:
        """Raises _Taken if another trial of the study is or was of this config. One goes whose process died,
        or whose result somebody deleted."""
        study_id = self._study(session, its_id, is_locked=True).study_id
        of_config = (OptunaTrialRow.optuna_study_id == its_id) & (OptunaTrialRow.config_id == config_id)
        of_trial = {"study_id": study_id, "config_id": config_id}
        if study_id is not None and queries.find(session, TrialRow, **of_trial) is not None:
            raise _Taken
        if any(not _is_deleted(*one) for one in session.execute(_ROWS.where(of_config))):
            raise _Taken
        session.execute(delete(OptunaTrialRow).where(of_config))

    def _place(self, session: Transaction, row: OptunaTrialRow, point: Mapping[str, Value]) -> None:
        """Let a trial be of this point, if it is one of a study of ours and no other trial is of it."""
        if not point or self._ref(session, row.optuna_study_id) is None:
            return
        query = select(ConfigRow.point).join(OptunaTrialRow, OptunaTrialRow.config_id == ConfigRow.id)
        tried = session.scalar(query.where(OptunaTrialRow.optuna_study_id == row.optuna_study_id).limit(1))
        names = tried if isinstance(tried, dict) else PARAMETER if PARAMETER.keys() & point.keys() else point
        if point.keys() == names.keys() and POINT.is_fit(point):
            with suppress(_Taken, UsageError):
                config_id = queries.config_id(session, point_key(point), point)
                self._need_free(session, row.optuna_study_id, config_id)
                row.config_id = config_id
                session.flush()

    def _settle(self, session: Transaction, row: OptunaTrialRow) -> None:
        """A trial is finished. Of a point of a study of ours it is a trial of the search, too. Raises
        ValueError for a value that is no time."""
        row.worker_id = None
        ref = self._ref(session, row.optuna_study_id)
        if row.config_id is None:
            self._place(session, row, _params(row))
        if row.config_id is not None and ref is not None:
            config = session.get_one(ConfigRow, row.config_id)
            origin = str(_part(row, "user").get("origin", ORIGIN))
            find_or_add_trial(session, ref, config.key, config.point, _measured(row), origin)
        self._claimed.pop(row.id, None)

    # ---- trials: reading

    def get_trial(self, trial_id: int) -> FrozenTrial:
        for trial in self._trials(OptunaTrialRow.id == trial_id):
            return trial
        raise KeyError(f"no trial of id {trial_id}")

    def trial_of(self, study_name: str, key: str) -> FrozenTrial:
        """The trial of a config. Raises KeyError if there is none."""
        of_config = OptunaTrialRow.optuna_study_id == self.get_study_id_from_name(study_name)
        for trial in self._trials(of_config, ConfigRow.key == key):
            return trial
        raise KeyError(f"no trial of {key}")

    def _trials(self, *which: ColumnElement[bool]) -> list[FrozenTrial]:
        with self._lock, self._database.reading() as session:
            return list(self._frozen(session.execute(_ROWS.where(*which)).all()).values())

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        with self._database.reading() as session:
            found = queries.find(session, OptunaTrialRow, optuna_study_id=study_id, number=trial_number)
        if found is None:
            raise KeyError(f"no trial {trial_number} in a study of id {study_id}")
        return found

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        wanted = [state for state in TrialState if states is None or state in states]
        with self._lock:
            if {TrialState.RUNNING, TrialState.WAITING}.issuperset(wanted):  # by an index, as each `ask` does
                self.get_study_name_from_id(study_id)  # raises KeyError if it is not there
                are_wanted = OptunaTrialRow.state.in_([state.name for state in wanted])
                trials = self._trials(OptunaTrialRow.optuna_study_id == study_id, are_wanted)
            else:
                trials = [trial for trial in self._all(study_id) if trial.state in wanted]
        return copy.deepcopy(trials) if deepcopy else trials

    def _all(self, study_id: int) -> list[FrozenTrial]:
        """All trials of a study, by number. Finished ones are read once, unless something of them changed: a
        final condemned one, or somebody deleted one."""
        known = self._known.setdefault(study_id, {})
        with self._database.reading() as session:
            owned = self._study(session, study_id).study_id
            is_numbered = owned is None or not optuna_rows.unnumbered(session, study_id, owned)
        if owned is not None and not is_numbered:
            with self._database.writing() as session:
                optuna_rows.adopt(session, study_id, owned)
        found: list[Any] = []
        with self._database.reading() as session:
            query = _STATES.where(OptunaTrialRow.optuna_study_id == study_id)
            states = {row[0]: row for row in session.execute(query)}
            kept = {number for number, row in states.items() if number in known and known[number][0] == row}
            for ids in queries.chunks(states.keys() - kept):
                found += session.execute(_ROWS.where(OptunaTrialRow.id.in_(ids)))
        trials = self._frozen(found)
        if self._known.get(study_id) is not known:  # a parameter has a new value: all are made anew
            return self._all(study_id)
        finished = (number for number, row in states.items() if row.state in FINISHED)
        known.update({n: (states[n], trials.get(n)) for n in finished if n not in kept})
        every = (known[number][1] if number in kept else trials.get(number) for number in states)
        return [trial for trial in every if trial is not None]

    def _learn(self, found: Iterable[Any]) -> None:
        """Take in the values that parameters have in studies of ours. Optuna wants the same choices in all
        trials of a study: after new ones all are made anew."""
        for row, study_id, _, config in found:
            if study_id is None or config is None or not isinstance(config.point, dict):
                continue
            space = self._spaces.setdefault(row.optuna_study_id, {})
            for name, value in config.point.items():
                if name not in space:
                    given = PARAMETER[name].values if name in PARAMETER else ()
                    space[name] = CategoricalDistribution(tuple(dict.fromkeys((*given, value))))
                elif value not in space[name].choices:
                    space[name] = CategoricalDistribution(_sorted({*space[name].choices, value}))
                else:
                    continue
                self._known.pop(row.optuna_study_id, None)

    def _frozen(self, found: Iterable[Any]) -> dict[int, FrozenTrial]:
        """The trials of rows, by id, without deleted and damaged ones."""
        kept = [one for one in found if not _is_deleted(*one)]
        self._learn(kept)
        return dict(self._store.bad_rows.readable(kept, self._one))

    def _one(
        self, row: OptunaTrialRow, study_id: int | None, stored: TrialRow | None, config: ConfigRow | None
    ) -> tuple[int, FrozenTrial]:
        rows.check(row)
        state, values, user = TrialState[row.state], row.facts.get("values"), _part(row, "user")
        params = _params(row)
        distributions: dict[str, BaseDistribution] = {
            name: _distribution(text) for name, (_, text) in _part(row, "params").items()
        }
        if study_id is not None and config is not None:
            params = dict(rows.check_config(row, config).point)
            space = self._spaces[row.optuna_study_id]
            distributions = {name: space[name] for name in params}
        if stored is not None:
            record = rows.trial_record(stored, config)
            values = [record.measurement.time_us] if record.measurement.is_ok else None
            is_pruned = state is TrialState.PRUNED and values is None
            state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE if values else TrialState.FAIL
            user = {**_attributes(record), **user}
        steps = {int(step): value for step, value in _part(row, "steps").items()}
        return row.id, FrozenTrial(
            row.number, state, None, _local(row.began_at), _local(row.ended_at), params, distributions,
            user, _part(row, "system"), steps, row.id, values=values,
        )  # fmt: skip


class FollowedStudy(optuna.Study):
    """The study of a search that runs, for callbacks: `stop` ends the search."""

    def __init__(self, storage: OptunaStorage, study: StudyRef, on_stop: Callable[[], None]) -> None:
        super().__init__(optuna_rows.study_name(study), storage)
        self._on_stop = on_stop

    def stop(self) -> None:
        self._on_stop()


def _end(workers: list[leases.Worker], store: Store | None) -> None:
    while workers:
        workers.pop().close()
    if store is not None:
        store.close()


def _part(row: OptunaTrialRow | OptunaStudyRow, name: str) -> dict[str, Any]:
    return dict(row.facts.get(name, {}))


def _add(row: OptunaTrialRow | OptunaStudyRow, part: str, key: str, value: Any) -> None:
    row.facts = {**row.facts, part: {**_part(row, part), key: value}}


def _all_stored(distributions: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as a row has them: the value as Optuna counts, and how it is distributed."""
    return {
        name: [one.to_internal_repr(params[name]), distribution_to_json(one)]
        for name, one in distributions.items()
    }


def _params(row: OptunaTrialRow) -> dict[str, Any]:
    found = _part(row, "params").items()
    return {name: _distribution(text).to_external_repr(value) for name, (value, text) in found}


def _sorted(values: Iterable[Any]) -> tuple[Any, ...]:
    """Numbers, then words."""
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def _is_deleted(
    row: OptunaTrialRow, study_id: int | None, stored: TrialRow | None, _config: ConfigRow | None
) -> bool:
    """Whether somebody deleted the result of a config."""
    is_autotune = study_id is not None and row.config_id is not None
    return is_autotune and row.state in FINISHED and stored is None


def _measured(row: OptunaTrialRow) -> Measurement:
    """What somebody told of a point."""
    user = _part(row, "user")
    if row.state == optuna_rows.COMPLETE:
        time_us: Any = (row.facts.get("values") or [None])[0]
        if not is_time(time_us):
            raise ValueError(f"{time_us} is no time: tell one in us, finite and above 0, or that it failed")
        return Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,))
    named = str(user.get("outcome", Outcome.FAILED))
    outcome = Outcome(named) if named in {*Outcome} - {Outcome.OK} else Outcome.FAILED
    return Measurement(outcome, reason=str(user.get("reason", f"told as {row.state}")))


def _attributes(record: TrialRecord) -> dict[str, Any]:
    """The user attributes of a stored trial."""
    facts = record.measurement.to_dict()
    stated = {name: facts[name] for name in _FACTS if facts[name] not in (None, "")}
    return {TRIAL_ID: record.id, "origin": record.origin, **stated}


def _local(timestamp: datetime | None) -> datetime | None:
    """As Optuna has moments: of this machine's clock, without saying so."""
    return None if timestamp is None else timestamp.astimezone().replace(tzinfo=None)
