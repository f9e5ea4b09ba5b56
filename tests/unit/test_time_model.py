"""The time model: what further launches and partial sums are taken to cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import LIMITS, make_spec
from test_launches import many
from test_selector import calls

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel.launch import LaunchSpec, plan, rejection
from autotune.perf_model import model_figures as figures
from autotune.perf_model import residual, time_model
from autotune.perf_model.launch_errors import LaunchErrors
from autotune.perf_model.launches import Launches, Shapes, grids
from autotune.perf_model.model_figures import ModelFigures
from autotune.perf_model.prediction import VALUES, Prediction
from autotune.perf_model.residual import Residuals
from autotune.perf_model.time_model import Speeds, TimeModel, modelled_us
from autotune.runtime.choose.chooser import Call

FIGURES = ModelFigures(1.5, 0.11, 0.23, 0.8, 9, 0.1)
SHAPE = Gemm(256, 256, 4096)  # 16 tiles


def overhead_us(spec: LaunchSpec, gemm: Gemm = SHAPE) -> float:
    launches, shape = Launches.of([spec], [2]), Shapes.of(gemm)
    return float(TimeModel(launches, LIMITS).work(shape, grids(launches, shape)).overhead_us[0])


def test_one_launch_costs_nothing_further() -> None:
    assert overhead_us(make_spec()) == 0


@pytest.mark.parametrize("overlaps", [False, True])
def test_each_further_launch_costs_the_same(overlaps: bool) -> None:
    plain = make_spec(overlaps=overlaps)
    one = overhead_us(replace(plain, packs_a=True))
    assert one > 0
    assert overhead_us(replace(plain, packs_a=True, packs_b=True)) == pytest.approx(2 * one)
    two_pass = replace(plain, reduction="two_pass", split_k=4)
    assert overhead_us(two_pass) == overhead_us(replace(two_pass, split_k=64)) == pytest.approx(one)
    assert overhead_us(replace(two_pass, packs_b=True)) == pytest.approx(2 * one)


def test_a_launch_that_may_begin_early_costs_less() -> None:
    packed = make_spec(packs_a=True, overlaps=False)
    assert overhead_us(replace(packed, overlaps=True)) < overhead_us(packed)


@given(split_k=st.integers(2, 128))
def test_a_last_block_waits_for_each_split(split_k: int) -> None:
    spec = make_spec(reduction="last_block", split_k=split_k)
    assert overhead_us(replace(spec, split_k=2 * split_k)) == pytest.approx(2 * overhead_us(spec))
    second_pass = overhead_us(replace(spec, reduction="two_pass", overlaps=True))
    assert (overhead_us(spec) < second_pass) == (split_k == 2)
    assert overhead_us(replace(spec, reduction="cluster")) < second_pass


def test_waves_that_come_out_even_leave_nothing_to_wait_for() -> None:
    ragged = make_spec(reduction="last_wave", split_k=4, wave=15)  # one tile of 16 is left
    assert overhead_us(ragged) == overhead_us(replace(ragged, reduction="last_block")) > 0
    assert overhead_us(replace(ragged, wave=16)) == 0


# One by one


def lost_bytes(spec: LaunchSpec, gemm: Gemm) -> int:
    """A byte for each float by which a piece of a row of A or B, but for its last, is shorter than a line."""
    lost = 0
    for is_packed, along, extent, length, rows in (
        (spec.packs_a, gemm.trans_a, (spec.bk, spec.bm), (gemm.k, gemm.m), (gemm.m, gemm.k)),
        (spec.packs_b, not gemm.trans_b, (spec.bk, spec.bn), (gemm.k, gemm.n), (gemm.n, gemm.k)),
    ):
        if not is_packed and length[along]:
            lost += rows[along] * (-(-length[along] // extent[along]) - 1) * max(32 - extent[along], 0)
    return lost


@pytest.mark.parametrize("layout", LAYOUTS)
def test_short_pieces_of_long_rows_take_longer(layout: str) -> None:
    trans_a, trans_b = (x == "T" for x in layout)
    gemm = Gemm(4096, 16, 16384, trans_a, trans_b)
    specs = [make_spec(layout, bm=bm, bn=16, bk=bk) for bm, bk in ((8, 64), (16, 32), (32, 16), (64, 8))]
    launches, shape = Launches.of(specs, [2] * 4), Shapes.of(gemm)
    found = TimeModel(launches, LIMITS).work(shape, grids(launches, shape)).memory_us
    requesting = np.minimum(4096 / launches.bm / (figures.BANDWIDTH_SMS * LIMITS.num_sms), 1)
    factors = found * requesting * LIMITS.bandwidth_gbs * 1e3 / gemm.num_bytes
    along_a = [8, 16, 32, 64] if trans_a else [64, 32, 16, 8]
    of_a = [1 + max(32 - piece, 0) / piece / 4 for piece in along_a]
    assert factors == pytest.approx(of_a, rel=0.01)  # B is small


def test_rows_that_no_tile_cuts_lose_nothing() -> None:
    shape, spec = Shapes.of(Gemm(10**6, 8, 8)), make_spec(bm=64, bn=8, bk=8)
    launches = Launches.of([spec], [2])
    memory_us = TimeModel(launches, LIMITS).work(shape, grids(launches, shape)).memory_us
    assert memory_us * LIMITS.bandwidth_gbs * 1e3 == pytest.approx(shape.num_bytes)


def plain_us(spec: LaunchSpec, resident: int, gemm: Gemm) -> float:
    """The model as its module tells it, of one launch."""
    k, grid = gemm.k, plan(spec, gemm.m, gemm.n, gemm.k)
    k_tiles = -(-k // spec.bk)
    waves = queue = 0
    for num_blocks, steps in (
        (grid.tiles - grid.split_tiles, k_tiles),
        (grid.split_tiles * grid.split_k, -(-k_tiles // grid.split_k)),
    ):
        on_busiest = -(-num_blocks // LIMITS.num_sms)
        queue += on_busiest * (steps + 2)
        waves += -(-on_busiest // resident) * (steps + 2)
    requesting = grid.tiles * (1 if spec.reduction == "last_wave" else grid.split_k)
    share = min(1, requesting / (figures.BANDWIDTH_SMS * LIMITS.num_sms)) * FIGURES.memory_efficiency
    num_bytes = gemm.num_bytes + 2 * grid.scratch_bytes + lost_bytes(spec, gemm)
    memory_us = num_bytes / (LIMITS.bandwidth_gbs * 1e3 * share)
    copied = grid.tiles * (spec.bm + spec.bn) * k
    l2_us = copied * figures.FMAS_PER_L2_FLOAT / time_model.fmas_per_us(LIMITS)
    launch_us = figures.LAUNCH_US if spec.overlaps else figures.LAUNCH_APART_US
    further_us = launch_us * (len(grid.packs) + spec.has_planes)
    if spec.reduction == "cluster":
        further_us += figures.CLUSTER_US
    if spec.reduction == "last_block" or (spec.reduction == "last_wave" and grid.split_tiles):
        further_us += (figures.LAST_BLOCK_US + figures.LAST_BLOCK_FLOAT_US * spec.bm * spec.bn) * spec.split_k
    compute_us = FIGURES.round_us * waves + FIGURES.step_us * queue
    combined_us = (compute_us**4 + memory_us**4) ** 0.25
    return FIGURES.fixed_us + max(combined_us, l2_us) + further_us


@given(st.data(), calls())
def test_many_launches_are_counted_as_one_by_one(data: st.DataObject, call: Call) -> None:
    specs = data.draw(many(call.gemm.layout))
    resident = [data.draw(st.integers(1, 8)) for _ in specs]
    launches, shape = Launches.of(specs, resident), Shapes.of(call.gemm)
    todo = TimeModel(launches, LIMITS).work(shape, grids(launches, shape))
    found = modelled_us(Speeds.of([FIGURES] * len(specs)), todo)
    expected = [plain_us(spec, blocks, call.gemm) for spec, blocks in zip(specs, resident, strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


@given(st.data(), st.lists(calls(), min_size=1, max_size=4))
def test_a_prediction_is_of_what_may_run_and_forgets_no_way_of_access(
    data: st.DataObject, drawn: list[Call]
) -> None:
    """Calls differ in how operands lie, and come again: what is remembered of each is of no other."""
    layout = drawn[0].gemm.layout
    specs, places = data.draw(many(layout)), residual.place(*np.array([(64, 64, 64), (999, 9, 99)]).T)
    weights = np.zeros((len(specs), figures.NUM_TERMS))
    weights[:, 0], weights[:, 1] = np.linspace(-0.2, 0.2, len(specs)), 1
    missed = LaunchErrors(weights, Residuals(places, np.array([[0.1, -0.2]])))
    predicted = Prediction(
        Launches.of(specs, [2] * len(specs)), Speeds.of([FIGURES] * len(specs)), missed, LIMITS
    )
    same = [call for call in drawn if call.gemm.layout == layout]
    for call in (*same, *same):
        g = call.gemm
        found = predicted.expected(Shapes.of(*call[:3]), accurate=np.full(len(specs), 3.0))
        level = residual.factors(missed.level, residual.place(g.m, g.n, g.k))[0]
        for at, split_k, time_us in zip(*(column.tolist() for column in found), strict=True):
            spec = replace(specs[at], split_k=int(split_k))
            assert spec.split_k == specs[at].split_k or spec.split_k in VALUES
            has_work = spec.split_k == 1 or spec.split_k * spec.bk <= g.k
            if rejection(spec, g.m, g.n, g.k, call.lds, call.addresses) is not None or not has_work:
                assert time_us == math.inf
            else:
                assert time_us == pytest.approx(
                    plain_us(spec, 2, g) * level * np.exp(weights[at, 0]), rel=1e-9
                )
