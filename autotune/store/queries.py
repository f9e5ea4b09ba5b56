"""The store's queries, and the few steps that several of its transactions share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, literal, select, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased

from ..errors import StoreError
from ..kernel.config import Value
from ..kernel.where import ANY, Where
from ..measurement import Outcome
from ..target import Baseline
from . import rows
from .damage import Damage, Damages
from .models import (
    Base,
    BaselineRow,
    ConfigRow,
    DuelRow,
    EnvironmentRow,
    FinalEntryRow,
    FinalRow,
    KernelRow,
    SearchRow,
    StudyRow,
    TrialRow,
)
from .records import Final, FinalEntry, StudyRef, StudySummary, TrialRecord

Trials = Select[TrialRow, ConfigRow]

IS_OK = TrialRow.outcome == Outcome.OK.value
# Outer joins: a row with a dangling reference must be named, not vanish.
STUDIES = (
    select(StudyRow, EnvironmentRow, KernelRow)
    .join(EnvironmentRow, StudyRow.environment_id == EnvironmentRow.id, isouter=True)
    .join(KernelRow, StudyRow.kernel_id == KernelRow.id, isouter=True)
)


def is_accurate(max_error: float | None) -> ColumnElement[bool]:
    """Trials whose error is at most this factor times cuBLAS's, or unknown; all if the factor is None."""
    error = TrialRow.error_over_cublas
    return true() if max_error is None else error.is_(None) | (error <= max_error)


def measured(max_error: float | None) -> Select[StudyRow, EnvironmentRow, KernelRow]:
    """Studies with an accurate ok trial, the one with the newest such trial first."""
    found = STUDIES.join(TrialRow, TrialRow.study_id == StudyRow.id).where(IS_OK, is_accurate(max_error))
    grouped = found.group_by(StudyRow.id, EnvironmentRow.id, KernelRow.id)
    return grouped.order_by(func.max(TrialRow.id).desc())


_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def copy_trials(session: Session, studies: Select[int], to: int) -> None:
    """Copy the trials of these studies into another, except for configs that it has."""
    names = [column.name for column in TrialRow.__table__.columns if column.name != "id"]
    values = [literal(to) if name == "study_id" else getattr(TrialRow, name) for name in names]
    theirs = select(*values).where(TrialRow.study_id.in_(studies)).order_by(TrialRow.id)
    insert = _INSERTS[session.get_bind().dialect.name](TrialRow)
    session.execute(insert.from_select(names, theirs).on_conflict_do_nothing())


def trials(study_id: int) -> Trials:
    """Trials of a study in the order they were stored."""
    return (
        select(TrialRow, ConfigRow)
        .join(ConfigRow, TrialRow.config_id == ConfigRow.id, isouter=True)
        .where(TrialRow.study_id == study_id)
        .order_by(TrialRow.id)
    )


def searches(study_id: int) -> Select[SearchRow]:
    """The options of the searches of a study, oldest first."""
    return select(SearchRow).where(SearchRow.study_id == study_id).order_by(SearchRow.id)


def fastest(
    session: Session,
    damages: Damages,
    study_id: int,
    n: int,
    max_error: float | None,
    but_of: Collection[str] = (),
    where: Where = ANY,
) -> list[TrialRecord]:
    """The n fastest accurate ok trials that obey, without those of some origins; among equal ones the older
    first."""
    accurate = trials(study_id).where(IS_OK, is_accurate(max_error), TrialRow.origin.not_in(but_of))
    query, num_asked = accurate.order_by(None).order_by(TrialRow.time_us, TrialRow.id), n
    while True:
        found = session.execute(query.limit(num_asked)).all()
        records = [r for r in damages.readable(found, rows.trial_record) if where.holds(r.point)]
        if len(records) >= n or len(found) < num_asked:
            return records[:n]
        num_asked *= 2  # damaged ones are in the way, or such that do not obey


# SQLAlchemy takes longer to make a statement than to run it: these, which run for every trial, are made once.


@cache
def _find(model: type[Base], names: tuple[str, ...]) -> Select[int]:
    return select(model.id).where(*(getattr(model, name) == bindparam(name) for name in names))


@cache
def _insert(dialect: str, model: type[Base]) -> Any:
    """Inserts a row, unless another writer has inserted it meanwhile; returns that row's id then."""
    table = model.__table__
    return _INSERTS[dialect](table).on_conflict_do_nothing().returning(table.c.id)


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
    insert = _insert(session.get_bind().dialect.name, model)
    added = session.scalar(insert, {**identity, **(rest or {})})
    if added is not None:
        return added, True
    found = find(session, model, **identity)
    if found is None:
        raise StoreError(f"{model.__tablename__} {identity} was deleted while it was added; ask again")
    return found, False


def config_id(session: Session, key: str, point: Mapping[str, Value]) -> int:
    return find_or_add(session, ConfigRow, {"point": dict(point)}, key=key)[0]


