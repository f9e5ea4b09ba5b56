"""Neighbours, energy, fresh processes and times that cannot be, on the GPU."""

from __future__ import annotations

import threading
from statistics import median

import pytest
from planted import SPEC, source

from autotune.facts import disturbance
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.gpu import protocol
from autotune.gpu.client import WorkerClient
from autotune.gpu.nvml import Monitor
from autotune.gpu.protocol import KernelCode, Problem, RunRace, RunTrial
from autotune.kernel import template

pytestmark = pytest.mark.gpu

GEMM = Problem(Gemm(1024, 1024, 1024), CachePolicy.COLD)


@pytest.fixture(scope="module")
def make(compiler):
    def code(deed):
        cubin = compiler.compile_source(source(deed))
        return KernelCode(cubin.code, cubin.sha256, SPEC)

    return code


@pytest.fixture
def neighbour(gpu, limits, compiler, make):
    """A second worker that computes all the while, and takes no turns."""
    checks = compiler.compile_source(template.source("checks.cu"), entry="reference_tiles")
    client = WorkerClient(protocol.Start(gpu.uuid, limits, checks.code))
    client.prepare(GEMM)
    is_over, code = threading.Event(), make("right")

    def run():
        while not is_over.is_set():
            client.race(RunRace(GEMM, (code,), 40), 60.0)
        client.close()

    thread = threading.Thread(target=run)

    def start():
        thread.start()

    yield start
    is_over.set()
    if thread.is_alive():
        thread.join(60)
    else:
        client.close()


@pytest.mark.alone
def test_a_busy_neighbour_is_noticed_and_a_quiet_gpu_is_not_accused(client, make, neighbour):
    client.renew()
    code = make("right")
    quiet = client.trial(RunTrial(GEMM, code, None), 60.0)
    assert quiet.outcome is Outcome.OK, quiet.reason
    assert not {disturbance.NEIGHBOUR, disturbance.DRIFT} & set(quiet.marks)
    neighbour()
    found = [client.trial(RunTrial(GEMM, code, None), 60.0) for _ in range(20)]
    assert {result.outcome for result in found} == {Outcome.OK}
    noticed = {mark for r in found for mark in (*r.marks, *(m for d in r.discarded for m in d.marks))}
    assert noticed & {disturbance.NEIGHBOUR, disturbance.NEIGHBOUR_UNFELT, disturbance.DRIFT}


def test_what_needs_less_time_than_the_hardware_is_no_result(client, make):
    problem = Problem(Gemm(2048, 2048, 2048), CachePolicy.COLD)
    assert client.trial(RunTrial(problem, make("right"), None), 120.0).outcome is Outcome.OK
    result = client.trial(RunTrial(problem, make("computes but once"), None), 120.0)
    assert result.outcome is Outcome.TOO_FAST, result.reason
    assert client.trial(RunTrial(problem, make("right"), None), 120.0).outcome is Outcome.OK


def test_energy_is_that_of_a_gpu_or_unknown(client, make, gpu):
    result = client.race(RunRace(GEMM, (make("right"), make("leaves one out")), 3, energy_s=0.5), 60.0)
    joules, of_wrong = result.joules
    assert of_wrong is None
    if Monitor(gpu.uuid).energy_j() is not None:
        assert joules is not None
        assert 20 < joules / (median(result.samples_us[0]) * 1e-6) < 2000  # watts


def test_a_fresh_worker_is_another_process_and_measures_on(client, make):
    client.start()
    before = client._process.pid
    client.renew()
    assert client._process.pid != before
    assert client.trial(RunTrial(GEMM, make("right"), None), 60.0).outcome is Outcome.OK
