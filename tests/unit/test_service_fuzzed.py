"""Malformed and unauthorised requests: all are refused, none crashes a service, nothing unsigned stays."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from service_cases import HOST, ask_soon, serving
from table_cases import make_table, write_table
from test_http_service import SERVED

from autotune.service.gate import GateRules
from autotune.service.http_service import Service
from autotune.service.signing import NewArtifact, SigningKey, signed_tables
from autotune.service.table_source import packed_files
from autotune.store import Store

RULES = GateRules(frozenset({HOST}), is_open=False, per_s=1e9)
FEW, MANY = 300, 5000
PATHS = (
    "/health", "/metrics", "/service", "/api/service", "/api/requests", "/api/workers", "/api/tables",
    "/api/tables/current", "/api/served", f"/api/tables/{'0' * 64}/pin", f"/api/tables/{'0' * 64}/table.json",
)  # fmt: skip
TOKENS = (
    "",
    "Bearer",
    "Bearer x",
    "Basic",
    "Basic %%%",
    "Basic eDp5",
    "Bearer \xff",
    "Digest a",
    "Bearer " + "y" * 9000,
)
JSON = (
    b"", b"{", b"[]", b"null", b"1e999", b"NaN", b'{"a":' * 3000, b"[" * 100_000, b'"\xff"',
    b'{"shapes": ["0"]}',
    b'{"shapes": [{"shape": "9999999999999x1x1"}]}', b'{"shapes": [{"shape": "64", "calls": -1}]}',
    b'{"shapes": [{"shape": "64", "calls": 1e3}]}', b'{"gpu_name": "\\u0000", "shapes": ["64"]}',
    b'{"shapes": ' + b"9" * 5000 + b"}", b'{"gpu_name": "x", "gpu_name": "y", "shapes": ["64"]}',
)  # fmt: skip


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> NewArtifact:
    folder = tmp_path_factory.mktemp("fuzzed")
    key = SigningKey.make(folder / "team.key")
    return next(signed_tables(write_table(make_table(), folder / "sgemm_one"), key, has_run=True))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "team.db") as opened:
        opened.artifacts().add_token("program", "secret", ["request", "work"])
        yield opened


def changed(draw: random.Random, body: bytes) -> bytes:
    """With some bytes gone, doubled or flipped."""
    found = bytearray(body)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(max(1, len(found)))
        choice = draw.randrange(3)
        if choice == 0:
            del found[at : at + draw.randint(1, 40)]
        elif choice == 1:
            found[at:at] = found[at : at + draw.randint(1, 40)]
        elif found:
            found[min(at, len(found) - 1)] ^= 1 << draw.randrange(8)
    return bytes(found)


def odd_message(draw: random.Random) -> bytes:
    """Of a program, with one value that it never has."""
    message = json.loads(json.dumps(SERVED))
    place = draw.choice([message, message["shapes"][0], message["measured"]])
    odd = (None, -1, 0, 1e400, "x" * 5000, [], {}, True, 1 << 70, "\ud800", [[]] * 50, 0.5)
    place[draw.choice([*place, "more"])] = draw.choice(odd)
    return json.dumps(message).encode()


def requests(
    draw: random.Random, new: NewArtifact, num: int, token: str
) -> Iterator[tuple[str, str, bytes, Any]]:
    """With this token in the head, or with any other."""
    table = packed_files(new.files)
    for _ in range(num):
        path, method = (
            draw.choice(PATHS),
            draw.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW")),
        )
        if draw.random() < 0.2:
            path = changed(draw, path.encode()).decode("latin-1")
        body = draw.choice((draw.choice(JSON), odd_message(draw), changed(draw, table), draw.randbytes(200)))
        if draw.random() < 0.5:
            method, path = "POST", draw.choice(("/api/served", "/api/requests", "/api/tables"))
        headers = {"authorization": f"Bearer {token}" if token else draw.choice(TOKENS)}
        if draw.random() < 0.1:
            headers["host"] = draw.choice(("evil.example", "", "[", "127.0.0.1:x", "[::1]:8571"))
        if draw.random() < 0.1:
            headers["origin"] = draw.choice(("http://evil.example", "null", "http://[", ""))
        if draw.random() < 0.1:
            headers["content_length"] = draw.choice(("-1", "x", "", "9" * 30, "5"))
        yield method, f"/{path.lstrip('/')}", body, headers


def states(store: Store) -> tuple[int, int, int]:
    kept = store.artifacts()
    return len(kept.all()), len(kept.tokens()), len(store.queue().requests())


async def all_of(app: Any, requested: Iterator[tuple[str, str, bytes, Any]]) -> Counter[int]:
    found = Counter[int]()
    for method, path, body, headers in requested:
        answer = await ask_soon(app, method, path.replace("?", "%3F").replace("#", "%23"), body, **headers)
        assert answer.status < 500 or answer.status == 503, (method, path, body[:100], headers, answer)
        found[answer.status] += 1
    return found


@pytest.mark.parametrize("num", [FEW, pytest.param(MANY, marks=pytest.mark.stress)])
def test_nobody_without_a_token_gets_anywhere(num: int, store: Store, new: NewArtifact) -> None:
    app = Service(store, frozenset({json.loads(new.files[0])["key"]}), RULES).app()
    before = states(store)
    found = asyncio.run(all_of(app, requests(random.Random(num), new, num, "")))
    assert found.total() == num and set(found) <= {200, 400, 401, 403, 404, 405, 413, 421, 429, 431}
    assert found[200] <= num // 8  # /health alone answers
    assert states(store) == before


@pytest.mark.parametrize("num", [FEW, pytest.param(MANY, marks=pytest.mark.stress)])
def test_a_token_of_a_program_publishes_nothing_that_is_not_signed(
    num: int, store: Store, new: NewArtifact
) -> None:
    service = Service(store, frozenset({json.loads(new.files[0])["key"]}), RULES)
    app = service.app()
    found = asyncio.run(all_of(app, requests(random.Random(num), new, num, "secret")))
    service._store_now()
    assert found[400] > num // 8 and found[401] == 0
    assert states(store)[:2] == (0, 1)


@pytest.mark.stress
def test_bytes_that_are_no_http_end_nothing(store: Store, new: NewArtifact) -> None:
    """On sockets: half heads, wrong chunks, what never ends."""
    draw = random.Random(0)
    with serving(store, rules=RULES) as url:
        host, port = urlsplit(url).hostname, urlsplit(url).port
        head = f"POST /api/served HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n"
        whole = f"{head}5\r\nabcde\r\n0\r\n\r\n"
        left = []
        for _ in range(500):
            connection = socket.create_connection((host, port), timeout=5)
            with suppress(OSError):  # it may have had enough
                connection.sendall(
                    changed(draw, whole.encode()) if draw.random() < 0.8 else draw.randbytes(500)
                )
            left.append(connection)
            if len(left) > 100:
                left.pop(0).close()
        for connection in left:
            connection.close()
        connection = socket.create_connection((host, port), timeout=5)
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        assert b'{"status":"ok"}' in connection.makefile("rb").read()
        connection.close()
