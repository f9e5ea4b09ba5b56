"""Kernels that are executed on the host: who owns, copies, reads, stores what; counts as they were stored;
and the rules of banks."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from space_cases import find_config

from autotune.core import build
from autotune.facts.device import known_limits
from autotune.facts.gemm import FLOAT_BYTES, LAYOUTS, Gemm
from autotune.files.errors import EnvironmentProblem
from autotune.kernel import resources
from autotune.kernel.config import WARP, Config, lanes_k
from autotune.kernel.rungs import REFERENCE_FILE, STEPS, ReferenceKernel
from autotune.tiles import drawn_accesses, drawn_parts, executed
from autotune.tiles.executed import HostLaunch
from autotune.tiles.launch_counts import AccessKey, count
from autotune.tiles.warp_access import (
    NO_LANE,
    WarpAccess,
    conflicts,
    lines,
    sectors,
    serving,
    wavefronts,
)

LIMITS = known_limits("h200")
LANES = np.arange(32)
COMPILED = settings(deadline=None, max_examples=4)  # a kernel each
STORED = json.loads((Path(__file__).parents[1] / "data/tile_counts.json").read_text())
REFERENCES = {step.kernel.entry: step.kernel for step in STEPS if isinstance(step.kernel, ReferenceKernel)}


@pytest.mark.every(4)
@pytest.mark.parametrize("number", range(len(STORED)))
def test_counts_are_those_of_the_model_that_was_before(number: int) -> None:
    """Stored by arrays that said the template's arithmetic again, and which the emulator confirmed."""
    stored = STORED[number]
    limits, gemm, named = known_limits(stored["gpu"]), Gemm.parse(stored["gemm"]), stored["kernel"]
    kernel = REFERENCES[named] if isinstance(named, str) else Config.from_dict(named)
    found = count(kernel, gemm, limits, reads_c=not isinstance(named, str))
    assert sorted([*key, *vars(counts).values()] for key, counts in found.items()) == stored["counts"]
    product = HostLaunch.of(kernel, gemm, limits)
    names = ("sectors", "lines", "wavefronts", "conflicts")
    drawn = [
        [group["title"], group["num_instructions"], *(sum(group[name]) for name in names if name in group)]
        for group in drawn_accesses.of_kernel(product)
    ]
    assert [group[:2] for group in drawn] == [group[:2] for group in stored["drawn"]]
    few = [group for group in drawn if group[1] <= drawn_accesses.MOST_ROWS]  # all of them are drawn
    assert few == [group for group in stored["drawn"] if group[1] <= drawn_accesses.MOST_ROWS]
    assert len(product.blocks) == stored["blocks"]


@st.composite
def legal(draw: st.DrawFn, is_tiled: bool = True) -> HostLaunch:
    """An instance with a problem of a few tiles, which it may serve."""
    layout = draw(st.sampled_from(LAYOUTS))
    extents = draw(st.tuples(*(st.integers(1, 40) for _ in range(3))))
    batch = draw(st.sampled_from((1, 1, 3)))
    gemm = Gemm(*(8 * e for e in extents), layout[0] == "T", layout[1] == "T", batch)
    pins = {"stages": draw(st.sampled_from((1, 2, 4)))} if draw(st.booleans()) else {}
    config = find_config(random.Random(draw(st.integers(0, 10**6))), LIMITS, gemm, pins=pins)
    assume(config is not None and (lanes_k(config) == 1 or not is_tiled))
    return HostLaunch.of(config, gemm, LIMITS)


def of_first_block(product: HostLaunch) -> list[WarpAccess]:
    return product.recorded({0: (1,) * 5}, reads_c=False, is_merged=False)


@COMPILED
@given(legal(is_tiled=False))
def test_every_slice_owns_each_element_of_the_tile_once(product: HostLaunch) -> None:
    c = product.kernel
    tile = drawn_parts.tile(product, c)
    lanes = np.arange(0, WARP, int(lanes_k(c)))  # which share out k hold the same sums
    rows, columns = np.array(tile["rows"])[lanes], np.array(tile["columns"])[lanes]
    for number in range(c.slice_k):
        owned = [
            (warp["m"] + rows[:, :, None]) * c.bn + warp["n"] + columns[:, None, :]
            for warp in tile["warps"]
            if warp["slice"] == number
        ]
        assert np.array_equal(np.sort(np.array(owned), axis=None), np.arange(c.bm * c.bn))


