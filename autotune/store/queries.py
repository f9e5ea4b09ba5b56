"""The store's queries, and the few steps that several of its transactions share."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from ..facts.measurement import LATENT_US, Outcome
from ..files.errors import StoreError
from ..kernel.config import Value
from ..kernel.where import ANY, Condition, Where
from . import rows
from .bad_rows import BadRow
from .database import Transaction
from .models import (
    Base,
    BaselineRow,
    ComparisonRow,
    ConfigRow,
    EnvironmentRow,
    FinalEntryRow,
    FinalRow,
    KernelRow,
    SearchRow,
    StudyRow,
    TrialRow,
)
from .records import EVER, Final, FinalEntry, Period, TrialRecord

Trials = Select[TrialRow, ConfigRow]
T = TypeVar("T")
V = TypeVar("V", int, str)
MOST_NAMED = 5_000  # values in one statement

# Statements that take this are made once: SQLAlchemy takes longer to make one than to run it.
ITS_STUDY: Any = bindparam("its_study")
IS_OK = TrialRow.outcome == Outcome.OK.value
# Outer joins: a row with a dangling reference must be named, not vanish.
STUDIES = (
    select(StudyRow, EnvironmentRow, KernelRow)
    .join(EnvironmentRow, StudyRow.environment_id == EnvironmentRow.id, isouter=True)
    .join(KernelRow, StudyRow.kernel_id == KernelRow.id, isouter=True)
)
TRIALS: Trials = select(TrialRow, ConfigRow).join(ConfigRow, TrialRow.config_id == ConfigRow.id, isouter=True)


def is_accurate(max_error: float | None) -> ColumnElement[bool]:
    """Trials whose error is at most this factor times cuBLAS's, or unknown; all if the factor is None."""
    error = TrialRow.error_over_cublas
    return true() if max_error is None else error.is_(None) | (error <= max_error)


def may_match(where: Where) -> ColumnElement[bool]:
    """Trials of configs that may obey, as far as SQL sees that in their keys: by what a parameter is, or is
    not. One that an older kernel did not have is at its default."""
    key = "," + ConfigRow.key + ","
    conditions = []
    for name, relation, value in where.conditions:
        has_value, has_name = key.like(f"%,{name}={value},%"), key.like(f"%,{name}=%")
        if relation in ("=", "!="):
            conditions.append(has_value | ~has_name if relation == "=" else ~has_value)
    if not conditions:
        return true()
    return TrialRow.config_id.in_(select(ConfigRow.id).where(*conditions))


def insert(model: type[Base]) -> postgresql.Insert:
    """One that may say what to do where such a row is there: SQLite's compiler takes PostgreSQL's as well."""
    table: Any = model.__table__
    return postgresql.insert(table)


def chunks(values: Iterable[V], most: int | None = None) -> Iterator[list[V]]:
    """Values in ascending order, a few at a time: each that a statement names is a parameter, and the number
    of these is limited (SQLite: 32,766)."""
    ordered, most = sorted(values), most or MOST_NAMED
    return (ordered[begin : begin + most] for begin in range(0, len(ordered), most))


def copy_trials(session: Session, which: ColumnElement[bool], to: int) -> None:
    """Copy these trials into a study, except for configs that it has."""
    names = [column.name for column in TrialRow.__table__.columns if column.name != "id"]
    values = [literal(to) if name == "study_id" else getattr(TrialRow, name) for name in names]
    theirs = select(*values).where(which).order_by(TrialRow.id)
    session.execute(insert(TrialRow).from_select(names, theirs).on_conflict_do_nothing())


def _latest(model: type[BaselineRow | FinalRow]) -> tuple[ColumnElement[Any], ...]:
    """An order: what was merged from another database is stored later than it was made."""
    return model.created_at.desc(), model.id.desc()


_OF_THESE: Any = bindparam("ids", expanding=True)
BASELINES = select(BaselineRow).where(BaselineRow.study_id.in_(_OF_THESE)).order_by(*_latest(BaselineRow))
_FINALS = (
    select(FinalRow, BaselineRow)
    .join(BaselineRow, FinalRow.baseline_id == BaselineRow.id, isouter=True)
    .where(FinalRow.study_id.in_(_OF_THESE))
    .order_by(*_latest(FinalRow))
)


