"""Signed tables, which of them is current, who may ask a server, and how programs were served.

A table is for one *channel*: a GPU model with its driver and cuBLAS. What was decided about it is a list of
events that only grows. A channel's current table follows from them: the last that was published, unless
another was pinned, or the last was taken back (rollback). No table ever changes, and none is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from ..files.errors import UsageError
from . import queries
from .database import Database, each_retried
from .leases import now_s
from .models import ArtifactEventRow, ArtifactRow, TokenRow, UsageRow, utc_now

What = Literal["publish", "pin", "unpin", "rollback"]
MAX_USAGE = 100_000  # rows: GPUs x shapes x ways of being served; programs name the shapes


class ChannelKey(NamedTuple):
    """What a table was measured with."""

    gpu_name: str
    compute_capability: tuple[int, int]
    driver: str
    cublas: str

    def __str__(self) -> str:
        return f"{self.gpu_name}, driver {self.driver or '-'}, cuBLAS {self.cublas or '-'}"


@dataclass(frozen=True)
class Artifact:
    """A table as it is listed. `facts`: of its content, as who published it read them."""

    address: str
    channel: ChannelKey
    facts: dict[str, Any]
    created_at: datetime


@dataclass
class Channel:
    """`published`: in order, those that were taken back not among them. `current`: None if all were."""

    published: list[str] = field(default_factory=list)
    pinned: str | None = None

    @property
    def current(self) -> str | None:
        return self.pinned or (self.published[-1] if self.published else None)

    def take(self, what: What, address: str) -> None:
        """One more event."""
        if what == "publish":
            self.published = [*(one for one in self.published if one != address), address]
        elif what == "rollback":
            self.published = [one for one in self.published if one != address]
        self.pinned = {"pin": address, "unpin": None}.get(what, self.pinned)


class Usage(NamedTuple):
    """Calls of a shape on a GPU that were served in one way (`Pick.how`, or cublas), and the GPU's time that
    this is measured or predicted to have saved against cuBLAS."""

    gpu_name: str
    shape: str
    how: str
    calls: int
    saved_us: float


@each_retried()
class Artifacts:
    """The tables of one database. Several threads may use it. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def publish(
        self,
        address: str,
        channel: ChannelKey,
        files: tuple[bytes, bytes, bytes],
        facts: Mapping[str, Any],
        by: str,
    ) -> bool:
        """Store a table and have it be its channel's newest; what is already stays. `files`: what is signed,
        table, cubins. Returns whether anything changed."""
        signed, table, cubins = files
        gpu_name, (major, minor), driver, cublas = channel
        with self._database.writing() as session:
            made = {
                "gpu_name": gpu_name, "cc_major": major, "cc_minor": minor, "driver_version": driver,
                "cublas_version": cublas, "signed": signed, "table_json": table, "cubins": cubins,
                "facts": dict(facts),
                "created_at": datetime.fromtimestamp(session.execute(select(now_s())).scalar_one(), UTC),
            }  # fmt: skip
            row, is_new = queries.find_or_add(session, ArtifactRow, made, address=address)
            if not is_new and _channels(session).get(channel, Channel()).published[-1:] == [address]:
                return False
            session.execute(insert(ArtifactEventRow).values(_event(row, "publish", by)))
            return True

    def decide(self, what: What, address: str, by: str) -> ChannelKey:
        """Pin a table, end that, or take it back; returns its channel. Raises UsageError for a table that is
        not there, or where nothing else would be left."""
        with self._database.writing() as session:
            found = session.scalar(select(ArtifactRow).where(ArtifactRow.address == address))
            if found is None:
                raise UsageError(
                    f"no table {address!r} was published; `autotune tables list` shows those that were"
                )
            artifact = _artifact(found)
            channel = _channels(session)[artifact.channel]
            if what == "rollback" and len(channel.published) < 2:
                raise UsageError(
                    f"nothing was published before {address[:16]} for {artifact.channel}; pin another"
                )
            session.execute(insert(ArtifactEventRow).values(_event(found.id, what, by)))
            return artifact.channel

    def channels(self) -> dict[ChannelKey, Channel]:
        """Every channel that anything was published for."""
        with self._database.reading() as session:
            return _channels(session)

    def all(self) -> list[Artifact]:
        """Every table, in the order in which they were stored."""
        with self._database.reading() as session:
            return [*map(_artifact, session.scalars(select(ArtifactRow).order_by(ArtifactRow.id)))]

    def latest_event(self) -> int:
        """Grows with whatever is decided."""
        with self._database.reading() as session:
            return session.scalar(select(func.max(ArtifactEventRow.id))) or 0

    def files(self, address: str) -> tuple[bytes, bytes, bytes] | None:
        """What is signed, table, cubins of a table; None if it is not there."""
        columns = ArtifactRow.signed, ArtifactRow.table_json, ArtifactRow.cubins
        with self._database.reading() as session:
            found = session.execute(select(*columns).where(ArtifactRow.address == address)).first()
            return None if found is None else (found[0], found[1], found[2])

    # ---- tokens

    def add_token(self, name: str, token: str, roles: Sequence[str]) -> None:
        """Only the token's SHA-256 is stored. Raises UsageError if the name is taken, or cannot be shown."""
        if not (name.strip() and name.isprintable()):
            raise UsageError(f"the name {name!r} cannot be shown; name whose token it is, as laptop")
        its = {"sha256": token_sum(token), "roles": [*roles], "created_at": utc_now()}
        with self._database.writing() as session:
            if not queries.find_or_add(session, TokenRow, its, name=name)[1]:
                raise UsageError(
                    f"a token {name!r} is there already; revoke it first, or name this one otherwise"
                )

    def revoke_token(self, name: str) -> None:
        """Raises UsageError if there is none of this name."""
        with self._database.writing() as session:
            if not session.execute(
                delete(TokenRow).where(TokenRow.name == name).returning(TokenRow.id)
            ).first():
                raise UsageError(f"there is no token {name!r}; `autotune tokens list` shows those there are")

    def tokens(self) -> dict[str, tuple[str, frozenset[str]]]:
        """Names and roles, by the SHA-256 of each token."""
        with self._database.reading() as session:
            rows = session.scalars(select(TokenRow).order_by(TokenRow.id))
            return {row.sha256: (row.name, frozenset(row.roles)) for row in rows}

    # ---- how programs were served

    def add_usage(self, served: Iterable[Usage]) -> None:
        """Add to what is known. Beyond MAX_USAGE rows only known ones grow."""
        values = [one._asdict() | {"updated_at": utc_now()} for one in served]
        if not values:
            return
        with self._database.writing() as session:
            if (session.scalar(select(func.count()).select_from(UsageRow)) or 0) >= MAX_USAGE:
                known = set(session.execute(select(UsageRow.gpu_name, UsageRow.shape, UsageRow.how)).tuples())
                values = [one for one in values if itemgetter(*Usage._fields[:3])(one) in known]
            if values:
                upsert = queries.insert(UsageRow)
                sums = {name: getattr(UsageRow, name) + upsert.excluded[name] for name in Usage._fields[3:]}
                upsert = upsert.on_conflict_do_update(
                    index_elements=Usage._fields[:3],
                    set_=sums | {"updated_at": upsert.excluded.updated_at},
                )
                session.execute(upsert, sorted(values, key=itemgetter(*Usage._fields[:3])))

    def usage(self) -> list[Usage]:
        """By GPU; the most calls first."""
        columns = (getattr(UsageRow, name) for name in Usage._fields)
        with self._database.reading() as session:
            query = select(*columns).order_by(UsageRow.gpu_name, UsageRow.calls.desc())
            return [Usage(*row) for row in session.execute(query)]


