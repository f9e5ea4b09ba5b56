"""The store: the only place that opens database sessions. Records go in, records come out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine, Select, bindparam, func, select, true, update
from sqlalchemy.orm import Session, aliased

from ..facts.accuracy_class import STRICT
from ..facts.device import Environment, names_for
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import POLICY_VERSION, CachePolicy, Failure, Measurement, Outcome
from ..facts.other_problem import is_external, problem_of, untyped
from ..files.errors import DuplicateTrial, StoreError, UsageError
from ..files.words import LARGEST, command, option
from ..kernel import same_code
from ..kernel.config import Value
from ..kernel.templates import accuracy_of, is_alike
from ..kernel.where import ANY, Where
from ..target import Baseline, read_key
from . import connect, merging, optuna_rows, queries, read_only, rows, schema, this_process, trial_rows
from .artifacts import Artifacts
from .builds import Builds
from .claims import Claims
from .database import Closing, Database, each_retried
from .models import (
    BaselineRow,
    BatchTimeRow,
    BiasTimeRow,
    ComparisonRow,
    ConfigRow,
    CublasTimeRow,
    EnvironmentRow,
    FinalRow,
    KernelRow,
    RunRow,
    SearchRow,
    StudyRow,
    TrialRow,
    utc_now,
)
from .queue import Queue
from .records import (
    EVER,
    ComparisonRecord,
    Final,
    FinalEntry,
    Period,
    RunRecord,
    SearchRecord,
    StudyRef,
    StudySummary,
    TrialColumns,
    TrialFacts,
    TrialRecord,
    TriedPoint,
)

_KILLED = [o.value for o in (Outcome.FAULTED, Outcome.TIMED_OUT, Outcome.COMPILE_CRASHED)]
_FINALS_AT_ONCE = 200  # studies whose finals are read
T = TypeVar("T")
DEFAULT_TIMEOUT_S = 30.0  # how long a writer waits for another before it fails


@each_retried("merge")
class Store(Closing):
    """Every trial ever measured, in one database that several processes may write at once.

    Each method is one transaction: when it returns, its writes survive the end of the process (`connect` says
    what survives power loss). Methods raise StoreError if the database is locked for longer than `timeout_s`,
    damaged, read-only or full. They wait for a server that goes away while this is open
    (database.RECONNECT_S). Use it as a context manager or close it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading, self._writing = database.reading, database.writing
        self.bad_rows = database.bad_rows
        self._config_keys: dict[int, str] = {}

    @classmethod
    def open(
        cls, path_or_url: str | Path, *, timeout_s: float = DEFAULT_TIMEOUT_S, is_read_only: bool = False
    ) -> Store:
        """Open a database, creating it if the file is missing and migrating it if it is older. With
        `is_read_only` a read-only file is opened too, and read as it is.

        A path names a SQLite file; a SQLAlchemy URL may name one, or a PostgreSQL database. Raises
        StoreError for anything else, if this is not an autotune database, or if a newer autotune wrote it.
        """
        url = connect.parse_url(path_or_url)
        if is_read_only and not read_only.may_be_written(url):
            return cls(Database(url, read_only.connect(url, timeout_s)))
        connect.check_locks(url)
        connect.make_file(url)
        engine = connect.connect(url, timeout_s)
        try:
            with connect.explain_errors(url):
                _prepare(engine, timeout_s)
        except StoreError:
            engine.dispose()
            raise
        return cls(Database(url, engine))

    @classmethod
    def open_existing(cls, path_or_url: str | Path) -> Store:
        """One to read from. Raises StoreError, also for a missing file, instead of making an empty one."""
        if not connect.exists(path_or_url):
            name = connect.shown(str(path_or_url))
            raise StoreError(
                f"no database {name}; run {command('search')} first, or name it with {option('db')}"
            )
        return cls.open(path_or_url, is_read_only=True)

    def close(self) -> None:
        self._database.close()

    def tell_when_away(self, tell: Callable[[str], None]) -> None:
        """Call this with one sentence when a server goes away, before waiting for it."""
        self._database.on_away = tell

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of this database, also for Optuna."""
        return self._database.url.render_as_string(hide_password=False)

    def claims(self, max_error: float | None = None) -> Claims:
        """Join the work on this database as one search."""
        return Claims(self._database, max_error)

    def artifacts(self) -> Artifacts:
        """The signed tables of this database, and who may ask for them."""
        return Artifacts(self._database)

    def queue(self) -> Queue:
        """The requests and workers of a service on this database."""
        return Queue(self._database)

    def builds(self) -> Builds:
        """Kernels that are compiled for others."""
        return Builds(self._database)

    def merge(self, other: Store, on_page: merging.OnPage = lambda done, total: None) -> merging.Merged:
        """Copy all that another database holds; what is there stays. `on_page` hears how many of how many
        trials are done. It may be killed at any moment, and repeated (merging.py). Rows that cannot be read
        are named by `other.bad_rows`. Raises UsageError if both are the same database, StoreError."""
        if connect.is_same(self._database.url, other._database.url):
            raise UsageError(f"{connect.place(self._database.url)} is that database itself; name another one")

        def study_of(ref: StudyRef, created_at: datetime) -> int:
            conditions = (ref.environment, ref.source_hash, ref.compiler, ref.gemm)
            return self.study(*conditions, ref.policy, ref.policy_version, created_at).id

        return merging.Merge(other._database, self._database, study_of).run(on_page)

    # ---- studies

    def study(
        self,
        environment: Environment,
        source_hash: str,
        compiler: str,
        gemm: Gemm,
        policy: CachePolicy = CachePolicy.COLD,
        policy_version: int = POLICY_VERSION,
        created_at: datetime | None = None,
    ) -> StudyRef:
        """The study of this problem under exactly these conditions: found, or made, now or at a moment.

        Sources with the same code share one, under the hash of the oldest (kernel/same_code.py). If others of
        them have their own studies, from before that was known, their trials are copied into this one, except
        for configs that it has. Their studies stay, since an older version of autotune continues with them.
        """
        sources = same_code.equivalents(source_hash)
        source_hash = sources[0]
        with self._writing() as session:
            environment_id = _environment_id(session, environment)
            kernel_id, _ = queries.find_or_add(session, KernelRow, source_hash=source_hash, compiler=compiler)
            conditions = {
                "environment_id": environment_id, "policy": policy.value, "policy_version": policy_version,
                **rows.gemm_columns(gemm),
            }  # fmt: skip
            study_id, _ = queries.find_or_add(
                session, StudyRow, {"created_at": created_at or utc_now()}, kernel_id=kernel_id, **conditions
            )
            if len(sources) > 1:
                others = select(StudyRow.id).filter_by(**conditions).join(KernelRow)
                is_equivalent = KernelRow.source_hash.in_(sources[1:]) & (KernelRow.compiler == compiler)
                theirs = TrialRow.study_id.in_(others.where(is_equivalent))
                queries.copy_trials(session, theirs, study_id)
        return StudyRef(study_id, environment, source_hash, compiler, gemm, policy, policy_version)

    def studies(self, gemms: Collection[Gemm] = ()) -> list[StudySummary]:
        """All studies with what they hold, or those of some problems, oldest first."""
        with self._reading() as session:
            for orphan in queries.orphans(session):
                self.bad_rows.add(orphan)
            every = queries.STUDIES.order_by(StudyRow.id)
            read = session.readable(every, lambda *row: (row[0], rows.study_ref(*row)))
            refs = [one for one in read if not gemms or one[1].gemm in gemms]
            within = {ref.id for _, ref in refs} if len(refs) <= queries.MOST_NAMED and gemms else None
            seen = queries.trial_totals(session, within)
            summaries = []
            for row, ref in refs:
                counts, latest_at = seen.get(ref.id, (Counter(), None))
                summaries.append(StudySummary(ref, counts, max(row.created_at, latest_at or row.created_at)))
            return summaries

    def similar_studies(self, study: StudyRef, most: int) -> list[StudyRef]:
        """Studies of other shapes with the same kernel code and policy on GPUs of the same name, at most this
        many, the most similar shape first: sources for a new search's first points."""
        names = tuple(rows.gemm_columns(study.gemm))
        query = _related_studies(study).with_only_columns(
            StudyRow.id, *(getattr(StudyRow, name) for name in names)
        )
        ranked = sorted(
            (_distance(gemm, study.gemm), study_id)
            for study_id, gemm in self.read_all(query, rows.study_gemm)
            if problem_of(study.source_hash, gemm) != study.gemm
        )
        each = (self.read_all(queries.STUDIES.where(StudyRow.id == at), rows.study_ref) for _, at in ranked)
        return list(islice(chain.from_iterable(each), most))  # of hundreds few are read completely

    def sibling_studies(self, study: StudyRef) -> list[StudyRef]:
        """Studies of the same problem with the same kernel code and policy on other GPUs of the same name
        and compute capability, or under another driver, oldest first; what was recorded is a kind of its own.
        """
        own = study.environment
        query = _related_studies(study).filter_by(**rows.gemm_columns(study.gemm)).order_by(StudyRow.id)
        return [
            ref
            for ref in self.read_all(query, rows.study_ref)
            if ref.environment.compute_capability == own.compute_capability
            and ref.environment.recorded_on == own.recorded_on
        ]

    def compiled_otherwise(self, study: StudyRef) -> list[StudyRef]:
        """Studies of the same problem and policy on the same GPU under the same driver, for which another
        compiler, or this one from another source, made the kernels, newest first. cuBLAS may be another."""
        matching = rows.environment_columns(study.environment)
        del matching["nvrtc_version"], matching["cublas_version"]
        conditions = {"policy": study.policy.value, "policy_version": study.policy_version}
        same = (getattr(EnvironmentRow, name) == value for name, value in matching.items())
        query = queries.STUDIES.where(StudyRow.id != study.id, *same)
        query = query.filter_by(**conditions, **rows.gemm_columns(study.gemm))
        others = self.read_all(query.order_by(StudyRow.id.desc()), rows.study_ref)
        return [other for other in others if is_alike(other.source_hash, study.source_hash)]

    def environments(self, max_error: float | None = None) -> list[Environment]:
        """Those with an ok trial that is accurate to `max_error`, the most recently measured first."""
        return list(dict.fromkeys(ref.environment for ref in self.measured_studies(max_error)))

    def latest_studies(
        self,
        environment: Environment,
        policy: CachePolicy = CachePolicy.COLD,
        max_error: float | None = None,
        accuracy: str = STRICT,
    ) -> list[StudyRef]:
        """The studies of an export: of GPUs of this name (and of the same recording, if it is one), the
        kernel code of the newest ok trial that is accurate to `max_error`; for each problem the newest study
        with such a trial. Sorted by problem."""
        found = by_problem(self.measured_studies(max_error), environment, policy, accuracy)
        return [found[gemm][0] for gemm in sorted(found)]

    def measured_studies(self, max_error: float | None) -> list[StudyRef]:
        """Of our kernels, with an ok trial that is accurate to `max_error`, the last measured first."""
        latest = func.max(TrialRow.created_at).label("at"), func.max(TrialRow.id).label("id")
        known = select(TrialRow.study_id, *latest).where(queries.IS_OK, queries.is_accurate(max_error))
        seen = known.group_by(TrialRow.study_id).subquery()
        query = queries.STUDIES.join(seen, seen.c.study_id == StudyRow.id)
        found = self.read_all(query.order_by(seen.c.at.desc(), seen.c.id.desc()), rows.study_ref)
        return [ref for ref in found if not is_external(ref.source_hash)]

    def read_all(self, query: Select[*tuple[Any, ...]], read: Callable[..., T]) -> list[T]:
        """What is read of each row, in one transaction, without damaged ones."""
        with self._reading() as session:
            return list(session.readable(query, read))

    # ---- trials

    def add_trial(
        self, study: StudyRef, key: str, point: Mapping[str, Value], measurement: Measurement, origin: str
    ) -> int:
        """Store one trial; returns its id, larger than all before. Raises DuplicateTrial if the study has one
        of this point already. An error ratio that is NaN is stored as infinity: it is not a number in SQL."""
        _check_times(key, measurement)
        with self._writing() as session:
            trial_id, is_new = find_or_add_trial(session, study, key, point, measurement, origin)
            if is_new:
                return trial_id
        raise DuplicateTrial(f"{study.gemm} has a trial of {key} already; skip it")

    def add_trials(
        self, study: StudyRef, trials: Mapping[str, tuple[Mapping[str, Value], Measurement]], origin: str
    ) -> None:
        """Store trials by key, each with its point, all at once. Those that the study has already stay."""
        for key, (_, measurement) in trials.items():
            _check_times(key, measurement)
        with self._writing() as session:
            for key, (point, measurement) in trials.items():
                find_or_add_trial(session, study, key, point, measurement, origin)

    def codes(self, study: StudyRef) -> dict[str, tuple[dict[str, Value], str | None]]:
        """By key the point and the `code_hash` of each trial that had a kernel, the fastest first, failures
        last. What a GPU had no memory for says nothing of the kernel."""
        query = (
            select(ConfigRow.key, ConfigRow.point, TrialRow.code_hash)
            .join(TrialRow)
            .where(TrialRow.study_id == study.id, queries.IS_OK | TrialRow.code_hash.is_not(None))
            .where(TrialRow.outcome != Outcome.OUT_OF_MEMORY.value)
            .order_by(~queries.IS_OK, TrialRow.time_us, TrialRow.id)
        )
        with self._reading() as session:
            return {
                key: (point, code_hash)
                for key, point, code_hash in session.execute(query)
                if isinstance(key, str) and isinstance(point, dict)  # the row is not damaged
            }

    def copy_trials(self, study: StudyRef, keys: Collection[str], to: StudyRef) -> None:
        """Copy these trials of a study into another, as they are, except for configs that it has."""
        with self._writing() as session:
            for some in queries.chunks(keys):
                configs = select(ConfigRow.id).where(ConfigRow.key.in_(some))
                which = (TrialRow.study_id == study.id) & TrialRow.config_id.in_(configs)
                queries.copy_trials(session, which, to.id)

    def invalidate(self, study: StudyRef, key: str, failure: Failure) -> None:
        """A trial that was ok is not after all: from now on it has this outcome and no time."""
        with self._writing() as session:
            if (config_id := queries.find(session, ConfigRow, key=key)) is not None:
                session.execute(
                    update(TrialRow)
                    .where(TrialRow.study_id == study.id, TrialRow.config_id == config_id)
                    .values(outcome=failure.outcome.value, reason=failure.reason, time_us=None)
                )
                optuna_rows.end(session, study.id, config_id, is_ok=False)

    def crash_points(self, study: StudyRef) -> list[dict[str, Value]]:
        """Points that killed a GPU worker or the compiler in other studies of this kernel code on GPUs of
        this name: they must not run again."""
        joined = select(ConfigRow, ConfigRow).join(TrialRow).join(StudyRow).join(EnvironmentRow)
        query = joined.join(KernelRow).where(
            StudyRow.id != study.id,
            EnvironmentRow.gpu_name == study.environment.gpu_name,
            KernelRow.source_hash.in_(same_code.equivalents(study.source_hash)),
            TrialRow.outcome.in_(_KILLED),
        )
        return [dict(config.point) for config in self.read_all(query, rows.check_config)]

    def trials(self, study: StudyRef, *, is_failed: bool = False) -> list[TrialRecord]:
        """All trials of a study in the order they were stored; or those that are not ok."""
        with self._reading() as session:
            found = trial_rows.records(session, *_which(study, is_failed=is_failed))
            return [record for _, record in found]

    def csv_lines(
        self, studies: Mapping[StudyRef, Mapping[str, Any]], names: Sequence[str], *, is_failed: bool = False
    ) -> Iterator[str]:
        """Trials of several studies as lines of a table, columns of these names: first those that are given
        with a study, then of `TrialRecord.flat`."""
        configs: dict[int, str] = {}
        for study, first in studies.items():
            which = _which(study, is_failed=is_failed)
            with self._reading() as session:
                yield from trial_rows.csv_lines(session, first, names, configs, *which)

    def tried(self, study: StudyRef) -> Iterator[list[TriedPoint]]:
        """What a search takes up of the trials of a study, in their order, thousands at a time."""
        with self._reading() as session:
            coming = trial_rows.tried(session, study.id)
            yield from iter(lambda: list(islice(coming, queries.MOST_NAMED)), [])

    def facts(self, study: StudyRef) -> Iterator[TrialFacts]:
        """In the order they were stored, a few at a time, as far as files of others hold them."""
        with self._reading() as session:
            yield from trial_rows.facts(session, study.id)

    def curve(self, study: StudyRef) -> Iterator[TrialColumns]:
        """In the order they were stored, a few at a time, without those that cannot be read."""
        with self._reading() as session:
            yield from trial_rows.curve(session, study.id)

    def ids(self, study: StudyRef, keys: Collection[str]) -> list[int]:
        """Of the trials of these points, as far as they were tried."""
        configs = select(ConfigRow.id).where(ConfigRow.key.in_(keys))
        with self._reading() as session:
            own = select(TrialRow.id).where(TrialRow.study_id == study.id, TrialRow.config_id.in_(configs))
            return list(session.scalars(own))

    def trials_by_id(self, study: StudyRef, ids: Sequence[int]) -> list[TrialRecord]:
        """These trials of a study, in the order they were stored."""
        with self._reading() as session:
            own = partial(trial_rows.records, session, TrialRow.study_id == study.id)
            return [one for some in queries.chunks(ids) for _, one in own(TrialRow.id.in_(some))]

    def trial(self, study: StudyRef, key: str) -> TrialRecord | None:
        """The trial of this point; None if it was not tried."""
        query = queries.TRIALS.where(TrialRow.study_id == study.id, ConfigRow.key == key)
        return next(iter(self.read_all(query, rows.trial_record)), None)

    def find_trial(self, trial_id: int) -> tuple[StudyRef, TrialRecord] | None:
        """The trial with this id and the study that it belongs to; None if there is none."""
        if not 0 <= trial_id <= LARGEST:
            return None
        its_study = select(TrialRow.study_id).where(TrialRow.id == trial_id)
        refs = self.read_all(queries.STUDIES.where(StudyRow.id.in_(its_study)), rows.study_ref)
        found = refs and self.trials_by_id(refs[0], [trial_id])
        return (refs[0], found[0]) if found else None

    def best(
        self,
        study: StudyRef,
        n: int = 1,
        max_error: float | None = None,
        but_of: Collection[str] = (),
        where: Where = ANY,
        period: Period = EVER,
    ) -> list[TrialRecord]:
        """The n fastest ok trials of a period that obey, accurate to `max_error` where that is given.
        `but_of`: origins of trials that do not count."""
        with self._reading() as session:
            return queries.fastest(session, study.id, n, max_error, but_of, where, period)

    def latest(
        self, studies: Collection[StudyRef], n: int, *, is_failed: bool = False
    ) -> list[tuple[StudyRef, TrialRecord]]:
        """The n newest trials of these studies, or those that are not ok, oldest of them first."""
        by_id = {study.id: study for study in studies}
        # an expression: by an index all would be sorted, by their ids from the last one few are looked at
        ids: Any = bindparam("ids", [*by_id], expanding=True, literal_execute=True)  # no parameter of each
        query = queries.TRIALS.where((TrialRow.study_id + 0).in_(ids)).order_by(TrialRow.id.desc())
        if is_failed:
            query = query.where(~queries.IS_OK)
        with self._reading() as session:
            found = queries.first(
                n,
                lambda most: session.execute(query.limit(most)).all(),
                lambda found: list(session.readable(found, rows.trial_of_study)),
            )
            return [(by_id[study_id], record) for study_id, record in found[::-1]]

    def keys(self, study: StudyRef, within: Collection[str] | None = None) -> set[str]:
        """Keys of all points tried, or of those among some, including failures: none is proposed again. They
        include those of damaged trials, as far as they can be read."""
        some = (ConfigRow.key.in_(keys) for keys in queries.chunks(within or ()))
        return self._keys(study, [true()] if within is None else some)

    def damaged_keys(self, study: StudyRef) -> set[str]:
        """Keys of the trials that `tried` named as damaged, as far as they can be read."""
        bad = [
            (model, [one.id for one in self.bad_rows if one.table == model.__tablename__])
            for model in (TrialRow, ConfigRow)
        ]
        return self._keys(study, (model.id.in_(ids) for model, all in bad for ids in queries.chunks(all)))

    def _keys(self, study: StudyRef, which: Iterable[ColumnElement[bool]]) -> set[str]:
        query = select(ConfigRow.key).join(TrialRow).where(TrialRow.study_id == study.id)
        with self._reading() as session:
            return {k for one in which for k in session.scalars(query.where(one)) if isinstance(k, str)}

    def times(
        self, study: StudyRef, max_error: float | None = None, most: int | None = None, where: Where = ANY
    ) -> dict[str, float]:
        """As `timed`, without the origins."""
        return {key: time_us for key, (time_us, _) in self.timed(study, max_error, most, where).items()}

    def timed(
        self, study: StudyRef, max_error: float | None = None, most: int | None = None, where: Where = ANY
    ) -> dict[str, tuple[float, str]]:
        """Time in us and origin by key of every ok trial that is accurate to `max_error` and obeys, or of the
        fastest: the input of a model. Times of a single launch that was mostly latency are left out."""
        query = queries.timed(max_error, where.conditions)
        with self._reading() as session:

            def read(found: Sequence[Any]) -> list[tuple[str, tuple[float, str]]]:
                keys = self._keys_of(session, {row.config_id for row in found})
                fit = dict(self.bad_rows.readable(found, partial(rows.timed, keys)))
                return [(k, one) for k, one in fit.items() if k and (not where or where.holds(read_key(k)))]

            def fetch(num: int) -> Sequence[Any]:
                return session.execute(query, {"its_study": study.id, "most": num}).all()

            return dict(queries.first(LARGEST if most is None else most, fetch, read))

    def _keys_of(self, session: Session, ids: Collection[int]) -> Mapping[int, str]:
        """Keys of configs by id, read once, as they never change; "" for what is damaged, which is named."""
        for some in queries.chunks(ids - self._config_keys.keys()):
            configs = session.execute(select(ConfigRow, ConfigRow).where(ConfigRow.id.in_(some))).all()
            self._config_keys.update((config.id, "") for config, _ in configs)
            readable = self.bad_rows.readable(configs, rows.check_config)
            self._config_keys.update((config.id, config.key) for config in readable)
        return self._config_keys

    def has_trial_of(self, study: StudyRef, origin: str) -> bool:
        """Whether any trial of a study has this origin."""
        query = select(TrialRow.id).where(TrialRow.study_id == study.id, TrialRow.origin == origin).limit(1)
        with self._reading() as session:
            return session.scalar(query) is not None

    # ---- cuBLAS

    def add_baseline(self, study: StudyRef, baseline: Baseline) -> None:
        """Store a timing of cuBLAS. Earlier ones stay in the database; the newest counts."""
        with self._writing() as session:
            now = queries.timestamp(session, BaselineRow, study.id, utc_now())
            session.add(rows.baseline_row(study.id, baseline, now))

    def baseline(self, study: StudyRef) -> Baseline | None:
        """The newest timing of cuBLAS that is readable; None if there was none yet."""
        return self.baselines([study]).get(study.id)

    def baselines(self, studies: Iterable[StudyRef]) -> dict[int, Baseline]:
        """The same of many, by their ids."""
        found: dict[int, Baseline] = {}
        with self._reading() as session:
            for some in queries.chunks(study.id for study in studies):
                for row in session.scalars(queries.BASELINES, {"ids": some}):
                    if row.study_id not in found:
                        found.update((row.study_id, one) for one in session.readable([(row,)], rows.baseline))
        return found

    def cublas_us(self, study: StudyRef) -> float | None:
        """Its time; None where it is absent or was not timed."""
        found = self.baseline(study)
        return None if found is None else found.time_us

    def add_search(self, study: StudyRef, sampler: str, seed: int, policy: Mapping[str, float]) -> None:
        """Store the options of a search that begins, unless the newest one of the study had the same."""
        with self._writing() as session:
            its = select(SearchRow).where(SearchRow.study_id == study.id)
            latest = session.scalar(its.order_by(SearchRow.id.desc()).limit(1))
            known = {"sampler": sampler, "seed": seed, "policy": dict(policy)}
            if latest is None or any(getattr(latest, name) != value for name, value in known.items()):
                session.add(SearchRow(study_id=study.id, created_at=utc_now(), **known))

    def searches(self, study: StudyRef) -> list[SearchRecord]:
        """The options of the searches of a study, oldest first, as far as databases store them."""
        its = select(SearchRow).where(SearchRow.study_id == study.id)
        return self.read_all(its.order_by(SearchRow.id), rows.search_record)

    # ---- runs

    def begin_run(self, environment: Environment, shapes: Sequence[str]) -> str:
        """Store that this process begins to search these shapes; returns the name of the run."""
        this, name = this_process, this_process.my_name()
        run = RunRow(
            name=name, host=this.host(), login=this.login(), command=this.command(), shapes=list(shapes),
            began_at=utc_now(), versions=this.versions(environment.gpu_name),
        )  # fmt: skip
        with self._writing() as session:
            run.environment_id = _environment_id(session, environment)
            session.add(run)
        return name

    def end_run(self, name: str, num_trials: int) -> None:
        """Store that a run has ended in order, and how many trials it stored."""
        with self._writing() as session:
            ended = {"num_trials": num_trials, "ended_at": utc_now()}
            session.execute(update(RunRow).where(RunRow.name == name).values(ended))

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first, as far as databases store them."""
        query = select(RunRow, EnvironmentRow).join(EnvironmentRow, isouter=True)
        return self.read_all(query.order_by(RunRow.began_at, RunRow.id), rows.run_record)

    def forget(self, study: StudyRef) -> None:
        """Delete a study with its trials, finals, comparisons, searches and times of cuBLAS."""
        with self._writing() as session:
            optuna_rows.delete_study(session, optuna_rows.optuna_study_id(session, study))

    def add_cublas_times(
        self,
        environment: Environment,
        policy: CachePolicy,
        times_us: Mapping[Gemm, float],
        *,
        has_bias: bool = False,
    ) -> None:
        """Store times of cuBLAS on products and batches that nobody searched, or of cuBLAS as it adds a bias.
        Those that are there stay."""
        with self._writing() as session:
            common = {"policy": policy.value, "policy_version": POLICY_VERSION}
            common["environment_id"] = _environment_id(session, environment)
            for gemm, time_us in times_us.items():
                row = _time_row(has_bias, gemm.is_batched)
                its = {name: getattr(gemm, name) for name in (*row.extents, "trans_a", "trans_b")}
                rest = {"time_us": time_us, "created_at": utc_now()}
                queries.find_or_add(session, row, rest, **common, **its)

    def cublas_times(
        self,
        environment: Environment,
        policy: CachePolicy,
        *,
        has_bias: bool = False,
        is_batched: bool = False,
    ) -> dict[Gemm, float]:
        """Times in us of the same cuBLAS on GPUs of this name, as `add_cublas_times` stores them: on single
        products, or on batches."""
        row = _time_row(has_bias, is_batched)
        same = picked(environment, "gpu_name recorded_on cublas_version")
        query = select(row).join(EnvironmentRow).order_by(row.id)
        query = query.filter_by(policy=policy.value, policy_version=POLICY_VERSION, **same)
        return dict(self.read_all(query, rows.cublas_time))

    # ---- comparisons

    def add_comparison(self, study: StudyRef, comparison: ComparisonRecord) -> None:
        """Store two configs' samples of the same rounds. Both have trials in this study."""
        keys = {key: select(ConfigRow.id).where(ConfigRow.key == key) for key in comparison.keys}
        with self._writing() as session:
            first_id, second_id = (session.execute(keys[key]).scalar_one() for key in comparison.keys)
            first_us, second_us = map(list, comparison.samples_us)
            session.add(
                ComparisonRow(
                    study_id=study.id, first_id=first_id, second_id=second_id, first_us=first_us,
                    second_us=second_us, winner=comparison.winner, created_at=utc_now(),
                )
            )  # fmt: skip

    def comparisons(self, study: StudyRef) -> list[ComparisonRecord]:
        """All comparisons of a study in the order they were stored."""
        first, second = aliased(ConfigRow), aliased(ConfigRow)
        query = (
            select(ComparisonRow, first, second)
            .join(first, ComparisonRow.first_id == first.id, isouter=True)
            .join(second, ComparisonRow.second_id == second.id, isouter=True)
            .where(ComparisonRow.study_id == study.id)
        )
        return self.read_all(query.order_by(ComparisonRow.id), rows.comparison_record)

    # ---- finals

    def set_final(
        self,
        study: StudyRef,
        entries: Sequence[FinalEntry],
        baseline: Baseline | None = None,
        marks: Sequence[str] = (),
    ) -> None:
        """Store a final, with cuBLAS as timed in the same rounds and what disturbed them. The newest counts.
        Raises StoreError if the ranks are not 1, 2, ... in order."""
        if not entries or [e.rank for e in entries] != list(range(1, len(entries) + 1)):
            raise StoreError(f"the final of {study.gemm} needs entries of rank 1, 2, ... in this order")
        with self._writing() as session:
            now = queries.timestamp(session, BaselineRow, study.id, utc_now())
            final_now = queries.timestamp(session, FinalRow, study.id, utc_now())
            ids = [queries.config_id(session, entry.key, entry.point) for entry in entries]
            final = FinalRow(study_id=study.id, marks=list(marks), created_at=final_now)
            final.baseline = None if baseline is None else rows.baseline_row(study.id, baseline, now)
            final.entries = list(map(rows.final_entry_row, ids, entries))
            session.add(final)

    def final(
        self,
        study: StudyRef,
        max_error: float | None = None,
        where: Where = ANY,
        period: Period = EVER,
    ) -> Final | None:
        """The newest final of a period; None if there was none. With `max_error`, only entries whose error is
        at most so many times cuBLAS's, or unknown, of the newest final that has any. With conditions, only
        entries that obey; None if a faster trial that obeys was stored since: a later final, of points that
        do not, left it out."""
        return self.finals({study: where}, max_error, period).get(study.id)

    def finals(
        self, studies: Mapping[StudyRef, Where], max_error: float | None = None, period: Period = EVER
    ) -> dict[int, Final]:
        """The same of many, each with its own conditions, by their ids."""
        wheres, found = {study.id: where for study, where in studies.items()}, dict[int, Final]()
        with self._reading() as session:
            for some in queries.chunks(wheres, _FINALS_AT_ONCE):
                its = {study_id: wheres[study_id] for study_id in some}
                found |= queries.latest_finals(session, its, max_error, period)
        return found


