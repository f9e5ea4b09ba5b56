"""Runs the service: its page, its log, and uvicorn."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..report import page
from . import json_log
from .gate import GateRules
from .http_service import Service

_FRESH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def page_routes() -> list[Route]:
    """The page of the service, and its script, among those of the database's pages."""
    script = f"/service/{page.SERVICE.name}"
    text = page.frame([*(f"/static/{name}" for name in page.SERVICE_NEEDS), script])

    async def answer_page(request: Request) -> Response:
        return HTMLResponse(text, headers=_FRESH)

    async def answer_script(request: Request) -> Response:
        return FileResponse(page.SERVICE, media_type="text/javascript", headers=_FRESH)

    return [Route("/service", answer_page), Route(script, answer_script)]


def serve(app: ASGIApp, listener: socket.socket, **options: Any) -> None:
    """Answer until Ctrl-C or SIGTERM: then requests end, and what programs told is stored."""
    json_log.begin()
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", server_header=False, **options
    )
    uvicorn.Server(config).run(sockets=[listener])


__all__ = ["GateRules", "Service", "page_routes", "serve"]
