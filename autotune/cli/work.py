"""`autotune worker`: serves the queue of a database, on GPUs or by compiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .. import target_finder as targets
from ..facts.measurement import read_policy
from ..files.errors import UsageError
from ..search_policy import read_effort
from ..service import queue_worker
from ..service.child_process import ChildHandle, ChildProcess
from ..target_finder import Selected
from . import common, console
from .requests import FollowRequest, WorkerRequest
from .tables import signing
from .tables_follow import beside_worker


def run(request: WorkerRequest, *, is_quiet: bool) -> None:
    """Until SIGTERM or Ctrl-C; each process then ends in order, and so does this one."""
    if not (request.gpu or request.num_compilers):
        raise UsageError("no work: pass --gpu all, --gpu 0 or --compile 8")
    common.accept(request.like)
    read_effort(request.effort)
    work = queue_worker.QueueWork(
        db=request.db, seconds=request.seconds, cache=read_policy(request.cache),
        max_error=request.max_error, effort=request.effort, drains=request.drains,
    )  # fmt: skip
    note = (lambda text: None) if is_quiet else console.note
    if request.key and (request.cluster or not request.gpu):
        raise UsageError(
            "--key publishes what GPUs of this machine verify: pass --gpu, or run `tables follow` at one"
        )
    if request.cluster is None:
        selected = targets.select(request.gpu) if request.gpu else []
        queue_worker.serve(
            selected, request.num_compilers, work, note, publishers=_publishers(request, selected)
        )
        return
    from ..service import ray_cluster  # here: nothing else needs Ray

    with ray_cluster.Cluster(request.cluster) as cluster:
        gpus = ray_cluster.cluster_gpus(request.gpu)
        queue_worker.serve(gpus, request.num_compilers, work, note, cluster.start)


def _publishers(request: WorkerRequest, selected: Sequence[Selected]) -> list[Callable[[], ChildHandle]]:
    """With a key, who publishes what is tuned: one for each GPU model."""
    if request.key is None:
        return []
    signing().SigningKey.read(request.key)
    db, server, most = request.db, request.server, request.max_kernels
    of_models = {
        one.model: FollowRequest(request.key, one.selector, max_kernels=most, db=db, server=server)
        for one in selected
    }
    return [partial(ChildProcess.start, beside_worker, one, request.drains) for one in of_models.values()]