def timestamp(
    session: Session, model: type[BaselineRow | FinalRow], study_id: int, now: datetime
) -> datetime:
    """Now, or where the clock was set back, just after the newest row of the study: the next is to count."""
    latest = session.scalar(select(func.max(model.created_at)).where(model.study_id == study_id))
    return now if not isinstance(latest, datetime) else max(now, latest + timedelta(microseconds=1))


@cache
def _fastest(
    max_error: float | None,
    but_of: tuple[str, ...],
    conditions: tuple[Condition, ...],
    *,
    is_ever: bool,
) -> Trials:
    """Ids first: few trials are read with their configs, however many there are."""
    ids = select(TrialRow.id).where(
        TrialRow.study_id == ITS_STUDY, IS_OK, is_accurate(max_error), TrialRow.origin.not_in(but_of),
        may_match(Where(conditions)),
    )  # fmt: skip
    if not is_ever:
        since, until = (bindparam(name, type_=TrialRow.created_at.type) for name in Period._fields)
        ids = ids.where(TrialRow.created_at >= since, TrialRow.created_at <= until)
    by_time = ids.order_by(TrialRow.time_us, TrialRow.id).limit(bindparam("most"))
    return TRIALS.where(TrialRow.id.in_(by_time)).order_by(TrialRow.time_us, TrialRow.id)


@cache
def timed(max_error: float | None, conditions: tuple[Condition, ...]) -> Any:
    """As many accurate ok trials that may obey, the fastest first, but for those that were mostly latency."""
    return (
        select(TrialRow.id, TrialRow.config_id, TrialRow.outcome, TrialRow.time_us, TrialRow.origin)
        .where(TrialRow.study_id == ITS_STUDY, IS_OK, is_accurate(max_error))
        .where(~TrialRow.is_cut_short | (TrialRow.time_us >= LATENT_US), may_match(Where(conditions)))
        .order_by(TrialRow.time_us, TrialRow.id)
        .limit(bindparam("most"))
    )


def fastest(
    session: Transaction,
    study_id: int,
    n: int,
    max_error: float | None,
    but_of: Collection[str] = (),
    where: Where = ANY,
    period: Period = EVER,
) -> list[TrialRecord]:
    """The n fastest accurate ok trials that obey, without some origins; of equal ones the older first."""
    query = _fastest(max_error, tuple(but_of), where.conditions, is_ever=period == EVER)
    its = {"its_study": study_id, **({} if period == EVER else period._asdict())}
    return first(
        n,
        lambda most: session.execute(query, {**its, "most": most}).all(),
        lambda found: [r for r in session.readable(found, rows.trial_record) if where.holds(r.point)],
    )


def first(n: int, fetch: Callable[[int], Sequence[Any]], read: Callable[[Any], list[T]]) -> list[T]:
    """The first n that are read, of as many rows as it takes: damaged ones are in the way, or others."""
    most = n
    while True:
        found = fetch(most)
        kept = read(found)
        if len(kept) >= n or len(found) < most:
            return kept[:n]
        most *= 2


@cache
def _find(model: type[Base], names: tuple[str, ...]) -> Select[int]:
    return select(model.id).where(*(getattr(model, name) == bindparam(name) for name in names))


@cache
def _insert(model: type[Base]) -> Any:
    """Inserts a row, unless another writer has inserted it meanwhile; returns its id."""
    return insert(model).on_conflict_do_nothing().returning(model.__table__.c.id)


def find(session: Session, model: type[Base], **columns: Any) -> int | None:
    """The id of the row with these values, none of which is NULL."""
    return session.scalar(_find(model, tuple(columns)), columns)


def find_or_add(
    session: Session, model: type[Base], rest: Mapping[str, Any] | None = None, **identity: Any
) -> tuple[int, bool]:
    """The id of the row with this identity, and whether it had to be added."""
    found = find(session, model, **identity)
    if found is not None:
        return found, False
    added = session.scalar(_insert(model), {**identity, **(rest or {})})
    if added is not None:
        return added, True
    found = find(session, model, **identity)
    if found is None:
        raise StoreError(f"{model.__tablename__} {identity} was deleted while it was added; ask again")
    return found, False


