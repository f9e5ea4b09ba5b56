"""`autotune tables`: signed tables for programs elsewhere, in a database or on a server."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ..export.check_files import check_files
from ..export.package import write_folder
from ..files.words import counted
from ..runtime.service.table_server import parse_signed, read_artifact, write_artifact
from . import console, table_places, verify
from .requests import KeyRequest, PinRequest, PublishRequest, PullRequest, RollbackRequest, TablesRequest
from .table_places import opened

SHOWN = 12  # characters of an address


def make_key(request: KeyRequest, *, is_json: bool) -> None:
    """Write a new key. Raises UsageError if its file cannot be made."""
    module = table_places.signing()
    key = module.SigningKey.make(request.out)
    public = f"{request.out}{module.PUBLIC_ENDING}"
    if is_json:
        console.show_json({"private": str(request.out), "public": public, "key": key.public})
        return
    console.show(f"{request.out} signs; programs and servers are given {public}: {key.public}")


def publish(request: PublishRequest, *, is_json: bool) -> None:
    """Verify, sign, publish. Raises as `verify`, and UsageError, StoreError, NoAnswer."""
    module = table_places.signing()
    key = module.SigningKey.read(request.key)
    has_run = request.gpu != verify.NO_GPU
    model = None
    if has_run:
        files = check_files(request.table)
        model, checks = verify.check_kernels(request.table, files, request.gpu, is_json=is_json)
        verify.judge(request.table, checks)
        console.note(
            f"{counted(len(checks), 'check')} of {counted(len(model.table.kernels), 'kernel')} were right"
        )
    done = []
    with opened(request.db, request.server) as tables:
        for new in module.signed_tables(request.table, key, has_run=has_run, only=model and model.folder):
            is_new = tables.publish(new, table_places.me())
            done.append({"address": new.address, **new.channel._asdict(), **new.facts, "is_new": is_new})
    if is_json:
        console.show_json({"tables": done})
        return
    for one in done:
        text = "published" if one["is_new"] else "is the newest already"
        console.show(
            f"{one['address'][:SHOWN]} for {one['gpu_name']}: {text}; verified: its {one['verified']}"
        )


def show_all(request: TablesRequest, *, is_json: bool) -> None:
    """List all. Raises StoreError, NoAnswer."""
    with opened(request.db, request.server) as tables:
        found = tables.listed()
    if is_json:
        console.show_json({"tables": found})
        return
    rows = [_row(one) for one in found]
    headers = "address", "GPU", "driver", "cuBLAS", "shapes", "over cuBLAS", "published", ""
    console.show(console.table(headers, rows, right=(4, 5)))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    state = {"is_pinned": "pinned", "is_taken_back": "taken back", "is_current": "current"}
    text = next((word for name, word in state.items() if one.get(name)), "")
    named = (
        console.one_line(str(one.get(name, ""))) for name in ("gpu_name", "driver", "cublas", "num_shapes")
    )
    gain = one.get("gain")
    ratio = console.ratio_text(gain if isinstance(gain, float) else None)
    return one["address"][:SHOWN], *named, ratio, str(one.get("published_at", ""))[:16], text


def pull(request: PullRequest, *, is_json: bool) -> None:
    """Write a table that is signed as an importable folder. Raises DispatchError if it is not, UsageError,
    StoreError, NoAnswer."""
    keys = table_places.trusted(request.trusted)
    with opened(request.db, request.server) as tables:
        signed, *files = tables.files(request.address)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_artifact(Path(temporary), parse_signed(signed), *files)
        statement, table, code = read_artifact(folder, keys)
        write_folder(table, dict(code), request.out, console.note)
    if is_json:
        console.show_json({"address": folder.name, "out": str(request.out), "gpu": statement.gpu_name})
        return
    console.show(f"{request.out}/: table {folder.name[:SHOWN]} for {statement.gpu_model}")


def pin(request: PinRequest, *, is_json: bool) -> None:
    """Pin a table, or end that. Raises UsageError, StoreError, NoAnswer."""
    _decide("unpin" if request.is_off else "pin", request, is_json=is_json)


def rollback(request: RollbackRequest, *, is_json: bool) -> None:
    """Take a table back. Raises UsageError, StoreError, NoAnswer."""
    _decide("rollback", request, is_json=is_json)


def _decide(what: Any, request: PinRequest | RollbackRequest, *, is_json: bool) -> None:
    with opened(request.db, request.server) as tables:
        tables.decide(what, request.address, table_places.me())
        current = [one for one in tables.listed() if one["is_current"]]
    if is_json:
        console.show_json({"current": current})
        return
    for one in current:
        console.show(f"{one['gpu_name']}, driver {one['driver']}: {one['address'][:SHOWN]} is current")
