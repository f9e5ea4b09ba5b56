"""What a program tells a server of tables, and what it takes from it: one exchange after another."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...files.errors import AutotuneError, DispatchError
from ...files.output_file import default_cache_dir, own_folder
from ..choose.chooser import Counted
from ..served_model import ServedModel
from ..table.gpu_models import GpuModel
from .table_server import (
    KEY,
    SERVER,
    TOKEN,
    ServerCalls,
    fetch_files,
    is_address,
    parse_signed,
    read_artifact,
    read_keys,
    write_artifact,
)

if TYPE_CHECKING:
    from ..dispatcher import Dispatcher
    from .program_client import Offered, ProgramClient

MAX_SHAPES = 256  # of one message; the others follow
MAX_KEPT = 16  # tables in the cache folder
_FOLDER, _LAST = "served", ".last"


class ProgramExchange:
    """Speaks to the server that the environment names. Raises UsageError, DispatchError if that is wrong."""

    def __init__(self, client: ProgramClient) -> None:
        self._client = client
        self._calls = ServerCalls(os.environ[SERVER], os.environ.get(TOKEN, ""))
        self._keys = read_keys(os.environ.get(KEY, ""))
        self._reported: dict[tuple[int, Counted], int] = {}  # calls, by what served them
        self._told_gain = 0, 0.0

    # ---- what it tells

    def tell(self, dispatcher: Dispatcher) -> None:
        """How calls were served since the last time. Raises NoAnswer, and tells the same again."""
        models = {id(model.table): model for model in dispatcher.models}
        by_gpu: dict[GpuModel, list[tuple[tuple[int, Counted], int, dict[str, Any]]]] = {}
        for engine, counted in dispatcher.counts_by_engine():
            model = models.get(id(getattr(engine, "table", None)))
            key = id(engine), counted._replace(calls=0)
            new = counted.calls - self._reported.get(key, 0)
            if model is not None and counted.gemm is not None and new > 0:
                by_gpu.setdefault(model.gpu_model, []).append(
                    (key, counted.calls, _served(model, counted, new))
                )
        measured = dispatcher.measured_gain
        gain = measured.measured() if measured else (0, 0.0)
        for gpu_model, served in by_gpu.items():
            served.sort(key=lambda one: -one[2]["calls"])
            message = {
                "gpu_name": gpu_model.name,
                "compute_capability": list(gpu_model.compute_capability),
                "table": self._client.taken.get(gpu_model, ""),
                "shapes": [document for _, _, document in served[:MAX_SHAPES]],
                "measured": {"pairs": gain[0] - self._told_gain[0], "saved_us": gain[1] - self._told_gain[1]},
            }
            self._calls.post("served", content=message)
            self._told_gain = gain
            self._reported |= {key: calls for key, calls, _ in served[:MAX_SHAPES]}

    # ---- what it takes

    def restore(self, dispatcher: Dispatcher) -> None:
        """Take what an earlier process kept, if it still is what was signed. Raises OSError."""
        if not self._keys:
            return
        folder = own_folder(default_cache_dir(), _FOLDER)
        for model in dispatcher.models:
            with suppress(AutotuneError, FileNotFoundError):
                address = (folder / _last_of(model.gpu_model)).read_text(encoding="ascii").strip()
                self._offer(dispatcher, model, folder, address)

    def ask(self, dispatcher: Dispatcher) -> None:
        """Take current tables that a key of this program signed. Raises NoAnswer, DispatchError, OSError."""
        if not self._keys:
            return
        folder = own_folder(default_cache_dir(), _FOLDER)
        for model in dispatcher.models:
            known = self._client.knows(model.gpu_model) or ""
            environment, (major, minor) = model.table.environment, model.gpu_model.compute_capability
            answer = self._calls.get(
                "tables", "current", tag=f'"{known}"' if known else "", gpu_name=model.gpu_model.name,
                compute_capability=f"{major}.{minor}", driver=environment.driver_version,
                cublas=dispatcher.cublas_version or environment.cublas_version,
            )  # fmt: skip
            if answer.status == 200:
                address = answer.document().get("address")
                if isinstance(address, str) and is_address(address) and address != known:
                    self._offer(dispatcher, model, folder, address)

    def _offer(self, dispatcher: Dispatcher, model: ServedModel, folder: Path, address: str) -> None:
        """Offer a table to the program, from the cache folder or the server. Raises as `ask`."""
        if not is_address(address):
            raise DispatchError("another file lies where a table's address should")
        made = folder / address
        if not made.is_dir():
            signed, *files = fetch_files(self._calls, address)
            parsed = parse_signed(signed)
            if parsed.address != address:
                raise DispatchError("the server gave another table than was asked for; it was not loaded")
            made = write_artifact(folder, parsed, *files)
        try:
            statement, table, code = read_artifact(made, self._keys)
        except DispatchError:
            shutil.rmtree(made, ignore_errors=True)  # the server may have a whole one
            raise
        if statement.gpu_model != model.gpu_model:
            raise DispatchError(f"the server offers a table for {statement.gpu_model}; it was not loaded")
        is_older = table.created_at <= model.table.created_at
        if is_older and model.gpu_model not in self._client.taken:  # the folder's own is newer
            return
        offered: Offered = address, table, code
        self._client.offer(dispatcher, model.gpu_model, offered)
        _keep(folder, model.gpu_model, address)


def _served(model: ServedModel, counted: Counted, calls: int) -> dict[str, Any]:
    """How calls of one signature were served; what one takes, and what it takes cuBLAS, where known. An A of
    two-byte elements is told of as FP32, which servers tune for."""
    gemm = counted.gemm
    assert gemm is not None
    pick = model.pick(gemm)
    is_packed = counted.lds == gemm.lds
    return {
        "m": gemm.m, "n": gemm.n, "k": gemm.k, "layout": gemm.layout[:2], "batch": gemm.batch,
        "shared": "a" if gemm.shares_a else "b" if gemm.shares_b else "", "calls": calls,
        "lds": [] if is_packed else list(counted.lds),
        "how": pick.how, "provider": counted.provider, "expected_us": pick.expected_us or 0.0,
        "cublas_us": pick.cublas_us or 0.0,
    }  # fmt: skip


def _last_of(model: GpuModel) -> str:
    return hashlib.sha256(str(model).encode()).hexdigest()[:16] + _LAST


def _keep(folder: Path, model: GpuModel, address: str) -> None:
    """Name the table for later processes, and delete the oldest of many."""
    name = folder / _last_of(model)
    new = name.with_name(f"{name.name}.{os.getpid()}")
    new.write_text(address, encoding="ascii")
    new.replace(name)
    (folder / address).touch()
    tables = (path for path in folder.iterdir() if is_address(path.name))
    for old in sorted(tables, key=lambda path: -path.stat().st_mtime)[MAX_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
