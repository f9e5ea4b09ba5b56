"""Moves between regions of a factor: what they keep, that they miss nothing, that rows keep their numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import Factor, FeasibleSet, feasible_set
from autotune.search.propose.candidates import Candidates
from autotune.search.propose.origins import FACTOR, merged
from autotune.search.propose.regions import Regions

TILE = ("tm", "tn", "wm", "wn", "bm", "bn")


@st.composite
def factors(draw) -> Factor:
    """Any part of a grid, its rows in any order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rows = draw(
        st.lists(st.sampled_from(list(itertools.product(*map(range, sizes)))), min_size=1, unique=True)
    )
    names = tuple(f"p{i}" for i in range(len(sizes)))
    return Factor(names, tuple(tuple(range(size)) for size in sizes), np.array(rows, dtype=np.uint8))


def _tile(space: FeasibleSet, number: int) -> tuple[object, ...]:
    point = space.point(number)
    return tuple(point[name] for name in TILE)


@given(factors())
def test_rows_of_a_region_share_their_leading_parameters_and_nobody_else_does(factor):
    regions = Regions(factor)
    numbers = regions.of(np.arange(len(factor))).tolist()
    assert set(numbers) == set(range(len(regions)))
    heads = ([codes[:depth].tobytes() for codes in factor.codes] for depth in range(len(factor.names) + 1))
    assert any(len(set(zip(head, numbers, strict=True))) == len(set(head)) == len(regions) for head in heads)
    assert len(regions) ** 2 >= len(factor)


@given(factors(), st.integers(0, 9), st.data())
def test_a_move_goes_to_the_most_similar_row(factor, seed, data):
    """Nothing else in the region agrees on all that the move kept, and on more."""
    regions, rng = Regions(factor), np.random.default_rng(seed)
    row = data.draw(st.integers(0, len(factor) - 1))
    of = regions.of(np.arange(len(factor)))
    carried = regions.carried(rng, row, 2 * len(regions))
    assert of[row] not in of[carried]
    assert len(set(of[carried].tolist())) == len(carried)
    agrees = factor.codes == factor.codes[row]
    for moved in carried:
        inside = np.flatnonzero(of == of[moved])
        assert not any((agrees[other] >= agrees[moved]).all() and (agrees[other] > agrees[moved]).any()
                       for other in inside)  # fmt: skip


@given(factors(), st.integers(0, 9), st.data())
def test_every_value_that_a_region_has_is_reached_within_it(factor, seed, data):
    regions, rng = Regions(factor), np.random.default_rng(seed)
    row = data.draw(st.integers(0, len(factor) - 1))
    repaired = regions.repaired(rng, row)
    inside = np.flatnonzero(regions.of(np.arange(len(factor))) == regions.of(np.array([row]))[0])
    assert set(repaired.tolist()) <= set(inside.tolist()) - {row}
    reached = factor.codes[np.append(repaired, row)]
    for j in range(len(factor.names)):
        assert set(reached[:, j].tolist()) == set(factor.codes[inside, j].tolist())


@pytest.fixture(scope="module")
def space() -> FeasibleSet:
    return feasible_set(known_limits("H200"), Gemm(256, 256, 256))


def test_of_our_kernel_a_region_is_a_tile(space):
    candidates = Candidates(space)
    numbers = candidates.random(np.random.default_rng(0), 300)
    tiles = [_tile(space, number) for number in numbers.tolist()]
    regions = candidates.regions_of(numbers).tolist()
    assert len(set(zip(tiles, regions, strict=True))) == len(set(tiles)) == len(set(regions))


def test_moves_leave_a_tile_where_steps_of_one_parameter_do_not(space):
    candidates = Candidates(space)
    start = candidates.nearest(Config().to_dict())
    moves, _ = merged(candidates.moves(np.random.default_rng(0), np.array([start]), 16))
    steps = candidates.neighbours(np.array([start]))
    moved, stepped = ({_tile(space, n) for n in found.tolist()} for found in (moves, steps))
    assert len(moved) > 12 > len(stepped)


def test_moves_change_splits_and_reduction_together(space):
    candidates = Candidates(space)
    start = candidates.nearest(Config(reduction="none", split_k=1).to_dict())
    moves, _ = merged(candidates.moves(np.random.default_rng(0), np.array([start]), 0))
    moved = [space.point(number) for number in moves.tolist()]
    assert any(point["reduction"] != "none" and point["split_k"] > 1 for point in moved)
    assert start not in moves


@pytest.mark.parametrize("shape", ["512", "16x13x44808:TN"])
def test_every_way_to_split_and_every_order_is_a_step(shape):
    """Also where k is deepest, and the ways to split are the most."""
    space = feasible_set(known_limits("h200"), Gemm.parse(shape))
    candidates, rng = Candidates(space), np.random.default_rng(0)
    parents = candidates.random(rng, 14)  # as many as a plan has
    moved = candidates.moves(rng, parents, 0)[FACTOR]
    largest = max(space.factors, key=len)
    for factor in space.factors:
        if factor is not largest:
            found = {tuple(space.point(n)[name] for name in factor.names) for n in moved.tolist()}
            assert len(found) == len(factor)
