"""Properties of the model of an instance: who owns, copies, reads, stores what; and the rules of banks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from space_cases import find_config

from autotune.facts.device import known_limits
from autotune.facts.gemm import FLOAT_BYTES, LAYOUTS, Gemm
from autotune.kernel import resources
from autotune.kernel.config import Config, lanes_k
from autotune.tiles import shared_sums
from autotune.tiles.block_walk import BlockWalk
from autotune.tiles.launch_counts import AccessKey, accesses, count
from autotune.tiles.tile_copies import copy_of
from autotune.tiles.tile_shape import TileShape
from autotune.tiles.warp_access import NOBODY, WarpAccess, conflicts, lines, sectors, serving, wavefronts

LIMITS = known_limits("h200")
LANES = np.arange(32)


@st.composite
def legal(draw: st.DrawFn, is_tiled: bool = True) -> TileShape:
    """An instance with a problem of a few tiles, which it may serve."""
    layout = draw(st.sampled_from(LAYOUTS))
    extents = draw(st.tuples(*(st.integers(1, 40) for _ in range(3))))
    batch = draw(st.sampled_from((1, 1, 3)))
    gemm = Gemm(*(8 * e for e in extents), layout[0] == "T", layout[1] == "T", batch)
    pins = {"stages": draw(st.sampled_from((1, 2, 4)))} if draw(st.booleans()) else {}
    config = find_config(random.Random(draw(st.integers(0, 10**6))), LIMITS, gemm, pins=pins)
    assume(config is not None and (lanes_k(config) == 1 or not is_tiled))
    return TileShape(config, gemm)


@settings(deadline=None, max_examples=30)
@given(legal(is_tiled=False))
def test_every_slice_owns_each_element_of_the_tile_once(shape: TileShape) -> None:
    c = shape.config
    at = shape.rows()[:, None] * c.bn + shape.columns()[None, :]
    for number in range(c.slice_k):
        owned = at[:, :, (shape.slice == number) & shape.is_first_lane]
        assert np.array_equal(np.sort(owned, axis=None), np.arange(c.bm * c.bn))


@settings(deadline=None, max_examples=30)
@given(legal())
def test_each_element_of_both_tiles_is_copied_once_to_a_place_of_its_own(shape: TileShape) -> None:
    c, taken = shape.config, []
    for operand in ("A", "B"):
        copy = copy_of(shape, operand)
        owns = copy.row != NOBODY
        at = (copy.row * copy.cols + copy.col)[owns][:, None] + np.arange(copy.vec)
        assert np.array_equal(np.sort(at, axis=None), np.arange(copy.rows * copy.cols))
        apart = copy.shared_row if copy.is_k_major else 1
        taken.append((copy.shared[owns][:, None] + np.arange(copy.vec) * apart).reshape(-1))
    places = np.concatenate(taken)
    assert len(np.unique(places)) == len(places) == c.bk * (c.bm + c.bn)
    assert places.min() >= 0
    assert places.max() < shape.stage_floats


@settings(deadline=None, max_examples=30)
@given(legal())
def test_lanes_read_the_rows_and_columns_of_their_own_elements(shape: TileShape) -> None:
    c = shape.config
    for access, first, row, owned, chunk in zip(
        shared_sums.fragments(shape), (0, shape.stage_a), (shape.row_a, shape.row_b),
        (shape.rows(), shape.columns()), (shape.chunk_m, shape.chunk_n), strict=True,
    ):  # fmt: skip
        read = access.at.reshape(-1, *shape.thread.shape)
        k = shape.slice * shape.slice_bk
        assert np.array_equal(read, first + k * row + owned[::chunk])
        assert np.all(read % chunk == 0)
    assert c.bk % c.slice_k == 0


@settings(deadline=None, max_examples=30)
@given(legal(is_tiled=False), st.booleans())
def test_nothing_lies_beyond_shared_memory(shape: TileShape, reads_c: bool) -> None:
    floats = int(resources.smem_bytes(shape.config, shape.gemm)) // FLOAT_BYTES
    for access, times in accesses(shape.config, shape.gemm, LIMITS, reads_c=reads_c):
        asked = access.at[access.at != NOBODY]
        assert times > 0
        assert np.all(asked >= 0)
        assert np.all(asked % access.vec == 0)
        if access.space == "shared" and access.kernel == "sgemm" and asked.size:
            assert asked.max() + access.vec <= floats


@settings(deadline=None, max_examples=30)
@given(legal(is_tiled=False), st.booleans())
def test_operands_are_read_once_per_tile_and_c_is_stored_once(shape: TileShape, reads_c: bool) -> None:
    c, g = shape.config, shape.gemm
    found = count(c, g, LIMITS, reads_c=reads_c)
    walk = BlockWalk.of(shape, LIMITS)

    def asked(what: str, kind: str) -> int:
        return sum(
            n.num_bytes for key, n in found.items()
            if (key.kernel != "sgemm_pack", key.what, key.space, key.kind) == (True, what, "global", kind)
        )  # fmt: skip

    assert asked("C", "store") == FLOAT_BYTES * g.num_results
    assert asked("C", "load") == (FLOAT_BYTES * g.num_results if reads_c else 0)
    if lanes_k(c) == 1:
        for what, path, rows, uses in (
            ("A", c.copy_a, walk.grid.padded_m if c.pack_a else g.m, walk.tiles_n),
            ("B", c.copy_b, walk.grid.padded_n if c.pack_b else g.n, walk.tiles_m),
        ):
            kind = "copy" if path == "async" else "load"
            assert asked(what, kind) == FLOAT_BYTES * g.batch * rows * g.k * uses


@settings(deadline=None, max_examples=30)
@given(legal(is_tiled=False))
def test_blocks_are_all_tiles_in_all_splits_and_share_out_k(shape: TileShape) -> None:
    walk = BlockWalk.of(shape, LIMITS)
    columns, rows = walk.grid.size
    assert len(walk.blocks) == columns * rows
    assert len(np.unique(walk.blocks, axis=0)) == len(walk.blocks)
    assert (
        len(np.unique(walk.tiles, axis=0))
        == walk.grid.tiles
        == walk.tiles_m * walk.tiles_n * shape.gemm.batch
    )
    for _, splits in walk.tiles_by_splits():
        shares = [share for share in walk.shares(splits) if share.steps]
        ends = [s.begin + s.first_depth + (s.steps - 1) * shape.step_k for s in shares]
        assert [s.begin for s in shares] == [0, *ends[:-1]]
        assert ends[-1] == shape.gemm.k


def test_tiles_are_walked_as_the_scheduler_draws_it() -> None:
    """The example of kernels/tile_scheduler.cuh: along n, groups of 2, 4 x 3 tiles."""
    config = Config.from_dict({"raster": "n", "group": 2, "bm": 64, "bn": 128})
    walk = BlockWalk.of(TileShape(config, Gemm(256, 384, 64)), LIMITS)
    picture = np.empty((4, 3), dtype=int)
    picture[walk.tiles[:, 1], walk.tiles[:, 2]] = np.arange(12)
    assert picture.tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_the_last_wave_alone_is_split() -> None:
    """The example of kernels/tile_scheduler.cuh: 2 whole tiles, 2 that are split in three."""
    config = Config.from_dict({"reduction": "last_wave", "split_k": 3, "min_blocks": 1})
    limits = known_limits("h200")
    few = type(limits).from_dict({**limits.to_dict(), "num_sms": 2, "compute_capability": [9, 0]})
    walk = BlockWalk.of(TileShape(config, Gemm(64, 128 * 3, 64)), few)
    assert walk.grid.split_tiles == 1
    assert walk.blocks.tolist() == [[0, 0], [1, 0], [2, 0], [2, 1], [2, 2]]


def test_the_worked_example_of_the_thread_tile() -> None:
    """kernels/thread_tile.cuh: lane 9 owns rows 4-7 and 20-23, columns 4-7 and 36-39."""
    shape = TileShape(Config(), Gemm(4096, 4096, 4096))
    assert shape.rows()[:, 0, 9].tolist() == [4, 5, 6, 7, 20, 21, 22, 23]
    assert shape.columns()[:, 0, 9].tolist() == [4, 5, 6, 7, 36, 37, 38, 39]


def test_the_worked_example_of_the_copy() -> None:
    """kernels/tile_copy.cuh: thread 17 copies k = 1 of rows 1, 9, ..., 57."""
    copy = copy_of(TileShape(Config(), Gemm(4096, 4096, 4096)), "A")
    assert (copy.row_threads, copy.row_step, copy.row_steps) == (16, 8, 8)
    assert copy.row[:, 0, 17].tolist() == list(range(1, 64, 8))
    assert copy.shared[:, 0, 17].tolist() == [68 + row for row in range(1, 64, 8)]


@pytest.mark.parametrize(
    ("at", "vec", "is_load", "expected"),
    [
        (LANES, 1, True, (1, 0)),
        (LANES * 0, 1, True, (1, 0)),  # all the same word
        (LANES * 32, 1, True, (32, 31)),  # all in one bank
        (LANES * 2, 1, False, (2, 1)),
        (LANES * 33, 1, True, (1, 0)),  # padded by one
        (LANES * 2, 2, True, (2, 0)),  # halves of a warp
        (LANES * 4, 4, True, (4, 0)),  # quarters
        (LANES // 2 * 4, 4, True, (2, 0)),  # neighbours share: twice as many lanes at a time
        (LANES // 4 * 8 + LANES % 2 * 4, 4, True, (2, 0)),  # next but one share
        (LANES // 2 * 8, 4, True, (4, 0)),  # neighbours share, but banks would meet: quarters
        (LANES // 2 * 4, 4, False, (4, 0)),  # but not when they store
        (LANES % 8 * 4, 4, True, (4, 0)),  # the quarters ask alike, neighbours do not
        (LANES * 8, 4, True, (8, 4)),
        (np.where(LANES < 8, LANES * 4, NOBODY), 4, True, (1, 0)),  # only a quarter asks
        (np.full(32, NOBODY), 4, True, (0, 0)),
    ],
)  # fmt: skip
def test_wavefronts_of_patterns(at: np.ndarray, vec: int, is_load: bool, expected: tuple[int, int]) -> None:
    row = at.astype(np.int64)[None]
    assert wavefronts(row, vec, is_load=is_load).tolist() == [expected[0]]
    assert conflicts(row, vec, is_load=is_load).tolist() == [expected[1]]


def test_sectors_and_lines_of_patterns() -> None:
    rows = np.stack([LANES, LANES + 1, LANES * 8, LANES * 4096, LANES * 0, LANES * 4])
    assert sectors(rows).tolist() == [4, 5, 32, 32, 1, 16]
    assert lines(rows).tolist() == [1, 2, 8, 32, 1, 4]


@settings(deadline=None)
@given(st.lists(st.integers(-1, 200), min_size=32, max_size=32), st.sampled_from((1, 2, 4)), st.booleans())
def test_lanes_of_a_wavefront_ask_each_bank_for_one_word(drawn: list[int], vec: int, is_load: bool) -> None:
    at = np.array([[x * vec if x >= 0 else NOBODY for x in drawn]], dtype=np.int64)
    waves = serving(at, vec, is_load=is_load)[0]
    assert np.array_equal(waves == NOBODY, at[0] == NOBODY)
    for wave in range(int(waves.max()) + 1):
        words = {word for first in at[0][waves == wave].tolist() for word in range(first, first + vec)}
        assert words
        assert len({word % 32 for word in words}) == len(words)
    asked = {x // vec for x in at[0].tolist() if x != NOBODY}
    assert waves.max() + 1 >= max(
        (sum(x % (32 // vec) == bank for x in asked) for bank in range(32)), default=0
    )


def test_counts_add_up_and_rows_without_lanes_are_none() -> None:
    at = np.full((3, 32), NOBODY, dtype=np.int64)
    at[1] = LANES * 32
    counts = WarpAccess("sgemm", "tile_copy.cuh", "A", "shared", "store", 1, at).counts(5)
    assert (counts.accesses, counts.num_bytes, counts.wavefronts, counts.conflicts) == (5, 640, 160, 155)
    assert counts.sectors == counts.lines == 0


def test_a_config_that_is_known_to_conflict() -> None:
    """The default config stores A with rows of 68 floats: 16 k of two rows meet in banks by twos."""
    found = count(Config(), Gemm(64, 128, 64), LIMITS)
    stores = found[AccessKey("sgemm", "tile_copy.cuh", "A", "shared", "copy")]
    assert stores.wavefronts == 2 * stores.accesses
