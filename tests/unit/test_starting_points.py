"""What a search starts with: kernels that were timed elsewhere, as legal points for any shape on any GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from exports import CARRIED
from space_cases import EVERY_KIND

from autotune import target_finder as targets
from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel.config import PACKED_ORDERS, WARP, Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.resources import threads
from autotune.kernel.rules import broken_rules
from autotune.kernel.summation_order import SummationOrder, has_order, order_of
from autotune.search.propose.seeds import seeds
from autotune.shipped.starting_points import StartingPoints

pytestmark = CARRIED
SHAPES = ("1000:TN", "1x4096x4096", "4096x64x256", "64x64x100000", "35x700x2048:TT", "512b16", "4096x1x4096")


def _tile(config: Config) -> tuple[object, ...]:
    return config.bm, config.bn, config.bk, config.tm, config.tn, config.wm, config.wn, config.slice_k


@pytest.fixture(scope="module", params=sorted(KNOWN))
def starts(request: pytest.FixtureRequest) -> tuple[str, StartingPoints]:
    return request.param, StartingPoints(targets.matrices(), KNOWN[request.param])


@pytest.mark.every(7)
def test_every_kind_of_shape_starts_from_legal_points_on_every_gpu(
    starts: tuple[str, StartingPoints],
) -> None:
    """On every GPU, each with a third of the shapes: what asks for a cluster or an asynchronous copy could
    not run where there is none."""
    limits = KNOWN[starts[0]]
    for text in SHAPES[sorted(KNOWN).index(starts[0]) % 3 :: 3]:
        gemm = Gemm.parse(text)
        space = feasible_set(limits, gemm)
        numbers = list(islice(seeds(space, starts[1](gemm)), 16))
        configs = [Config.from_dict(space.point(number)) for number in numbers]
        assert len(configs) >= 8, text
        assert len({(*_tile(config), config.reduction) for config in configs}) == len(configs)
        assert all(broken_rules(config, limits, gemm, EVERY_KIND) == () for config in configs)
        assert {config.order in PACKED_ORDERS for config in configs} == {limits.has_packed_fma}


def test_shapes_of_other_kinds_start_from_other_tiles() -> None:
    starts = StartingPoints(targets.matrices(), KNOWN["h200"])
    first = {text: starts(Gemm.parse(text))[0] for text in ("8192", "256", "1x4096x4096", "64x64x100000")}
    assert len(set(map(_tile, first.values()))) == len(first)
    assert first["8192"].bm * first["8192"].bn >= 96 * 128 > first["256"].bm * first["256"].bn
    assert first["1x4096x4096"].bm < 32
    assert first["64x64x100000"].split_k >= 16


def test_where_no_sum_is_split_a_kernel_that_splits_stands_for_its_tile_alone() -> None:
    """Once for all its ways to split k; on a shape with few tiles each way counts for itself."""
    whole = Config(bm=128, bn=128, bk=16, wm=64, wn=32, tm=8, tn=8)
    ways = [replace(whole, reduction=way, split_k=3) for way in ("two_pass", "last_block")]
    large, small = (feasible_set(KNOWN["h200"], Gemm.parse(text)) for text in ("8192", "256x256x8192"))
    (number,) = seeds(large, ways)
    found = Config.from_dict(large.point(number))
    assert (_tile(found), found.reduction, found.split_k) == (_tile(whole), "none", 1)
    assert [small.point(number)["reduction"] for number in seeds(small, ways)] == ["two_pass", "last_block"]


@pytest.mark.parametrize(("order", "splits"), [("chain", "none"), ("chunks:512", "chunks")])
def test_within_an_order_kernels_that_share_out_k_stand_for_their_tiles(order: str, splits: str) -> None:
    tile = Config(bm=64, bn=64, bk=32, wm=32, wn=64, tm=8, tn=8, reduction="last_block", split_k=12)
    few = replace(tile, bm=128, split_k=2)
    slices = replace(tile, bn=128, slice_k=2)
    lanes = Config(bm=8, bn=16, bk=4, wm=2, wn=4, tm=2, tn=4, stages=1)
    space = feasible_set(KNOWN["h200"], Gemm(256, 256, 8192), order=SummationOrder.parse(order))
    found = [Config.from_dict(space.point(number)) for number in seeds(space, [tile, few, slices], 8192)]
    assert {str(order_of(config)) for config in found} == {order}
    ways = [(*_tile(config)[:3], config.reduction) for config in found if config.tm == 8]
    whole = [(128, 64, 32, "none")] if splits == "chunks" else []
    assert ways == [
        (64, 64, 32, splits), (128, 64, 32, splits), *whole, (64, 128, 32, splits)
    ]  # fmt: skip
    flat = feasible_set(KNOWN["h200"], Gemm(8, 256, 8192), order=SummationOrder.parse(order))
    *_, number = seeds(flat, [lanes], 8192)
    assert (*_tile(Config.from_dict(flat.point(number))), flat.point(number)["reduction"]) == (
        8, 32, 8, 2, 4, 8, 32, 1, splits
    )  # fmt: skip


def test_within_an_order_little_work_is_shared_out_as_small_tiles() -> None:
    tile = Config(bm=32, bn=64, bk=16, wm=16, wn=64, tm=8, tn=4, reduction="two_pass", split_k=8)
    order = SummationOrder.parse("chunks:512")
    for k, tiles in ((1000, [(32, 32), (32, 64)]), (4096, [(32, 64)])):
        space = feasible_set(KNOWN["h200"], Gemm(256, 256, k), order=order)
        found = [space.point(number) for number in seeds(space, [tile], k)]
        assert [(point["bm"], point["bn"]) for point in found] == tiles
        assert {point["reduction"] for point in found} == {"chunks"}


def test_within_an_order_starting_points_are_ranked_by_their_own_times() -> None:
    """Of a deep product splits that are chunks lead, blocks of one warp among them; of one no deeper than a
    chunk a plain chain."""
    limits, order = KNOWN["h200"], SummationOrder.parse("chunks:512")
    starts = StartingPoints([m for m in targets.matrices() if m.limits.name == limits.name], limits)
    for gemm, flush_k in ((Gemm(64, 64, 100_000), 512), (Gemm(65536, 64, 64), 0)):
        space = feasible_set(limits, gemm, order=order)
        found = [
            Config.from_dict(space.point(at)) for at in islice(seeds(space, starts(gemm, order), gemm.k), 16)
        ]
        assert len(found) == 16 and {config.flush_k for config in found} == {flush_k}
        assert {has_order(config, order, gemm.k) for config in found} == {True}
        assert found[0].reduction == ("chunks" if flush_k else "none")
        assert min(map(threads, found)) == WARP
    assert starts(gemm, order)[1] == starts(gemm)[0]


def test_a_space_of_another_kernel_has_no_seeds() -> None:
    from fake_target import product_space

    assert list(seeds(product_space(4, 4), [Config()])) == []


def test_without_matrices_nothing_is_known() -> None:
    starts = StartingPoints([], KNOWN["h200"])
    assert [starts(Gemm(64, 64, 64, layout[0] == "T", layout[1] == "T")) for layout in LAYOUTS] == [[]] * 4


def test_of_the_kernels_that_were_timed_on_a_shape_the_fastest_comes_first() -> None:
    """Where k is short, so that no sum is too deep. Kernels that were not timed there may come before it."""
    matrices = [m for m in targets.matrices() if m.limits.name == KNOWN["h200"].name]
    starts = StartingPoints(matrices, KNOWN["h200"])
    whole = next(matrix for matrix in matrices if any(row.layout == "NT" for row in matrix.known))
    shapes = [gemm for gemm in whole.best_us() if gemm.layout == "NT" and gemm.k < 512]
    assert len(shapes) > 15
    for gemm in shapes:
        times_us: dict[Config, float] = {}
        for (row, column, _), cell in whole.cells.items():
            if column == gemm:
                kernel = row.config.in_any_splits
                times_us[kernel] = min(cell.time_us, times_us.get(kernel, cell.time_us))
        ranked = [config.in_any_splits for config in starts(gemm) if config.in_any_splits in times_us]
        assert times_us[ranked[0]] == min(times_us.values()), gemm
