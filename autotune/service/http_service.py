"""The service over HTTP: requests for shapes, tables, workers, metrics.

    GET  /health                         whether the database answers
    GET  /metrics                        for Prometheus
    GET  /service                        the page of all below
    GET  /api/service                    what it is drawn from (overview.py)
    GET  /api/requests, /api/workers
    POST /api/requests                   shapes by hand, or from recorded calls        role request
    POST /api/served                     what a program tells (served.py)              role request
    GET  /api/tables                     all, /api/tables/current?gpu_name=...: the address of one
    GET  /api/tables/ADDRESS/FILE        a file of a table
    POST /api/tables                     a signed table                                role work
    POST /api/tables/ADDRESS/WHAT        pin, unpin or rollback                        role publish

All else asks for the role read, and nothing for /health. Handlers answer from memory, or ask the database in
another thread.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, get_args

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..files import strict
from ..files.errors import AutotuneError, DispatchError, StoreError, UsageError
from ..report import page
from ..runtime.service.table_server import is_address
from ..store import ChannelKey, Store
from ..store.artifacts import What
from . import json_log
from .gate import NO_LANE, PUBLISH, READ, REQUEST, WORK, Gate, GateRules, Rejection
from .json_log import LOG, tell
from .metrics import CONTENT_TYPE, Metrics
from .overview import overview
from .served import Intake, read_served
from .signing import received
from .table_source import MAX_UPLOAD_BYTES, Catalogue, unpacked_files
from .wanted import asked_for, request_document

MAX_BODY_BYTES = 1 << 20
HEAD_S, BODY_S, UPLOAD_S = 10.0, 10.0, 300.0  # to receive a head, a body
STORE_S = 1.0  # between two times that what programs told is stored
OVERVIEW_S = 1.0
MOST_LISTED = 1000
_FRESH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_CACHED = {"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class GuardedRoute:
    """A route: its handler, who may ask, and how large a body may be."""

    path: str
    handler: Handler
    role: str = READ
    method: str = "GET"
    most_bytes: int = 0


class Service:
    """Answers for one database. `keys`: public keys of who may publish; `is_read_only`: nothing is changed,
    as with a role of the database that only reads."""

    def __init__(
        self, store: Store, keys: frozenset[str], rules: GateRules, *, is_read_only: bool = False
    ) -> None:
        self._artifacts, self._queue, self._store = store.artifacts(), store.queue(), store
        self.catalogue = Catalogue(self._artifacts)
        self._served = Intake(self._artifacts, self._queue)
        self._metrics = Metrics(self._artifacts, self._queue)
        self._keys, self._is_read_only = keys, is_read_only
        self._gate = Gate(rules, lambda: self.catalogue.tokens)
        self._overview: tuple[float, bytes] = (-OVERVIEW_S, b"")
        self._overview_lock = asyncio.Lock()

    def routes(self) -> list[GuardedRoute]:
        """Whoever asks."""
        reading = (
            GuardedRoute("/health", self.health, NO_LANE),
            GuardedRoute("/metrics", self.metrics),
            GuardedRoute("/api/service", self.overview),
            GuardedRoute("/api/requests", self.requests),
            GuardedRoute("/api/workers", self.workers),
            GuardedRoute("/api/tables", self.tables),
            GuardedRoute("/api/tables/current", self.current),
            GuardedRoute("/api/tables/{address}/{name}", self.file),
        )
        changing = (
            GuardedRoute("/api/requests", self.add_requests, REQUEST, "POST", MAX_BODY_BYTES),
            GuardedRoute("/api/served", self.add_served, REQUEST, "POST", MAX_BODY_BYTES),
            GuardedRoute("/api/tables", self.publish, WORK, "POST", MAX_UPLOAD_BYTES),
            GuardedRoute("/api/tables/{address}/{what}", self.decide, PUBLISH, "POST", MAX_BODY_BYTES),
        )
        return [*reading, *(() if self._is_read_only else changing)]

    def app(self, pages: Sequence[BaseRoute] = ()) -> ASGIApp:
        """The application; `pages` are routes that ask for the role read."""
        guarded = self.routes()
        routes = [Route(one.path, one.handler, methods=[one.method]) for one in guarded]
        errors: Any = {AutotuneError: _respond, HTTPException: _rejected, ClientDisconnect: _gone}
        app = Starlette(routes=[*routes, *pages], exception_handlers=errors, lifespan=self._lifespan)
        return _Guard(app, guarded, self._gate, self._metrics, self.catalogue)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        storing = asyncio.create_task(self._store_on())
        tell("begin", is_read_only=self._is_read_only)
        try:
            yield
        finally:
            storing.cancel()
            await run_in_threadpool(self._store_now)
            tell("end")

    async def _store_on(self) -> None:
        while True:
            await asyncio.sleep(STORE_S)
            await run_in_threadpool(self._store_now)

    def _store_now(self) -> None:
        if self._is_read_only:
            return
        try:
            self._served.store()
        except AutotuneError as error:
            LOG.warning("not stored", extra={"facts": {"reason": str(error)}})

    # ---- reading

    async def health(self, request: Request) -> Response:
        await run_in_threadpool(self._artifacts.latest_event)
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(await run_in_threadpool(self._metrics.text), media_type=CONTENT_TYPE, headers=_FRESH)

    async def overview(self, request: Request) -> Response:
        async with self._overview_lock:
            at, content = self._overview
            if time.monotonic() - at >= OVERVIEW_S:
                found = await run_in_threadpool(overview, self._store, self.catalogue.listed)
                content = json.dumps(found, default=str).encode()
                self._overview = time.monotonic(), content
        return Response(content, media_type="application/json", headers=_FRESH)

    async def requests(self, request: Request) -> Response:
        found = await run_in_threadpool(self._queue.requests, most=MOST_LISTED)
        return _json({"requests": [request_document(one) for one in found]})

    async def workers(self, request: Request) -> Response:
        found = await run_in_threadpool(self._queue.workers)
        return _json({"workers": [asdict(one) for one in found]})

    async def tables(self, request: Request) -> Response:
        return _json({"tables": self.catalogue.listed})

    async def current(self, request: Request) -> Response:
        address = self.catalogue.current(_channel(request))
        if address is None:
            raise HTTPException(404)
        tag = f'"{address}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return _json({"address": address}, {"ETag": tag})

    async def file(self, request: Request) -> Response:
        address, name = (request.path_params[one] for one in ("address", "name"))
        found = await run_in_threadpool(self.catalogue.file, address, name) if is_address(address) else None
        if found is None:
            raise HTTPException(404)
        return Response(found, media_type="application/octet-stream", headers=_CACHED)

    # ---- changing

    async def add_requests(self, request: Request) -> Response:
        """{"gpu_name": "", "shapes": [{"shape": "4096x128x4096:NT", "calls": 10}]}"""
        document = _parsed(await _body(request, MAX_BODY_BYTES))
        wanted = await run_in_threadpool(asked_for, document, _who(request), self._queue)
        return _json({"ids": await run_in_threadpool(self._queue.submit, wanted)})

    async def add_served(self, request: Request) -> Response:
        message = read_served(_parsed(await _body(request, MAX_BODY_BYTES)))
        if not self._served.add(message, _who(request)):
            raise HTTPException(503, "too much waits to be stored")
        return _json({"is_taken": True}, status=202)

    async def publish(self, request: Request) -> Response:
        if not self._keys:
            raise HTTPException(403, "this server was given no key; begin it with --trust")
        body = await _body(request, MAX_UPLOAD_BYTES)
        is_new = await run_in_threadpool(self._publish, body, _who(request))
        return _json({"is_new": is_new})

    def _publish(self, body: bytes, by: str) -> bool:
        new = received(unpacked_files(body), self._keys)
        is_new = self._artifacts.publish(*new, by)
        self.catalogue.forget()
        tell("published", address=new.address, gpu_name=new.channel.gpu_name, by=by, is_new=is_new)
        return is_new

    async def decide(self, request: Request) -> Response:
        address, what = (request.path_params[one] for one in ("address", "what"))
        if what == "publish" or what not in get_args(What) or not is_address(address):
            raise HTTPException(404)
        await run_in_threadpool(self._artifacts.decide, what, address, _who(request))
        self.catalogue.forget()
        tell(what, address=address, by=_who(request))
        return _json({"what": what, "address": address})


class _Guard:
    """Before and behind the application: who may ask, the log, the metrics."""

    def __init__(
        self,
        app: ASGIApp,
        guarded: Sequence[GuardedRoute],
        judge: Gate,
        metrics: Metrics,
        catalogue: Catalogue,
    ) -> None:
        self._app, self._gate, self._metrics, self._catalogue = app, judge, metrics, catalogue
        self._routes = [(Route(one.path, one.handler, methods=[one.method]), one) for one in guarded]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no websocket is served
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began_s, answered = time.perf_counter(), [500]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered[0] = message["status"]
            await send(message)

        guarded = self._guarded(scope)
        who, rejection = await self._judged(scope, guarded)
        scope.setdefault("state", {})["who"] = who
        if rejection is not None:
            await _rejection(rejection)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)
        took_s, route = time.perf_counter() - began_s, guarded.path if guarded else "page"
        self._metrics.count(scope["method"] if guarded else "GET", route, answered[0], took_s)
        if (answered[0] >= 400 and answered[0] != 404) or scope["method"] != "GET":
            path = scope["path"][:200]
            tell(
                "request",
                method=scope["method"],
                path=path,
                status=answered[0],
                ms=round(1e3 * took_s, 1),
                who=who,
            )

    async def _judged(self, scope: Scope, guarded: GuardedRoute | None) -> tuple[str, Rejection | None]:
        if not self._catalogue.is_fresh:
            try:
                await run_in_threadpool(self._catalogue.look)
            except StoreError as error:  # nobody can be known without tokens
                return "", Rejection(503, str(error))
        if guarded is None:
            return self._gate.judge(scope, READ, 0)
        return self._gate.judge(scope, guarded.role, guarded.most_bytes)

    def _guarded(self, scope: Scope) -> GuardedRoute | None:
        full = [route.matches(scope)[0].value == 2 for route, _ in self._routes]
        return next((one for is_it, (_, one) in zip(full, self._routes, strict=True) if is_it), None)


async def _body(request: Request, most_bytes: int) -> bytes:
    """All of it. Raises HTTPException if it is larger, or takes too long."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(UPLOAD_S if most_bytes > MAX_BODY_BYTES else BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise HTTPException(413, f"the body is larger than {most_bytes:,} bytes")
                parts.append(part)
    except TimeoutError as error:
        raise HTTPException(408, "the body takes too long") from error
    return b"".join(parts)


