"""A search on a Ray cluster: three nodes of this machine, whose GPUs replayed spaces stand in for.
Skipped without Ray: `make ray-test` installs it. What a cluster relays is tried without it, too."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import TrialFailure, UsageError
from autotune.kernel.compiler import CompileJob, compiler_version
from autotune.search import InterruptHandler
from autotune.search.progress import Event, TrialDone
from autotune.service import queue_worker, ray_cluster, several_gpus
from autotune.service.queue_worker import QueueWork
from autotune.service.ray_cluster import Cluster, RayHelpers, cluster_gpus, resources
from autotune.store import RequestState, Store, Wanted
from autotune.target_finder import Selected

RECORDED = targets.default_recording()
SHAPES = [Gemm.parse(text) for text in ("1024", "4096", "512x512x16384")]


def test_gpus_of_a_cluster_are_models_and_numbers() -> None:
    h100, a100 = Selected("h100", "h100"), Selected("a100", "a100")
    assert cluster_gpus("h100:2, a100:1") == [h100, h100, a100]
    assert cluster_gpus("replay:a,b.gz:1") == [Selected("replay:a,b.gz", "replay:a,b.gz")]
    assert resources("h100") == {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "H100"}
    for wrong in ("all", "h100", "h100:0", "tpu:4", "h100:x"):
        with pytest.raises(UsageError, match="--gpu"):
            cluster_gpus(wrong)


class SimulatedRay:
    """As much of Ray as a cluster of threads needs. What `is_full` is not placed."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.threads, self.is_full, self.actors = ThreadPoolExecutor(8), False, list[Any]()
        self.cores: list[int] = []  # that each actor takes to compile

    def init(self, **options: Any) -> None:
        assert options["address"] == "ray://head:10001"

    def shutdown(self) -> None:
        self.threads.shutdown()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **options: Any) -> Any:
        return lambda kind: SimpleNamespace(remote=lambda: self.place(kind()))

    def place(self, actor: Any) -> Any:
        self.actors.append(actor)
        handle = MagicMock()
        for name in ("run", "told", "answer", "num_cores"):
            getattr(handle, name).remote = partial(self.call, getattr(actor, name, None))
        return handle

    def call(self, method: Any, *arguments: Any) -> Future[Any]:
        return Future() if self.is_full else self.threads.submit(method, *arguments)

    def get(self, future: Future[Any]) -> Any:
        return future.result(10)

    def wait(self, futures: list[Future[Any]], timeout: float) -> tuple[list[Any], list[Any]]:
        done, left = wait(futures, timeout)
        return list(done), list(left)

    def kill(self, actor: Any, no_restart: bool) -> None:
        assert no_restart


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedRay:
    found = SimulatedRay()
    monkeypatch.setattr(ray_cluster, "_ray", lambda: found)
    monkeypatch.setattr(ray_cluster, "use_cores", found.cores.append)
    monkeypatch.setattr(ray_cluster, "POLL_S", 0.02)
    return found


def until_interrupted(parent: Any, selector: str, question: str, helpers: RayHelpers) -> None:
    parent.tell("answer", selector, parent.ask(question), helpers.num_slots)
    with InterruptHandler() as handler:
        while not handler.is_requested:
            time.sleep(0.005)
    parent.tell("signal", handler.number)


def test_an_actor_is_as_a_process_here(simulated: SimulatedRay) -> None:
    with Cluster("ray://head:10001") as cluster:
        child = cluster.start(until_interrupted, "h100", "how many?")
        assert child.hear() == ("how many?", [])
        actor = simulated.actors[-1]
        actor.answer("an earlier life", 1)
        child.answer(4)
        assert child.hear() == ("answer", ["0", 4, 2])
        child.signal(signal.SIGTERM)
        assert child.hear() == ("signal", [signal.SIGTERM]) and child.hear() is None
        child.end(1)
        assert simulated.cores == [resources("h100")["num_cpus"]], "the others are for tasks"


