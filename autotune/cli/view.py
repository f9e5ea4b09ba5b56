"""`autotune view`: pages of a database in the browser, while a search writes it; and Optuna's dashboard."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing, suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..files.errors import StoreError, UsageError
from ..files.wheel_libraries import DASHBOARD, STARLETTE, UVICORN, required
from ..report import page
from ..report.feed import Feed
from ..report.ladder_steps import read_ladder
from ..report.table_maps import table_document
from ..store import Follower, shown
from . import common, console
from .explain import trial_page
from .requests import DashboardRequest, ViewRequest

LATER = 15  # added to the process's niceness: a search on this machine comes first, its compilers too
_OWN_NAMES = ("127.0.0.1", "localhost", "::1")


def run(request: ViewRequest, *, is_json: bool) -> None:
    """Serve pages at an address of this machine until Ctrl-C. Raises EnvironmentProblem where a package is
    missing, UsageError where the port is taken or a ladder cannot be read, StoreError without a database,
    DispatchError without a table."""
    page.jinja()
    with required("pages cannot be served", STARLETTE, UVICORN):
        from ..report import server
    gemms = common.read_problems(request.shapes)
    ladders = [read_ladder(path) for path in request.ladders]
    with ExitStack() as at_end:
        with common.open_existing(request.db):  # brings an older one up to date, which a reader cannot
            pass
        at_end.callback(_tidy, request.db)
        follower = at_end.enter_context(Follower(request.db))
        listener = at_end.enter_context(server.listen(request.port, request.host))
        place = (request.host, listener.getsockname()[1])
        tell(request.db, *place, is_own=request.host in server.OWN_NAMES, is_json=is_json)
        os.nice(LATER)
        feed = Feed(follower, request.max_error, gemms)
        table = table_document(request.table, feed.studies()) if request.table else None
        pages = server.Pages(feed, shown(request.db), table, ladders, trial_page)
        server.serve(pages, listener, request.host)


def tell(db: str, host: str, port: int, *, is_own: bool, is_json: bool) -> None:
    """Where the pages are, and how another machine gets to them: by a tunnel, or as everybody does."""
    name = socket.getfqdn()
    address = f"http://{name if host == '0.0.0.0' else host}:{port}/"
    ssh_command = f"ssh -L {port}:127.0.0.1:{port} {name}" if is_own else None
    if is_json:
        console.show_json({"address": address, "db": shown(db), "tunnel": ssh_command})
        return
    console.show(f"{shown(db)}: open {address} (Ctrl-C ends it)")
    if ssh_command:
        console.note(f"From another machine: {ssh_command}, and open the same address there.")
    else:
        console.note("Whoever reaches this address can read what the database holds.")


def _tidy(db: str) -> None:
    """Have SQLite take away its files beside a database that nobody writes, which a reader cannot."""
    with suppress(StoreError), common.open_existing(db):
        pass


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's concern."""


def show_dashboard(request: DashboardRequest, *, is_json: bool) -> None:
    """Serve the dashboard at an address of this machine until Ctrl-C. Raises EnvironmentProblem where it is
    not installed, UsageError where the port is taken, StoreError without a database."""
    port, host = request.port, request.host
    with required("Optuna's dashboard cannot be shown", DASHBOARD):
        from optuna_dashboard import wsgi as make_app
    from ..store.optuna_storage import OptunaStorage

    with common.open_existing(request.db) as store, closing(OptunaStorage(store)) as storage:
        try:
            server = make_server(host, port, make_app(storage), _Server, _Handler)
        except OSError as error:
            raise UsageError(f"--port {port} of {host}: {error.strerror}; choose another one") from None
        with server:
            tell(request.db, host, server.server_port, is_own=host in _OWN_NAMES, is_json=is_json)
            server.serve_forever()
