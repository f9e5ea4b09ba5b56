"""A search on a Ray cluster: three nodes of this machine, whose GPUs replayed spaces stand in for.
Skipped without Ray: `make ray-test` installs it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import TrialFailure, UsageError
from autotune.kernel.compiler import CompileJob, compiler_version
from autotune.service import ray_cluster
from autotune.service.queue_worker import QueueWork
from autotune.service.ray_cluster import ClusterGpus
from autotune.store import QueuedRequest, RequestState

RECORDED = targets.default_recording()
SHAPES = [Gemm.parse(text) for text in ("1024", "4096", "512x512x16384")]


def test_gpus_of_a_cluster_are_models_and_numbers() -> None:
    assert ClusterGpus.parse("h100:4") == (ClusterGpus("h100", 4),)
    assert ClusterGpus.parse("h100:4, a100:2") == (ClusterGpus("h100", 4), ClusterGpus("a100", 2))
    assert ClusterGpus.parse("replay:a,b.gz:3") == (ClusterGpus("replay:a,b.gz", 3),)
    (h100,) = ClusterGpus.parse("h100:1")
    assert h100.resources == {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "H100"}
    assert h100.gpu_name == "NVIDIA H100 80GB HBM3"
    for wrong in ("all", "h100", "h100:0", "tpu:4", "h100:x"):
        with pytest.raises(UsageError, match="--gpu"):
            ClusterGpus.parse(wrong)


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


@pytest.mark.timeout(120)
def test_shapes_are_tuned_although_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    db, seen = tmp_path / "a.db", list[list[QueuedRequest]]()
    work = QueueWork(str(db), 8.0, CachePolicy.COLD, None, "quick")
    node = cluster.add_node(num_cpus=2)

    def lose_node() -> None:
        while not any(one.state == RequestState.TUNING for found in seen for one in found):
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)

    losing = threading.Thread(target=lose_node)
    losing.start()
    gpus = (ClusterGpus(f"replay:{RECORDED}", 2),)
    calls = dict.fromkeys(SHAPES, 1)
    found, signal = ray_cluster.search(cluster.address, gpus, calls, work, seen.append, print)
    losing.join()
    assert signal is None
    assert {one.wanted.gemm: one.state for one in found} == dict.fromkeys(SHAPES, RequestState.TUNED)
    with sqlite3.connect(db) as connection:
        doubled = "SELECT 1 FROM trial GROUP BY study_id, config_id HAVING count(*) > 1"
        assert connection.execute(doubled).fetchall() == []
        assert connection.execute("SELECT count(*) FROM lease").fetchall() == [(0,)]
    connection.close()


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
