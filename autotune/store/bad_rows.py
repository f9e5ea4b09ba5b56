"""Rows that cannot be read: each is named and left out, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..files.errors import StoreError
from ..files.words import counted, few

_LISTED = 5  # damaged rows that a message names
T = TypeVar("T")


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be read. `id` is its primary key, `what` says what is wrong with it."""

    table: str
    id: int
    what: str

    def __str__(self) -> str:
        return f"{self.table} {self.id} ({self.what})"


class BadRowError(Exception):
    """A row is damaged. Never leaves the store."""

    def __init__(self, table: str, row_id: int, what: str) -> None:
        super().__init__(table, row_id, what)
        self.bad_row = BadRow(table, row_id, what)


class BadRows:
    """The damaged rows found in a database, each once, in the order in which they were found."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._met: dict[tuple[str, int], BadRow] = {}

    def __iter__(self) -> Iterator[BadRow]:
        return iter(list(self._met.values()))

    def __len__(self) -> int:
        return len(self._met)

    def add(self, bad_row: BadRow) -> None:
        self._met.setdefault((bad_row.table, bad_row.id), bad_row)

    def readable(self, rows: Iterable[Any], read: Callable[..., T]) -> Iterator[T]:
        """`read(*row)` of every row, without the damaged ones."""
        for row in rows:
            try:
                yield read(*row)
            except BadRowError as error:
                self.add(error.bad_row)

    @property
    def text(self) -> str:
        """One sentence that names the rows; "" if none is damaged."""
        if not self._met:
            return ""
        rows, named = counted(len(self), "row is", "rows are"), few(self, _LISTED)
        return f"{self._where}: {rows} damaged and left out: {named}; delete them, or restore a copy"

    @contextmanager
    def reported(self, tell: Callable[[str], None]) -> Iterator[None]:
        """At the end, call this with the unreadable rows, unless an error has named them."""
        are_named = False
        try:
            yield
        except StoreError:
            are_named = True
            raise
        finally:
            if self._met and not are_named:
                tell(self.text)

    def refuse(self) -> None:
        """Called if no requested row is left. Raises StoreError if the rows are damaged."""
        if self._met:
            raise StoreError(self.text)
