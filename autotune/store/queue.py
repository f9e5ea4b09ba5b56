"""The queue of a service: shapes that somebody wants tuned, and the workers that serve them.

    submit ─► waiting ─► tuning ─► tuned, or refused for a reason
                 ▲          │
                 └── lost, ─┴─► given up, after MOST_TRIES
                     failed

A worker claims the open request that promises most: calls times predicted gain. On PostgreSQL workers skip
what another is about to claim (SKIP LOCKED); on SQLite one writes at a time. A claim lapses when its worker's
heartbeat is old (leases.py), or after the time that it was granted, since a process may live and be stuck.
Claims of a request are numbered and only the last one counts: whoever comes back after it was taken for dead
can end nothing that another has taken up. So each request ends exactly once.

All times are the database's.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.orm import Session

from ..facts.gemm import Gemm
from ..files.errors import UsageError
from . import leases, queries, rows
from .database import Closing, Database, each_retried, retry_while_away
from .leases import now_s
from .models import RequestRow, ServiceWorkerRow, WorkerRow

MAX_ATTEMPTS = 3
RETRY_S = 10.0  # after the first failure; twice as long after the second
MOST_PAUSE_S = RETRY_S * MAX_ATTEMPTS
REMEMBERED_S = 86_400.0  # workers that ended
ANY_GPU = ""


class RequestState(StrEnum):
    WAITING = "waiting"
    TUNING = "tuning"
    TUNED = "tuned"
    REFUSED = "refused"
    GIVEN_UP = "given up"


OPEN = (RequestState.WAITING, RequestState.TUNING)


@dataclass(frozen=True)
class Wanted:
    """What is asked for. `gpu`: a model's name, as CUDA gives it, or ANY_GPU. `gain_us`: of a call, as
    predicted. `call`: what else is known of the calls, plain data."""

    gemm: Gemm
    gpu: str = ANY_GPU
    num_calls: float = 1.0
    gain_us: float = 0.0
    call: Mapping[str, Any] = field(default_factory=dict)
    asked_by: str = ""


@dataclass(frozen=True)
class QueuedRequest:
    """A request as it stands. `number` is that of its newest claim."""

    id: int
    wanted: Wanted
    state: RequestState
    reason: str
    result: Mapping[str, Any]
    num_tries: int
    number: int
    worker: str
    asked_s: float
    ended_s: float | None

    @property
    def priority(self) -> float:
        """Microseconds that all calls are predicted to gain."""
        return self.wanted.num_calls * self.wanted.gain_us


@dataclass(frozen=True)
class WorkerStatus:
    """A worker. `is_alive`: its heartbeat is recent; else it `ended_s` in order, or it was lost."""

    name: str
    host: str
    kind: str
    gpu: str
    gpu_uuid: str
    slots: int
    doing: str
    doing_s: float  # for so long
    num_done: int
    is_alive: bool
    ended_s: float | None


class Member(Closing):
    """This process as a worker of the service. Its heartbeats come from a thread until it is closed."""

    def __init__(self, database: Database, kind: str, gpu: str, gpu_uuid: str, slots: int) -> None:
        self._database = database
        self.worker = leases.Worker(database)
        self.name = self.worker.name
        self._enter({"kind": kind, "gpu": gpu, "gpu_uuid": gpu_uuid, "slots": slots})

    @retry_while_away
    def _enter(self, facts: Mapping[str, Any]) -> None:
        with self._database.writing() as session:
            session.execute(delete(ServiceWorkerRow).where(_is_forgotten()))
            values = {"name": self.name, "host": socket.gethostname(), "doing": "", "num_done": 0, **facts}
            enter = queries.insert(ServiceWorkerRow).on_conflict_do_nothing()
            session.execute(enter.values(**values, since_s=now_s(), began_s=now_s()))

    @property
    def id(self) -> int:
        """That claims are under. Beats first, if the last one is long ago."""
        self.worker.renew_heartbeat()
        return self.worker.id

    def tell(self, doing: str, *, is_done: bool = False) -> None:
        """From now on it does this; `is_done`: it has finished something."""
        self._set(doing=doing, since_s=now_s(), num_done=ServiceWorkerRow.num_done + is_done)

    @retry_while_away
    def _set(self, **values: Any) -> None:
        with self._database.writing() as session:
            its = ServiceWorkerRow.name == self.name
            session.execute(update(ServiceWorkerRow).where(its).values(values))

    def close(self) -> None:
        """End in order: all its claims lapse at once."""
        self._set(doing="", since_s=now_s(), ended_s=now_s())
        self.worker.close()


@each_retried()
class Queue:
    """The queue in one database. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def join(self, kind: str, gpu: str = "", gpu_uuid: str = "", slots: int = 1) -> Member:
        """Serve it, until what is returned is closed."""
        return Member(self._database, kind, gpu, gpu_uuid, slots)

    def submit(self, wanted: Iterable[Wanted]) -> list[int]:
        """Ask for shapes; returns the ids of their requests. Calls for one that is open add up. (If a server
        breaks off while it commits, they may count twice: they only decide what comes first.)"""
        rows_wanted = [_row_of(one) for one in wanted]
        with self._database.writing() as session:
            ids = dict[str, int]()
            # in the same order everywhere: two transactions never wait for each other
            for row in sorted(rows_wanted, key=itemgetter("open_key")):
                ids[row["open_key"]] = session.execute(_ADD, row).scalar_one()
        return [ids[row["open_key"]] for row in rows_wanted]

    def claim(self, member: Member, gpus: Collection[str], most_s: float) -> QueuedRequest | None:
        """The open request that promises most, of those for GPUs of these names or for any; it is this
        worker's for `most_s` at most. None if there is none."""
        worker_id = member.id
        with self._database.writing() as session:
            self._take_back_expired(session)
            later_s = RequestRow.not_before_s - now_s()  # more than any pause: the clock was set back
            is_due = (RequestRow.state == RequestState.WAITING) & ((later_s <= 0) | (later_s > MOST_PAUSE_S))
            best = (
                select(RequestRow.id)
                .where(is_due, RequestRow.gpu.in_((*gpus, ANY_GPU)))
                .order_by((RequestRow.num_calls * RequestRow.gain_us).desc(), RequestRow.id)
                .limit(1)
                .with_for_update(skip_locked=True)
                .scalar_subquery()
            )
            taken = {"state": RequestState.TUNING.value, "num_claims": RequestRow.num_claims + 1}
            owner_note = {"worker": member.name, "worker_id": worker_id, "until_s": now_s() + most_s}
            take = update(RequestRow).where(RequestRow.id == best).values(taken | owner_note)
            return next(session.readable(take.returning(RequestRow), _request), None)

    def _take_back_expired(self, session: Session) -> None:
        is_lost = RequestRow.worker_id.is_(None) | RequestRow.worker_id.not_in(leases.live_workers())
        has_expired = is_lost | (RequestRow.until_s <= now_s())
        expired = leases.unlocked(RequestRow, (RequestRow.state == RequestState.TUNING) & has_expired)
        failed = _failed("its worker was lost, or took too long", 0.0)
        session.execute(update(RequestRow).where(RequestRow.id.in_(expired)).values(failed))

    def finish(
        self,
        claimed: QueuedRequest,
        state: RequestState,
        reason: str = "",
        result: Mapping[str, Any] = MappingProxyType({}),
    ) -> bool:
        """End a request that this process claimed. Returns False if it is another's by now, or has ended."""
        ended = {"state": state.value, "reason": reason, "result": dict(result), **_ENDED}
        return self._change(claimed, ended)

    def fail(self, claimed: QueuedRequest, reason: str) -> bool:
        """A try failed: another follows, after a while, or the request is given up. Returns as `finish`."""
        return self._change(claimed, _failed(reason, RETRY_S))

    def give_back(self, claimed: QueuedRequest) -> bool:
        """Let others go on with it: no try was used. Returns as `finish`."""
        return self._change(claimed, {"state": RequestState.WAITING.value, **_FREE})

    def _change(self, claimed: QueuedRequest, values: Mapping[str, Any]) -> bool:
        is_own = (RequestRow.id == claimed.id) & (RequestRow.num_claims == claimed.number)
        with self._database.writing() as session:
            changed = update(RequestRow).where(is_own, RequestRow.state == RequestState.TUNING)
            return session.execute(changed.values(values).returning(RequestRow.id)).scalar() is not None

    def requests(self, states: Collection[RequestState] = (), most: int = 1000) -> list[QueuedRequest]:
        """Those in these states, or all: those that are open come first, the most promising of them before
        others, then those that ended, the newest first."""
        query = select(RequestRow).order_by(
            RequestRow.ended_s.desc().nulls_first(),
            (RequestRow.num_calls * RequestRow.gain_us).desc(),
            RequestRow.id,
        )
        if states:
            query = query.where(RequestRow.state.in_([state.value for state in states]))
        with self._database.reading() as session:
            return list(session.readable(query.limit(most), _request))

    def counts(self) -> dict[RequestState, int]:
        """How many requests are in each state."""
        query = select(RequestRow.state, func.count()).group_by(RequestRow.state)
        with self._database.reading() as session:
            found: dict[str, int] = dict(session.execute(query).all())
        return {state: found.get(state.value, 0) for state in RequestState}

    def clock_s(self) -> float:
        """Seconds since 1970 on the database's clock."""
        with self._database.reading() as session:
            return float(session.execute(select(now_s())).scalar_one())

    def has_open(self) -> bool:
        """Whether a request waits, or is worked on."""
        counts = self.counts()
        return any(counts[state] for state in OPEN)

    def workers(self) -> list[WorkerStatus]:
        """Those that serve the queue, or did lately, in the order in which they began."""
        is_alive = ServiceWorkerRow.name.in_(
            leases.live_workers(WorkerRow.name)
        ) & ServiceWorkerRow.ended_s.is_(None)
        query = select(ServiceWorkerRow, is_alive, now_s()).order_by(ServiceWorkerRow.id)
        with self._database.reading() as session:
            return list(session.readable(query, _status))