def by_problem(
    measured: Iterable[StudyRef], environment: Environment, policy: CachePolicy, accuracy: str = STRICT
) -> dict[Gemm, list[StudyRef]]:
    """Those of `Store.latest_studies`, with the older ones behind the newest, of all `measured_studies`."""
    matching = (environment.gpu_name, environment.recorded_on, policy, POLICY_VERSION, accuracy)
    newest, found = "", dict[Gemm, list[StudyRef]]()
    for ref in measured:
        alike = ref.environment.gpu_name, ref.environment.recorded_on, ref.policy, ref.policy_version
        if (*alike, accuracy_of(ref.source_hash)) == matching:
            newest = newest or ref.source_hash
            if same_code.is_same(untyped(ref.source_hash), untyped(newest)):
                found.setdefault(ref.gemm, []).append(ref)
    return found


def _prepare(engine: Engine, timeout_s: float) -> None:
    """Refuse a foreign database before anything is written; then WAL, then the newest schema."""
    with engine.connect() as connection:
        is_current = schema.version(connection) == schema.NEWEST
    if engine.dialect.name == "sqlite":
        connect.enter_wal(engine, timeout_s)
    if is_current:
        return
    with connect.writer(engine).begin() as connection:
        connect.keep_others_out(connection)
        found = schema.version(connection)
        if found is None:
            schema.create(connection)
        elif found != schema.NEWEST:  # nobody else was faster
            schema.migrate(connection)


