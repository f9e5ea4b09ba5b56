"""`autotune serve`, `requests`: one process over a database, safe by default, that ends in order."""

from __future__ import annotations

import datetime
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kills import default_signals

from autotune.store import Store

from .runner import REPOSITORY, run

SERVED = {
    "gpu_name": "NVIDIA H200", "compute_capability": [9, 0], "table": "", "shapes": [],
    "measured": {"pairs": 1, "saved_us": 1.0},
}  # fmt: skip


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process and its address."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "autotune",
        "serve",
        "--port",
        "0",
        "--json",
        *map(str, arguments),
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=default_signals,
    )
    try:
        assert process.stdout and process.stderr
        message = "".join(iter(process.stdout.readline, "}\n")) + "}"
        yield process, json.loads(message)["address"].removesuffix("/service")
    finally:
        process.kill()
        process.communicate()


def ask(address: str, path: str, document: Any = None, token: str = "", context: Any = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(
        urllib.request.Request(address + path, body, headers), context=context
    ) as answer:
        return json.loads(answer.read())


def test_a_laptop_is_served_and_the_end_is_in_order(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with serving("--db", db) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        assert ask(address, "/health") == {"status": "ok"}
        assert ask(address, "/api/overview")["studies"] == []
        with urllib.request.urlopen(f"{address}/service") as page:
            assert b'src="/service/service.js"' in page.read()
        assert (
            "2 shapes" in run("requests", "add", "--shape", "64", "--shape", "96", "--server", address).stdout
        )
        listed = json.loads(run("requests", "list", "--server", address, "--json").stdout)["requests"]
        assert [one["shape"] for one in listed] == ["96x96x96:NN", "64x64x64:NN"]
        also = ("--calls", "7", "--gpu-name", "h200")
        run("requests", "add", "--shape", "128", *also, "--server", address)
        first = json.loads(run("requests", "list", "--server", address, "--json").stdout)["requests"][0]
        assert (first["shape"], first["calls"], first["gpu"]) == ("128x128x128:NN", 7, "NVIDIA H200")
        unknown = ("requests", "add", "--shape", "64", "--gpu-name", "NVIDIA H20O")
        for where in (("--server", address), ("--db", db)):
            assert "did you mean 'NVIDIA H200'" in run(*unknown, *where, code=2).stderr
        pulled = ("tables", "pin", "0" * 64, "--server", address)
        assert "no table" in run(*pulled, code=2).stderr
        assert ask(address, "/api/served", SERVED) == {"is_taken": True}
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    lines = [json.loads(line) for line in log.splitlines()]
    assert lines[-1]["level"] == "info" and "end" in [line["event"] for line in lines]
    with Store.open(db) as store:  # what a program told a moment ago is stored
        assert [one.how for one in store.artifacts().usage()] == ["measured"]
    assert "96x96x96" in run("requests", "list", "--db", db).stdout
    assert "does not answer" in run("requests", "list", "--server", address, code=3).stderr
    assert "no URL" in run("requests", "list", "--server", "example", code=2).stderr


def certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    own = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *own))
    return paths


def _with_password(key: Path) -> Path:
    """A copy that nobody can read without asking."""
    own = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    read = serialization.load_pem_private_key(key.read_bytes(), None)
    copy = key.with_name("locked.pem")
    copy.write_bytes(read.private_bytes(serialization.Encoding.PEM, *own))
    return copy


def test_others_need_a_token_and_see_nothing_in_the_clear(tmp_path: Path) -> None:
    db, (cert, key) = tmp_path / "a.db", certificate(tmp_path)
    all_interfaces = ("serve", "--host", "0.0.0.0", "--port", "0", "--db", db)
    assert "nobody has a token" in run(*all_interfaces, code=2).stderr
    token = run("tokens", "new", "me", "--role", "read", "--db", db).stdout.strip()
    assert "in the clear" in run(*all_interfaces, code=2).stderr
    assert "belong together" in run(*all_interfaces, "--certificate", cert, code=2).stderr
    assert (
        "there is no file"
        in run(*all_interfaces, "--certificate", cert, "--certificate-key", "x", code=2).stderr
    )
    for files in ((key, cert), (cert, cert), (db, key), (cert, _with_password(key))):
        given = "--certificate", files[0], "--certificate-key", files[1]
        assert "no certificate and its key in PEM" in run(*all_interfaces, *given, code=2).stderr
    for name in ("", " ", "two\nlines"):
        assert "cannot be shown" in run("tokens", "new", name, "--db", db, code=2).stderr
    options = (
        "--db",
        db,
        "--host",
        "0.0.0.0",
        "--name",
        "localhost",
        "--certificate",
        cert,
        "--certificate-key",
        key,
    )
    with serving(*options) as (_, address):
        context = ssl.create_default_context(cafile=str(cert))
        assert address.startswith("https://localhost:")
        assert ask(address, "/api/tables", token=token, context=context) == {"tables": []}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address, "/api/tables", context=context)


def test_what_only_reads_needs_a_database(tmp_path: Path) -> None:
    assert run("serve", "--db", tmp_path / "no.db", "--read-only", code=5).stderr
    assert not (tmp_path / "no.db").exists()
