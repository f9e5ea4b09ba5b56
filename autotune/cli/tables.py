"""`autotune tables`: signed tables for programs elsewhere, in a database or on a server."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..export.manifest import check_files
from ..export.package import write_folder
from ..files.errors import UsageError
from ..files.wheel_libraries import CRYPTOGRAPHY, required
from ..files.words import counted
from ..runtime.service.table_server import KEY, TOKEN, parse_signed, read_artifact, read_keys, write_artifact
from ..service.table_source import DatabaseTables, ServerTables, TableSource
from ..store import Store
from . import console, verify
from .requests import KeyRequest, PinRequest, PublishRequest, PullRequest, RollbackRequest, TablesRequest

SHOWN = 12  # characters of an address


def make_key(request: KeyRequest, *, is_json: bool) -> None:
    """Write a new key. Raises UsageError if its file cannot be made."""
    module = signing()
    key = module.SigningKey.make(request.out)
    public = f"{request.out}{module.PUBLIC_ENDING}"
    text = f"{request.out} signs; programs and servers are given {public}: {key.public}"
    facts = {"private": str(request.out), "public": public, "key": key.public}
    console.answer(facts, lambda: text, is_json=is_json)


def publish(request: PublishRequest, *, is_json: bool) -> None:
    """Verify, sign, publish. Raises as `verify`, and UsageError, StoreError, NoAnswer."""
    module = signing()
    key = module.SigningKey.read(request.key)
    has_run = request.gpu != verify.NO_GPU
    model = None
    if has_run:
        files = check_files(request.table)
        model, checks = verify.check_kernels(request.table, files, request.gpu, is_json=is_json)
        verify.judge(request.table, checks)
        kernels = counted(len(model.table.kernels), "kernel")
        console.note(f"{counted(len(checks), 'check')} of {kernels} were right")
    done = []
    with opened(request.db, request.server, makes=True) as tables:
        for new in module.signed_tables(request.table, key, has_run=has_run, only=model and model.folder):
            is_new = tables.publish(new, me())
            done.append({"address": new.address, **new.channel._asdict(), **new.facts, "is_new": is_new})
    console.answer({"tables": done}, lambda: "\n".join(map(_published_text, done)), is_json=is_json)


def _published_text(one: dict[str, Any]) -> str:
    text = "published" if one["is_new"] else "is the newest already"
    return f"{one['address'][:SHOWN]} for {one['gpu_name']}: {text}; verified: its {one['verified']}"


def show_all(request: TablesRequest, *, is_json: bool) -> None:
    """List all. Raises StoreError, NoAnswer."""
    with opened(request.db, request.server) as tables:
        found = tables.listed()
    headers = "address", "GPU", "driver", "cuBLAS", "shapes", "over cuBLAS", "published", ""
    console.answer(
        {"tables": found}, lambda: console.table(headers, map(_row, found), right=(4, 5)), is_json=is_json
    )


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    state = {"is_pinned": "pinned", "is_taken_back": "taken back", "is_current": "current"}
    text = next((word for name, word in state.items() if one.get(name)), "")
    named = (str(one.get(name, "")) for name in ("gpu_name", "driver", "cublas", "num_shapes"))
    gain = one.get("gain")
    ratio = console.ratio_text(gain if isinstance(gain, float) else None)
    return one["address"][:SHOWN], *named, ratio, str(one.get("published_at", ""))[:16], text


def pull(request: PullRequest, *, is_json: bool) -> None:
    """Write a signed table as a folder to import. Raises DispatchError, UsageError, StoreError, NoAnswer."""
    keys = trusted(request.trusted)
    with opened(request.db, request.server) as tables:
        signed, *files = tables.files(request.address)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_artifact(Path(temporary), parse_signed(signed), *files)
        statement, table, code = read_artifact(folder, keys)
        write_folder(table, dict(code), request.out, console.note)
    text = f"{request.out}/: table {folder.name[:SHOWN]} for {statement.gpu_model}"
    facts = {"address": folder.name, "out": str(request.out), "gpu": statement.gpu_name}
    console.answer(facts, lambda: text, is_json=is_json)


def pin(request: PinRequest, *, is_json: bool) -> None:
    """Pin a table, or end that. Raises UsageError, StoreError, NoAnswer."""
    _decide("unpin" if request.is_off else "pin", request, is_json=is_json)


def rollback(request: RollbackRequest, *, is_json: bool) -> None:
    """Take a table back. Raises UsageError, StoreError, NoAnswer."""
    _decide("rollback", request, is_json=is_json)


def _decide(what: Any, request: PinRequest | RollbackRequest, *, is_json: bool) -> None:
    with opened(request.db, request.server) as tables:
        tables.decide(what, request.address, me())
        current = [one for one in tables.listed() if one["is_current"]]
    lines = [
        f"{one['gpu_name']}, driver {one['driver']}: {one['address'][:SHOWN]} is current" for one in current
    ]
    console.answer({"current": current}, lambda: "\n".join(lines), is_json=is_json)


@contextmanager
def opened(db: str, server: str | None, *, makes: bool = False) -> Iterator[TableSource]:
    """A server's tables, or those of a database, which may be made (`makes`). Raises StoreError, NoAnswer."""
    if server is not None:
        yield ServerTables(server, os.environ.get(TOKEN, ""))
        return
    with Store.open(db) if makes else Store.open_existing(db) as store:
        yield DatabaseTables(store.artifacts())


def me() -> str:
    """Who decides something, for those who look later."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def trusted(given: Sequence[str]) -> frozenset[str]:
    """The public keys that were given, or those of the environment. Raises UsageError where there is none,
    DispatchError for what is none."""
    keys = read_keys(",".join(given) or os.environ.get(KEY, ""))
    if not keys:
        raise UsageError(f"by whom must tables be signed? Pass --trust KEY, or set {KEY}")
    return keys


def signing() -> ModuleType:
    """The module that makes keys and signs. Raises EnvironmentProblem without its package."""
    with required("nothing can be signed", CRYPTOGRAPHY):
        from ..service import signing
    return signing