def _time_row(has_bias: bool, is_batched: bool) -> type[CublasTimeRow | BiasTimeRow | BatchTimeRow]:
    if is_batched:
        return BatchTimeRow
    return BiasTimeRow if has_bias else CublasTimeRow


def _environment_id(session: Session, environment: Environment) -> int:
    """The row of an environment, made if there is none."""
    return queries.find_or_add(session, EnvironmentRow, **rows.environment_columns(environment))[0]


def _which(study: StudyRef, *, is_failed: bool) -> list[ColumnElement[bool]]:
    return [TrialRow.study_id == study.id, *([~queries.IS_OK] if is_failed else [])]


def find_or_add_trial(
    session: Session,
    study: StudyRef,
    key: str,
    point: Mapping[str, Value],
    measurement: Measurement,
    origin: str,
) -> tuple[int, bool]:
    """The id of the study's trial of a point, and whether it is this one."""
    rest = {"origin": origin, "created_at": utc_now(), **rows.measurement_columns(measurement)}
    config_id = queries.config_id(session, key, point)
    trial_id, is_new = queries.find_or_add(session, TrialRow, rest, study_id=study.id, config_id=config_id)
    if is_new:
        optuna_rows.end(session, study.id, config_id, is_ok=measurement.is_ok)
    return trial_id, is_new


