"""`autotune trials dashboard`: Optuna's dashboard on the trials as they are, while searches write them."""

from __future__ import annotations

from contextlib import closing
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..files.errors import UsageError
from ..files.wheel_libraries import DASHBOARD, required
from . import common, view
from .requests import DashboardRequest

_OWN_NAMES = ("127.0.0.1", "localhost", "::1")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's concern."""


def run(request: DashboardRequest, *, is_json: bool) -> None:
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
            view.tell(request.db, host, server.server_port, is_own=host in _OWN_NAMES, is_json=is_json)
            server.serve_forever()
