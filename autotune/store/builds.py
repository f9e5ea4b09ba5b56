"""Kernels that are compiled for others: what GPU workers wait for, and what compile workers made of it.

A build is asked for by the key of the kernel cache, a hash of all that decides a kernel's bytes: whoever asks
for the same waits for the same. What is built stays a while, for GPUs that need it later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update

from . import leases, queries
from .columns import InvalidValue
from .database import Database, each_retried
from .leases import now_s
from .models import BuildRow, ServiceWorkerRow, WorkerRow
from .queue import Member

KEPT_S = 6 * 3600.0
COMPILE = "compile"  # the kind of worker


@dataclass(frozen=True)
class Build:
    """What came of one: `packed` as the kernel cache keeps it, or a failure's outcome and reason."""

    packed: bytes | None
    outcome: str = ""
    reason: str = ""


@each_retried()
class Builds:
    """Those of one database. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def num_slots(self) -> int:
        """Kernels that living compile workers compile at a time."""
        slots = select(func.sum(ServiceWorkerRow.slots)).where(
            ServiceWorkerRow.kind == COMPILE,
            ServiceWorkerRow.ended_s.is_(None),
            ServiceWorkerRow.name.in_(leases.live_workers(WorkerRow.name)),
        )
        with self._database.reading() as session:
            return int(session.scalar(slots) or 0)

    def ask(self, key: str, task: Mapping[str, Any]) -> None:
        """Have a kernel compiled, unless it was, or somebody has asked for it."""
        with self._database.writing() as session:
            session.execute(delete(BuildRow).where(BuildRow.ended_s < now_s() - KEPT_S))
            ask = queries.insert(BuildRow).on_conflict_do_nothing()
            empty = {"worker_id": None, "outcome": "", "reason": "", "packed": None, "ended_s": None}
            session.execute(ask.values(key=key, task=dict(task), asked_s=now_s(), **empty))

    def found(self, keys: Collection[str]) -> dict[str, Build]:
        """What came of those that are done."""
        query = select(BuildRow).where(BuildRow.key.in_(keys), BuildRow.ended_s.is_not(None))
        with self._database.reading() as session:
            rows = session.scalars(query).all()
            return {row.key: Build(row.packed, row.outcome, row.reason) for row in rows if _is_valid(row)}

    def forget(self, keys: Collection[str]) -> None:
        """Nobody waits for these any more, unless they are done."""
        with self._database.writing() as session:
            unfinished = BuildRow.key.in_(keys) & BuildRow.ended_s.is_(None)
            session.execute(delete(BuildRow).where(unfinished))

    def claim(self, member: Member, most: int) -> dict[str, dict[str, Any]]:
        """The oldest builds that no living worker has, by key: they are this worker's. At most so many."""
        worker_id = member.id
        with self._database.writing() as session:
            is_free = BuildRow.worker_id.is_(None) | BuildRow.worker_id.not_in(leases.live_workers())
            oldest = select(BuildRow.id).where(BuildRow.ended_s.is_(None), is_free).order_by(BuildRow.id)
            ids = list(session.scalars(oldest.limit(most).with_for_update(skip_locked=True)))
            take = update(BuildRow).where(BuildRow.id.in_(ids)).values(worker_id=worker_id)
            rows = sorted(session.scalars(take.returning(BuildRow)), key=lambda row: row.id)
            return {row.key: row.task for row in rows if _is_valid(row)}

    def finish(self, key: str, build: Build) -> None:
        """Store what came of one. Of two workers the first counts: both made the same."""
        done = {"packed": build.packed, "outcome": build.outcome, "reason": build.reason, "ended_s": now_s()}
        with self._database.writing() as session:
            its = (BuildRow.key == key) & BuildRow.ended_s.is_(None)
            session.execute(update(BuildRow).where(its).values(**done, task={}))


def _is_valid(row: BuildRow) -> bool:
    return not any(isinstance(value, InvalidValue) for value in (row.task, row.outcome, row.reason))
