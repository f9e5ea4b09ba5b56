"""The service over HTTP: who may ask for what, what is refused, what is stored."""

from __future__ import annotations

import base64
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgresql_server import Server
from service_cases import HOST, LOCAL, Answered, ask, serving
from table_cases import make_table, write_table

from autotune.service import http_service
from autotune.service.gate import MAX_CLIENTS, ROLES, GateRules, Rates
from autotune.service.http_service import MAX_BODY_BYTES, Service
from autotune.service.served import AGAIN_S
from autotune.service.signing import NewArtifact, SigningKey, signed_tables
from autotune.service.table_source import packed_files
from autotune.service.wanted import read_wanted
from autotune.store import RequestState, Store

REMOTE = GateRules(frozenset({"tune.example.com"}), is_open=False)
SHAPE = {
    "m": 70, "n": 66, "k": 35, "layout": "NN", "batch": 1, "shared": "", "lds": [], "calls": 10,
    "how": "modelled", "provider": "autotune", "expected_us": 20.0, "cublas_us": 30.0,
}  # fmt: skip
SERVED = {
    "gpu_name": "NVIDIA H200", "compute_capability": [9, 0], "table": "", "shapes": [SHAPE],
    "measured": {"pairs": 2, "saved_us": 7.5},
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "team.db") as opened:
        yield opened


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.make(tmp_path / "team.key")


@pytest.fixture
def new(key: SigningKey, tmp_path: Path) -> NewArtifact:
    return next(signed_tables(write_table(make_table(), tmp_path / "sgemm_one"), key, has_run=True))


def post(app: Any, target: str, document: Any, **headers: str) -> Answered:
    return ask(app, "POST", target, json.dumps(document).encode(), **headers)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "host": "tune.example.com"}


def test_what_programs_tell_becomes_usage_and_requests(store: Store) -> None:
    service = Service(store, frozenset(), LOCAL)
    app = service.app()
    for _ in range(2):
        assert post(app, "/api/served", SERVED).status == 202
    assert post(app, "/api/served", SERVED | {"shapes": [SHAPE | {"how": "exact", "m": 64}]}).status == 202
    service._store_now()
    (one,) = store.queue().requests()
    assert (str(one.wanted.gemm), one.wanted.num_calls, one.wanted.gain_us) == ("70x66x35:NN", 20.0, 3.0)
    message = ask(app, "GET", "/api/service").document
    (gpu,) = message["gpus"]
    assert (gpu["hits"], gpu["misses"], gpu["predicted_saved_us"]) == (10, 20, 300.0)
    assert gpu["measured"] == {"pairs": 6, "saved_us": 22.5}
    assert message["counts"]["waiting"] == 1
    text = ask(app, "GET", "/metrics").content.decode()
    assert 'autotune_calls{gpu="NVIDIA H200",how="modelled"} 20.0' in text
    assert (
        'autotune_requests{state="waiting"} 1.0' in text and 'route="/api/served",status="202"} 3.0' in text
    )


def test_what_ended_is_not_requested_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store.queue()
    service = Service(store, frozenset(), LOCAL)
    app = service.app()
    post(app, "/api/served", SERVED)
    service._store_now()
    with queue.join("gpu", "NVIDIA H200") as worker:
        claimed = queue.claim(worker, ["NVIDIA H200"], 60.0)
        assert claimed is not None and queue.finish(claimed, RequestState.TUNED)
    now_s = time.time() + 2 * AGAIN_S
    monkeypatch.setattr(time, "time", lambda: now_s)  # the server's clock is wrong; the database's counts
    post(app, "/api/served", SERVED)
    service._store_now()
    assert [one.state for one in queue.requests()] == [RequestState.TUNED]


def test_shapes_are_requested_for_by_hand(store: Store) -> None:
    app = Service(store, frozenset(), LOCAL).app()
    answer = post(app, "/api/requests", {"shapes": ["4096", {"shape": "64x64x64:NT", "calls": 5}]})
    assert answer.document == {"ids": [1, 2]}
    listed = ask(app, "GET", "/api/requests").document["requests"]
    assert [(one["shape"], one["calls"]) for one in listed] == [
        ("4096x4096x4096:NN", 1.0),
        ("64x64x64:NT", 5.0),
    ]
    assert all(one["priority"] > 0 and one["asked_by"] == HOST for one in listed)


