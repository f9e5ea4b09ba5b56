"""`--cluster ray://HEAD:10001`: Ray runs the processes that several GPUs of one machine have, on its nodes.

    this process ─┬─ actor of a GPU (num_gpus=1, accelerator_type): a search, or a worker of the queue
      (relays)    ├─ actor of a GPU ...
                  └─ compile tasks on any CPU, each kernel once (`_Kernels`)

Ray starts an actor again that is lost with its node, and places it where a GPU of the model is. It holds
nothing that counts: trials, requests and leases are in the database, so a cluster that forgets everything
loses nothing. Cubins travel by content: whoever asks for the same gets the same object. This process may be
killed: the actors end with it, and the same command goes on.
"""

from __future__ import annotations

import queue
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any, Self

from ..facts.device import limits_by_name
from ..files.errors import EnvironmentProblem, TrialFailure, UsageError
from ..files.wheel_libraries import RAY, required
from ..kernel.compiler import CompileJob, Compiler, use_cores
from ..search import InterruptHandler
from ..store import Build
from ..target_finder import REPLAY, Selected
from .child_process import ChildHandle, Signal
from .compile_worker import ARCH, made

PLACED_S = 120.0  # until Ray has found a GPU and started an actor there, or started it again
POLL_S = 1.0
AHEAD = 2  # compile tasks for each core of the cluster: no more wait
KEPT = 4096  # kernels that the cluster has at hand
LONGEST_S = 120.0  # for a kernel, before the GPU's own cores compile it


def cluster_gpus(text: str) -> list[Selected]:
    """One for each actor: `h100:4`, `h100:4,a100:2`, `replay:FILE:3`. Raises UsageError."""
    found = []
    for one in re.split(rf", *(?={REPLAY})|, *(?=[a-z0-9-]+:\d+)", text):
        match = re.fullmatch(r"(.+?):(\d{1,4})", one.strip())
        if match is None or int(match[2]) < 1:
            raise UsageError(f"--gpu {one}: with --cluster name models and numbers, as h100:4")
        if not match[1].startswith(REPLAY) and limits_by_name(match[1]) is None:
            raise UsageError(f"--gpu {one}: {match[1]} is no known model; name one as h100, a100, h200")
        found += [Selected(match[1], match[1])] * int(match[2])
    return found


def resources(selector: str) -> dict[str, Any]:
    """What Ray has to find for an actor. It names models by the word behind NVIDIA: `H100`."""
    if selector.startswith(REPLAY):
        return {"num_cpus": 1}
    limits = limits_by_name(selector)
    name = limits.name if limits else selector
    word = re.search(r"[A-Z]+\d+[A-Z]*|\d{4}", name)
    return {"num_cpus": 1, "num_gpus": 1, "accelerator_type": word[0] if word else name}


def _ray() -> Any:
    with required("a cluster needs Ray", RAY):
        import ray
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


class _ClusterGpu:
    """An actor: what a process of a GPU runs, and its `Parent`, which it is itself. Restarted by Ray, the
    program begins anew: what the one before had claimed lapses."""

    def __init__(self) -> None:
        self.life = uuid.uuid4().hex  # an answer to the one before is none to this one
        self._told, self._answers = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()

    def run(self, kernels: Any, program: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        use_cores(1)  # its own, as Ray counts (`resources`): tasks have the others
        program(self, *arguments, helpers=RayHelpers(kernels))

    def tell(self, what: str, *values: Any) -> None:
        self._told.put((what, *values))

    def ask(self, what: str, *values: Any) -> Any:
        self.tell(what, *values)
        return self._answers.get()

    def told(self) -> tuple[str, list[Any]]:
        """What was told since, or nothing after a while. Called beside `run`, as all below."""
        found = []
        with suppress(queue.Empty):
            found.append(self._told.get(timeout=POLL_S))
            while True:
                found.append(self._told.get_nowait())
        return self.life, found

    def answer(self, life: str, value: Any) -> None:
        if isinstance(value, Signal):
            InterruptHandler.interrupt_threads(value.number)
        elif life == self.life:
            self._answers.put(value)


# ---- where the command runs


class Cluster:
    """A cluster of Ray, connected until the end of `with`. Raises EnvironmentProblem without Ray or it."""

    def __init__(self, address: str) -> None:
        self.ray = _ray()
        try:
            options = {"log_to_driver": False, "namespace": "autotune", "ignore_reinit_error": True}
            self.ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EnvironmentProblem(f"--cluster {address}: {error}; check it by `ray status`") from error
        self._kernels = self.remote(_Kernels, num_cpus=0, max_concurrency=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def remote(self, kind: type, **options: Any) -> Any:
        """An actor, which Ray starts again wherever there is room."""
        return self.ray.remote(max_restarts=-1, max_task_retries=-1, **options)(kind).remote()

    def start(self, program: Callable[..., None], selector: str, *arguments: Any) -> ClusterChild:
        """As `ChildProcess.start`, on a GPU of the cluster: Ray shows an actor that one."""
        own = selector if selector.startswith(REPLAY) else "0"
        return ClusterChild(self, selector, (program, (own, *arguments)))


class ClusterChild(ChildHandle):
    """An actor as a process here would be: a thread passes on what it tells."""

    def __init__(self, cluster: Cluster, selector: str, work: tuple[Callable[..., None], Any]) -> None:
        ours, self._theirs = Pipe()
        super().__init__(ours)
        self._cluster, self._life = cluster, ""  # whose question is to be answered
        self._actor = cluster.remote(_ClusterGpu, max_concurrency=3, **resources(selector))
        self._running = self._actor.run.remote(cluster._kernels, *work)
        threading.Thread(target=self._relay, name=selector, daemon=True).start()

    def _relay(self) -> None:
        ray = self._cluster.ray
        with suppress(OSError, ray.exceptions.RayError):
            is_last, messages = False, list[Any]()
            while not is_last or messages:
                is_last = bool(ray.wait([self._running], timeout=0)[0])
                told = self._actor.told.remote()
                if not ray.wait([told], timeout=PLACED_S)[0]:  # it was lost, too, and Ray has no other place
                    lacks = f"none was free on the cluster within {PLACED_S:.0f} s; look at `ray status`"
                    self._theirs.send(("", "error", EnvironmentProblem(lacks)))
                    break
                life, messages = ray.get(told)
                for message in messages:
                    self._theirs.send((life, *message))
        self._theirs.close()

    def hear(self) -> tuple[str, list[Any]] | None:
        if (message := super().hear()) is None:
            return None
        self._life, (what, *values) = message
        return what, values

    def answer(self, value: Any) -> None:
        with suppress(self._cluster.ray.exceptions.RayError):
            self._actor.answer.remote(self._life, value)

    @property
    def ending(self) -> str:
        return "its actor was lost"

    def kill(self) -> None:
        with suppress(self._cluster.ray.exceptions.RayError):
            self._cluster.ray.kill(self._actor, no_restart=True)