def _parsed(body: bytes) -> Any:
    try:
        return strict.parse(body.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is no JSON ({error})") from error


def _channel(request: Request) -> ChannelKey:
    requested = request.query_params
    major, _, minor = requested.get("compute_capability", "").partition(".")
    if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        raise HTTPException(400, "name compute_capability as 9.0")
    cc = int(major[:4]), int(minor[:4])
    return ChannelKey(
        requested.get("gpu_name", ""), cc, requested.get("driver", ""), requested.get("cublas", "")
    )


def _who(request: Request) -> str:
    return str(request.scope["state"]["who"])


def _json(document: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return JSONResponse(document, status, {**_FRESH, **(headers or {})})


def _rejection(rejection: Rejection) -> Response:
    headers = {"WWW-Authenticate": 'Basic realm="autotune"'} if rejection.status == 401 else {}
    if rejection.status in (413, 401, 403, 421):
        headers["Connection"] = "close"  # a body that nobody reads may follow
    return _json({"error": rejection.reason}, headers, rejection.status)


async def _respond(request: Request, error: Exception) -> Response:
    """An error of ours: whoever asks is told."""
    status = 503 if isinstance(error, StoreError) else 400
    if isinstance(error, UsageError | DispatchError | StoreError):
        return _json({"error": str(error)}, status=status)
    LOG.error("internal error", exc_info=error)
    return _json({"error": "an error of the server; its log tells"}, status=500)


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, status=error.status_code)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


# ---- the page, and uvicorn


def page_routes() -> list[Route]:
    """The page of the service, and its script, among those of the database's pages."""
    script = f"/service/{page.SERVICE.name}"
    text = page.frame([*(f"/static/{name}" for name in page.SERVICE_NEEDS), script])

    async def answer_page(request: Request) -> Response:
        return HTMLResponse(text, headers=_FRESH)

    async def answer_script(request: Request) -> Response:
        return FileResponse(page.SERVICE, media_type="text/javascript", headers=_FRESH)

    return [Route("/service", answer_page), Route(script, answer_script)]


class Impatient(H11Protocol):
    """Closes a connection whose next head does not come whole; uvicorn would wait without end."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle = self.conn.their_state  # until a whole head came
        self._deadline = self.loop.call_later(HEAD_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_whole = self.conn.their_state is not self._idle
        if is_whole and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not is_whole and self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self.transport.close)


def serve(app: ASGIApp, listener: socket.socket, **options: Any) -> None:
    """Answer until Ctrl-C or SIGTERM: then requests end, and what programs told is stored."""
    json_log.begin()
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", server_header=False, http=Impatient, **options
    )
    uvicorn.Server(config).run(sockets=[listener])
