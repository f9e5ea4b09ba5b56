"""`autotune tables follow`, `worker --key`: publishes what the queue's workers tuned, as it comes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from .. import gpu, tuning
from .. import target_finder as targets
from ..facts.measurement import CachePolicy
from ..files.errors import DispatchError, EnvironmentProblem, UsageError
from ..runtime.service.table_server import Refused
from ..search import InterruptHandler
from ..service.child_process import Parent, reporting
from ..store import RequestState, Store
from . import console, tables
from .requests import FollowRequest, PublishRequest
from .verify import NO_GPU

_FOLDER = "sgemm_dispatch"
POLL_S = 0.2  # how soon a signal is heeded
OVERLAP_S = 600.0  # of an export and its checks: what is tuned meanwhile is not in the table
MOST = 1000  # requests that are looked at


def run(request: FollowRequest, *, is_json: bool) -> None:
    """Follow the queue until Ctrl-C, or once. Raises UsageError where no model is named, EnvironmentProblem
    where its GPU is not there, StoreError."""
    _follow(request, is_json=is_json, is_over=lambda: False)


def beside_worker(parent: Parent, request: FollowRequest, drains: bool) -> None:
    """The process that publishes what a worker tunes, until it is interrupted, or nothing waits."""
    with reporting(parent), InterruptHandler() as handler:
        _follow(request, is_json=False, is_over=handler.should_stop, drains=drains)


def _follow(
    request: FollowRequest, *, is_json: bool, is_over: Callable[[], bool], drains: bool = False
) -> None:
    request, name = _of_model(request)
    with Store.open(request.db) as store:
        published_s = _published_s(store, name)
        while not is_over():
            is_last = request.is_once or (drains and not store.queue().has_open())
            tuned_s = _tuned_s(store, name)
            has_results = tuned_s > 0 or any(one.gpu_name == name for one in store.environments())
            is_due = tuned_s > published_s and (request.is_once or has_results)
            if is_due and _publish(request, name, is_json=is_json):
                published_s = tuned_s
            if is_last:
                return
            until_s = time.monotonic() + request.seconds
            while time.monotonic() < until_s and not is_over():
                time.sleep(min(POLL_S, request.seconds))


def _of_model(request: FollowRequest) -> tuple[FollowRequest, str]:
    """With the GPU to verify on, and the model's name. A recording runs no kernels."""
    if request.gpu.startswith(targets.REPLAY):
        with closing(targets.open_target(request.gpu, CachePolicy.COLD, note=console.note)) as target:
            return replace(request, gpu=NO_GPU), target.environment.gpu_name
    name = request.gpu_name if request.gpu == NO_GPU else gpu.find_gpu(request.gpu).name
    if not name:
        raise UsageError("of which GPU model? Pass --gpu-name with --gpu none")
    return request, name


def _tuned_s(store: Store, name: str) -> float:
    """When the last request was tuned on such a GPU, on the database's clock; 0 if none was."""
    ended = store.queue().requests([RequestState.TUNED], most=MOST)
    return max((one.ended_s or 0.0 for one in ended if one.result.get("gpu") == name), default=0.0)


def _published_s(store: Store, name: str) -> float:
    """Until when what was tuned is surely in the last table for such GPUs; on the same clock."""
    found = (one.created_at.timestamp() for one in store.artifacts().all() if one.channel.gpu_name == name)
    return max(found, default=0.0) - OVERLAP_S


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
        except (DispatchError, EnvironmentProblem, Refused) as error:
            if request.is_once:
                raise
            console.note(f"nothing was published: {error}")
            return False
    return True
