"""Calls back to back leave, bit for bit, what the same calls leave with a wait behind each.

From sm_90 on their kernels begin before those before them have ended (docs/decisions/0018): these tests make
everything depend on the order, and show that kernels whose waits are taken out are found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from overlapping import WRITER, captured, lanes, script

from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.device import DeviceLimits, Environment
from autotune.facts.gemm import Gemm
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.table import load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

EXACT, LAST, WAVE = Gemm(256, 256, 256), Gemm(128, 128, 1024), Gemm(384, 256, 512)
TWO, CLUSTERED = Gemm(64, 256, 1024), Gemm(128, 256, 1024)
PACKED, PACKED_TWO, PACKED_LAST = Gemm(259, 131, 515), Gemm(131, 259, 515), Gemm(200, 120, 1000)
UNTUNED = [Gemm(1, 512, 512), Gemm(33, 65, 17), Gemm(96, 96, 0)]
SEEDS = range(6)
STEPS = 150
MOST_RUNS = 30  # until a fault shows: other processes on the GPU can delay a kernel that comes too early


def winners(limits: DeviceLimits) -> dict[Gemm, Config]:
    copy, stages = ("async", 3) if limits.has_async_copy else ("register", 2)
    plain = Config(copy_a=copy, copy_b=copy, stages=stages, min_blocks=1, vec_a=1).to_dict() | {"vec_b": 4}
    packed = plain | {"pack_a": 1, "pack_b": 1, "vec_a": 4, "vec_c": 1}
    two, last = {"reduction": "two_pass", "split_k": 4}, {"reduction": "last_block", "split_k": 8}
    chosen = {
        EXACT: plain | {"edges": "exact", "copy_a": "register", "copy_b": "register", "stages": 2},
        LAST: plain | last,
        WAVE: plain | {"reduction": "last_wave", "split_k": 2},
        TWO: plain | two,
        PACKED: packed,
        PACKED_TWO: packed | two,
        PACKED_LAST: packed | last,
    }
    if limits.has_clusters:
        chosen[CLUSTERED] = plain | {"reduction": "cluster", "split_k": 8}
    return {gemm: Config.from_dict(values) for gemm, values in chosen.items()}


def exported(limits: DeviceLimits, compiler: Compiler, folder: Path) -> Path:
    shapes = tuple(TunedShape(g, (TunedPoint(c, 10.0, True),)) for g, c in winners(limits).items())
    environment = Environment(limits.name, "", limits.compute_capability, "", "", "", "")
    results = TunedResults(environment, limits, template.source_hash(), "cold", 1, shapes)
    return export_table(results, folder, compiler)


@pytest.fixture(scope="module")
def folder(limits: DeviceLimits, compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(limits, compiler, tmp_path_factory.mktemp("table") / "overlapping")


@pytest.fixture(scope="module")
def gemms(limits: DeviceLimits) -> list[Gemm]:
    return [*winners(limits), *UNTUNED]


@pytest.fixture(scope="module")
def writer(compiler: Compiler) -> bytes:
    return compiler.compile_source(WRITER).code


def test_every_kind_of_kernel_runs(folder: Path, limits: DeviceLimits) -> None:
    kernels = {k.id: k for k in load(folder).kernels}
    for gemm, config in winners(limits).items():
        pick = Dispatcher(folder).pick(gemm.m, gemm.n, gemm.k)
        assert (pick.how, kernels[pick.kernel_id].spec.reduction) == ("exact", config.reduction)
    assert {k.spec.overlaps for k in kernels.values()} == {limits.has_dependent_launch}


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_in_a_row(folder: Path, gemms: list[Gemm], writer: bytes, seed: int) -> None:
    steps = script(gemms, seed, STEPS)
    with lanes(Dispatcher(folder), writer) as (lane,):
        expected = lane.run(steps, is_waiting=True)
        assert np.isfinite(expected.view(np.float32)).all()
        for _ in range(5):
            np.testing.assert_array_equal(lane.run(steps, is_waiting=False), expected)


@pytest.mark.parametrize("kind", ["two_pass", "packed", "packed two_pass", "cluster", "last_block"])
def test_one_shape_over_and_over(folder: Path, limits: DeviceLimits, writer: bytes, kind: str) -> None:
    """Each call reads what the one before wrote, and packs and splits in the same place of the workspace."""
    shapes = {"two_pass": TWO, "packed": PACKED, "packed two_pass": PACKED_TWO, "cluster": CLUSTERED}
    gemm = shapes.get(kind, LAST)
    steps = script([gemm], seed=9, length=300)
    with lanes(Dispatcher(folder), writer) as (lane,):
        expected = lane.run(steps, is_waiting=True)
        for _ in range(3):
            np.testing.assert_array_equal(lane.run(steps, is_waiting=False), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_of_calls(folder: Path, gemms: list[Gemm], writer: bytes, seed: int) -> None:
    steps = script(gemms, seed, STEPS)
    with lanes(Dispatcher(folder), writer) as (lane,):
        expected = lane.run(steps, is_waiting=True)
        with captured(lane, steps) as replay:
            for _ in range(5):
                np.testing.assert_array_equal(replay(), expected)


def test_two_streams_at_a_time(folder: Path, gemms: list[Gemm], writer: bytes) -> None:
    scripts = [script(gemms, seed, STEPS) for seed in (20, 21)]
    with lanes(Dispatcher(folder), writer, count=2) as both:
        expected = [lane.run(steps, is_waiting=True) for lane, steps in zip(both, scripts, strict=True)]
        for _ in range(5):
            for lane in both:
                lane.reset()
            for pair in zip(*scripts, strict=False):
                for lane, step in zip(both, pair, strict=True):
                    lane.enqueue(step)
            for lane, steps in zip(both, scripts, strict=True):
                for step in steps[min(map(len, scripts)) :]:
                    lane.enqueue(step)
            for lane, bits in zip(both, expected, strict=True):
                np.testing.assert_array_equal(lane.bits(), bits)


def test_kernels_that_do_not_wait_are_found(
    limits: DeviceLimits, compiler: Compiler, writer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above are blind: the same kernels, launched as early, without their waits."""
    if not limits.has_dependent_launch:
        pytest.skip("no kernel begins before the one before it has ended")
    text = template.source()
    blind = text.replace('asm volatile("griddepcontrol.wait;" ::: "memory");', "")
    assert blind != text
    monkeypatch.setattr(template, "source", lambda main=template.MAIN_FILE: blind)
    dispatcher = Dispatcher(exported(limits, compiler, tmp_path / "blind"))
    for gemm in (EXACT, TWO, PACKED):
        steps = script([gemm], seed=9, length=100)
        with lanes(dispatcher, writer) as (lane,):
            expected = lane.run(steps, is_waiting=True)
            runs = (lane.run(steps, is_waiting=False) for _ in range(MOST_RUNS))
            assert any((found != expected).any() for found in runs), gemm


# torch


def test_torch_kernels_before_and_behind(folder: Path, gemms: list[Gemm]) -> None:
    """Their kernels write an operand right before the call, and overwrite it right after."""
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    dispatcher = Dispatcher(folder)

    def products(is_waiting: bool) -> list[Any]:
        torch.manual_seed(0)
        found = []
        for gemm in (gemm for gemm in gemms * 10 if gemm.k):
            a, b = torch.randn(gemm.m, gemm.k, device="cuda"), torch.randn(gemm.k, gemm.n, device="cuda")
            a.mul_(2).add_(1)
            if is_waiting:
                torch.cuda.synchronize()
            found.append(dispatcher.sgemm(a, b))
            if is_waiting:
                torch.cuda.synchronize()
            a.fill_(float("nan"))
            b.zero_()
            found[-1].add_(1)
        torch.cuda.synchronize()
        return found

    for expected, found in zip(products(True), products(False), strict=True):
        assert torch.equal(expected, found)
