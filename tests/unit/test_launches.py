"""Launches counted as arrays are those that are planned one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import LIMITS, make_spec
from test_selector import calls, specs

from autotune.facts.gemm import Gemm
from autotune.kernel.launch import LaunchSpec, plan, rejection
from autotune.perf_model.launches import Launches, Shapes, grids, serves
from autotune.perf_model.prediction import VALUES, Splits
from autotune.runtime.choose.chooser import Call

NUM_SMS = LIMITS.num_sms


@st.composite
def many(draw: st.DrawFn, layout: str) -> list[LaunchSpec]:
    found = draw(st.lists(specs(), min_size=1, max_size=6))
    variant = make_spec(layout).variant
    extra = [
        make_spec(layout, packs_a=draw(st.booleans()), packs_b=draw(st.booleans())),
        make_spec(layout, reduction="last_wave", split_k=4, wave=NUM_SMS * draw(st.integers(1, 3))),
    ]
    is_wide = draw(st.booleans())
    return [replace(spec, variant=replace(variant, is_wide=is_wide)) for spec in (*found, *extra)]


@given(st.data(), calls())
def test_grids_and_rejections_are_those_of_single_plans(data: st.DataObject, call: Call) -> None:
    g = call.gemm
    drawn = data.draw(many(g.layout))
    launches = Launches.of(drawn, [2] * len(drawn))
    shapes = Shapes.of(*call[:3])
    grid = grids(launches, shapes)
    may = serves(launches, shapes, grid)
    for at, spec in enumerate(drawn):
        one = plan(spec, g.m, g.n, g.k)
        has_work = spec.split_k == 1 or spec.split_k * spec.bk <= g.k
        is_legal = rejection(spec, g.m, g.n, g.k, call.lds, call.addresses) is None and has_work
        assert bool(may[at]) == is_legal
        if is_legal:
            plain = spec.reduction == "none"
            assert (grid.tiles[at], grid.split_tiles[at]) == (one.tiles, one.split_tiles or plain * one.tiles)
            found = np.broadcast_to(grid.pack_bytes, may.shape)[at] + grid.sum_bytes[at]
            assert found == one.scratch_bytes
            assert launches.num_further[at] == len(one.packs) + spec.has_planes


def test_kernels_and_shapes_broadcast() -> None:
    launches = Launches.of([make_spec(bm=64), make_spec(bm=128)], [2, 1])
    across = launches.take((slice(None), None))
    m = np.array([100, 1000, 129])
    grid = grids(across, Shapes(m, m, m))
    single = [[plan(make_spec(bm=bm), int(x), int(x), int(x)).tiles for x in m] for bm in (64, 128)]
    assert grid.tiles.tolist() == single


@given(
    st.sampled_from(("two_pass", "last_block", "last_wave")), st.integers(1, 5000), st.integers(1, 5000),
    st.integers(1, 100_000),
)  # fmt: skip
def test_splits_fill_the_gpu_and_leave_none_without_work(reduction: str, m: int, n: int, k: int) -> None:
    spec = make_spec(reduction=reduction, split_k=2, wave=2 * NUM_SMS)
    splits = Splits(Launches.of([spec], [3]), NUM_SMS)
    found = splits.choices(Shapes(m, n, k))[:, 0]
    more = splits.choices(Shapes(m, n, k), accurate=30)[:, 0]
    assert max(more) >= 30 or max(more) >= max(v for v in VALUES if v * spec.bk <= max(k, 2 * spec.bk))
    assert set(found) <= set(VALUES)
    if k >= 2 * spec.bk:
        assert (found * spec.bk <= k).all()
    tiles = -(-m // spec.bm) * -(-n // spec.bn)
    if reduction != "last_wave" and tiles <= NUM_SMS // 8 and k >= 200 * spec.bk:
        assert found.max() * tiles >= NUM_SMS  # a block for each SM, or more


@pytest.mark.parametrize(("reduction", "split_k"), [("none", 1), ("cluster", 4)])
def test_what_is_compiled_in_is_left_as_it_is(reduction: str, split_k: int) -> None:
    spec = make_spec(reduction=reduction, split_k=split_k)
    gemm = Gemm(64, 64, 100_000)
    splits = Splits(Launches.of([spec], [3]), NUM_SMS)
    assert set(splits.choices(Shapes.of(gemm))[:, 0]) == {split_k}