def summary(
    session: Session, damages: Damages, study: StudyRow, ref: StudyRef, max_error: float | None
) -> StudySummary:
    query = select(
        TrialRow.id, TrialRow.outcome, TrialRow.time_us, TrialRow.error_over_cublas, TrialRow.created_at
    ).where(TrialRow.study_id == ref.id)
    seen = list(damages.readable(session.execute(query), rows.glance))
    best = fastest(session, damages, ref.id, 1, max_error)
    baseline = newest_baseline(session, damages, ref.id)
    return StudySummary(
        study=ref,
        counts=Counter(outcome for outcome, _ in seen),
        best=best[0] if best else None,
        cublas_us=None if baseline is None else baseline.time_us,
        updated_at=max([study.created_at, *(created_at for _, created_at in seen)]),
    )


def newest_baseline(session: Session, damages: Damages, study_id: int) -> Baseline | None:
    query = select(BaselineRow).where(BaselineRow.study_id == study_id).order_by(BaselineRow.id.desc())
    return next(damages.readable(session.execute(query), rows.baseline), None)


def duels(study_id: int) -> Select[DuelRow, ConfigRow, ConfigRow]:
    """Duels of a study in the order they were stored."""
    first, second = aliased(ConfigRow), aliased(ConfigRow)
    return (
        select(DuelRow, first, second)
        .join(first, DuelRow.first_id == first.id, isouter=True)
        .join(second, DuelRow.second_id == second.id, isouter=True)
        .where(DuelRow.study_id == study_id)
        .order_by(DuelRow.id)
    )


def newest_final(
    session: Session, damages: Damages, study_id: int, max_error: float | None, where: Where = ANY
) -> Final | None:
    """The newest final with an entry that is readable, accurate and obeys. With conditions, none that is
    older than a faster trial that obeys."""
    query = (
        select(FinalRow, BaselineRow)
        .join(BaselineRow, FinalRow.baseline_id == BaselineRow.id, isouter=True)
        .where(FinalRow.study_id == study_id)
        .order_by(FinalRow.id.desc())
    )
    for final, timed in session.execute(query):
        for readable in damages.readable([(final,)], rows.final_row):
            if entries := _final_entries(session, damages, readable, max_error, where):
                if where and _is_outrun(session, damages, readable, entries, max_error, where):
                    return None
                baseline = next(damages.readable([(timed,)] if timed else [], rows.baseline), None)
                return Final(entries, baseline, final.created_at, tuple(final.marks))
    return None


def _final_entries(
    session: Session, damages: Damages, final: FinalRow, max_error: float | None, where: Where
) -> tuple[FinalEntry, ...]:
    """The accurate entries that obey, by rank, without those whose trials a later final condemned: that final
    may have ended before it was stored. If the winner is left out, the next ones replace it: those tied with
    it, or else only the next."""
    of_trial = (TrialRow.config_id == FinalEntryRow.config_id) & (TrialRow.study_id == final.study_id)
    query = (
        select(FinalEntryRow, ConfigRow)
        .join(ConfigRow, FinalEntryRow.config_id == ConfigRow.id, isouter=True)
        .join(TrialRow, of_trial, isouter=True)
        .where(FinalEntryRow.final_id == final.id, is_accurate(max_error))
        .where(TrialRow.id.is_(None) | IS_OK)
        .order_by(FinalEntryRow.rank)
    )
    readable = damages.readable(session.execute(query), rows.final_entry)
    entries = tuple(entry for entry in readable if where.holds(entry.point))
    return entries and (replace(entries[0], is_tied=True), *entries[1:])


def _is_outrun(
    session: Session,
    damages: Damages,
    final: FinalRow,
    entries: Sequence[FinalEntry],
    max_error: float | None,
    where: Where,
) -> bool:
    """Whether the fastest trial that obeys is faster than the first of these entries, and newer."""
    return any(
        best.created_at > final.created_at and (best.measurement.time_us or math.inf) < entries[0].time_us
        for best in fastest(session, damages, final.study_id, 1, max_error, where=where)
    )


# References: a row of the first refers to one of the second by this column.
_OWNERS: tuple[tuple[type[Base], str, type[Base]], ...] = (
    (TrialRow, "study_id", StudyRow),
    (BaselineRow, "study_id", StudyRow),
    (DuelRow, "study_id", StudyRow),
    (FinalRow, "study_id", StudyRow),
    (FinalEntryRow, "final_id", FinalRow),
)


def orphans(session: Session) -> Iterator[Damage]:
    """Rows with dangling references, which no other query finds."""
    for model, name, owner in _OWNERS:
        refers_to = getattr(model, name)
        query = select(model.id, refers_to).join(owner, refers_to == owner.id, isouter=True)
        for row_id, owner_id in session.execute(query.where(owner.id.is_(None))):
            yield Damage(model.__tablename__, row_id, f"{name} {owner_id} is not there")
