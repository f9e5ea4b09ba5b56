"""`autotune requests`: shapes that a team wants tuned, in a database or on a server."""

from __future__ import annotations

import os
from typing import Any

from ..files import strict
from ..files.words import counted
from ..runtime.service.table_server import TOKEN, NoAnswer, ServerCalls
from ..service.wanted import MAX_SHAPES, read_wanted, request_document
from ..store import Store
from . import common, console, table_places
from .requests import AskRequest, QueueRequest


def add(request: AskRequest, *, is_json: bool) -> None:
    """Ask for shapes. Raises UsageError where there is none, StoreError, NoAnswer."""
    calls, _ = common.read_calls(request.suites)
    calls = dict.fromkeys(common.read_shapes(request.shapes), 1) | calls
    if not calls:
        raise common.no_shape()
    shapes = [{"shape": str(gemm), "calls": max(1, count)} for gemm, count in calls.items()]
    ids: list[int] = []
    for at in range(0, len(shapes), MAX_SHAPES):
        document = {"gpu_name": request.gpu_name, "shapes": shapes[at : at + MAX_SHAPES]}
        ids += _sent(document, request)
    if is_json:
        console.show_json({"ids": ids})
        return
    console.show(
        f"{counted(len(ids), 'shape')} asked for; `autotune requests list` shows what becomes of them"
    )


def _sent(document: dict[str, Any], request: AskRequest) -> list[int]:
    if request.server is None:
        with Store.open(request.db) as store:
            return store.queue().submit(read_wanted(document, table_places.me()))
    answer = _server(request.server).post("requests", content=document)
    found: dict[str, tuple[int, ...]] = strict.read(dict[str, tuple[int, ...]], answer.document(), "answer")
    return list(found.get("ids", ()))


def show_all(request: QueueRequest, *, is_json: bool) -> None:
    """List the queue. Raises StoreError, NoAnswer."""
    if request.server is None:
        with common.open_existing(request.db) as store:
            found = [request_document(one) for one in store.queue().requests(most=request.limit)]
    else:
        found = _listed(_server(request.server))[: request.limit]
    if is_json:
        console.show_json({"requests": found})
        return
    rows = [
        (
            str(one["id"]), str(one["shape"]), console.one_line(str(one["gpu"]) or "any"), str(one["state"]),
            f"{one['calls']:,.0f}", str(one["num_tries"]), console.one_line(str(one["reason"])),
        )
        for one in found
    ]  # fmt: skip
    console.show(console.table(("id", "shape", "GPU", "state", "calls", "tries", ""), rows, right=(0, 4, 5)))


def _server(url: str) -> ServerCalls:
    return ServerCalls(url, os.environ.get(TOKEN, ""))


def _listed(server: ServerCalls) -> list[dict[str, Any]]:
    answer = server.get("requests", most_bytes=1 << 24).document()
    found = answer.get("requests") if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise NoAnswer("the server lists no requests as this autotune knows them; update one of both")
    return found
