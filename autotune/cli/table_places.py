"""What `autotune tables` and `autotune serve` share: where tables are, keys, and the packages for both."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from ..files.errors import EnvironmentProblem, UsageError
from ..files.wheel_libraries import CRYPTOGRAPHY, pip_install
from ..runtime.service.table_server import KEY, TOKEN, read_keys
from ..service.table_source import DatabaseTables, ServerTables, TableSource
from ..store import Store


@contextmanager
def opened(db: str, server: str | None) -> Iterator[TableSource]:
    """A server's tables, or those of a database, which is made if it is not there. Raises StoreError and
    NoAnswer."""
    if server is not None:
        yield ServerTables(server, os.environ.get(TOKEN, ""))
        return
    with Store.open(db) as store:
        yield DatabaseTables(store.artifacts())


def me() -> str:
    """Who decides something, for those who look later."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def trusted(given: Sequence[str]) -> frozenset[str]:
    """The public keys that were given, or those of the environment. Raises UsageError where there is none,
    DispatchError for what is none."""
    keys = read_keys(",".join(given) or os.environ.get(KEY, ""))
    if not keys:
        raise UsageError(f"by whom must tables be signed? Pass --trust KEY, or set {KEY}")
    return keys


def signing() -> ModuleType:
    """The module that makes keys and signs. Raises EnvironmentProblem without its package."""
    try:
        from ..service import signing
    except ImportError as error:
        raise EnvironmentProblem(
            f"nothing can be signed ({error}); install: {pip_install(CRYPTOGRAPHY)}"
        ) from error
    return signing