_FRESH: dict[str, Any] = {
    "state": RequestState.WAITING.value, "reason": "", "result": {}, "num_tries": 0, "num_claims": 0,
    "worker": "", "not_before_s": 0.0,
}  # fmt: skip
# Made once: a server adds hundreds a second, and SQLAlchemy takes ten times as long to make a statement as to
# run it. Adds a request, or its calls to the one that is open; returns its id.
_NEW = queries.insert(RequestRow).values(**_FRESH, asked_s=now_s())
_SUMS = {"num_calls": RequestRow.num_calls + _NEW.excluded.num_calls}
_ADD = _NEW.on_conflict_do_update(
    index_elements=["open_key"],
    set_=_SUMS | {name: _NEW.excluded[name] for name in ("gain_us", "call")},
).returning(RequestRow.__table__.c.id)


def _row_of(wanted: Wanted) -> dict[str, Any]:
    return {
        **rows.gemm_columns(wanted.gemm), "open_key": f"{wanted.gpu}|{wanted.gemm}", "gpu": wanted.gpu,
        "call": dict(wanted.call), "num_calls": wanted.num_calls, "gain_us": wanted.gain_us,
        "asked_by": wanted.asked_by,
    }  # fmt: skip


_FREE = {"worker_id": None, "until_s": None}
_ENDED = {**_FREE, "open_key": None, "ended_s": now_s()}


