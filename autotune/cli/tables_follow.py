"""`autotune tables follow`: publishes what the queue's workers tuned, as it comes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from .. import gpu, tuning
from ..files.errors import DispatchError, EnvironmentProblem, UsageError
from ..store import RequestState, Store
from . import console, tables
from .requests import FollowRequest, PublishRequest
from .verify import NO_GPU

_FOLDER = "sgemm_dispatch"
MOST = 1000  # requests that are looked at


def run(request: FollowRequest, *, is_json: bool) -> None:
    """Follow the queue until Ctrl-C, or once. Raises UsageError where no model is named, EnvironmentProblem
    where its GPU is not there, StoreError."""
    name = request.gpu_name if request.gpu == NO_GPU else gpu.find_gpu(request.gpu).name
    if not name:
        raise UsageError("of which GPU model? Pass --gpu-name with --gpu none")
    with Store.open(request.db) as store:
        published_s = _published_s(store, name)
        while True:
            tuned_s = _tuned_s(store, name)
            if tuned_s > published_s and _publish(request, name, is_json=is_json):
                published_s = tuned_s
            if request.is_once:
                return
            time.sleep(request.seconds)


def _tuned_s(store: Store, name: str) -> float:
    """When the last request for such GPUs was tuned, on the database's clock; 0 if none was."""
    ended = store.queue().requests([RequestState.TUNED], most=MOST)
    return max((one.ended_s or 0.0 for one in ended if one.wanted.gpu in (name, "")), default=0.0)


def _published_s(store: Store, name: str) -> float:
    """When the last table for such GPUs was stored."""
    found = (one.created_at.timestamp() for one in store.artifacts().all() if one.channel.gpu_name == name)
    return max(found, default=0.0)


def _publish(request: FollowRequest, name: str, *, is_json: bool) -> bool:
    """Whether that went well. What is amiss with an export or the GPU is told, and tried again."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / _FOLDER
        try:
            tuning.export_table(
                folder, db=request.db, gpu_name=name, max_kernels=request.max_kernels, note=console.note
            )
            whole = PublishRequest(request.key, folder, request.gpu, request.db, request.server)
            tables.publish(whole, is_json=is_json)
        except (DispatchError, EnvironmentProblem) as error:
            if request.is_once:
                raise
            console.note(f"nothing was published: {error}")
            return False
    return True
