"""From a point of the space to a measurement, through the real template, on small shapes of every layout."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.kernel.config import Config

pytestmark = pytest.mark.gpu

SHAPES = ["192x160x96", "35x70x48", "256x256x1000", "1x512x256", "300x33x77", "64x64x8192", "128x128x0"]
NUM_POINTS = 6
FINE = {Outcome.OK, Outcome.SPILLED, Outcome.DOES_NOT_FIT}


@pytest.fixture(scope="module")
def target():
    with GpuTarget("auto") as target:
        yield target


def _points(target, gemm, seed, count=NUM_POINTS, **wanted):
    """Points of the feasible set at random, those with the wanted values where it has any."""
    feasible = target.space(gemm)
    generator = random.Random(seed)
    points = [feasible.point(generator.randrange(len(feasible))) for _ in range(4000)]
    return [p for p in points if all(p[name] == value for name, value in wanted.items())][:count]


def _check(results):
    for point, result in results:
        assert result.outcome in FINE, (Config.from_dict(point).key, result.outcome, result.reason)
    assert any(result.is_ok for _, result in results)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shape", SHAPES)
def test_random_points_are_right_in_every_layout(target, shape, layout):
    gemm = Gemm.parse(f"{shape}:{layout}")
    points = _points(target, gemm, seed=f"{shape}{layout}")
    futures = [target.submit(gemm, point, None) for point in points]
    _check([(point, future.result(300)) for point, future in zip(points, futures, strict=True)])


@pytest.mark.parametrize("reduction", ["two_pass", "last_block", "cluster"])
def test_split_k_is_right(target, reduction):
    if reduction == "cluster" and not target.limits.has_clusters:
        pytest.skip(f"{target.limits.name} has no thread-block clusters")
    gemm = Gemm(64, 64, 8192)
    points = _points(target, gemm, seed=reduction, reduction=reduction)
    assert points
    futures = [target.submit(gemm, point, None) for point in points]
    _check([(point, future.result(300)) for point, future in zip(points, futures, strict=True)])


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shape", ["192x160x96", "35x71x49", "301x259x515", "129x130x0"])
def test_packed_operands_are_right(target, shape, layout):
    """Both operands and each alone; with whole vectors, which odd rows do not allow unpacked."""
    gemm = Gemm.parse(f"{shape}:{layout}")
    copy, stages = ("async", 3) if target.limits.has_async_copy else ("register", 2)
    plain = Config(copy_a=copy, copy_b=copy, stages=stages, min_blocks=1, vec_a=1, vec_b=1, vec_c=1)
    points = [
        replace(plain, pack_a=1, pack_b=1, vec_a=4, vec_b=4).to_dict(),
        replace(plain, pack_a=1, vec_a=4, reduction="last_block", split_k=2).to_dict(),
        replace(plain, pack_b=1, vec_b=2, reduction="two_pass", split_k=2).to_dict(),
    ]
    results = [future.result(300) for future in [target.submit(gemm, point, None) for point in points]]
    assert [(r.outcome, r.reason) for r in results] == [(Outcome.OK, "")] * len(points)


def test_a_measurement_holds_all_figures(target):
    gemm = Gemm(1024, 1024, 1024)
    point = Config().to_dict()
    point["edges"] = "exact"
    result = target.submit(gemm, point, None).result(300)
    assert result.outcome is Outcome.OK, result.reason
    assert result.time_us > 0.9 * gemm.limit_us(target.limits.fma_tflops, 1e9)
    assert len(result.samples_us) >= 4
    assert 0 < result.error_ratio < 1
    assert result.registers > 32
    assert result.smem_bytes > 0
    assert result.verify_s > 0
    assert result.measure_s > 0


def test_comparing_points_gives_paired_rounds(target):
    gemm = Gemm(512, 512, 512)
    points = _points(target, gemm, seed=1, count=3)
    futures = [target.submit(gemm, point, None) for point in points]
    fine = [p for p, f in zip(points, futures, strict=True) if f.result(300).is_ok]
    rounds = target.compare(gemm, fine, 9)
    samples, baseline = rounds.samples_us, rounds.baseline
    assert [len(s) for s in samples] == [9] * len(fine)
    assert bool(baseline.samples_us) == bool(target.environment.cublas_version)
