"""`autotune search --cluster ray://HEAD:10001`: the workers of the queue, placed by Ray.

    driver ─ requests ─► database ◄─ actor of a GPU (num_gpus=1, accelerator_type): a worker, as on a machine
                                        └─ compile tasks on any CPU, each kernel once (`_Kernels`)

Ray starts an actor again that is lost with its node, and places it where a GPU of the model is. It holds
nothing that counts: requests, trials and leases are in the database, so a cluster that forgets everything
loses nothing. Cubins travel by content: whoever asks for the same gets the same object. The driver may be
killed: the actors end with it, and the same command goes on.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..facts.device import limits_by_name
from ..facts.gemm import Gemm
from ..files.errors import EnvironmentProblem, TrialFailure, UsageError
from ..files.wheel_libraries import RAY, pip_install
from ..kernel.compiler import CompileJob, Compiler
from ..search import InterruptHandler
from ..store import ANY_GPU, Build, QueuedRequest, RequestState, Store, Wanted
from ..target_finder import REPLAY, Note
from .compile_worker import ARCH, made
from .queue_worker import QueueWork, serve_gpu
from .wanted import predicted_gain_us

POLL_S = 1.0
AHEAD = 2  # compile tasks for each core of the cluster: no more wait
KEPT = 4096  # kernels that the cluster has at hand
LONGEST_S = 120.0  # for a kernel, before the GPU's own cores compile it
_OPEN = (RequestState.WAITING, RequestState.TUNING)

OnState = Callable[[Sequence[QueuedRequest]], None]


@dataclass(frozen=True)
class ClusterGpus:
    """`num` actors, each on one GPU of a model, or on a recording that stands in for one."""

    selector: str
    num: int

    @classmethod
    def parse(cls, text: str) -> tuple[ClusterGpus, ...]:
        """`h100:4`, `h100:4,a100:2`, `replay:FILE:3`. Raises UsageError."""
        found = []
        for one in re.split(rf", *(?={REPLAY})|, *(?=[a-z0-9-]+:\d+)", text):
            match = re.fullmatch(r"(.+?):(\d{1,4})", one.strip())
            if match is None or int(match[2]) < 1:
                raise UsageError(f"--gpu {one}: with --cluster name models and numbers, as h100:4")
            if not match[1].startswith(REPLAY) and limits_by_name(match[1]) is None:
                raise UsageError(f"--gpu {one}: {match[1]} is no known model; name one as h100, a100, h200")
            found.append(cls(match[1], int(match[2])))
        return tuple(found)

    @property
    def gpu_name(self) -> str:
        """Whom requests are for; a recording serves any."""
        limits = limits_by_name(self.selector)
        return ANY_GPU if limits is None else limits.name

    @property
    def resources(self) -> dict[str, Any]:
        """What Ray has to find for an actor. It names models by the word behind NVIDIA: `H100`."""
        if self.selector.startswith(REPLAY):
            return {"num_cpus": 1}
        word = re.search(r"[A-Z]+\d+[A-Z]*|\d{4}", self.gpu_name)
        return {"num_cpus": 1, "num_gpus": 1, "accelerator_type": word[0] if word else self.gpu_name}


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(f"a cluster needs Ray ({error}); {pip_install(RAY)}") from error
    return ray


# ---- on the nodes


class _Kernels:
    """An actor: compile tasks of all GPUs, each kernel once. Its answers come in any order (`async`)."""

    def __init__(self) -> None:
        self._ray = _ray()
        self._built: OrderedDict[str, Any] = OrderedDict()
        self._compile = self._ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_retries=3)(_compile)

    async def build(self, key: str, task: dict[str, Any]) -> Any:
        if key not in self._built:
            self._built[key] = self._compile.remote(key, task)
            while len(self._built) > KEPT:
                self._built.popitem(last=False)
        return await self._built[key]

    def num_cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))


_compilers: list[Compiler] = []  # of a process that runs compile tasks


def _compile(key: str, task: dict[str, Any]) -> Build:
    if not _compilers:
        _compilers.append(Compiler(ARCH, num_threads=1))
    return made(_compilers[0], key, task)


class RayHelpers:
    """Implements `compiler.Helpers` by tasks of a cluster, a limited number at a time."""

    def __init__(self, kernels: Any) -> None:
        self._ray, self._kernels = _ray(), kernels
        self.num_slots = int(self._ray.get(kernels.num_cores.remote()))
        self._free = threading.BoundedSemaphore(max(1, AHEAD * self.num_slots))

    def build(self, job: CompileJob) -> bytes | None:
        if not self._free.acquire(blocking=False):
            return None
        try:
            build = self._ray.get(self._kernels.build.remote(job.key, job.to_dict()), timeout=LONGEST_S)
        except self._ray.exceptions.RayError:  # a node was lost, or all are busy: it is compiled here
            return None
        finally:
            self._free.release()
        if build.outcome:
            raise TrialFailure(build.outcome, build.reason)
        return build.packed  # type: ignore[no-any-return]


class _RayParent:
    """What a worker tells goes into Ray's log, which the driver shows."""

    def tell(self, what: str, *values: Any) -> None:
        if what == "error":
            raise values[0]


