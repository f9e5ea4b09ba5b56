"""Follows a database that others write: reads new rows, and never writes or holds a lock.

A writer of SQLite never waits for a reader (WAL), and no transaction here outlasts one query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import URL, func, select, type_coerce
from sqlalchemy.types import NullType

from . import connect, queries, read_only, rows
from .database import Database, retry_while_away
from .models import BaselineRow, FinalRow, StudyRow, TrialRow
from .records import StudyRef, TrialRecord
from .repository import Store

TIMEOUT_S = 5.0  # for a file that is locked as a whole, as while its tables are rebuilt


class Latest(NamedTuple):
    """The largest ids in a database: of trials, timings of cuBLAS, finals. 0 where there is none. And its
    studies, by id: when each was made, as SQLite gives the id of one that was deleted to the next."""

    trial: int
    baseline: int
    final: int
    studies: frozenset[tuple[int, Any]]

    @property
    def study(self) -> int:
        return max((study for study, _ in self.studies), default=0)


class Follower(Store):
    """A database that is only read. Raises StoreError if it cannot be, or is of an older autotune."""

    def __init__(self, path_or_url: str | Path) -> None:
        self._open(connect.parse_url(path_or_url))

    def _open(self, url: URL) -> None:
        super().__init__(Database(url, read_only.connect(url, TIMEOUT_S)))

    def reopen(self) -> None:
        """What stands there now, which may be another file. Raises StoreError as at first."""
        self.close()
        self._open(self._database.url)

    @retry_while_away
    def newest(self) -> Latest:
        """Three look-ups by key and the list of studies, which show whether anything is new."""
        ids = (select(func.max(model.id)).scalar_subquery() for model in (TrialRow, BaselineRow, FinalRow))
        made = select(StudyRow.id, type_coerce(StudyRow.created_at, NullType()))  # not read: only compared
        with self._database.reading() as session:
            studies = frozenset((study, at) for study, at in session.execute(made))
            trial, baseline, final = (found or 0 for found in session.execute(select(*ids)).one())
            return Latest(trial, baseline, final, studies)

    def studies_after(self, study_id: int) -> list[StudyRef]:
        """Studies of larger ids, by id."""
        query = queries.STUDIES.where(StudyRow.id > study_id).order_by(StudyRow.id)
        return self.read_all(query, rows.study_ref)

    def trials_after(self, trial_id: int) -> list[tuple[int, TrialRecord]]:
        """Trials of larger ids, each with the id of its study, by id."""
        query = queries.TRIALS.where(TrialRow.id > trial_id).order_by(TrialRow.id)
        return self.read_all(query, rows.trial_of_study)
