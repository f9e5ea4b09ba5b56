"""Leases: which process does which work, so that no work on a GPU is done twice.

A *worker* is one process that takes part. A row of work names the worker that is at it (`worker_id`): a
running trial of Optuna, a request, a build. The worker shows by a heartbeat that it lives, and what it is at
is its own as long as the last one is recent. So a killed worker loses its work LEASE_S after its last
heartbeat, without any clean-up, however much it had; at once, if the next worker runs on the same machine and
sees that its process is gone.

All times are the database's: the clocks of machines that share a server may differ. The functions here are
steps of one transaction, on SQLite and PostgreSQL alike; `Worker` and the store run them.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import Double, delete, insert, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

from ..files.errors import EnvironmentProblem, StoreError
from .database import Closing, Database, retry_while_away
from .models import Base, OptunaTrialRow, WorkerRow
from .this_process import is_gone, my_name

LEASE_S = 60.0  # longer than any disk or server keeps a heartbeat waiting
HEARTBEAT_S = LEASE_S / 4
_IDS = 2**30


class now_s(FunctionElement[float]):
    """Seconds since 1970 on the database's clock, now: not when the transaction began."""

    type = Double()
    inherit_cache = True


@compiles(now_s, "sqlite")
def _sqlite_now(_element: now_s, _compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _postgresql_now(_element: now_s, _compiler: Any, **_: Any) -> str:
    return "extract(epoch FROM clock_timestamp())::double precision"


# ---- steps of a transaction


def register(session: Session, name: str) -> int:
    """A new worker; returns its id. Dead ones are deleted, with what they were at."""
    gone = [known for known in session.scalars(select(WorkerRow.name)) if is_gone(known)]
    _delete(session, WorkerRow, (WorkerRow.expires_s <= now_s()) | WorkerRow.name.in_(gone))
    is_held = OptunaTrialRow.worker_id.is_not(None)  # without one, NOT IN of nobody is true
    _delete(session, OptunaTrialRow, is_held & OptunaTrialRow.worker_id.not_in(live_workers()))
    # Drawn: SQLite gives the largest id again once its row is gone, and whoever was taken for dead may not
    # know it yet. Those below are of older versions.
    values = {"id": secrets.randbelow(_IDS) + _IDS, "name": name, "expires_s": now_s() + LEASE_S}
    return session.execute(insert(WorkerRow).values(values).returning(WorkerRow.id)).scalar_one()


def unlocked(model: type[Base], where: Any) -> Any:
    """Ids of rows that no other transaction is changing: whoever has one takes it over, or frees it. To wait
    for several might be to wait for each other, and a server rolls back one of two that do."""
    return select(model.id).where(where).with_for_update(skip_locked=True)


def _delete(session: Session, model: type[Base], where: Any) -> None:
    session.execute(delete(model).where(model.id.in_(unlocked(model, where))))


def live_workers(what: Any = WorkerRow.id) -> Any:
    """Ids of workers whose heartbeat is recent, or another column of theirs."""
    return select(what).where(WorkerRow.expires_s > now_s())


def heartbeat(session: Session, name: str) -> int:
    """Show that a worker lives; returns its id. A worker that was declared dead gets a new id: others may
    have its work by now. Where the database's clock was set back, nobody's lasts for longer."""
    ahead = WorkerRow.id.in_(unlocked(WorkerRow, WorkerRow.expires_s > now_s() + LEASE_S))
    session.execute(update(WorkerRow).where(ahead).values(expires_s=now_s() + LEASE_S))
    query = update(WorkerRow).where(WorkerRow.name == name).values(expires_s=now_s() + LEASE_S)
    worker_id = session.execute(query.returning(WorkerRow.id)).scalar()
    return register(session, name) if worker_id is None else worker_id


def release_all(session: Session, worker_id: int) -> None:
    """What a worker was at never was."""
    _delete(session, OptunaTrialRow, OptunaTrialRow.worker_id == worker_id)


def unregister(session: Session, worker_id: int) -> None:
    """A worker is done."""
    release_all(session, worker_id)
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


# ---- a worker


def _since_boot_s() -> float:
    """Seconds since the machine started, those while it was suspended too: leases lapse meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Worker(Closing):
    """This process as a worker: a thread sends heartbeats until it is closed. Several threads may use it."""

    def __init__(self, database: Database) -> None:
        self._database, self._process = database, os.getpid()
        self.name = my_name()
        self.id = self._register()
        self._last_heartbeat_s = _since_boot_s()
        self._heartbeat_lock = threading.Lock()
        self._is_closed = threading.Event()
        self._heartbeat_thread = threading.Thread(target=self._keep_heartbeat, name="heartbeat", daemon=True)
        self._heartbeat_thread.start()

    @property
    def is_own(self) -> bool:
        """Whether it is this process, and not one that forked this."""
        return self._process == os.getpid()

    @retry_while_away
    def _register(self) -> int:
        with self._database.writing() as session:
            return register(session, self.name)

    def renew_heartbeat(self) -> None:
        """Beat now if the last beat is long ago: a process that was stopped may have been taken for dead, and
        must not begin anything under an id that is gone."""
        if _since_boot_s() - self._last_heartbeat_s > 2 * HEARTBEAT_S:
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        with self._heartbeat_lock, self._database.writing() as session:  # two at once would enrol twice
            self.id = heartbeat(session, self.name)
        self._last_heartbeat_s = _since_boot_s()

    def _keep_heartbeat(self) -> None:
        while not self._is_closed.wait(HEARTBEAT_S):
            # A database that cannot be written ends the search when a trial is stored, and is reported there.
            # A disk that is full now may have room at the next beat.
            with suppress(StoreError, EnvironmentProblem):
                self._send_heartbeat()

    def close(self) -> None:
        """It is at nothing any more. If the database is out of reach, that lapses."""
        if not self.is_own:
            return
        self._is_closed.set()
        self._heartbeat_thread.join()
        with suppress(StoreError, EnvironmentProblem), self._database.writing() as session:
            unregister(session, self.id)
