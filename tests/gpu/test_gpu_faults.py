"""Faults planted into a plain kernel: each costs one candidate, is recorded with its reason, and the next
candidate is fine."""

from __future__ import annotations

import time
from dataclasses import replace
from math import isqrt

import pytest
from planted import SPEC, source

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.files.errors import EnvironmentProblem
from autotune.gpu.protocol import KernelCode, Problem, RunTrial

pytestmark = pytest.mark.gpu

PROBLEM = Problem(Gemm(100, 90, 80), CachePolicy.COLD)


@pytest.fixture
def trial(client, compiler):
    def run(deed, *, cutoff_us=None, deadline_s=60.0, problem=PROBLEM):
        cubin = compiler.compile_source(source(deed))
        return client.trial(
            RunTrial(problem, KernelCode(cubin.code, cubin.sha256, SPEC), cutoff_us), deadline_s
        )

    return run


def test_the_plain_kernel_is_right(trial):
    result = trial("right")
    assert result.outcome is Outcome.OK, result.reason
    assert 0 < result.error_ratio < 1
    assert min(result.samples_us) > 0
    assert not result.is_cut_short


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("faults", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("traps", "CUDA_ERROR"),
        ("misaligns", "CUDA_ERROR_MISALIGNED_ADDRESS"),
    ],
)
def test_a_fault_costs_one_trial(trial, deed, words):
    result = trial(deed)
    assert result.outcome is Outcome.FAULTED
    assert words in result.reason
    assert trial("right").outcome is Outcome.OK


def test_a_hang_costs_one_trial(trial):
    trial("right")
    started = time.monotonic()
    result = trial("hangs", deadline_s=5.0)
    assert result.outcome is Outcome.TIMED_OUT, result.reason
    assert time.monotonic() - started < 70
    assert trial("right").outcome is Outcome.OK


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("is off by a little", "C[99, 89] is off"),
        ("drops a term", "times the bound"),
        ("drops a term of one element", "C[99, 89] is off"),
        ("leaves one out", "1 elements of C are NaN"),
        ("writes infinity", "1 elements of C are NaN, Inf"),
        ("writes behind C", "1 words written outside the operands, behind C"),
        ("writes before C", "1 words written outside the operands, behind B"),
        ("reads behind B", "1 elements of C are NaN"),
    ],
)
def test_a_wrong_result_costs_one_trial(trial, deed, words):
    result = trial(deed)
    assert result.outcome is Outcome.WRONG_RESULT
    assert words in result.reason
    assert trial("right").outcome is Outcome.OK


def test_a_too_slow_candidate_is_cut_short(trial):
    result = trial("sleeps", cutoff_us=10.0)
    assert result.outcome is Outcome.OK, result.reason
    assert result.is_cut_short
    assert len(result.samples_us) <= 2


def test_too_much_for_the_gpu_is_said_with_sizes(trial, gpu):
    side = isqrt(gpu.total_bytes // 4) + 1000
    with pytest.raises(EnvironmentProblem, match=r"need .* GiB of GPU memory"):
        trial("right", problem=Problem(Gemm(side, side, 1), CachePolicy.WARM))
    assert trial("right").outcome is Outcome.OK


def test_a_workspace_that_fits_nowhere_costs_one_trial(trial, client, compiler, gpu):
    """Partial sums for more splits than the GPU has memory for."""
    gemm = Gemm(8192, 8192, 4096)
    splits = 2 * gpu.total_bytes // (4 * gemm.m * gemm.n)
    cubin = compiler.compile_source(source("right"))
    spec = replace(SPEC, reduction="two_pass", split_k=splits)
    problem = Problem(gemm, CachePolicy.WARM)
    result = client.trial(RunTrial(problem, KernelCode(cubin.code, cubin.sha256, spec), None), 60.0)
    assert result.outcome is Outcome.OUT_OF_MEMORY, result.reason
    assert "partial sums need" in result.reason
    assert trial("right").outcome is Outcome.OK


@pytest.mark.parametrize("deed", ["faults", "hangs"])
def test_what_killed_a_worker_is_not_run_again_on_any_problem(trial, client, deed):
    first = trial(deed, deadline_s=5.0)
    process = client._process
    again = trial(deed, problem=Problem(Gemm(64, 64, 64), CachePolicy.COLD))
    assert again.outcome is first.outcome
    assert "not run, it brought a worker down" in again.reason
    assert client._process is process  # nobody was started, nobody died