def token_sum(token: str) -> str:
    """A token holds 256 random bits, so one SHA-256 of it tells nobody what it is."""
    return hashlib.sha256(token.encode()).hexdigest()


def _channel_of(row: ArtifactRow) -> ChannelKey:
    return ChannelKey(row.gpu_name, (row.cc_major, row.cc_minor), row.driver_version, row.cublas_version)


def _artifact(row: ArtifactRow) -> Artifact:
    return Artifact(row.address, _channel_of(row), row.facts, row.created_at)


def _channels(session: Session) -> dict[ChannelKey, Channel]:
    query: Any = select(ArtifactRow, ArtifactEventRow.what).join(ArtifactEventRow)
    found: dict[ChannelKey, Channel] = {}
    for row, what in session.execute(query.order_by(ArtifactEventRow.id)):
        key = _channel_of(row)
        found[key] = channel = found.pop(key, Channel())  # in the order of their last events
        channel.take(what, row.address)
    return found


def _event(artifact_id: int, what: What, by: str) -> dict[str, Any]:
    return {"artifact_id": artifact_id, "what": what, "by": by, "created_at": utc_now()}


def best_channel(channels: Mapping[ChannelKey, Channel], requested: ChannelKey) -> str | None:
    """Of its own driver and cuBLAS, else of one of these, else of any, the one last decided about."""
    found = [
        (key.driver == requested.driver, key.cublas == requested.cublas, at, channel.current)
        for at, (key, channel) in enumerate(channels.items())
        if key[:2] == requested[:2] and channel.current
    ]
    return max(found)[-1] if found else None


def need_full(addresses: Iterable[str], started: str) -> str:
    """The address that begins so. Raises UsageError if none does, or several."""
    found = [one for one in addresses if started and one.startswith(started)]
    if len(found) != 1:
        how_many = "no table" if not found else "more than one table"
        raise UsageError(
            f"{how_many} has an address that begins with {started!r}; `autotune tables list` shows them"
        )
    return found[0]
