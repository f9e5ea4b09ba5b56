"""A target that compiles for real and has a worker without a GPU; discovery is made up."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.measurement import CachePolicy
from autotune.gpu import client, driver, gpu_worker
from autotune.gpu.driver import GpuInfo
from autotune.gpu.gpu_target import GpuTarget

FAKE = Path(__file__).parents[1] / "unit" / "fake_gpu_worker.py"
LIMITS = KNOWN["h200"]


class VersionedDriver:
    @staticmethod
    def cuDriverGetVersion():
        return (0, 13000)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def open_target(monkeypatch, tmp_path, cache):
    gpu = GpuInfo(0, LIMITS.name, "GPU-0", (9, 0), 2**37)
    monkeypatch.setattr(driver, "find_gpu", lambda selector: gpu)
    monkeypatch.setattr(driver, "device_limits", lambda index: LIMITS)
    monkeypatch.setattr(driver, "open_driver", lambda: VersionedDriver)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its turns on GPU-0 are this test's alone
    targets = []

    def open_with(mode):
        command = (sys.executable, str(FAKE), mode, str(tmp_path / "log"))
        monkeypatch.setattr(
            gpu_worker, "WorkerClient", partial(client.WorkerClient, command=command, max_deaths=3)
        )
        targets.append(GpuTarget("auto", policy=CachePolicy.WARM, cache_dir=cache))
        return targets[-1]

    yield open_with
    for opened in targets:
        opened.close()