def config_id(session: Session, key: str, point: Mapping[str, Value]) -> int:
    return find_or_add(session, ConfigRow, {"point": dict(point)}, key=key)[0]


def config_ids(session: Session, points: Mapping[str, Mapping[str, Value]]) -> dict[str, int]:
    """The ids of these configs by key, added where they are not known; in the order of keys, so that two
    transactions never wait for each other."""
    ids = dict(session.execute(_KNOWN_CONFIGS, {"keys": list(points)}).all())
    missing = [{"key": key, "point": dict(points[key])} for key in sorted(points.keys() - ids.keys())]
    if missing:
        session.execute(insert(ConfigRow).on_conflict_do_nothing(), missing)
        keys = [row["key"] for row in missing]
        ids |= dict(session.execute(_KNOWN_CONFIGS, {"keys": keys}).all())
    return ids


_KNOWN_CONFIGS = select(ConfigRow.key, ConfigRow.id).where(
    ConfigRow.key.in_(bindparam("keys", expanding=True))
)


# What is counted of a study's trials, and when the newest was stored (UTC)
TrialTotals = tuple[Counter[Outcome], datetime | None]
_TOTALS_COLUMNS = (
    TrialRow.id, TrialRow.outcome, TrialRow.time_us, TrialRow.error_over_cublas, TrialRow.created_at,
)  # fmt: skip


def _is_valid(dialect: str) -> ColumnElement[bool]:
    """Trials that `rows.totals_of` surely takes, if their outcome is one: SQL counts them."""
    time_us, error, at = TrialRow.time_us, TrialRow.error_over_cublas, TrialRow.created_at
    has_time = time_us.between(sys.float_info.min, sys.float_info.max)  # text is above all numbers
    valid = [
        has_time | (time_us.is_(None) & ~IS_OK),
        error.is_(None) | (error <= math.inf),
        at >= datetime(1970, 1, 1, tzinfo=UTC),
    ]
    if dialect == "sqlite":  # which keeps anything in any column
        is_instant = func.length(at) == len("2026-11-27 08:00:00.000000"), func.julianday(at).is_not(None)
        valid += [*is_instant, func.typeof(at) == "text"]
    return case((and_(*valid), True), else_=False)


OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def trial_totals(session: Transaction, within: Collection[int] | None) -> dict[int, TrialTotals]:
    """Of all studies that have trials, or of those among some, by id."""
    study_id, newest_at = TrialRow.study_id, func.max(TrialRow.created_at)
    which = true() if within is None else study_id.in_(within)
    is_valid = _is_valid(session.get_bind().dialect.name)
    # a column for each outcome: by groups of outcomes all trials would be sorted
    nums = [func.count().filter(TrialRow.outcome == outcome, is_valid) for outcome in OUTCOMES]
    totals = select(study_id, newest_at, func.count(), *nums).where(which).group_by(study_id)
    read = session.execute(totals).all()
    counts = {study: Counter(dict(zip(OUTCOMES.values(), some, strict=True))) for study, _, _, *some in read}
    latest: dict[int, Any] = {study: at for study, at, *_ in read}
    if any(num > counts[study].total() for study, _, num, *_ in read):
        odd = ~is_valid | TrialRow.outcome.not_in(OUTCOMES)
        sound = select(study_id, newest_at).where(which, ~odd).group_by(study_id)
        latest = dict.fromkeys(latest) | dict(session.execute(sound).all())
        query = select(study_id, *_TOTALS_COLUMNS).where(which, odd)
        for study, outcome, at in session.readable(query, lambda one, *row: (one, *rows.totals_of(*row))):
            counts[study][outcome] += 1
            latest[study] = max(one for one in (latest[study], at) if isinstance(one, datetime))
    # +: outcomes that occurred; a moment may be none, as a 30th of February
    return {study: (+counts[study], at if isinstance(at, datetime) else None) for study, at in latest.items()}


