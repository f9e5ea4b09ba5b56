"""A service in this process, asked without a network, or served to clients that have one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import uvicorn

from autotune.report.server import listen
from autotune.service.gate import GateRules
from autotune.service.http_service import Impatient, Service
from autotune.store import Store

HOST = "127.0.0.1"
LOCAL = GateRules(frozenset({HOST, "localhost"}), is_open=True)


class Answered(NamedTuple):
    status: int
    content: bytes
    headers: Mapping[str, str]

    @property
    def document(self) -> Any:
        return json.loads(self.content)


def ask(
    app: Any, method: str, target: str, body: bytes = b"", *, address: str = HOST, **headers: str
) -> Answered:
    """The answer of an ASGI application. `host` is HOST, unless told otherwise."""
    return asyncio.run(ask_soon(app, method, target, body, address=address, **headers))


async def ask_soon(
    app: Any, method: str, target: str, body: bytes = b"", *, address: str = HOST, **headers: str
) -> Answered:
    """The same within a loop."""
    headers = {"host": HOST} | headers
    parts = urlsplit(target)
    named = {"content-length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": parts.path, "raw_path": parts.path.encode(), "root_path": "",
        "query_string": parts.query.encode(), "client": (address, 1), "server": (HOST, 80),
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in named.items()],
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    content = b"".join(one.get("body", b"") for one in sent[1:])
    return Answered(start["status"], content, {k.decode(): v.decode() for k, v in start["headers"]})


@contextmanager
def serving(store: Store, keys: frozenset[str] = frozenset(), rules: GateRules = LOCAL) -> Iterator[str]:
    """The URL of a service that runs in a thread."""
    with listen(0) as listener:
        config = uvicorn.Config(
            Service(store, keys, rules).app(),
            log_config=None,
            access_log=False,
            lifespan="on",
            http=Impatient,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
