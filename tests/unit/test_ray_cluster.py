"""A search on a Ray cluster: three nodes of this machine, whose GPUs replayed spaces stand in for.
Skipped without Ray: `make ray-test` installs it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import TrialFailure, UsageError
from autotune.kernel.compiler import CompileJob, compiler_version
from autotune.search.progress import Event, TrialDone
from autotune.service import queue_worker, ray_cluster, several_gpus
from autotune.service.queue_worker import QueueWork
from autotune.service.ray_cluster import Cluster, cluster_gpus, resources
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
        assert connection.execute("SELECT count(*) FROM lease").fetchall() == [(0,)]
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
