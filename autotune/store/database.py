"""One database and its transactions: how they begin, what their errors mean, and how they survive a restart.

A restart of a PostgreSQL server breaks every connection. Commits are safe, open transactions are rolled back,
and the server refuses connections until it has recovered. So a transaction that lost its server is repeated
as a whole, for RECONNECT_S in all, before an error is raised; so is one that was rolled back since another
was in its way, which nobody is told of.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self, TypeVar, cast

from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session, sessionmaker

from ..files.errors import ServerAway, StoreError
from . import connect
from .bad_rows import BadRows

RECONNECT_S = 60.0  # how long a server may be away; one that recovers from a crash takes seconds
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0  # between two attempts: each pause is twice the last

C = TypeVar("C", bound=type)
T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


class Closing:
    """Closed at the end of a `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transaction(Session):
    """One transaction; it names the damaged rows that it leaves out."""

    def readable(self, found: Any, read: Callable[..., T], values: Any = None) -> Iterator[T]:
        """`read(*row)` of rows, or of those that a query finds with these values, without damaged ones."""
        bad_rows: BadRows = self.info["bad_rows"]
        return bad_rows.readable(found if isinstance(found, list) else self.execute(found, values), read)


class Database:
    """An engine for one database. Several threads may use it."""

    def __init__(self, url: URL, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self._is_file = engine.dialect.name == "sqlite"
        self._begin_process()
        self._identity = connect.identity(url)
        self.bad_rows = BadRows(connect.place(url))  # rows left out because they cannot be read
        self._to_read, self._to_write = (
            sessionmaker(one, class_=Transaction, info={"bad_rows": self.bad_rows})
            for one in (engine, connect.writer(engine))
        )
        self.on_away: Callable[[str], None] = lambda reason: None  # called once, when a server goes away

    def _begin_process(self) -> None:
        self._process = os.getpid()
        # Threads of this process hand SQLite's write lock over here: SQLite would let them sleep and retry,
        # for 1 to 25 ms each time. On a server, writers wait for rows, not for each other.
        self._write_lock = threading.Lock() if self._is_file else nullcontext()

    def _check(self) -> None:
        """Raises StoreError if the file is not the one that was opened. A process that was forked gets
        connections of its own: answers on a server's would be its parent's, who goes on with them."""
        if self._process != os.getpid():
            self._begin_process()
            self._inherited = self.engine.pool  # not to be collected, which may end what the parent uses
            self.engine.dispose(close=self._is_file)
        connect.check_identity(self.url, self._identity)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """One transaction that only reads."""
        self._check()
        with self._explain(), self._to_read() as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One that holds SQLite's write lock; committed at the end, rolled back by any exception."""
        self._check()
        with self._write_lock, self._explain(), self._to_write.begin() as session:
            yield session

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            with connect.explain_errors(self.url):
                yield
        except StoreError as error:
            if connect.is_away(error.__cause__):
                raise ServerAway(str(error)) from error.__cause__
            connect.check_identity(self.url, self._identity)  # it may have been moved a moment ago
            raise

    def close(self) -> None:
        self.engine.dispose()


def each_retried(*but: str) -> Callable[[C], C]:
    """Decorates a class whose public methods are transactions of `self._database`, except for some: each is
    retried while the server is away."""

    def decorate(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in but:
                setattr(cls, name, retry_while_away(method))
        return cls

    return decorate


def retry_while_away(method: Method) -> Method:
    """Decorates a method that is one transaction of `self._database`: while the server is away it is
    repeated, for RECONNECT_S in all, however many such methods it goes through.

    If a connection breaks during a commit, it is unknown whether the commit took place. So repeating it must
    do no harm if it was already done.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        deadline, pause_s = None, _FIRST_PAUSE_S
        while True:
            try:
                return method(self, *args, **kwargs)
            except ServerAway as error:
                if error.is_final:
                    raise
                now = time.monotonic()
                if deadline is None:
                    deadline = now + RECONNECT_S
                    if not connect.is_conflict(error.__cause__):
                        self._database.on_away(f"{error}; trying again for {RECONNECT_S:.0f} s")
                if now + pause_s > deadline:
                    error.is_final = True
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    return cast(Method, run)
