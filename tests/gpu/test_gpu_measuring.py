"""Reference, cuBLAS and timing on the GPU, by a plain kernel."""

from __future__ import annotations

from statistics import median

import pytest
from planted import BATCHED_SOURCE, BATCHED_SPEC, SPEC, source

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.gpu.protocol import KernelCode, Problem, RunRace, RunTrial

pytestmark = pytest.mark.gpu

SHAPES = ["1", "7x5x3", "130x70x1", "256x192x0", "1x4096x300", "515x1x33", "16x16x40000", "1025x770x514"]


@pytest.fixture
def right(compiler):
    cubin = compiler.compile_source(source("right"))
    return KernelCode(cubin.code, cubin.sha256, SPEC)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_cublas_and_the_reference_agree(client, shape, layout):
    """Preparing raises where they do not; cuBLAS is timed where it is there."""
    prepared = client.prepare(Problem(Gemm.parse(f"{shape}:{layout}"), CachePolicy.COLD))
    assert prepared.reference_share == 1.0
    assert bool(prepared.baseline_us) == bool(client.ready.cublas_version)
    assert all(sample > 0 for sample in prepared.baseline_us)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_plain_kernel_is_right_on_every_shape(client, right, shape):
    result = client.trial(RunTrial(Problem(Gemm.parse(shape), CachePolicy.COLD), right, None), 60.0)
    assert result.outcome is Outcome.OK, result.reason


BATCHES = ["70x60x33b7", "1x1x5b3000", "130x70x9b5:NN:shared-a", "16x16x4000b40:NN:shared-b", "5x3x0b4"]


@pytest.mark.parametrize(
    "shape", [*BATCHES, "70x60x33b7:TT:shared-b", "33x64x128b9:NT", "65x5x40b6:TN:shared-a"]
)
def test_cublas_strided_batched_and_the_reference_agree(client, shape):
    """In its strides, and in which operand is which: the reference shares nothing with cuBLAS."""
    prepared = client.prepare(Problem(Gemm.parse(shape), CachePolicy.COLD))
    assert prepared.reference_share == 1.0
    assert bool(prepared.baseline_us) == bool(client.ready.cublas_version)


@pytest.mark.parametrize("shape", BATCHES)
def test_a_plain_batched_kernel_gets_all_its_arguments(client, compiler, shape):
    cubin = compiler.compile_source(BATCHED_SOURCE)
    kernel = KernelCode(cubin.code, cubin.sha256, BATCHED_SPEC)
    result = client.trial(RunTrial(Problem(Gemm.parse(shape), CachePolicy.COLD), kernel, None), 60.0)
    assert result.outcome is Outcome.OK, result.reason


def test_a_kernel_for_single_products_leaves_a_batch_unfinished(client, right):
    """It declares fewer arguments than it is given, and computes the first product alone."""
    result = client.trial(RunTrial(Problem(Gemm.parse("64b2"), CachePolicy.WARM), right, None), 60.0)
    assert result.outcome is Outcome.WRONG_RESULT


def test_cold_rotates_among_more_than_twice_l2(client, limits):
    gemm = Gemm(512, 512, 512)
    cold = client.prepare(Problem(gemm, CachePolicy.COLD))
    assert cold.num_sets * gemm.num_bytes > 2 * limits.l2_bytes
    assert client.prepare(Problem(gemm, CachePolicy.WARM)).num_sets == 1


@pytest.mark.alone
def test_times_obey_physics(client, right, limits):
    """Nothing beats the roofline, and eight times the work takes longer."""
    times = []
    for size in (512, 1024):
        gemm = Gemm(size, size, size)
        result = client.trial(RunTrial(Problem(gemm, CachePolicy.COLD), right, None), 60.0)
        assert result.outcome is Outcome.OK, result.reason
        assert len(result.samples_us) >= 4
        times.append(median(result.samples_us))
        assert times[-1] > 0.9 * gemm.flops / (limits.fma_tflops * 1e6)
    assert times[1] > 2 * times[0]


def test_a_race_samples_everyone_in_every_round_and_drops_the_wrong(client, right, compiler):
    wrong = compiler.compile_source(source("leaves one out"))
    kernels = (right, KernelCode(wrong.code, wrong.sha256, SPEC), right)
    result = client.race(RunRace(Problem(Gemm(256, 256, 256), CachePolicy.COLD), kernels, 7), 60.0)
    assert [len(samples) for samples in result.samples_us] == [7, 0, 7]
    assert len(result.baseline_us) == (7 if client.ready.cublas_version else 0)
    assert min(result.samples_us[0]) > 0


def test_a_large_problem_is_prepared_and_checked(client, right):
    result = client.trial(RunTrial(Problem(Gemm(16384, 16384, 64), CachePolicy.COLD), right, None), 120.0)
    assert result.outcome is Outcome.OK, result.reason