@pytest.mark.parametrize("is_lost_later", [False, True])
def test_a_gpu_that_is_not_free_is_told_of(
    is_lost_later: bool, simulated: SimulatedRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "PLACED_S", 0.3)
    with Cluster("ray://head:10001") as cluster:
        simulated.is_full = not is_lost_later
        child = cluster.start(asking, "h100", "how many?")
        if is_lost_later:
            assert child.hear() == ("how many?", [])
            simulated.is_full = True
        what, (error,) = child.hear() or ("", [None])
        assert what == "error" and "none was free on the cluster" in str(error)
        child.end(1)
        simulated.actors[-1].answer(simulated.actors[-1].life, 4)  # its thread ends


def asking(parent: Any, selector: str, question: str, helpers: RayHelpers) -> None:
    parent.ask(question)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, each with two cores as Ray counts."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("AUTOTUNE_REPLAY_RATE", "20")
    patch.setenv("RAY_AUTH_MODE", "disabled")
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for _ in range(2):
        found.add_node(num_cpus=2)
    yield found
    ray.shutdown()
    found.shutdown()
    patch.undo()


pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def nothing_doubled(db: Path) -> None:
    with sqlite3.connect(db) as connection:
        doubled = "SELECT 1 FROM trial GROUP BY study_id, config_id HAVING count(*) > 1"
        assert connection.execute(doubled).fetchall() == []
        under_way = "SELECT 1 FROM optuna_trial WHERE worker_id IS NOT NULL"
        assert connection.execute(under_way).fetchall() == []
    connection.close()


@pytest.mark.timeout(120)
def test_a_search_goes_on_although_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    node, db = cluster.add_node(num_cpus=2), tmp_path / "a.db"
    losing = threading.Thread(target=cluster.remove_node, args=(node,), kwargs={"allow_graceful": False})

    def lose_node(event: Event) -> None:
        if isinstance(event, TrialDone) and losing.ident is None:
            losing.start()

    gpus = cluster_gpus(f"replay:{RECORDED}:2")
    arguments = {"shapes": SHAPES, "trials": 30, "db": str(db), "effort": "quick"}
    telling = {"on_event": lose_node, "on_fill": lambda *numbers: None, "note": print}
    with Cluster(cluster.address) as connected:
        found = several_gpus.tune(gpus, arguments, **telling, start=connected.start)
        losing.join()
        (result,) = found.results
        assert {one.gemm: one.num_trials for one in result.shapes} == dict.fromkeys(SHAPES, 30)
        with pytest.raises(UsageError, match="no shape with a final was measured under anything else"):
            several_gpus.tune(gpus, arguments | {"stale": True}, **telling, start=connected.start)
    nothing_doubled(db)


@pytest.mark.timeout(120)
def test_workers_of_the_queue_are_placed_by_a_cluster(cluster: Any, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with Store.open(db) as store:
        store.queue().submit(map(Wanted, SHAPES))
        work = QueueWork(str(db), 8.0, CachePolicy.COLD, None, "quick", drains=True)
        with Cluster(cluster.address) as connected:
            queue_worker.serve(cluster_gpus(f"replay:{RECORDED}:2"), 0, work, print, connected.start)
        assert store.queue().counts()[RequestState.TUNED] == len(SHAPES)
    nothing_doubled(db)


@pytest.mark.timeout(120)
def test_kernels_are_compiled_by_tasks_and_once(cluster: Any) -> None:
    import ray

    ray.init(address=cluster.address, log_to_driver=False, ignore_reinit_error=True)
    kernels = ray.remote(num_cpus=0)(ray_cluster._Kernels).remote()
    helpers = ray_cluster.RayHelpers(kernels)
    assert helpers.num_slots >= 4
    texts = ('extern "C" __global__ void f(float *x) { x[0] = 1.0f; }', "int x = y;")
    options = ("-arch=sm_90", "-std=c++17", "-default-device", "--no-cache", "--ptxas-options=-v")
    right, wrong = (CompileJob(compiler_version(), "f", options, text, "", "sm_90") for text in texts)
    packed = helpers.build(right)
    assert packed is not None and helpers.build(right) == packed
    with pytest.raises(TrialFailure, match='"y" is undefined'):
        helpers.build(wrong)
    assert helpers._free.acquire(blocking=False)
    ray.shutdown()
