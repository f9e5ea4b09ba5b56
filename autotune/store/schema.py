"""Which version the tables of a database are in, and how they get to the one that this code knows."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, inspect, select

from ..files.errors import StoreError
from . import artifact_models  # noqa: F401 - its tables are of the database, too
from .connect import shown
from .models import Base

VERSION_TABLE = "autotune_alembic_version"  # Optuna keeps its own in `alembic_version`
# in order; a test holds them against migrations/versions
REVISIONS = tuple(f"{number:04}" for number in range(8, 15))
MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION = Table(  # as Alembic makes it
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


def version(connection: Connection) -> str | None:
    """The schema version of this database; None if it is empty.

    Raises StoreError for tables that are not autotune's, and for a version that this code does not read.
    """
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
    if (revision or "") < REVISIONS[0]:
        raise StoreError(
            f"{where} has schema version {revision}, older than {REVISIONS[0]}, the first that this autotune"
            " reads; search into another file"
        )
    if revision not in REVISIONS:
        raise StoreError(
            f"{where} has schema version {revision}, newer than this autotune's {REVISIONS[-1]};"
            " update autotune, or name another file"
        )
    return str(revision)


def create_tables(connection: Connection, *names: str) -> None:
    """For a migration that brings these. They are made as they are today: a later migration that changes one
    writes what it was before in the earlier one, or the test of all migrations fails."""
    for name in names:
        Base.metadata.tables[name].create(connection)


def create(connection: Connection) -> None:
    """Make the newest tables in an empty database, within the transaction that the connection is in. They are
    those that all migrations come to; a test holds the two against each other. Only the order of columns
    differs, and columns that migrations added have a default there: autotune fills all.
    """
    Base.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection, checkfirst=False)
    connection.execute(_VERSION.insert().values(version_num=REVISIONS[-1]))


def migrate(connection: Connection) -> None:
    """Bring the tables to the newest version, within the transaction that the connection is in."""
    from alembic import command  # here: a database that is new or up to date does not wait for the import
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