class _ClusterWorker:
    """An actor: one GPU. Restarted by Ray, it begins anew: what it had claimed lapses."""

    def __init__(self) -> None:
        self._interrupt_handler = InterruptHandler()

    def serve(self, selector: str, work: QueueWork, kernels: Any) -> None:
        own = selector if selector.startswith(REPLAY) else "auto"  # Ray shows it one GPU
        serve_gpu(_RayParent(), own, work, RayHelpers(kernels), self._interrupt_handler)

    def stop(self) -> None:
        """End in order. Called beside `serve`, on another thread."""
        self._interrupt_handler.number = signal.SIGTERM


# ---- the driver


def search(
    address: str,
    gpus: Sequence[ClusterGpus],
    calls: Mapping[Gemm, int],
    work: QueueWork,
    on_state: OnState,
    note: Note,
) -> tuple[list[QueuedRequest], int | None]:
    """Have the GPUs of a cluster tune shapes, those with most calls first; returns their requests once all
    have ended, or after a signal, and that. Raises EnvironmentProblem without Ray or its cluster."""
    ray = _ray()
    try:
        ray.init(address=address, log_to_driver=False, namespace="autotune", ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EnvironmentProblem(f"--cluster {address}: {error}; check it by `ray status`") from error
    with InterruptHandler() as interrupt_handler, Store.open(work.db) as store:
        names = dict.fromkeys(one.gpu_name for one in gpus)
        wanted = [
            Wanted(gemm, name, count, predicted_gain_us(name, gemm, 0.0), asked_by="search --cluster")
            for name in names
            for gemm, count in calls.items()
        ]
        ids = store.queue().submit(wanted)
        try:
            found = _Driver(ray, store, gpus, work, note).run(ids, on_state, interrupt_handler)
            return found, interrupt_handler.number
        finally:
            ray.shutdown()


class _Driver:
    def __init__(
        self, ray: Any, store: Store, gpus: Sequence[ClusterGpus], work: QueueWork, note: Note
    ) -> None:
        self._ray, self._store, self._note = ray, store, note
        kernels = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Kernels).remote()
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=2)(_ClusterWorker)
        self._workers = [
            (one, kind.options(**one.resources).remote()) for one in gpus for _ in range(one.num)
        ]
        self._serving = {
            worker.serve.remote(one.selector, work, kernels): one for one, worker in self._workers
        }

    def run(
        self, ids: Collection[int], on_state: OnState, interrupt_handler: InterruptHandler
    ) -> list[QueuedRequest]:
        while True:
            requests = self._store.queue().requests(ids=ids)
            on_state(requests)
            if interrupt_handler.is_requested or not any(one.state in _OPEN for one in requests):
                self._stop()
                return self._store.queue().requests(ids=ids)
            self._heed()
            time.sleep(POLL_S)

    def _heed(self) -> None:
        """Tell of workers that ended. Raises their error once none is left."""
        done, _ = self._ray.wait(list(self._serving), num_returns=len(self._serving), timeout=0)
        for one in done:
            gpus = self._serving.pop(one)
            try:
                self._ray.get(one)
            except Exception as error:
                self._note(f"{gpus.selector}: {getattr(error, 'cause', None) or error}")
                if not self._serving:
                    raise EnvironmentProblem(f"no worker of the cluster is left: {error}") from error

    def _stop(self) -> None:
        for _, worker in self._workers:
            with suppress(self._ray.exceptions.RayError):
                worker.stop.remote()
        self._ray.wait(list(self._serving), num_returns=max(1, len(self._serving)), timeout=30)
        for _, worker in self._workers:
            self._ray.kill(worker, no_restart=True)
