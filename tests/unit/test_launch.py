"""Launches cover C and what they need; a call is refused where the kernel would go wrong, and only there."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from space_cases import find_config

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import LAYOUTS, MAX_EXTENT, SINGLE, Batch, Gemm
from autotune.kernel import resources, template
from autotune.kernel.config import PARAMETER, Config, lanes_k
from autotune.kernel.launch import (
    COUNTER_BYTES,
    GROUP_SPLITS,
    MANY_THREADS,
    MAX_GRID_X,
    MAX_GRID_Y,
    NARROW_LD,
    PACK_ALIGNMENT,
    PACK_SMEM_BYTES,
    PACK_THREADS,
    PACK_TILE,
    PLANES,
    REDUCE_THREADS,
    WORKSPACE_LIMIT,
    Grid,
    LaunchSpec,
    Variant,
    divisor,
    plan,
    rejection,
    schedule,
    too_large,
)
from autotune.kernel.resources import launch_spec
from autotune.kernel.rules import broken_rules
from autotune.kernel.summation_order import CHUNKS

VECTORS = st.sampled_from([1, 2, 4])
CLUSTER_SIZES = (2, 4, 8)  # rule cluster-size
VARIANTS = st.builds(Variant, *[st.booleans()] * 4)
BATCHES = st.builds(
    lambda products, shares: Batch(products, 4 * (not shares[0]), 8 * (not shares[1]), 16),
    *(st.integers(2, 1000), st.sampled_from([(False, False), (True, False), (False, True)])),
)
EXTENTS = st.one_of(st.integers(1, 300), st.integers(1, 64).map(lambda x: 64 * x), st.integers(1, MAX_EXTENT))
LIMITS = st.sampled_from(list(KNOWN.values()))


@st.composite
def specs(draw: st.DrawFn) -> LaunchSpec:
    reduction = draw(st.sampled_from(PARAMETER["reduction"].values))
    splits = {"none": (1,), "chunks": (1,), "cluster": CLUSTER_SIZES}
    split_k = draw(st.sampled_from(splits.get(reduction, PARAMETER["split_k"].values[1:])))
    tiles = [draw(st.sampled_from(PARAMETER[name].values)) for name in ("bm", "bn", "bk")]
    vectors = [draw(VECTORS) for _ in range(3)]
    wave = draw(st.integers(1, 2000)) if reduction == "last_wave" else 0
    num_sms = draw(st.sampled_from((0, 1, 7, 132))) if reduction == "chunks" else 0
    wave = num_sms * draw(st.integers(1, 8)) if reduction == "chunks" else wave
    is_exact, *flags, is_along_m = (draw(st.booleans()) for _ in range(5))
    raster = draw(st.sampled_from(PARAMETER["group"].values)), is_along_m
    return LaunchSpec(
        *tiles, 128, 0, *vectors, is_exact, reduction, split_k, draw(VARIANTS), wave, *flags, *raster,
        chunk=draw(st.sampled_from(CHUNKS)) if reduction == "chunks" else 0, num_sms=num_sms,
    )  # fmt: skip


@given(specs())
def test_a_spec_survives_json(spec: LaunchSpec) -> None:
    assert LaunchSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_a_spec_from_before_has_none_of_what_came_later() -> None:
    before = LaunchSpec(64, 64, 16, 128, 0, 1, 1, 1, False, "none", 1, Variant()).to_dict()
    for name in ("packs_a", "packs_b", "overlaps"):
        del before[name]
    spec = LaunchSpec.from_dict(before)
    assert not any((spec.packs_a, spec.packs_b, spec.overlaps))


@given(LIMITS)
def test_kernels_overlap_where_the_gpu_knows_how_to_wait(limits: DeviceLimits) -> None:
    spec = launch_spec(Config(), Gemm(256, 256, 256), limits)
    assert spec.overlaps == (limits.compute_capability >= (9, 0))


@given(specs(), EXTENTS, EXTENTS, EXTENTS)
def test_a_grid_covers_c_and_no_more(spec: LaunchSpec, m: int, n: int, k: int) -> None:
    grid = plan(spec, m, n, k)
    assert grid.padded_m * grid.padded_n == grid.tiles * spec.bm * spec.bn
    for extent, padded, tile in ((m, grid.padded_m, spec.bm), (n, grid.padded_n, spec.bn)):
        assert padded % tile == 0
        assert padded - tile < extent <= padded < 2**31
    assert grid.split_k == (-(-k // spec.chunk) if spec.chunk else spec.split_k)


def are_shared(spec: LaunchSpec, grid: Grid) -> bool:
    return spec.chunk > 0 and grid.size[1] < grid.split_k


@given(specs(), EXTENTS, EXTENTS, EXTENTS, st.one_of(st.just(SINGLE), BATCHES))
def test_blocks_share_out_chunks_where_these_fill_no_wave(
    spec: LaunchSpec, m: int, n: int, k: int, batch: Batch
) -> None:
    """Then they are resident together, in whole waves of one block per SM, and none has less than a chunk."""
    grid = plan(spec, m, n, k, batch)
    if not are_shared(spec, grid):
        return
    blocks, steps = grid.size[0], -(-k // spec.bk) * grid.tiles
    assert 1 <= blocks <= spec.wave
    assert blocks % spec.num_sms == 0 or blocks < spec.num_sms
    assert steps // blocks >= spec.chunk // spec.bk
    assert grid.size[1] == 1


@given(specs(), EXTENTS, EXTENTS, EXTENTS)
def test_a_workspace_holds_a_plane_per_split_and_a_counter_per_tile(
    spec: LaunchSpec, m: int, n: int, k: int
) -> None:
    grid = plan(spec, m, n, k)
    stored_tiles = {"none": 0, "cluster": 0, "last_wave": grid.split_tiles}.get(spec.reduction, grid.tiles)
    shares = grid.size[0] if are_shared(spec, grid) else 0
    assert grid.sum_bytes == 4 * spec.bm * spec.bn * (stored_tiles * grid.split_k + shares)
    has_counters = spec.reduction in ("last_block", "last_wave")
    assert grid.counter_bytes == COUNTER_BYTES * (stored_tiles if has_counters else shares)
    assert grid.scratch_bytes == grid.pack_bytes + grid.sum_bytes
    assert grid.workspace_bytes == grid.scratch_bytes + grid.counter_bytes
    if spec.reduction in PLANES:
        per_block = 1 << grid.reduce_group_bits
        assert 0 <= grid.reduce_blocks * per_block - m * n < per_block
        groups = REDUCE_THREADS // per_block
        assert resources.WARP <= per_block <= REDUCE_THREADS
        if groups > 1:
            assert grid.split_k >= groups * GROUP_SPLITS
            assert m * n * groups // 2 < MANY_THREADS
        if m * n * groups < MANY_THREADS and grid.split_k >= 2 * groups * GROUP_SPLITS:
            assert per_block == resources.WARP, "there could be more groups"
        assert grid.reduce_smem_bytes == (4 * REDUCE_THREADS if per_block < REDUCE_THREADS else 0)
    else:
        assert grid.reduce_blocks == 0


@given(specs(), EXTENTS, EXTENTS, st.one_of(st.just(0), EXTENTS))
def test_packed_operands_lie_one_behind_the_other(spec: LaunchSpec, m: int, n: int, k: int) -> None:
    """In whole tiles, by blocks that cover them and no more; where k is 0 there is nothing to pack."""
    grid = plan(spec, m, n, k)
    packed = [is_a for is_a, is_packed in ((True, spec.packs_a), (False, spec.packs_b)) if is_packed and k]
    assert [p.is_a for p in grid.packs] == packed
    end = 0
    for p in grid.packs:
        assert (p.extent, p.padded) == ((m, grid.padded_m) if p.is_a else (n, grid.padded_n))
        assert p.is_k_major == (spec.variant.trans_b if not p.is_a else not spec.variant.trans_a)
        along, deep = -(-p.padded // PACK_TILE), -(-k // PACK_TILE)
        assert p.blocks == along * deep
        assert p.offset == end
        assert p.offset % PACK_ALIGNMENT == 0
        assert 0 <= p.num_bytes - 4 * k * p.padded < PACK_ALIGNMENT
        end += p.num_bytes
    assert grid.pack_bytes == end


@given(specs(), EXTENTS, EXTENTS, st.one_of(st.just(0), EXTENTS), BATCHES)
def test_a_batch_is_its_products_side_by_side(spec: LaunchSpec, m: int, n: int, k: int, batch: Batch) -> None:
    """Tiles, planes and copies of one product behind those of the other; what all share is copied once."""
    one, all_ = plan(spec, m, n, k), plan(spec, m, n, k, batch)
    assert all_.tiles == batch.products * one.tiles
    assert (all_.padded_m, all_.padded_n, all_.split_k) == (one.padded_m, one.padded_n, one.split_k)
    split = all_.tiles % spec.wave if spec.reduction == "last_wave" else one.split_tiles * batch.products
    assert all_.split_tiles == split
    assert (one.products, all_.products) == (1, batch.products)
    blocks = -(-m * n // (1 << all_.reduce_group_bits)) if spec.reduction in PLANES else 0
    assert all_.reduce_blocks_per_product == blocks
    assert all_.reduce_blocks == batch.products * blocks
    assert len(all_.packs) == len(one.packs)
    end, strides = 0, list(batch[1:])
    for single, pack in zip(one.packs, all_.packs, strict=True):
        stride = batch.stride_a if pack.is_a else batch.stride_b
        assert pack.products == (batch.products if stride else 1)
        assert pack.blocks == pack.products * single.blocks
        assert pack.blocks_per_product == single.blocks
        assert (pack.stride, pack.packed_stride) == (stride, k * pack.padded if stride else 0)
        assert pack.offset == end
        assert 0 <= pack.num_bytes - 4 * k * pack.padded * pack.products < PACK_ALIGNMENT
        end += pack.num_bytes
        strides[not pack.is_a] = pack.packed_stride
    assert all_.strides == tuple(strides)
    assert one.strides == (0, 0, 0)
    assert all_.most_blocks == max(all_.size[0], all_.reduce_blocks, *(p.blocks for p in all_.packs))


@given(specs(), EXTENTS, EXTENTS, st.one_of(st.just(SINGLE), BATCHES))
def test_every_tile_has_its_blocks(spec: LaunchSpec, m: int, n: int, batch: Batch) -> None:
    """What the kernel takes from the grid (struct Share) are the tiles that were meant."""
    grid = plan(spec, m, n, 1, batch)
    columns, rows = grid.size
    if spec.reduction != "last_wave":
        assert (columns, rows) == (grid.tiles, spec.split_k)
        return
    assert rows == 1
    assert (columns - grid.tiles) // (spec.split_k - 1) == grid.split_tiles
    assert (columns - grid.tiles) % (spec.split_k - 1) == 0
    whole = grid.tiles - grid.split_tiles
    assert whole % spec.wave == 0
    assert grid.split_tiles < spec.wave


def test_rows_on_their_way_to_c_leave_room_for_all_resident_blocks() -> None:
    """They take more than the stages of a kernel with one row per thread and a single stage."""
    config = Config(
        bm=128, bn=16, bk=16, wm=32, wn=16, tm=1, tn=16, slice_k=2, unroll_k=4, bursts=1, stages=1, pad=0,
        copy_a="register", copy_b="register", vec_b=1, vec_c=1, min_blocks=4,
    )  # fmt: skip
    limits, gemm = KNOWN["quadro-rtx-5000"], Gemm(1, 1, 1)
    assert resources.smem_bytes(config, gemm) > resources.main_smem_bytes(config, gemm)
    assert [rule.id for rule in broken_rules(config, limits, gemm)] == ["staged-rows"]
    assert not broken_rules(replace(config, min_blocks=3), limits, gemm)
    narrow = replace(limits, smem_per_block=resources.staged_bytes(config) - 4)
    assert [rule.id for rule in broken_rules(replace(config, min_blocks=1), narrow, gemm)] == ["staged-rows"]


@settings(max_examples=50)
@given(
    st.integers(0, 2**32), LIMITS, st.tuples(*[st.integers(1, 5000)] * 3), st.sampled_from(LAYOUTS),
    st.sampled_from([(1, False, False), (3, False, False), (40, True, False), (7, False, True)]),
)  # fmt: skip
def test_a_legal_config_is_launched_within_its_limits(
    seed: int,
    limits: DeviceLimits,
    extents: tuple[int, int, int],
    layout: str,
    batch: tuple[int, bool, bool],
) -> None:
    gemm = Gemm(*extents, layout[0] == "T", layout[1] == "T", *batch)
    config = find_config(random.Random(seed), limits, gemm)
    assert config is not None
    spec = launch_spec(config, gemm, limits)
    lds, strides = (gemm.lda, gemm.ldb, gemm.ldc), gemm.strides
    grid = plan(spec, gemm.m, gemm.n, gemm.k, strides)
    fault = rejection(spec, gemm.m, gemm.n, gemm.k, lds, batch=strides)
    # the rules know no tiles where they count sums: so much padding is refused when it is built
    assert (fault is None) == (grid.sum_bytes <= WORKSPACE_LIMIT) and (fault or "") == too_large(grid)
    assert spec.threads % 32 == 0
    lanes = lanes_k(config)  # of a warp that share out k: all, or each has sums of its own
    assert spec.threads * config.tm * config.tn == config.bm * config.bn * config.slice_k * lanes
    assert spec.smem_bytes <= limits.smem_per_block
    staged = 4 * config.stages * config.bk * (config.bm + config.bn) if lanes == 1 else 0
    assert spec.smem_bytes >= staged
    cap = resources.register_cap(config, limits)
    assert resources.blocks_per_sm(config, limits, gemm, cap) >= config.min_blocks
    padding = -(-gemm.m // config.bm) * config.bm * -(-gemm.n // config.bn) * config.bn / (gemm.m * gemm.n)
    assert grid.tiles == resources.tiles(config, gemm)
    assert grid.sum_bytes <= WORKSPACE_LIMIT * padding
    assert grid.pack_bytes == resources.packed_bytes(config, gemm) <= WORKSPACE_LIMIT


# --------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("reduction", ["two_pass", "last_block"])
def test_partial_sums_do_not_grow_without_bound(reduction: str) -> None:
    """Packed operands and they may take as much each; clusters keep theirs in shared memory."""
    spec = LaunchSpec(64, 64, 16, 128, 0, 1, 1, 1, False, reduction, 4, Variant(), packs_a=True)
    k, n = 2**10, WORKSPACE_LIMIT // (4 * 4 * 8192)
    assert rejection(spec, 8192, n, k, (k, n, n)) is None
    rejected = rejection(spec, 8192, n + 1, k, (k, n + 1, n + 1))
    assert rejected == "partial sums would take more than 1 GiB"
    assert rejection(replace(spec, reduction="cluster"), 8192, n + 1, k, (k, n + 1, n + 1)) is None
    most = WORKSPACE_LIMIT // (4 * 4 * 64)  # of rows of whole tiles, however few columns C has
    narrow = replace(spec, packs_a=False)
    assert rejection(narrow, most, 1, k, (k, 1, 1)) is None
    assert rejection(narrow, most + 1, 1, k, (k, 1, 1)) == rejected


def test_batches_are_refused_where_their_kernel_would_go_wrong() -> None:
    spec = LaunchSpec(64, 64, 16, 128, 0, 2, 1, 1, False, "none", 1, Variant(is_batched=True))
    call = (64, 64, 64, (64, 64, 64), (0, 0, 0))
    assert rejection(spec, *call, Batch(8, 4096, 4096, 4096)) is None
    assert rejection(spec, *call, Batch(8, 0, 4097, 4097)) is None
    assert "A is not made of" in str(rejection(spec, *call, Batch(8, 4097, 4096, 4096)))
    assert rejection(replace(spec, packs_a=True), *call, Batch(8, 4097, 4096, 4096)) is None
    assert rejection(spec, *call) is None  # one product alone
    single = replace(spec, variant=Variant())
    assert "compiled for batches" in str(rejection(single, *call, Batch(2, 4096, 4096, 4096)))
    assert "more tiles than" in str(rejection(spec, 65, 1, 0, (1, 1, 1), batch=Batch(2**30, 0, 0, 65)))
    split = replace(spec, reduction="two_pass", split_k=4)
    most = WORKSPACE_LIMIT // (4 * 4 * 4096)
    assert rejection(split, *call, Batch(most, 0, 0, 4096)) is None
    assert "partial sums" in str(rejection(split, *call, Batch(most + 1, 0, 0, 4096)))
    packs = replace(spec, packs_a=True)
    most = WORKSPACE_LIMIT // (4 * 4096)
    assert rejection(packs, *call, Batch(most, 4096, 0, 4096)) is None
    assert "packed operands" in str(rejection(packs, *call, Batch(most + 1, 4096, 0, 4096)))
    assert rejection(packs, *call, Batch(most + 1, 0, 4096, 4096)) is None  # one A for all


def test_packed_operands_may_lie_anywhere_but_not_grow_without_bound() -> None:
    spec = LaunchSpec(64, 64, 16, 128, 0, 4, 4, 1, False, "none", 1, Variant(), packs_a=True, packs_b=True)
    assert rejection(spec, 65, 63, 31, (31, 63, 63), (4, 12, 4)) is None
    one = replace(spec, packs_b=False)
    assert "B is not made of" in str(rejection(one, 65, 63, 31, (31, 63, 63), (4, 12, 4)))
    k = WORKSPACE_LIMIT // (4 * 64)
    assert rejection(spec, 64, 64, k // 2, (k // 2, 64, 64)) is None
    assert "more than 1 GiB" in str(rejection(spec, 64, 65, k // 2, (k // 2, 65, 65)))
    assert "more than 1 GiB" in str(rejection(spec, 64, 64, k // 2 + 1, (k // 2 + 1, 64, 64)))


def _is_pack_full(spec: LaunchSpec, m: int, n: int, k: int) -> bool:
    """Whether copies need more blocks than a grid holds, or more memory than a call may take."""
    padded = [-(-m // spec.bm) * spec.bm * spec.packs_a, -(-n // spec.bn) * spec.bn * spec.packs_b]
    blocks = [-(-extent // 64) * -(-k // 64) for extent in padded]
    return max(blocks) > MAX_GRID_X or sum(-(-k * extent // 64) for extent in padded) > 2**30 // 256


def _are_sums_full(spec: LaunchSpec, k: int, tiles: int) -> bool:
    """Whether the partial sums of C, in whole tiles, take more memory than a call may."""
    if spec.reduction in ("none", "cluster"):
        return False
    split_tiles = tiles % spec.wave if spec.reduction == "last_wave" else tiles
    splits = -(-k // spec.chunk) if spec.chunk and k else spec.split_k
    return splits > MAX_GRID_Y or splits * split_tiles * spec.bm * spec.bn > 2**30 // 4


def _violates(
    spec: LaunchSpec, m: int, n: int, k: int, lds: tuple[int, int, int], addresses: tuple[int, int, int]
) -> bool:
    """What would go wrong, said otherwise: a ragged edge, 32-bit strides, a full grid, a torn vector."""
    is_ragged = spec.is_exact and not (m % spec.bm == 0 and n % spec.bn == 0)
    is_packed = (spec.packs_a, spec.packs_b, False)
    strides = [4 * ld for ld, packed in zip(lds, is_packed, strict=True) if not packed]
    overflows = not spec.variant.is_wide and max(strides) > 2**31 - 1
    tiles = ((m + spec.bm - 1) // spec.bm) * ((n + spec.bn - 1) // spec.bn)
    more = tiles % spec.wave * (spec.split_k - 1) if spec.reduction == "last_wave" else 0
    is_full = tiles + more > MAX_GRID_X or _is_pack_full(spec, m, n, k) or _are_sums_full(spec, k, tiles)
    rows = (m if spec.variant.trans_a else k, k if spec.variant.trans_b else n, n)
    vectors = (spec.vec_a, spec.vec_b, spec.vec_c)
    is_torn = any(
        row % vec or (4 * ld) % (4 * vec) or address % (4 * vec)
        for vec, row, ld, address, packed in zip(vectors, rows, lds, addresses, is_packed, strict=True)
        if not packed  # a copy is whole vectors wherever it comes from
    )
    return is_ragged or overflows or is_full or is_torn


@given(st.data(), specs(), st.tuples(EXTENTS, EXTENTS, EXTENTS))
def test_a_call_is_refused_where_the_kernel_would_go_wrong(
    data: st.DataObject, spec: LaunchSpec, extents: tuple[int, int, int]
) -> None:
    m, n, k = extents
    packed = (m if spec.variant.trans_a else k, k if spec.variant.trans_b else n, n)
    lds = tuple(ld + data.draw(st.sampled_from([0, 1, 2, 4, NARROW_LD])) for ld in packed)
    addresses = tuple(256 * i + data.draw(st.sampled_from([0, 0, 4, 8, 16])) for i in range(3))
    reason = rejection(spec, m, n, k, lds, addresses)
    assert (reason is not None) == _violates(spec, m, n, k, lds, addresses), reason
    assert reason is None or reason.strip()


@given(st.tuples(*[st.integers(0, MAX_EXTENT)] * 3), st.tuples(*[st.integers(0, 2**40)] * 3), st.data())
def test_a_predicated_wide_kernel_without_vectors_serves_every_call(
    extents: tuple[int, int, int], gaps: tuple[int, int, int], data: st.DataObject
) -> None:
    m, n, k = extents
    assume(m * n <= 2**40)  # four terabytes
    config = Config(vec_a=1, vec_b=1, vec_c=1, edges="predicated")
    trans_a, trans_b = data.draw(st.booleans()), data.draw(st.booleans())
    gemm = Gemm(m, n, k, trans_a, trans_b)
    lds = (gemm.lda + gaps[0], gemm.ldb + gaps[1], gemm.ldc + gaps[2])
    addresses = tuple(4 * data.draw(st.integers(0, 2**40)) for _ in range(3))
    assert rejection(launch_spec(config, gemm, KNOWN["h200"], is_wide=True), m, n, k, lds, addresses) is None


# ------------------------------------------------------------------- agreement with the kernel


def _constant(name: str) -> int:
    found = re.findall(rf"constexpr int {name} = (\d+);", template.source())
    assert len(found) == 1, name
    return int(found[0])


def test_constants_are_the_kernels() -> None:
    assert 1 << _constant("REDUCE_BITS") == REDUCE_THREADS
    assert _constant("PACK_THREADS") == PACK_THREADS
    assert _constant("PACK_TILE") == PACK_TILE
    assert re.search(r"PACK_ROW = PACK_TILE \+ 1;", template.source()), "rows of its tile in shared memory"
    assert PACK_SMEM_BYTES == 4 * PACK_TILE * (PACK_TILE + 1)
    assert _constant("MAX_THREADS") == resources.MAX_THREADS
    assert _constant("WARP") == resources.WARP
    assert NARROW_LD * 4 == 2**31, "the kernel keeps strides in bytes in an int"


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_divisor_divides(value: int, number: int) -> None:
    """As kernels/tile_scheduler.cuh multiplies: 32 bits each, 64 for the product."""
    same, multiplier, shift = divisor(value)
    assert (same, multiplier < 2**32, shift < 64) == (value, True, True)
    for n in (number, number // value * value, max(number // value * value - 1, 0), 2**31 - 1):
        assert n * multiplier < 2**64
        assert n * multiplier >> shift == n // value


@given(specs(), st.integers(1, 40), st.integers(1, 40))
def test_blocks_walk_over_every_tile_once(spec: LaunchSpec, tiles_m: int, tiles_n: int) -> None:
    """The schedule, read as kernels/tile_scheduler.cuh reads it, held against the order that it describes:
    along one side, a group of tiles across before the next step."""
    words = schedule(spec, plan(spec, tiles_m * spec.bm, tiles_n * spec.bn, 1))
    product, group, width, last_width = (words[at : at + 3] for at in range(0, 12, 3))
    num_full, is_along_m = words[12:]

    def quotient(n: int, by: tuple[int, ...]) -> int:
        return n * by[1] >> by[2]

    walked = []
    for tile in range(tiles_m * tiles_n):
        assert quotient(tile, product) == 0
        of = quotient(tile, group)
        within, wide = tile - of * group[0], width if of < num_full else last_width
        at_along = quotient(within, wide)
        at_across = of * width[0] + within - at_along * wide[0]
        walked.append((at_along, at_across) if is_along_m else (at_across, at_along))
    along, across = (tiles_m, tiles_n) if spec.is_along_m else (tiles_n, tiles_m)
    expected = [
        (a, c) if spec.is_along_m else (c, a)
        for first in range(0, across, spec.group)
        for a in range(along)
        for c in range(first, min(first + spec.group, across))
    ]
    assert walked == expected


def test_entries_take_what_the_grid_says() -> None:
    """The arguments are documented once, at `Grid`; the kernel's own list must name the same ones, as far as
    it goes."""
    names = {
        template.ENTRY: "m n k alpha a lda b ldb beta c ldc workspace splits schedule batch epilogue",
        template.PACK_ENTRY: "extent k from ld is_k_major to padded blocks_per_product stride",
        template.REDUCE_ENTRY: "m n alpha beta c ldc workspace splits padded_m padded_n group_bits "
        "blocks_per_product stride_c epilogue",
    }
    for entry, expected in names.items():
        found = re.search(rf"\b{entry}\(([^)]*)\) {{", template.source())
        assert found is not None, entry
        declared = " ".join(re.findall(r"(\w+)(?:,|$)", found[1]))
        assert expected.startswith(declared) and len(declared.split()) >= 7