def _failed(reason: str, pause_s: float) -> dict[str, Any]:
    """What a failed try makes of a request."""
    is_last = RequestRow.num_tries + 1 >= MAX_ATTEMPTS
    state = case((is_last, RequestState.GIVEN_UP.value), else_=RequestState.WAITING.value)
    return {
        **{"state": state, "reason": reason, "num_tries": RequestRow.num_tries + 1, **_FREE},
        "open_key": case((is_last, None), else_=RequestRow.open_key),
        "ended_s": case((is_last, now_s()), else_=None),
        "not_before_s": now_s() + pause_s * (RequestRow.num_tries + 1),
    }


def _is_forgotten() -> Any:
    is_old = func.coalesce(ServiceWorkerRow.ended_s, ServiceWorkerRow.since_s) < now_s() - REMEMBERED_S
    return is_old & ServiceWorkerRow.name.not_in(leases.live_workers(WorkerRow.name))


def _request(row: RequestRow) -> QueuedRequest:
    rows.check(row)
    try:
        gemm, state = rows.gemm_of(row), RequestState(row.state)
    except (ValueError, UsageError) as error:  # a problem or a state that is none
        rows.refuse(row, str(error))
    wanted = Wanted(gemm, row.gpu, row.num_calls, row.gain_us, row.call, row.asked_by)
    rest = (row.reason, row.result, row.num_tries, row.num_claims, row.worker, row.asked_s, row.ended_s)
    return QueuedRequest(row.id, wanted, state, *rest)


def _status(row: ServiceWorkerRow, is_alive: bool, at_s: float) -> WorkerStatus:
    rows.check(row)
    text = (row.name, row.host, row.kind, row.gpu, row.gpu_uuid, row.slots, row.doing)
    return WorkerStatus(*text, max(0.0, at_s - row.since_s), row.num_done, bool(is_alive), row.ended_s)
