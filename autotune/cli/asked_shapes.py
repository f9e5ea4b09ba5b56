"""`autotune requests`: shapes that a team wants tuned, in a database or on a server."""

from __future__ import annotations

import os
from typing import Any

from ..files import strict
from ..files.words import counted
from ..runtime.service.table_server import TOKEN, NoAnswer, ServerCalls
from ..service.wanted import MAX_SHAPES, asked_for, request_document
from ..store import Store
from . import common, console, tables
from .facts_table import facts_table
from .requests import AskRequest, QueueRequest

_COLUMNS = {
    "id": "id", "shape": "shape", "GPU": "gpu", "state": "state", "calls": "calls", "tries": "num_tries",
    "": "reason",
}  # fmt: skip


def add(request: AskRequest, *, is_json: bool) -> None:
    """Ask for shapes. Raises UsageError where there is none, StoreError, NoAnswer."""
    calls, _ = common.read_calls(request.suites)
    named = common.read_shapes(request.shapes)
    calls = calls | {gemm: request.calls + calls.get(gemm, 0) for gemm in named}
    if not calls:
        raise common.no_shape()
    shapes = [{"shape": str(gemm), "calls": max(1, count)} for gemm, count in calls.items()]
    ids: list[int] = []
    for at in range(0, len(shapes), MAX_SHAPES):
        document = {"gpu_name": request.gpu_name, "shapes": shapes[at : at + MAX_SHAPES]}
        ids += _sent(document, request)
    text = f"{counted(len(ids), 'shape')} asked for; `autotune requests list` shows what becomes of them"
    console.answer({"ids": ids}, lambda: text, is_json=is_json)


def _sent(document: dict[str, Any], request: AskRequest) -> list[int]:
    if request.server is None:
        with Store.open(request.db) as store:
            queue = store.queue()
            return queue.submit(asked_for(document, tables.me(), queue))
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
    rows = [{**one, "gpu": one["gpu"] or "any", "calls": round(one["calls"])} for one in found]
    console.answer({"requests": found}, lambda: facts_table(rows, _COLUMNS), is_json=is_json)


def _server(url: str) -> ServerCalls:
    return ServerCalls(url, os.environ.get(TOKEN, ""))


def _listed(server: ServerCalls) -> list[dict[str, Any]]:
    answer = server.get("requests", most_bytes=1 << 24).document()
    found = answer.get("requests") if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise NoAnswer("the server lists no requests as this autotune knows them; update one of both")
    return found