def _check_times(key: str, measurement: Measurement) -> None:
    """An ok trial has a time; no time is NaN, infinite or negative: such a number ruins every ranking."""
    times = [t for t in (measurement.time_us, *measurement.samples_us) if t is not None]
    if measurement.is_ok and measurement.time_us is None:
        raise StoreError(f"the trial of {key} is ok but has no time; the measurement is broken")
    if not all(math.isfinite(t) and t > 0 for t in times):
        raise StoreError(
            f"the trial of {key} has a time that is not finite and above 0: {times};"
            " the measurement is broken"
        )


def _related_studies(study: StudyRef) -> Select[StudyRow, EnvironmentRow, KernelRow]:
    """Others with the same kernel code and policy on GPUs of this name, or of one it is accepted as."""
    return queries.STUDIES.where(
        StudyRow.id != study.id,
        EnvironmentRow.gpu_name.in_(names_for(study.environment.gpu_name)),
        KernelRow.source_hash.in_(same_code.equivalents(study.source_hash)),
        StudyRow.policy == study.policy.value,
        StudyRow.policy_version == study.policy_version,
    )


def _distance(one: Gemm, other: Gemm) -> float:
    """Octaves between the extents and batches of two problems, a different layout counting four."""
    pairs = ((one.m, other.m), (one.n, other.n), (one.k, other.k), (one.batch, other.batch))
    log_ratio = sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in pairs)
    return log_ratio + 4.0 * (one.layout != other.layout)
