"""`autotune serve`: a team's requests, tables and workers over HTTP, with the pages of its database."""

from __future__ import annotations

import os
import ssl
from contextlib import ExitStack
from pathlib import Path

from ..files.errors import UsageError
from ..files.wheel_libraries import CRYPTOGRAPHY, PROMETHEUS, STARLETTE, UVICORN, required
from ..report import page
from ..report.feed import Feed
from ..runtime.service.table_server import KEY, read_keys
from ..store import Follower, Store, shown
from . import common, console
from .explain import trial_page
from .requests import ServeRequest

GRACE_S = 5  # that requests have to end at a shutdown
MAX_CONNECTIONS = 4000


def run(request: ServeRequest, *, is_json: bool) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises EnvironmentProblem where a package is missing, UsageError for
    what would let strangers in, StoreError."""
    page.jinja()
    with required("nothing can be served", CRYPTOGRAPHY, PROMETHEUS, STARLETTE, UVICORN):
        from ..report import server
        from ..service import gate, http_service
    is_own = request.host in server.OWN_NAMES
    keys = read_keys(",".join(request.trusted) or os.environ.get(KEY, ""))
    with ExitStack() as at_end:
        opening = common.open_existing(request.db) if request.is_read_only else Store.open(request.db)
        store = at_end.enter_context(opening)
        _check_safe(request, has_tokens=bool(store.artifacts().tokens()), is_own=is_own)
        follower = at_end.enter_context(Follower(request.db))
        names = frozenset(name.lower() for name in (*request.names, *(server.OWN_NAMES if is_own else ())))
        rules = gate.GateRules(names, is_open=is_own and not request.names, per_s=request.rate)
        service = http_service.Service(store, keys, rules, is_read_only=request.is_read_only)
        pages = server.Pages(Feed(follower, None), shown(request.db), None, (), trial_page)
        listener = at_end.enter_context(server.listen(request.port, request.host))
        port, scheme = listener.getsockname()[1], "https" if request.certificate else "http"
        _tell(
            request, f"{scheme}://{next(iter(request.names), request.host)}:{port}/service", is_json=is_json
        )
        http_service.serve(
            service.app([*pages.routes(), *http_service.page_routes()]),
            listener,
            **_certificates(request),
            timeout_graceful_shutdown=GRACE_S,
            limit_concurrency=MAX_CONNECTIONS,
        )


def _check_safe(request: ServeRequest, *, has_tokens: bool, is_own: bool) -> None:
    """Raises UsageError where anybody could ask, or tokens would be sent for all to read."""
    if (request.certificate is None) != (request.certificate_key is None):
        raise UsageError("--certificate and --certificate-key belong together; pass both")
    for path in (request.certificate, request.certificate_key):
        if path is not None and not path.is_file():
            raise UsageError(f"there is no file {path}; name the certificate and its key")
    if request.certificate and request.certificate_key:
        try:
            ssl.create_default_context().load_cert_chain(request.certificate, request.certificate_key, str)
        except (OSError, ValueError) as error:  # str(): no password, where it would be asked for
            raise UsageError(
                f"{request.certificate} and {request.certificate_key} are no certificate and its key in PEM "
                f"({error}); name such, without a password"
            ) from error
    if is_own and not request.names:
        return
    if not has_tokens:
        raise UsageError(
            "others may reach this server, and nobody has a token; make one with `autotune tokens new NAME "
            f"--db {shown(request.db)}`"
        )
    if not (is_own or request.certificate or request.is_behind_proxy):
        raise UsageError(
            "tokens would be sent in the clear: pass --certificate and --certificate-key, or --behind-proxy "
            "where a proxy has them"
        )


def _certificates(request: ServeRequest) -> dict[str, Path]:
    if request.certificate is None or request.certificate_key is None:
        return {}
    return {"ssl_certfile": request.certificate, "ssl_keyfile": request.certificate_key}


def _tell(request: ServeRequest, address: str, *, is_json: bool) -> None:
    facts = {"address": address, "db": shown(request.db)}
    console.answer(facts, lambda: f"{shown(request.db)}: {address} (Ctrl-C ends it)", is_json=is_json)