def test_a_table_is_published_found_and_fetched(store: Store, key: SigningKey, new: NewArtifact) -> None:
    app = Service(store, frozenset({key.public}), LOCAL).app()
    body = packed_files(new.files)
    assert ask(app, "POST", "/api/tables", body).document == {"is_new": True}
    (one,) = ask(app, "GET", "/api/tables").document["tables"]
    assert (one["address"], one["verified"], one["is_current"]) == (new.address, "kernels", True)
    at = "/api/tables/current?gpu_name=NVIDIA%20H200&compute_capability=9.0&driver=1&cublas=2"
    found = ask(app, "GET", at)
    assert found.document == {"address": new.address}
    assert ask(app, "GET", at, if_none_match=found.headers["etag"]).status == 304
    files = [
        ask(app, "GET", f"/api/tables/{new.address}/{name}")
        for name in ("signed.json", "table.json", "cubins.gz")
    ]
    assert tuple(one.content for one in files) == new.files
    assert "immutable" in files[0].headers["cache-control"]
    assert ask(app, "POST", f"/api/tables/{new.address}/pin").status == 200
    assert ask(app, "GET", "/api/tables").document["tables"][0]["is_pinned"]
    for path in (
        f"{new.address}/team.key",
        f"{new.address[:-1]}/table.json",
        f"{'0' * 64}/table.json",
        "x/../y",
    ):
        assert ask(app, "GET", f"/api/tables/{path}").status == 404


