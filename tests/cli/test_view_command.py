"""`autotune view`: a server of this machine alone, over a database that others write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kills import default_signals

from autotune.cli import view
from autotune.kernel.config import Config
from autotune.store import Store

from .conftest import SQUARE
from .runner import REPOSITORY, run


@pytest.fixture(scope="module")
def db(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("view") / "searched.db"
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--trials", "30", "--db", path, "--quiet")
    return path


@contextmanager
def viewing(db: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves pages, and its host and port."""
    options = ("--db", str(db), "--port", "0", "--json", *arguments)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    served = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "autotune", "view", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=default_signals,
    )
    assert served.stdout
    try:
        lines = []
        for line in served.stdout:
            lines.append(line)
            if line.startswith("}"):
                break
        yield served, urlsplit(json.loads("".join(lines))["address"]).netloc
    finally:
        served.kill()
        served.wait()
        served.stdout.close()
        assert served.stderr
        served.stderr.close()


def ask(place: str, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection(place, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def document(place: str, name: str) -> Any:
    status, body, _ = ask(place, f"/api/{name}")
    assert status == 200
    return json.loads(body)


def test_it_serves_what_the_database_holds_and_what_comes(db: Path) -> None:
    with viewing(db) as (_, place):
        (line,) = document(place, "overview")["studies"]
        assert (line["shape"], line["num_trials"]) == (str(SQUARE), 30)
        version = document(place, "version")["version"]
        before = document(place, f"study/{line['id']}")
        last = before["trials"]["columns"]["id"][-1]
        with Store.open(db) as store:
            (summary,) = store.studies()
            trial = store.best(summary.study)[0]
            config = replace(Config.from_dict(trial.point), split_k=3)
            store.add_trial(summary.study, config.key, config.to_dict(), trial.measurement, "random")
        while document(place, "version")["version"] == version:
            pass
        after = document(place, f"study/{line['id']}?after={last}")
        assert (after["trials"]["count"], after["trials"]["first"], after["num_trials"]) == (1, 31, 31)
        assert ask(place, "/api/study/999")[0] == 404
        long = "9" * 4400  # more digits than Python reads
        for path in ("1?after=x", f"1?after={long}", long, "1?after=", "1?after=-1", "-1", "1x"):
            assert ask(place, f"/api/study/{path}")[0] == 404, path[:20]
        for path in (f"{long}/1", f"1/{long}", "1/x", "9/9"):
            assert ask(place, f"/tiles/{path}")[0] == 404, path[:20]


def test_the_page_and_its_scripts_are_served_and_nothing_else(db: Path) -> None:
    with viewing(db) as (_, place):
        status, body, headers = ask(place, "/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        sources = [part.split(b'"')[0].decode() for part in body.split(b'<script src="')[1:]]
        assert sources[0] == "/static/echarts.min.js" and sources[-1] == "/static/live.js"
        assert all(ask(place, source)[0] == 200 for source in sources)
        for path in (
            "/static/../pyproject.toml",
            "/static/%2e%2e/page.py",
            "/static/style.css",
            "/etc/passwd",
        ):
            assert ask(place, path)[0] == 404


def test_other_sites_cannot_ask(db: Path) -> None:
    """A name of theirs that leads to this machine is refused, and no answer may be read from elsewhere."""
    with viewing(db) as (_, place):
        assert ask(place, "/api/overview", Host="pages.example")[0] == 400
        headers = ask(place, "/api/overview", Origin="http://pages.example")[2]
        assert not any(name.lower().startswith("access-control") for name in headers)


@pytest.mark.stress
def test_another_machine_is_told_a_tunnel_or_served_itself(db: Path) -> None:
    with viewing(db) as (_, place):
        port = place.partition(":")[2]
        assert ask(place, "/api/version", Host=f"localhost:{port}")[0] == 200
    with viewing(db, "--host", "0.0.0.0") as (_, place):
        own = f"127.0.0.1:{place.partition(':')[2]}"
        assert ask(own, "/api/version", Host="gpu-box.example")[0] == 200


@pytest.mark.parametrize(
    ("host", "message"), [("127.0.0.1", "ssh -L 8571:127.0.0.1:8571 "), ("0.0.0.0", "can read")]
)
def test_what_another_machine_needs_is_told(
    capsys: pytest.CaptureFixture[str], host: str, message: str
) -> None:
    view.tell("a.db", host, 8571, is_own=host == "127.0.0.1", is_json=False)
    assert message in capsys.readouterr().err


def test_an_address_of_another_machine_is_wrong_usage(db: Path) -> None:
    done = run("view", "--db", db, "--host", "203.0.113.9", "--port", "0", code=2)
    assert "--host 203.0.113.9" in done.stderr


def test_ctrl_c_ends_it_and_nothing_is_left(db: Path) -> None:
    with viewing(db) as (served, place):
        assert document(place, "version")["version"] == 1
        served.send_signal(signal.SIGINT)
        assert served.wait(20) == 130
        assert served.stderr and served.stderr.read() == ""
    assert list(db.parent.iterdir()) == [db]  # nor what those left that were killed


def test_a_port_that_is_taken_is_wrong_usage(db: Path) -> None:
    with viewing(db) as (_, place):
        port = place.partition(":")[2]
        assert f"--port {port}" in run("view", "--db", db, "--port", port, code=2).stderr


def test_a_database_that_goes_away_is_told(db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(db.read_bytes())
    with viewing(copy) as (_, place):
        assert document(place, "overview")
        copy.unlink()
        while (answer := ask(place, "/api/version"))[0] == 200:
            pass
        assert answer[0] == 503
        assert "moved, deleted or replaced" in json.loads(answer[1])["error"]


@pytest.mark.every(2)
@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_it_says_what_to_install(db: Path, tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('none here')", encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
    done = run("view", "--db", db, code=3, is_new=True, PYTHONPATH=path)
    assert "pip install 'starlette>=0.45' 'uvicorn>=0.34'" in done.stderr


def test_nothing_to_view(tmp_path: Path) -> None:
    assert "autotune search" in run("view", "--db", tmp_path / "none.db", code=5).stderr


def test_the_kernel_of_a_trial_is_explained(db: Path) -> None:
    with viewing(db) as (_, place):
        study = document(place, "overview")["studies"][0]
        status, body, _ = ask(place, f"/tiles/{study['id']}/{study['best_trial']}")
        assert status == 200 and f"trial {study['best_trial']}".encode() in body
        for unknown in (f"/tiles/{study['id']}/999999", "/tiles/999/1", "/tiles/1/x"):
            assert ask(place, unknown)[0] == 404