@COMPILED
@given(legal(is_tiled=False), st.booleans())
def test_nothing_lies_beyond_shared_memory(product: HostLaunch, reads_c: bool) -> None:
    floats = int(resources.smem_bytes(product.kernel, product.gemm)) // FLOAT_BYTES
    for access in of_first_block(product):
        requested = access.at[access.at != NO_LANE]
        assert np.all(requested >= 0)
        assert np.all(requested % access.vec == 0)
        if access.space == "shared":
            assert requested.max() + access.vec <= floats


@COMPILED
@given(legal(is_tiled=False), st.booleans())
def test_operands_are_read_once_per_tile_and_c_is_stored_once(product: HostLaunch, reads_c: bool) -> None:
    c, g = product.kernel, product.gemm
    found = count(c, g, LIMITS, reads_c=reads_c)

    def requested(what: str, kind: str) -> int:
        return sum(
            n.num_bytes for key, n in found.items()
            if (key.kernel != "sgemm_pack", key.what, key.space, key.kind) == (True, what, "global", kind)
        )  # fmt: skip

    assert requested("C", "store") == FLOAT_BYTES * g.num_results
    assert requested("C", "load") == (FLOAT_BYTES * g.num_results if reads_c else 0)
    if lanes_k(c) == 1:
        for what, path, rows, uses in (
            ("A", c.copy_a, product.grid.padded_m if c.pack_a else g.m, product.tiles_n),
            ("B", c.copy_b, product.grid.padded_n if c.pack_b else g.n, product.tiles_m),
        ):
            kind = "copy" if path == "async" else "load"
            assert requested(what, kind) == FLOAT_BYTES * g.batch * rows * g.k * uses


@COMPILED
@given(legal(is_tiled=False))
def test_blocks_are_all_tiles_in_all_splits_and_share_out_k(product: HostLaunch) -> None:
    blocks, (steps, begin) = product.blocks, product.steps()
    assert len(np.unique(blocks)) == len(blocks) == np.prod(product.grid.size)
    tiles = np.unique(blocks[["product", "row", "column"]])
    assert len(tiles) == product.grid.tiles == product.tiles_m * product.tiles_n * product.gemm.batch
    for tile in tiles[[0, -1]]:
        own = np.flatnonzero((blocks[["product", "row", "column"]] == tile) & (steps > 0))
        ragged = product.gemm.k - (int(steps[own].sum()) - 1) * product.step_k
        depths = steps[own] * product.step_k - np.where(begin[own] == 0, product.step_k - ragged, 0)
        assert begin[own].tolist() == [0, *np.cumsum(depths)[:-1].tolist()]
        assert depths.sum() == product.gemm.k


def test_a_long_k_is_counted_by_a_part_of_it() -> None:
    """What is left out of k adds as much as what is executed says."""
    config = Config.from_dict({"reduction": "last_block", "split_k": 3, "flush_k": 256})
    product = HostLaunch.of(config, Gemm(64, 128, 16 * 257 * 3 + 5), LIMITS)
    periods = product.shortest()
    assert periods * product.period > 200
    steps, _ = product.steps()
    assert (steps - product.shorter(periods).steps()[0]).tolist() == [periods * product.period] * 3
    found = count(config, product.gemm, LIMITS)
    assert found[AccessKey("sgemm", "tile_copy.cuh", "A", "global", "copy")].num_bytes == 4 * 64 * product.k


def test_tiles_are_walked_as_the_scheduler_draws_it() -> None:
    """The example of kernels/tile_scheduler.cuh: along n, groups of 2, 4 x 3 tiles."""
    config = Config.from_dict({"raster": "n", "group": 2, "bm": 64, "bn": 128})
    blocks = HostLaunch.of(config, Gemm(256, 384, 64), LIMITS).blocks
    picture = np.empty((4, 3), dtype=int)
    picture[blocks["row"], blocks["column"]] = np.arange(12)
    assert picture.tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_the_last_wave_alone_is_split() -> None:
    """The example of kernels/tile_scheduler.cuh: 2 whole tiles, 1 that is split in three."""
    config = Config.from_dict({"reduction": "last_wave", "split_k": 3, "min_blocks": 1})
    limits = known_limits("h200")
    few = type(limits).from_dict({**limits.to_dict(), "num_sms": 2, "compute_capability": [9, 0]})
    product = HostLaunch.of(config, Gemm(64, 128 * 3, 64), few)
    assert product.grid.split_tiles == 1
    walked = product.blocks[["column", "split", "splits"]].tolist()
    assert walked == [(0, 0, 1), (1, 0, 1), (2, 0, 3), (2, 1, 3), (2, 2, 3)]