def latest_finals(
    session: Transaction, wheres: Mapping[int, Where], max_error: float | None, period: Period
) -> dict[int, Final]:
    """The newest final of each study with an entry that is readable, accurate and obeys the conditions named
    with its id. With conditions, none that is older than a faster trial that obeys."""
    held: dict[int, list[tuple[FinalRow, BaselineRow | None]]] = {}
    for final, timed in session.execute(_FINALS, {"ids": [*wheres]}):
        held.setdefault(final.study_id, []).append((final, timed))

    def in_period(some: Iterable[tuple[FinalRow, BaselineRow | None]]) -> Iterator[Any]:
        for final, timed in some:
            for readable in session.readable([(final,)], rows.check):
                if period.since <= readable.created_at <= period.until:
                    yield readable, timed

    left = {study_id: in_period(some) for study_id, some in held.items()}
    found: dict[int, Final] = {}
    while newest := {study_id: one for study_id, some in left.items() if (one := next(some, None))}:
        ranked = _final_entries(session, [final.id for final, _ in newest.values()], max_error)
        for study_id, (final, timed) in newest.items():
            where = wheres[study_id]
            entries = tuple(one for one in ranked.get(final.id, ()) if where.holds(one.point))
            if not entries:
                continue
            del left[study_id]
            if where and _is_stale(session, final, entries, max_error, where):
                continue
            entries = (replace(entries[0], is_tied=True), *entries[1:])
            baseline = next(session.readable([(timed,)] if timed else [], rows.baseline), None)
            found[study_id] = Final(entries, baseline, final.created_at, tuple(final.marks))
    return found


@cache
def _entries(max_error: float | None) -> Select[FinalEntryRow, ConfigRow]:
    of_trial = (TrialRow.config_id == FinalEntryRow.config_id) & (TrialRow.study_id == FinalRow.study_id)
    return (
        select(FinalEntryRow, ConfigRow)
        .join(FinalRow, FinalEntryRow.final_id == FinalRow.id)
        .join(ConfigRow, FinalEntryRow.config_id == ConfigRow.id, isouter=True)
        .join(TrialRow, of_trial, isouter=True)
        .where(FinalEntryRow.final_id.in_(_OF_THESE), is_accurate(max_error))
        .where(TrialRow.id.is_(None) | IS_OK)
        .order_by(FinalEntryRow.final_id, FinalEntryRow.rank)
    )


def _final_entries(
    session: Transaction, final_ids: Sequence[int], max_error: float | None
) -> dict[int, list[FinalEntry]]:
    """The accurate entries of finals by rank, without those whose trials a later final condemned: that final
    may have ended before it was stored. If the winner is left out, the next ones replace it: those tied with
    it, or else only the next."""
    found: dict[int, list[FinalEntry]] = {}
    for final_id, entry in session.readable(_entries(max_error), rows.final_entry, {"ids": final_ids}):
        found.setdefault(final_id, []).append(entry)
    return found


def _is_stale(
    session: Transaction,
    final: FinalRow,
    entries: Sequence[FinalEntry],
    max_error: float | None,
    where: Where,
) -> bool:
    """Whether the fastest trial that obeys is faster than the first of these entries, and newer."""
    return any(
        best.created_at > final.created_at and (best.measurement.time_us or math.inf) < entries[0].time_us
        for best in fastest(session, final.study_id, 1, max_error, where=where)
    )


def delete_study(session: Session, study_id: int) -> None:
    """Delete a study and all that refers to it. Configs stay: other studies share them."""
    finals = select(FinalRow.id).where(FinalRow.study_id == study_id)
    session.execute(delete(FinalEntryRow).where(FinalEntryRow.final_id.in_(finals)))
    for model in (FinalRow, BaselineRow, ComparisonRow, SearchRow, TrialRow):
        session.execute(delete(model).where(model.study_id == study_id))
    session.execute(delete(StudyRow).where(StudyRow.id == study_id))


def orphans(session: Session) -> Iterator[BadRow]:
    """Rows with dangling references, which no other query finds."""
    for model in (TrialRow, BaselineRow, ComparisonRow, FinalRow, FinalEntryRow):
        owner = FinalRow if model is FinalEntryRow else StudyRow
        name = f"{owner.__tablename__}_id"
        refers_to = getattr(model, name)
        query = select(model.id, refers_to).where(refers_to.not_in(select(owner.id)))  # an index holds both
        for row_id, owner_id in session.execute(query):
            yield BadRow(model.__tablename__, row_id, f"{name} {owner_id} is not there")
