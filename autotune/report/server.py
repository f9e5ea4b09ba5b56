"""Serves the pages, on this machine alone or to others, and what they are drawn from as JSON.

    /                    the page
    /static/NAME         its scripts
    /api/version         grows whenever something is new in the database; documents say of which they are
    /api/overview        all studies and runs (documents.overview)
    /api/table           an exported folder (table_maps.table_document)
    /api/study/ID        one study in full; ?after=TRIAL: with trials of larger ids only
    /tiles/ID/TRIAL      what the kernel of a trial does with memory (the tile explorer)

Answers name no other origin. On this machine alone a page of another site cannot read them, either: only this
machine's names are answered."""

from __future__ import annotations

import json
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..facts.frozen import picked
from ..files.errors import StoreError, UsageError
from . import documents, page
from .feed import Feed, RateLimited
from .ladder_steps import LadderFacts
from .numbers import StudyNumbers

HOST = "127.0.0.1"
OWN_NAMES = [HOST, "localhost"]  # that a browser of this machine may call it
_FILES = {path.name: path for path in (page.LIBRARY, *page.SCRIPTS, page.LIVE)}
_FRESH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


Explain = Callable[[StudyNumbers, int], str | None]


class Pages:
    """Answers by what a feed knows. `source` names the database, `table` is what the page of an exported
    folder is drawn from, if there is one; `explain` makes the page of one trial's kernel, if it can."""

    def __init__(
        self,
        feed: Feed,
        source: str,
        table: documents.Document | None = None,
        ladders: Sequence[LadderFacts] = (),
        explain: Explain = lambda study, trial: None,
    ) -> None:
        self._feed, self._source = feed, source
        self._table, self._ladders, self._explain = table, ladders, explain
        self._overview: RateLimited[bytes] = RateLimited()
        self._studies: defaultdict[int, RateLimited[documents.Document]] = defaultdict(RateLimited)

    def routes(self) -> list[Route]:
        """What answers, for an application."""
        return [
            Route("/", self.index),
            Route("/static/{name}", self.static),
            Route("/api/version", self.version),
            Route("/api/overview", self.overview),
            Route("/api/study/{study}", self.study),
            Route("/api/table", self.table),
            Route("/tiles/{study}/{trial}", self.tiles),
        ]

    def app(self, host: str = HOST) -> Starlette:
        """What answers at this address of the machine: at any but its own, whatever name it is called by."""
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=OWN_NAMES if host in OWN_NAMES else ["*"])
        return Starlette(routes=self.routes(), middleware=[guard], exception_handlers={StoreError: _respond})

    def index(self, request: Request) -> Response:
        return HTMLResponse(page.frame([f"/static/{name}" for name in _FILES]), headers=_FRESH)

    def static(self, request: Request) -> Response:
        path = _FILES.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, media_type="text/javascript", headers=_FRESH)

    def version(self, request: Request) -> Response:
        return JSONResponse({"version": self._feed.look()}, headers=_FRESH)

    def overview(self, request: Request) -> Response:
        found = self._overview.get(self._feed.look(), self._make_overview)
        return Response(found, media_type="application/json", headers=_FRESH)

    def _make_overview(self) -> bytes:
        studies = self._feed.studies()
        source = f"{self._source}{self._feed.part}"
        overview = documents.overview(studies, source, self._ladders)
        return _json({**overview, "version": self._feed.version, "has_table": self._table is not None})

    def table(self, request: Request) -> Response:
        if self._table is None:
            raise HTTPException(404)
        return Response(_json(self._table), media_type="application/json", headers=_FRESH)

    def tiles(self, request: Request) -> Response:
        study, trial = map(_id, (request.path_params["study"], request.path_params["trial"]))
        found = self._feed.study(study)
        value = None if found is None else self._explain(found, trial)
        if value is None:
            raise HTTPException(404)
        return HTMLResponse(value, headers=_FRESH)

    def study(self, request: Request) -> Response:
        study_id, after = _id(request.path_params["study"]), _id(request.query_params.get("after", "0"))
        found = self._feed.study(study_id)
        if found is None:
            raise HTTPException(404)
        known = picked(self._feed, "version epoch")
        follows = self._studies[study_id].get(
            known["version"], lambda: {**documents.what_follows(found), **known}
        )
        new = documents.new_trials(found, after)
        return Response(_json({**follows, **new}), media_type="application/json", headers=_FRESH)


def _id(text: str) -> int:
    """Of a study or a trial. Raises HTTPException for what is none: a URL may hold anything."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise HTTPException(404)
    return int(text)


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


async def _respond(request: Request, error: Exception) -> Response:
    """A database that cannot be read is told on the page, and asked for again."""
    return JSONResponse({"error": str(error)}, status_code=503, headers=_FRESH)


def listen(port: int, host: str = HOST) -> socket.socket:
    """A socket at an address of this machine; port 0: any that is free. Raises UsageError if the port is
    taken, or the address is none of this machine."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        place = f"--port {port}" if host in OWN_NAMES else f"--host {host} --port {port}"
        raise UsageError(f"{place} cannot be had ({error.strerror}); name another, or port 0") from error
    listener.listen()
    return listener


def serve(pages: Pages, listener: socket.socket, host: str = HOST) -> None:
    """Answer until Ctrl-C."""
    config = uvicorn.Config(
        pages.app(host), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])