def test_nothing_of_the_recorder_hides_a_name_of_the_kernels() -> None:
    """kernels/reduce_planes.cuh has a `turn` in a loop."""
    chunks = {"reduction": "chunks", "split_k": 2, "flush_k": 256, "min_blocks": 1}
    assert count(Config.from_dict(chunks), Gemm(64, 128, 512), LIMITS)


def test_the_worked_example_of_the_thread_tile() -> None:
    """kernels/thread_tile.cuh: lane 9 owns rows 4-7 and 20-23, columns 4-7 and 36-39."""
    tile = drawn_parts.tile(HostLaunch.of(Config(), Gemm(4096, 4096, 4096), LIMITS), Config())
    assert tile["rows"][9] == [4, 5, 6, 7, 20, 21, 22, 23]
    assert tile["columns"][9] == [4, 5, 6, 7, 36, 37, 38, 39]


def test_the_worked_example_of_the_copy() -> None:
    """kernels/tile_copy.cuh: thread 17 copies k = 1 of rows 1, 9, ..., 57."""
    product = HostLaunch.of(Config(), Gemm(64, 128, 16), LIMITS)
    assert product.numbers(4, "copies").tolist()[:2] == [8, 16]
    found = {
        (access.what, access.space): access for access in of_first_block(product) if access.kind == "copy"
    }
    own = {space: found["A", space].at[found["A", space].warp == 0][:, 17] for space in ("global", "shared")}
    assert own["global"].tolist() == [16 * row + 1 for row in range(1, 64, 8)]
    assert own["shared"].tolist() == [68 + row for row in range(1, 64, 8)]


@pytest.mark.parametrize("is_usable", [True, False])
def test_what_was_compiled_is_kept(is_usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache, for other processes; where that cannot be used, for this one."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    if not is_usable:
        (tmp_path / "cache").touch()
    monkeypatch.setattr(executed, "_hosts", cache(executed._hosts.__wrapped__))
    compiled = executed._library.__wrapped__
    text = REFERENCE_FILE, (("PLAIN_FLOATS", 1),)
    assert compiled(*text).walk
    assert (tmp_path / "cache/hosts").is_dir() == is_usable
    monkeypatch.setattr(build, "compiler", lambda: ["false"])
    assert compiled(*text).walk
    with pytest.raises(EnvironmentProblem):
        compiled(REFERENCE_FILE, (("PLAIN_FLOATS", 0),))


@pytest.mark.parametrize("command", ["false", "/no/compiler"])
def test_without_a_compiler_it_is_told_which_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "compiler", lambda: [command])
    with pytest.raises(EnvironmentProblem, match="pip install ziglang"):
        count(Config.from_dict({"bm": 256}), Gemm(8, 8, 8), LIMITS)


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
        (np.where(LANES < 8, LANES * 4, NO_LANE), 4, True, (1, 0)),  # only a quarter asks
        (np.full(32, NO_LANE), 4, True, (0, 0)),
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
    at = np.array([[x * vec if x >= 0 else NO_LANE for x in drawn]], dtype=np.int64)
    waves = serving(at, vec, is_load=is_load)[0]
    assert np.array_equal(waves == NO_LANE, at[0] == NO_LANE)
    for wave in range(int(waves.max()) + 1):
        words = {word for first in at[0][waves == wave].tolist() for word in range(first, first + vec)}
        assert words
        assert len({word % 32 for word in words}) == len(words)
    requested = {x // vec for x in at[0].tolist() if x != NO_LANE}
    assert waves.max() + 1 >= max(
        (sum(x % (32 // vec) == bank for x in requested) for bank in range(32)), default=0
    )


def test_counts_add_up() -> None:
    at = np.full((3, 32), NO_LANE, dtype=np.int64)
    at[1] = LANES * 32
    times, zero = np.array([0, 5, 0]), np.zeros(3, np.int64)
    counts = WarpAccess("sgemm", "tile_copy.cuh", "A", "shared", "store", 1, at, times, zero, zero).counts()
    assert (counts.accesses, counts.num_bytes, counts.wavefronts, counts.conflicts) == (5, 640, 160, 155)
    assert counts.sectors == counts.lines == 0


def test_a_config_that_is_known_to_conflict() -> None:
    """The default config stores A with rows of 68 floats: 16 k of two rows meet in banks by twos."""
    found = count(Config(), Gemm(64, 128, 64), LIMITS)
    stores = found[AccessKey("sgemm", "tile_copy.cuh", "A", "shared", "copy")]
    assert stores.wavefronts == 2 * stores.accesses