def test_nothing_unsigned_or_altered_is_published(
    store: Store, key: SigningKey, new: NewArtifact, tmp_path: Path
) -> None:
    other = SigningKey.make(tmp_path / "other.key")
    body = packed_files(new.files)
    for keys in (frozenset[str](), frozenset({other.public})):
        assert ask(Service(store, keys, LOCAL).app(), "POST", "/api/tables", body).status in (400, 403)
    app = Service(store, frozenset({key.public}), LOCAL).app()
    for at in range(0, len(body), len(body) // 60):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert ask(app, "POST", "/api/tables", changed).status == 400, at
    assert not store.artifacts().all()


def test_each_route_asks_for_its_role(store: Store) -> None:
    kept = store.artifacts()
    for role in ROLES:
        kept.add_token(role, f"secret of {role}", [role])
    app = Service(store, frozenset({"0" * 64}), REMOTE).app()
    requested = {
        "read": ("GET", "/api/tables"), "request": ("POST", "/api/requests"), "work": ("POST", "/api/tables"),
        "publish": ("POST", f"/api/tables/{'0' * 64}/pin"),
    }  # fmt: skip
    may = {
        "read": "read",
        "request": "read request",
        "work": "read request work",
        "publish": "read work publish",
    }
    for role in ROLES:
        for needed, (method, path) in requested.items():
            status = ask(app, method, path, b"{}", **bearer(f"secret of {role}")).status
            is_let_in = needed in may[role].split()
            assert (status != 403) == is_let_in, (role, needed, status)
    assert ask(app, "GET", "/api/tables", host="tune.example.com").status == 401
    assert ask(app, "GET", "/", host="tune.example.com").status == 401
    assert ask(app, "GET", "/health", host="tune.example.com").status == 200
    password = base64.b64encode(b"me:secret of read").decode()
    assert (
        ask(app, "GET", "/api/tables", host="tune.example.com", authorization=f"Basic {password}").status
        == 200
    )


def test_a_token_ends_everywhere(store: Store) -> None:
    """Where there is one, this machine needs it, too: a proxy may ask from it."""
    service = Service(store, frozenset(), LOCAL)
    app = service.app()
    assert ask(app, "GET", "/api/tables").status == 200
    store.artifacts().add_token("a", "secret", ["read"])
    service.catalogue.forget()
    assert ask(app, "GET", "/api/tables").status == 401
    assert ask(app, "GET", "/api/tables", authorization="Bearer secret").status == 200
    store.artifacts().revoke_token("a")
    store.artifacts().add_token("b", "other", ["read"])
    service.catalogue.forget()
    assert ask(app, "GET", "/api/tables", authorization="Bearer secret").status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"content_length": str(MAX_BODY_BYTES + 1)}, 413),
        ({"content_length": "-1"}, 400),
        ({"cookie": "x" * 20_000}, 431),
    ],
)
def test_a_head_that_is_amiss_is_refused(headers: dict[str, str], status: int, store: Store) -> None:
    app = Service(store, frozenset(), LOCAL).app()
    assert post(app, "/api/requests", {"shapes": ["64"]}, **headers).status == status
    assert not store.queue().requests()
    own = {"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}
    assert post(app, "/api/requests", {"shapes": ["64"]}, **own).status == 200


def test_a_body_is_bounded_whatever_its_head_says(store: Store) -> None:
    app = Service(store, frozenset(), LOCAL).app()
    assert ask(app, "POST", "/api/served", b"x" * (MAX_BODY_BYTES + 1), content_length="5").status == 413


def test_rates_are_bounded_and_forgotten() -> None:
    now = [0.0]
    rates = Rates(5.0, lambda: now[0])
    assert [rates.may("a") for _ in range(12)] == [True] * 10 + [False] * 2
    assert rates.may("b") and not rates.may("a", counts=False)
    now[0] = 0.3
    assert [rates.may("a") for _ in range(2)] == [True, False]
    for number in range(MAX_CLIENTS + 10):
        rates.may(str(number))
    assert len(rates._left) == MAX_CLIENTS


def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(store: Store) -> None:
    store.artifacts().add_token("a", "secret", ["read"])
    app = Service(store, frozenset(), REMOTE).app()
    message = [ask(app, "GET", "/api/tables", **bearer(f"guess {one}")).status for one in range(20)]
    assert message[0] == 401 and message[-1] == 429
    assert ask(app, "GET", "/api/tables", address="10.0.0.9", **bearer("secret")).status == 200


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_head_that_never_ends_is_not_waited_for(before: bytes, store: Store, monkeypatch: Any) -> None:
    """The first of a connection or a later one, silent or drop by drop."""
    monkeypatch.setattr(http_service, "HEAD_S", 0.5)
    with serving(store) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(before)
            if before:
                assert b'"ok"' in _until(client, b'"ok"')
            began_s = time.monotonic()
            with suppress(OSError):
                while time.monotonic() < began_s + 10 and not select.select([client], [], [], 0.1)[0]:
                    client.sendall(b"G")
            assert 0.3 < time.monotonic() - began_s < 4  # uvicorn itself ends what is silent after 5 s
        time.sleep(0.6)
        with socket.create_connection((host, int(port)), timeout=20) as client:  # a body may take longer
            head = f"POST /api/requests HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 2\r\n\r\n"
            client.sendall(head.encode() + b"{")
            time.sleep(0.8)
            client.sendall(b"}")
            assert b"400 Bad Request" in _until(client, b"shapes")


def _until(client: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found and (more := client.recv(4096)):
        found += more
    return found


def test_a_server_that_only_reads_changes_nothing(store: Store) -> None:
    app = Service(store, frozenset(), LOCAL, is_read_only=True).app()
    for path in ("/api/requests", "/api/served", "/api/tables"):
        assert ask(app, "POST", path, b"{}").status in (404, 405, 413), path
    assert ask(app, "GET", "/api/service").status == 200


def test_a_role_that_only_reads_serves_pages_and_changes_nothing(
    postgresql: Server, new: NewArtifact, key: SigningKey
) -> None:
    url = postgresql.new_database()
    with Store.open(url) as owner:
        owner.artifacts().publish(*new, "me")
        owner.artifacts().add_token("a", "secret", ["publish"])
        owner.queue().submit(read_wanted({"shapes": ["64"]}, "me"))
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS reader")
        admin.execute("CREATE ROLE reader LOGIN")
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    reader = url.replace("tuner", "reader")
    with Store.open_existing(reader) as store:
        app = Service(store, frozenset({key.public}), LOCAL, is_read_only=True).app()
        message = ask(app, "GET", "/api/service", authorization="Bearer secret").document
        assert message["counts"]["waiting"] == 1 and message["tables"][0]["address"] == new.address
        for path in ("/health", "/metrics", "/api/workers", f"/api/tables/{new.address}/table.json"):
            assert ask(app, "GET", path, authorization="Bearer secret").status == 200, path
        changing = Service(store, frozenset({key.public}), LOCAL).app()  # the database refuses, too
        answer = ask(changing, "POST", "/api/requests", b'{"shapes": ["96"]}', authorization="Bearer secret")
        assert answer.status == 403
        pinned = ask(changing, "POST", f"/api/tables/{new.address}/pin", authorization="Bearer secret")
        assert pinned.status == 503 and "permission denied" in pinned.document["error"]
