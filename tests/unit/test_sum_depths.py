"""The error of a kernel follows from how deep its sums are, and cuBLAS's from how often it splits k; a table
serves no deep k by sums that are much less accurate than cuBLAS's where others are nearly as fast."""

from __future__ import annotations

import json
import lzma
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import CARRIED
from hypothesis import given
from hypothesis import strategies as st
from table_cases import FIGURES, depth, depths, make_kernel, make_spec, make_table, rank
from test_export_portfolio import UNTUNED, chooser_for, in_layout

from autotune.facts.device import known_limits
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel.launch import GROUP_SPLITS, MANY_THREADS, reduce_groups
from autotune.perf_model.model_figures import (
    DEFAULT_ERRORS,
    DOT_POSITIVE,
    FEW_ROWS,
    LEVEL,
    NARROW_DEPTH,
    Depths,
    excess_depth,
    slower_by,
)
from autotune.perf_model.sum_depths import Sums, allowed_depths, most_splits
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.table.table import Kernel

# Relative errors of kernels on an H200 (normal operands, float64 for comparison): shape, split_k, reduction,
# slice_k, flush_k, error. Of studies/results/h200-dev-suite.json.
MEASURED = (
    ("512", 1, "none", 4, 0, 2.07e-7),
    ("1024", 1, "none", 2, 0, 4.06e-7),
    ("2048", 1, "none", 1, 1024, 5.73e-7),
    ("8192", 6, "last_wave", 1, 0, 15.98e-7),
    ("16x11008x4096", 4, "cluster", 4, 0, 2.93e-7),
    ("7680x64x2560", 1, "none", 4, 0, 4.56e-7),
    ("512x512x16384", 4, "last_block", 2, 0, 8.12e-7),
    ("65536x64x64", 1, "none", 1, 0, 1.45e-7),
)
# The depth of cuBLAS's sums in such runs, by its error.
OF_CUBLAS = {
    "35x700x2048": 105, "16x11008x4096": 146, "1760x128x1760": 212, "3072x128x1024": 212, "1536": 517,
    "2560x64x2560": 335, "7680x64x2560": 644, "1x4096x4096": 277, "3072": 815, "4097": 1373, "8192": 8426,
    "2048x11008x4096": 1386, "512x512x16384": 1041, "64x64x100000": 1101, "5124x700x2048": 2190, "4096": 2527,
}  # fmt: skip
RESULTS = Path(__file__).parents[2] / "studies" / "results"
H200_SMS = 132
DEEP = Gemm(16, 11008, 4096)
WIDE = 1024  # a C in which one group of threads adds up all splits


def results(name: str) -> Any:
    with lzma.open(RESULTS / name) as file:
        return json.load(file)


def kernel_of(
    split_k: int = 1, reduction: str = "none", slice_k: int = 1, flush_k: int = 0, **changes: Any
) -> Kernel:
    made = make_kernel("k", make_spec(split_k=split_k, reduction=reduction, **changes))
    return replace(made, config=replace(made.config, slice_k=slice_k, flush_k=flush_k))


@pytest.mark.parametrize(("text", "split_k", "reduction", "slice_k", "flush_k", "error"), MEASURED)
def test_measured_errors_follow_from_the_depth(
    text: str, split_k: int, reduction: str, slice_k: int, flush_k: int, error: float
) -> None:
    deep = depth(kernel_of(split_k, reduction, slice_k, flush_k).config, Gemm.parse(text))
    assert 1.79e-8 * math.sqrt(deep) == pytest.approx(error, rel=0.03)


