"""Which version the tables of a database are in, and how they get to the one that this code knows."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, select
from sqlalchemy import text as sql

from ..files.errors import StoreError
from .connect import shown
from .models import Base

VERSION_TABLE = "autotune_alembic_version"  # Optuna keeps its own in `alembic_version`
OLDEST, NEWEST = "0008", "0016"  # versions that are read
_VERSION = Table(  # as Alembic made it once
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


def version(connection: Connection) -> str | None:
    """None if it is empty. Raises StoreError for tables that are not autotune's, or of a version not read."""
    where = shown(connection.engine.url)
    names = inspect(connection).get_table_names()
    if not names:
        return None
    if VERSION_TABLE not in names:
        raise StoreError(
            f"{where} holds tables of another application ({names[0]}, ...) and none of autotune's;"
            " name another file"
        )
    revision = connection.scalar(select(_VERSION.c.version_num))
    found = str(revision or "")
    if found < OLDEST:
        raise StoreError(
            f"{where} has schema version {revision}, older than {OLDEST}, the first that this autotune"
            " reads; search into another file"
        )
    if found > NEWEST:
        raise StoreError(
            f"{where} has schema version {revision}, newer than this autotune's {NEWEST};"
            " update autotune, or name another file"
        )
    return found


def create(connection: Connection) -> None:
    """Make the newest tables in an empty database, within the transaction that the connection is in."""
    Base.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection, checkfirst=False)
    connection.execute(_VERSION.insert().values(version_num=NEWEST))


def migrate(connection: Connection) -> None:
    """Bring older tables to the newest version, within the transaction that the connection is in: some came
    since, and a column, and leases went. A test holds what this comes to against `create`."""
    Base.metadata.create_all(connection)
    if "code_hash" not in {column["name"] for column in inspect(connection).get_columns("trial")}:
        connection.execute(sql("ALTER TABLE trial ADD COLUMN code_hash TEXT"))
    connection.execute(sql("DROP TABLE IF EXISTS lease"))
    connection.execute(_VERSION.update().values(version_num=NEWEST))
