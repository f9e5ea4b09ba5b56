"""Limits of the GPUs that are known by name, and who measured: data that survives JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.device import KNOWN, DeviceLimits, Environment, known_limits
from autotune.files.errors import UsageError
from autotune.kernel.resources import MAX_REGISTERS, MAX_THREADS

DEVICES = pytest.mark.parametrize("short", KNOWN)
ENVIRONMENTS = st.builds(
    Environment, *[st.text()] * 2, st.tuples(st.integers(7, 12), st.integers(0, 9)), *[st.text()] * 5
)


@DEVICES
def test_a_gpu_is_known_by_both_names(short: str) -> None:
    limits = KNOWN[short]
    assert known_limits(short) is known_limits(short.upper()) is known_limits(limits.name) is limits


@pytest.mark.parametrize("name", ["", "mi300x", "0", "NVIDIA"])
def test_an_unknown_gpu_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="rtx-4090"):
        known_limits(name)


@DEVICES
def test_limits_survive_json(short: str) -> None:
    limits = KNOWN[short]
    assert DeviceLimits.from_dict(json.loads(json.dumps(limits.to_dict()))) == limits


@given(ENVIRONMENTS)
def test_an_environment_survives_json(environment: Environment) -> None:
    again = Environment.from_dict(json.loads(json.dumps(environment.to_dict())))
    assert again == environment
    assert again.is_recorded == (environment.recorded_on != "")


@DEVICES
def test_limits_are_those_of_a_gpu(short: str) -> None:
    """A slip in a column (bytes for KiB, per SM for per block) shows in how the figures relate."""
    limits = KNOWN[short]
    assert limits.smem_per_block + limits.smem_reserved <= limits.smem_per_sm <= 256 * 1024
    assert limits.smem_per_block >= 48 * 1024
    assert limits.threads_per_sm % MAX_THREADS in (0, MAX_THREADS // 2)
    assert limits.blocks_per_sm * 32 <= limits.threads_per_sm
    assert limits.regs_per_sm >= MAX_REGISTERS * 256
    assert limits.l2_bytes >= 4 * 2**20
    assert 1 < limits.fma_tflops * 1e3 / limits.bandwidth_gbs < 150, "FMA rate over bandwidth, FLOP/byte"


@DEVICES
def test_the_fma_rate_is_what_the_sms_can_do(short: str) -> None:
    """TFLOP/s over SMs and FP32 cores is twice the clock: between 1 and 3 GHz for all of them."""
    limits = KNOWN[short]
    cores = 64 if limits.compute_capability in ((7, 5), (8, 0)) else 128
    assert 1.0 < limits.fma_tflops * 1e3 / (2 * limits.num_sms * cores) < 3.0


@DEVICES
def test_asynchronous_copies_come_with_sm_80(short: str) -> None:
    limits = KNOWN[short]
    assert limits.has_async_copy == (int(limits.arch.removeprefix("sm_")) >= 80)


@DEVICES
def test_clusters_come_with_sm_90(short: str) -> None:
    limits = KNOWN[short]
    assert limits.has_clusters == (int(limits.arch.removeprefix("sm_")) >= 90)
