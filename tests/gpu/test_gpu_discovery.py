"""Finding the GPU: what the driver says, and that asking opens no context."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.facts.device import KNOWN
from autotune.gpu import driver
from autotune.gpu.nvml import Monitor

pytestmark = pytest.mark.gpu

_ASK = """
from autotune.gpu import driver
from autotune.gpu.nvml import Monitor
gpus = driver.list_gpus()
driver.device_limits(0)
Monitor(gpus[0].uuid).state()
cuda = driver.open_driver()
device = driver.check(cuda.cuDeviceGet, 0)
flags, is_active = driver.check(cuda.cuDevicePrimaryCtxGetState, device)
assert not is_active, "a context was opened"
assert int(driver.check(cuda.cuCtxGetCurrent)) == 0
"""


def test_a_gpu_is_found_by_index_uuid_and_auto(gpu):
    assert driver.find_gpu("0") == driver.find_gpu("auto") == driver.find_gpu(driver.find_gpu("0").uuid)
    assert gpu.total_bytes > 2**30
    assert len(gpu.uuid) == 40


def test_looking_opens_no_context():
    subprocess.run([sys.executable, "-c", _ASK], check=True, timeout=120)


def test_limits_are_those_of_a_known_gpu_or_plausible(gpu, limits):
    for known in KNOWN.values():
        if known.name == gpu.name and known.num_sms == limits.num_sms:
            assert limits.arch == known.arch
            for name in ("smem_per_block", "smem_per_sm", "smem_reserved", "threads_per_sm", "blocks_per_sm"):
                assert getattr(limits, name) == getattr(known, name), name
            assert limits.l2_bytes == pytest.approx(known.l2_bytes, rel=0.25)
    assert limits.fma_tflops > 1
    assert limits.bandwidth_gbs > 50
    assert limits.regs_per_sm == 65536


def test_the_monitor_tells_plausible_figures_or_nothing(gpu):
    state = Monitor(gpu.uuid).state()
    assert state.sm_clock_mhz is None or 100 <= state.sm_clock_mhz <= 5000
    assert state.power_w is None or 5 <= state.power_w <= 2000
    assert state.temperature_c is None or 5 <= state.temperature_c <= 120