@pytest.mark.every(4)
@pytest.mark.parametrize("is_positive", [False, True])
@pytest.mark.parametrize(
    ("split_k", "flush_k", "width"),
    [
        *((*way, WIDE) for way in ((1, 0), (4, 0), (1, 256), (1, 16), (8, 64), (64, 0))),
        *((64, 0, 64), (128, 0, 64)),
    ],
)
def test_errors_of_sums_made_so_follow_from_the_depth(
    split_k: int, flush_k: int, width: int, is_positive: bool
) -> None:
    """In float32, many dot products side by side, relative to one chain of all. Splits of a small C are added
    by groups of threads."""
    k, rng = 2048, np.random.default_rng(3)
    draw = rng.random if is_positive else rng.standard_normal
    a, b = draw((2, k, 4000), dtype=np.float32)
    exact = np.einsum("ij,ij->j", a.astype(np.float64), b.astype(np.float64))
    products = a.astype(np.float64) * b

    def error(num_sums: int, block: int) -> float:
        totals = np.zeros((reduce_groups(width * width, num_sums), 4000), np.float32)
        for at, part in enumerate(np.split(products, num_sums)):
            kept, sums = np.zeros((2, 4000), np.float32)
            for number, product in enumerate(part, 1):
                sums = (sums + product).astype(np.float32)  # one rounding: an FMA
                if block and number % block == 0:
                    kept, sums = kept + sums, np.zeros_like(sums)
            totals[at * len(totals) // num_sums] += kept + sums
        return float(np.linalg.norm(sum(totals) - exact))

    gemm = Gemm(width, width, k)
    whole = depths(kernel_of().config, gemm)[is_positive]
    parts = depths(kernel_of(split_k, "two_pass" if split_k > 1 else "none", 1, flush_k).config, gemm)
    within = 0.3 if is_positive else 0.08  # all positive sums pass the same powers of two
    assert error(split_k, flush_k) / error(1, 0) == pytest.approx(
        math.sqrt(parts[is_positive] / whole), rel=within
    )


@given(st.integers(1, 2**31 - 256), st.integers(0, 2**31 - 256), st.sampled_from((0, 256, 1024)))
def test_no_chain_is_deeper_than_one_of_all_and_depth_grows_with_k(k: int, more: int, flush_k: int) -> None:
    whole, gemm = kernel_of(flush_k=flush_k).config, Gemm(WIDE, WIDE, k)
    next_level = replace(gemm, k=min(k + more, 2**31 - 256))
    assert 0 < depth(whole, gemm) <= depth(whole, next_level) + 1e-6 * next_level.k
    parts = depths(kernel_of(4, "two_pass", 2, flush_k).config, gemm)
    for deep, all_of_it in zip(parts, depths(whole, gemm), strict=True):
        assert 0 < deep <= all_of_it + 8
        assert all_of_it <= k + 3


@given(st.integers(1, 2**31 - 256), st.sampled_from((1, 2, 8)))
def test_from_accurate_splits_on_sums_are_as_deep_as_is_allowed(k: int, slices: int) -> None:
    """But for what it takes to add them up."""
    kernel = kernel_of(2, "two_pass", slices)
    gemm = Gemm(WIDE, WIDE, k)
    allowed = allowed_depths(gemm, H200_SMS)
    splits = Sums.of([kernel.config]).accurate_splits(k, allowed)[0]
    found = depths(replace(kernel.config, split_k=max(1, math.ceil(splits))), gemm)
    adding = slices + max(1, math.ceil(splits))
    assert found.zero_mean - adding - 1 <= allowed.zero_mean
    assert found.positive - adding - 1 <= allowed.positive


@given(st.integers(1, 2**40), st.lists(st.integers(1, 1024), min_size=1))
def test_splits_are_added_by_the_groups_that_launches_have(elements: int, splits: list[int]) -> None:
    """Each doubling needs that all threads were not many before, and enough splits for each group after."""
    for one in splits:
        found = reduce_groups(elements, one)
        feasible = [g for g in (2, 4, 8) if elements * g // 2 < MANY_THREADS and one >= g * GROUP_SPLITS]
        assert found == max(feasible, default=1) and len(feasible) == found.bit_length() - 1
    launched = reduce_groups(elements, np.array(splits)) * np.ones(len(splits), int)
    assert launched.tolist() == [reduce_groups(elements, one) for one in splits]


def test_each_level_of_a_tree_of_lanes_adds_to_the_depth() -> None:
    one = replace(kernel_of().config, tm=1, tn=1, wm=1, wn=1, bm=1, bn=1)  # a warp for each element of C
    chain = DEEP.k / 32
    found = depths(one, DEEP)
    assert found.zero_mean == pytest.approx(chain + 5 * LEVEL[0])
    assert found.positive == pytest.approx(chain * chain / DEEP.k + 5 * LEVEL[1])


def test_a_last_wave_is_as_deep_as_its_whole_tiles() -> None:
    whole, wave = kernel_of(), kernel_of(4, "last_wave", wave=132)
    assert depth(wave.config, DEEP) == depth(whole.config, DEEP)


def test_a_table_of_before_blocked_summation_is_read_as_it_was() -> None:
    assert depth(make_kernel("k", make_spec()).config, DEEP) == depth(kernel_of().config, DEEP)


# ---- how deep cuBLAS sums

WIDTHS = st.integers(1, 100_000)
SMS = st.integers(10, 200)


@pytest.mark.parametrize("text", OF_CUBLAS)
def test_what_is_allowed_keeps_errors_near_cublas(text: str) -> None:
    gemm = Gemm.parse(text)
    # one chain of all is the deepest there is
    worst = min(allowed_depths(gemm, H200_SMS).zero_mean, gemm.k + 3)
    assert math.sqrt(worst / OF_CUBLAS[text]) < 1.1 * MAX_ERROR


@given(WIDTHS, WIDTHS, WIDTHS, WIDTHS, SMS)
def test_a_deeper_k_is_split_no_less(m: int, n: int, k: int, more: int, num_sms: int) -> None:
    """But where few rows are dot products no longer, which NN has none of."""
    assert 1 <= most_splits(Gemm(m, n, k), num_sms) <= most_splits(Gemm(m, n, k + more), num_sms)


@given(WIDTHS, WIDTHS, WIDTHS, SMS, SMS)
def test_more_sms_split_k_no_less_and_allow_no_deeper_sums(
    m: int, n: int, k: int, num_sms: int, more: int
) -> None:
    gemm = Gemm(m, n, k)
    assert most_splits(gemm, num_sms) <= most_splits(gemm, num_sms + more)
    for few, many in zip(allowed_depths(gemm, num_sms), allowed_depths(gemm, num_sms + more), strict=True):
        assert many <= few * (1 + 1e-9)


@given(WIDTHS, WIDTHS, WIDTHS, SMS)
def test_one_chain_is_allowed_where_cublas_does_not_split(m: int, n: int, k: int, num_sms: int) -> None:
    gemm = Gemm(m, n, k)
    allowed = allowed_depths(gemm, num_sms)
    if most_splits(gemm, num_sms) == 1:
        assert excess_depth(depths(kernel_of().config, gemm), allowed) == 1
    transposed = most_splits(Gemm(n, m, k), num_sms)
    if min(m, n) > (1 if k < NARROW_DEPTH else FEW_ROWS):
        assert most_splits(gemm, num_sms) == transposed
    elif 1 < m < n:
        assert most_splits(gemm, num_sms) >= transposed


def test_a_vector_times_a_matrix_is_summed_as_narrow_shapes_are_if_terms_lie_apart() -> None:
    """1 x n of NN and TN, m x 1 of TN and TT; the others are dot products, which more threads share."""
    apart, combined = Gemm(1, 4096, 8192), Gemm(4096, 1, 8192)
    assert most_splits(apart, H200_SMS) == most_splits(Gemm(2, 4096, 8192), H200_SMS)
    assert most_splits(in_layout("1x4096x8192", "NT"), H200_SMS) == most_splits(combined, H200_SMS)
    assert most_splits(in_layout("4096x1x8192", "TT"), H200_SMS) == most_splits(
        in_layout("1x4096x8192", "TN"), H200_SMS
    )
    assert most_splits(combined, H200_SMS) == 2 * most_splits(apart, H200_SMS)


def test_few_rows_are_dot_products_where_terms_lie_side_by_side_and_few_columns_are_not() -> None:
    rows, columns = in_layout("4x4096x1024", "NT"), in_layout("4096x4x1024", "NT")
    assert most_splits(rows, H200_SMS) == 1024 / (1024 / 256 + 32)
    nine, ten = in_layout("9x4096x1024", "NT"), in_layout("10x4096x1024", "NT")
    assert most_splits(nine, H200_SMS) > 2 * most_splits(ten, H200_SMS)
    assert most_splits(replace(nine, k=4444), H200_SMS) > 2 * most_splits(replace(nine, k=4445), H200_SMS)
    assert allowed_depths(rows, H200_SMS).positive == DOT_POSITIVE * DEFAULT_ERRORS[1] ** 2
    assert most_splits(columns, H200_SMS) == most_splits(in_layout("4096x4x1024", "NN"), H200_SMS) == 8
    deep = replace(rows, k=65536)  # more than such a kernel holds of A
    assert most_splits(deep, H200_SMS) == most_splits(replace(deep, m=16), H200_SMS) == 128


def test_what_is_allowed_keeps_errors_near_those_of_what_cublas_was_seen_to_launch() -> None:
    """Its tiled kernels, by their splits: for 93 % of 2,230 drawn shapes the deepest sums that are allowed
    have at most MAX_ERROR times its error, for 99 % at most twice."""
    ratios = []
    for text, _, launches, _ in results("probes/h200-cublas-drawn.json.xz")["rows"]:
        if splits := max(splits_of(name, *grid) for name, *grid in launches):
            gemm = Gemm.parse(text)
            theirs = Depths(gemm.k / splits + splits - 1, gemm.k / splits**2 + splits - 1)
            allowed = allowed_depths(gemm, H200_SMS)
            # one chain of all is the deepest there is
            pairs = zip(allowed, theirs, strict=True)
            ratios.append(math.sqrt(max(min(mine, gemm.k) / other for mine, other in pairs)))
    assert len(ratios) == 2230
    assert np.mean(np.array(ratios) <= MAX_ERROR * (1 + 1e-9)) > 0.93
    assert np.mean(np.array(ratios) <= 2 * (1 + 1e-9)) > 0.99
    assert max(ratios) < 2 * MAX_ERROR


def splits_of(name: str, grid: tuple[int, ...] = (), *_: Any) -> int:
    """Of a launch of cuBLAS: how many parts of k its tiled kernels share out; 0 of any other kernel, and of
    those that add the parts up."""
    is_tiled = re.search("tilesize|simt_sgemm|largek", name) and "split_k_kernel" not in name
    return grid[2] if is_tiled else 0


def test_errors_of_cublas_follow_from_its_splits_for_either_kind_of_data() -> None:
    """Its splits by its error on data of zero mean tell its error on positive data: 1.5e-8 sqrt(depth)."""
    message = results("h200-any-shape.json.xz")
    missed = []
    for shape in message["shapes"]:
        k = Gemm.parse(shape["shape"]).k
        errors = {kind: found["cublas"] for kind, found in shape["pick"]["errors"].items()}
        deep = (errors["normal"] / 1.8e-8) ** 2
        splits = (deep - math.sqrt(max(0.0, deep * deep - 4 * k))) / 2  # k / splits + splits = deep
        missed.append(errors["uniform"] / 1.5e-8 / math.sqrt(k / splits**2 + splits))
    assert np.median(missed) == pytest.approx(1.0, rel=0.03)
    assert np.mean(np.abs(np.log(missed)) < 0.15) > 0.8


def test_an_excess_is_by_how_much_sums_are_too_deep() -> None:
    deep = Depths(np.array([1.0, 100.0, 400.0, 1.0]), np.array([1.0, 10.0, 10.0, 50.0]))
    excess = excess_depth(deep, Depths(100.0, 10.0))
    assert excess.tolist() == [1, 1, 4, 5]
    assert slower_by(excess).tolist() == [1, 1, 256, 625]


# ---- which kernel is picked


def selector_of(slower: float, *entries: Any) -> Chooser:
    """Of a kernel that sums one chain, and one in blocks that is so much slower."""
    chain = replace(kernel_of(), id="chain", model=FIGURES)
    figures = replace(FIGURES, step_us=slower * FIGURES.step_us, round_us=slower * FIGURES.round_us)
    blocks = replace(kernel_of(flush_k=256), id="blocks", model=replace(figures, fixed_us=2.5 * slower))
    return Chooser(make_table(chain, blocks, entries=entries))


def test_a_deep_k_is_served_by_sums_in_blocks_and_a_short_one_by_the_faster() -> None:
    selector = selector_of(1.1)
    pick = selector.pick(Call.packed(DEEP))
    assert (pick.kernel_id, pick.how) == ("blocks", "modelled")
    assert "accurate enough" in pick.reason
    assert selector.pick(Call.packed(replace(DEEP, k=200))).kernel_id == "chain"


def test_accuracy_is_not_bought_at_any_price() -> None:
    pick = selector_of(1e10).pick(Call.packed(DEEP))
    assert pick.kernel_id == "chain"
    assert "deeper than is accurate" in pick.reason


def test_what_was_accurate_enough_nearby_is_trusted_there_and_not_further() -> None:
    selector = selector_of(1.1, rank(DEEP, "chain"))
    assert selector.pick(Call.packed(DEEP)).how == "exact"
    assert selector.pick(Call.packed(replace(DEEP, n=10000))).kernel_id == "chain"
    assert selector.pick(Call.packed(replace(DEEP, n=1000))).kernel_id == "blocks"
    assert selector.pick(Call.packed(replace(DEEP, k=8000))).kernel_id == "blocks"


def test_where_nothing_is_accurate_enough_there_is_a_kernel_all_the_same() -> None:
    pick = Chooser(make_table()).pick(Call.packed(DEEP))
    assert pick.kernel_id == "default-nn"


@pytest.mark.every(12)
@CARRIED
@pytest.mark.parametrize("gpu", ["h200", "rtx-4090", "quadro-rtx-5000"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", [text for text in UNTUNED if text not in ("4097", "64x64x100000")])
def test_a_table_of_one_shape_serves_others_accurately(gpu: str, layout: str, text: str) -> None:
    """4096^3 alone was tuned, without blocks. 4097^3 is near it; on a GPU with little shared memory 8192^3
    has no room for blocks in a tile as large. The matrix of NT has no kernel for 16x11008x4096 that sums in
    short chains and is nearly as fast."""
    selector, gemm = chooser_for(gpu), in_layout(text, layout)
    pick = selector.pick(Call.packed(gemm))
    chosen = replace(selector.kernels[pick.kernel_id].config, split_k=pick.split_k)
    excess = excess_depth(depths(chosen, gemm), allowed_depths(gemm, known_limits(gpu).num_sms))
    assert math.sqrt(excess) < (1.3 if text == "8192" else 1.12 if text == "16x11008x4096" else 1.05)
