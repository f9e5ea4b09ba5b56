"""The store's queries, and the few steps that several of its transactions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..config import Value
from ..errors import StoreError
from ..measurement import Outcome
from ..target import Baseline
from . import rows
from .models import Base, BaselineRow, ConfigRow, EnvironmentRow, KernelRow, StudyRow, TrialRow
from .records import StudyRef, StudySummary

Trials = Select[TrialRow, str, dict[str, Value]]

IS_OK = TrialRow.outcome == Outcome.OK.value
STUDIES = (
    select(StudyRow, EnvironmentRow, KernelRow)
    .join(EnvironmentRow, StudyRow.environment_id == EnvironmentRow.id)
    .join(KernelRow, StudyRow.kernel_id == KernelRow.id)
)
MEASURED = STUDIES.join(TrialRow, TrialRow.study_id == StudyRow.id).where(IS_OK)
# Studies with an ok trial, a row for each: group them, and sort by the newest trial.
NEWEST = func.max(TrialRow.id)


def trials(study_id: int) -> Trials:
    """Trials of a study in the order they were stored."""
    return (
        select(TrialRow, ConfigRow.key, ConfigRow.point)
        .join(ConfigRow)
        .where(TrialRow.study_id == study_id)
        .order_by(TrialRow.id)
    )


def fastest(study_id: int, n: int) -> Trials:
    """The n fastest ok trials; of equal ones the older first."""
    return trials(study_id).where(IS_OK).order_by(None).order_by(TrialRow.time_us, TrialRow.id).limit(n)


def find(session: Session, model: type[Base], **columns: Any) -> int | None:
    return session.scalar(select(model.id).filter_by(**columns))


def find_or_add(
    session: Session, model: type[Base], rest: Mapping[str, Any] | None = None, **identity: Any
) -> tuple[int, bool]:
    """The id of the row with this identity, and whether it had to be added."""
    found = find(session, model, **identity)
    if found is not None:
        return found, False
    row = model(**identity, **(rest or {}))
    if _add(session, row):
        return row.id, True
    found = find(session, model, **identity)
    if found is None:
        raise StoreError(f"{model.__tablename__} {identity} refers to what is not there; was it deleted?")
    return found, False


def _add(session: Session, row: Base) -> bool:
    """Add a row; False if another writer came between, which only a database server allows.

    In SQLite the transaction holds the write lock. There is no savepoint there, because a full disk
    ends the transaction with its savepoints, and the way back to one would hide the reason.
    """
    if session.get_bind().dialect.name == "sqlite":
        session.add(row)
        session.flush()
        return True
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True


def config_id(session: Session, key: str, point: Mapping[str, Value]) -> int:
    return find_or_add(session, ConfigRow, {"point": dict(point)}, key=key)[0]


def summary(session: Session, study: StudyRow, ref: StudyRef) -> StudySummary:
    query = (
        select(TrialRow.outcome, func.count(), func.max(TrialRow.created_at))
        .where(TrialRow.study_id == ref.id)
        .group_by(TrialRow.outcome)
    )
    groups = session.execute(query).all()
    best = session.execute(fastest(ref.id, 1)).one_or_none()
    baseline = newest_baseline(session, ref.id)
    return StudySummary(
        study=ref,
        counts={Outcome(outcome): count for outcome, count, _ in groups},
        best=None if best is None else rows.trial_record(*best),
        cublas_us=None if baseline is None else baseline.time_us,
        updated_at=max([study.created_at, *(newest for _, _, newest in groups)]),
    )


def newest_baseline(session: Session, study_id: int) -> Baseline | None:
    query = select(BaselineRow).where(BaselineRow.study_id == study_id)
    return rows.baseline(session.scalar(query.order_by(BaselineRow.id.desc()).limit(1)))
