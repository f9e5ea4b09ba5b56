"""Steps of a transaction on the rows that are Optuna's studies and trials (`optuna_storage.py`), without it.

A trial is a row from when it is asked for, and has its number in the study from then on: nothing moves it.
One that was stored without being asked for (`fill`, a merge, an older autotune) gets its number when Optuna
first reads its study. A trial that runs says who is at it (`leases.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, exists, insert, select, update
from sqlalchemy.orm import Session

from ..facts.measurement import Outcome
from ..kernel.config import Value
from . import leases, queries
from .models import ConfigRow, OptunaStudyRow, OptunaTrialRow, StudyRow, TrialRow, utc_now
from .records import StudyRef

RUNNING, WAITING = "RUNNING", "WAITING"
FINISHED = COMPLETE, PRUNED, FAIL = "COMPLETE", "PRUNED", "FAIL"
# Studies of ours that Optuna has no row of, as queries.STUDIES has them
UNNAMED = queries.STUDIES.where(~exists().where(OptunaStudyRow.study_id == StudyRow.id))
_STUDY: Any = OptunaStudyRow.__table__  # with mapped classes statements would take twice as long
_TRIAL: Any = OptunaTrialRow.__table__


class Requested(NamedTuple):
    """A point that is about to be tried, and what proposed it."""

    point: Mapping[str, Value]
    origin: str


def study_name(study: StudyRef) -> str:
    """Name of the study in Optuna: readable, and different if times are not comparable."""
    identity = repr((study.environment, study.source_hash, study.compiler, study.policy_version))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{study.gemm} {study.environment.gpu_name} {study.policy.value} {digest}"


def optuna_study_id(session: Session, study: StudyRef) -> int:
    """The row of a study of ours, made if there is none. Where somebody edited environments in the database,
    another study may hold its name: that gets a new one."""
    found = queries.find(session, OptunaStudyRow, study_id=study.id)
    if found is not None:
        return found
    name = study_name(study)
    of_another = _STUDY.c.name == name, _STUDY.c.study_id != study.id
    session.execute(update(_STUDY).where(*of_another).values(name=f"{name} before {study.id}"))
    rest = {"name": name, "directions": ["MINIMIZE"], "facts": {}, "num_given": 0}
    return queries.find_or_add(session, OptunaStudyRow, rest, study_id=study.id)[0]


# Made once: SQLAlchemy takes longer to make a statement than to run it, and these run for every trial.
_GIVE = (
    update(_STUDY)
    .where(_STUDY.c.id == bindparam("its_id"))
    .values(num_given=_STUDY.c.num_given + bindparam("more"))
    .returning(_STUDY.c.num_given)
)
WAITING_POINTS = (
    select(OptunaStudyRow.study_id, ConfigRow.point)
    .join(OptunaTrialRow, OptunaTrialRow.optuna_study_id == OptunaStudyRow.id)
    .join(ConfigRow, ConfigRow.id == OptunaTrialRow.config_id, isouter=True)
    .where(OptunaStudyRow.study_id.in_(bindparam("studies", expanding=True)), OptunaTrialRow.state == WAITING)
    .order_by(OptunaTrialRow.id)
)
_END = (
    update(_TRIAL)
    .where(
        _TRIAL.c.state != PRUNED,
        _TRIAL.c.config_id == bindparam("its_config"),
        _TRIAL.c.optuna_study_id.in_(select(_STUDY.c.id).where(_STUDY.c.study_id == bindparam("its_study"))),
    )
    .values(state=bindparam("its_state"), ended_at=bindparam("its_end"), worker_id=None)
)
# Rows of trials that begin. One that waits for this config, or that its process left, is taken up.
_NEW = queries.insert(OptunaTrialRow)
_BEGIN = _NEW.on_conflict_do_update(
    index_elements=["optuna_study_id", "config_id"],
    set_={name: _NEW.excluded[name] for name in ("state", "worker_id", "began_at")} | {"ended_at": None},
)


def give_numbers(session: Session, its_id: int, more: int) -> int | None:
    """The first of so many numbers in a study that no trial had; None if it is gone. Until the end of the
    transaction nobody else gets one: ids of trials grow with numbers, whoever reads them."""
    given = session.scalar(_GIVE, {"its_id": its_id, "more": more})
    return None if given is None else given - more


def begin(session: Session, its_id: int, worker_id: int, requested: Mapping[str, Requested]) -> None:
    """These configs are under way from now on."""
    ids = queries.config_ids(session, {key: one.point for key, one in requested.items()})
    first = give_numbers(session, its_id, len(requested))
    common = {"optuna_study_id": its_id, "state": RUNNING, "worker_id": worker_id, "began_at": utc_now()}
    session.execute(
        _BEGIN,
        [
            {**common, "config_id": ids[key], "number": number, "facts": {"user": {"origin": one.origin}}}
            for number, (key, one) in enumerate(requested.items(), first or 0)
        ],
    )


def end(session: Session, study_id: int, config_id: int, *, is_ok: bool) -> None:
    """A config of a study of ours has its result."""
    state = COMPLETE if is_ok else FAIL
    its = {"its_study": study_id, "its_config": config_id, "its_state": state, "its_end": utc_now()}
    session.execute(_END, its)


def is_alive() -> Any:
    """Rows that count: of those that somebody is at, only where that worker lives."""
    worker = OptunaTrialRow.worker_id
    return worker.is_(None) | worker.in_(leases.live_workers())


def unnumbered(session: Session, its_id: int, study_id: int) -> Sequence[Any]:
    """Trials of a study of ours that have no number, in the order in which they were stored."""
    known = exists().where(
        OptunaTrialRow.optuna_study_id == its_id, OptunaTrialRow.config_id == TrialRow.config_id
    )
    spent = TrialRow.compile_s + TrialRow.verify_s + TrialRow.measure_s
    columns = (TrialRow.config_id, TrialRow.outcome, TrialRow.created_at, spent)
    its = TrialRow.study_id == study_id
    return session.execute(select(*columns).join(ConfigRow).where(its, ~known).order_by(TrialRow.id)).all()


def adopt(session: Session, its_id: int, study_id: int) -> None:
    """Give these trials numbers."""
    found = unnumbered(session, its_id, study_id)
    first = give_numbers(session, its_id, len(found)) if found else None
    if first is None:
        return
    session.execute(insert(_TRIAL),[
            {
                "optuna_study_id": its_id, "number": number, "config_id": config_id, "facts": {},
                "state": COMPLETE if outcome == Outcome.OK else FAIL,
                "began_at": _before(at, spent_s), "ended_at": _before(at, 0.0),
            }
            for number, (config_id, outcome, at, spent_s) in enumerate(found, first)
        ],
    )  # fmt: skip


def _before(timestamp: Any, seconds: Any) -> datetime | None:
    """None where either cannot be read."""
    is_valid = isinstance(timestamp, datetime) and isinstance(seconds, int | float) and 0 <= seconds < 1e9
    return timestamp - timedelta(seconds=seconds) if is_valid else None


def delete_study(session: Session, its_id: int | None) -> None:
    """Delete a study of Optuna with its trials, and with it a study of ours."""
    owned = session.scalar(select(OptunaStudyRow.study_id).where(OptunaStudyRow.id == its_id))
    session.execute(delete(OptunaTrialRow).where(OptunaTrialRow.optuna_study_id == its_id))
    session.execute(delete(OptunaStudyRow).where(OptunaStudyRow.id == its_id))
    if owned is not None:
        queries.delete_study(session, owned)
