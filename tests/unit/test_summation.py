"""The error of a kernel follows from how deep its sums are; a table serves no deep k by sums that are much
less accurate than cuBLAS's where others are nearly as fast."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import FIGURES, depth, make_kernel, make_spec, make_table, rank
from test_export_portfolio import UNTUNED, in_layout, table_for

from autotune.gemm import LAYOUTS, Gemm
from autotune.runtime.selector import Call, Selector
from autotune.runtime.summation import MAX_ERROR, allowed_depth, excess_depth
from autotune.runtime.table import Kernel

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


def kernel_of(
    split_k: int = 1, reduction: str = "none", slice_k: int = 1, flush_k: int = 0, **changes: Any
) -> Kernel:
    made = make_kernel("k", make_spec(split_k=split_k, reduction=reduction, **changes))
    return replace(made, config=replace(made.config, slice_k=slice_k, flush_k=flush_k))


@pytest.mark.parametrize(("text", "split_k", "reduction", "slice_k", "flush_k", "error"), MEASURED)
def test_measured_errors_follow_from_the_depth(
    text: str, split_k: int, reduction: str, slice_k: int, flush_k: int, error: float
) -> None:
    deep = depth(kernel_of(split_k, reduction, slice_k, flush_k).config, Gemm.parse(text).k)
    assert 1.79e-8 * math.sqrt(deep) == pytest.approx(error, rel=0.03)


@pytest.mark.parametrize(("split_k", "flush_k"), [(1, 0), (4, 0), (1, 256), (1, 16), (8, 64)])
def test_errors_of_sums_made_so_follow_from_the_depth(split_k: int, flush_k: int) -> None:
    """In float32, many dot products side by side, relative to one chain of all."""
    k, rng = 2048, np.random.default_rng(3)
    a, b = rng.standard_normal((2, k, 4000), dtype=np.float32)
    exact = np.einsum("ij,ij->j", a.astype(np.float64), b.astype(np.float64))
    products = a.astype(np.float64) * b

    def error(num_sums: int, block: int) -> float:
        total = np.zeros(4000, np.float32)
        for part in np.split(products, num_sums):
            kept, sums = np.zeros((2, 4000), np.float32)
            for number, product in enumerate(part, 1):
                sums = (sums + product).astype(np.float32)  # one rounding: an FMA
                if block and number % block == 0:
                    kept, sums = kept + sums, np.zeros_like(sums)
            total += kept + sums
        return float(np.linalg.norm(total - exact))

    whole = depth(kernel_of().config, k)
    parts = depth(kernel_of(split_k, "two_pass" if split_k > 1 else "none", 1, flush_k).config, k)
    assert error(split_k, flush_k) / error(1, 0) == pytest.approx(math.sqrt(parts / whole), rel=0.08)


@given(st.integers(0, 2**31 - 256), st.integers(0, 2**31 - 256), st.sampled_from((0, 256, 1024)))
def test_no_chain_is_deeper_than_one_of_all_and_depth_grows_with_k(k: int, more: int, flush_k: int) -> None:
    whole = kernel_of(flush_k=flush_k).config
    assert 0 < depth(whole, k) <= depth(whole, k + more) + 1e-6 * (k + more)
    assert depth(whole, k) <= k + 2
    assert depth(kernel_of(4, "two_pass", 2, flush_k).config, k) <= depth(whole, k) + 8


def test_a_last_wave_is_as_deep_as_its_whole_tiles() -> None:
    whole, wave = kernel_of(), kernel_of(4, "last_wave", wave=132)
    assert depth(wave.config, 4096) == depth(whole.config, 4096)


def test_a_table_of_before_blocked_summation_is_read_as_it_was() -> None:
    assert depth(make_kernel("k", make_spec()).config, 4096) == depth(kernel_of().config, 4096)


@pytest.mark.parametrize("text", OF_CUBLAS)
def test_what_is_allowed_keeps_errors_near_cublas(text: str) -> None:
    gemm = Gemm.parse(text)
    worst = min(allowed_depth(gemm), gemm.k + 2)  # one chain of all is the deepest there is
    assert math.sqrt(worst / OF_CUBLAS[text]) < 1.1 * MAX_ERROR + 0.05


def test_an_excess_is_by_how_much_sums_are_too_deep() -> None:
    assert excess_depth(np.array([1.0, 100.0, 400.0]), 100.0).tolist() == [1, 1, 4]


# ---- which kernel is picked

DEEP = Gemm(16, 11008, 4096)


def selector_of(slower: float, *entries: Any) -> Selector:
    """Of a kernel that sums one chain, and one in blocks that is so much slower."""
    chain = replace(kernel_of(), id="chain", model=FIGURES)
    figures = replace(FIGURES, step_us=slower * FIGURES.step_us, round_us=slower * FIGURES.round_us)
    blocks = replace(kernel_of(flush_k=256), id="blocks", model=replace(figures, fixed_us=2.5 * slower))
    return Selector(make_table(chain, blocks, entries=entries))


def test_a_deep_k_is_served_by_sums_in_blocks_and_a_short_one_by_the_faster() -> None:
    selector = selector_of(1.1)
    pick = selector.pick(Call.packed(DEEP))
    assert (pick.kernel_id, pick.how) == ("blocks", "modelled")
    assert "accurate enough" in pick.reason
    assert selector.pick(Call.packed(replace(DEEP, k=200))).kernel_id == "chain"


def test_accuracy_is_not_bought_at_any_price() -> None:
    pick = selector_of(20.0).pick(Call.packed(DEEP))
    assert pick.kernel_id == "chain"
    assert "deeper than is accurate" in pick.reason


def test_what_was_accurate_enough_nearby_is_trusted_there_and_not_further() -> None:
    selector = selector_of(1.1, rank(DEEP, "chain"))
    assert selector.pick(Call.packed(DEEP)).how == "exact"
    assert selector.pick(Call.packed(replace(DEEP, n=10000))).kernel_id == "chain"
    assert selector.pick(Call.packed(replace(DEEP, n=1000))).kernel_id == "blocks"
    assert selector.pick(Call.packed(replace(DEEP, k=8000))).kernel_id == "blocks"


def test_where_nothing_is_accurate_enough_there_is_a_kernel_all_the_same() -> None:
    pick = Selector(make_table()).pick(Call.packed(DEEP))
    assert pick.kernel_id == "default-nn"


@pytest.mark.parametrize("gpu", ["h200", "rtx-4090", "quadro-rtx-5000"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", [text for text in UNTUNED if text not in ("4097", "64x64x100000")])
def test_a_table_of_one_shape_serves_others_accurately(gpu: str, layout: str, text: str) -> None:
    """4096^3 alone was tuned, without blocks. 4097^3 is near it; on a GPU with little shared memory 8192^3
    has no room for blocks in a tile as large. The matrix of NT has no kernel for 16x11008x4096 that sums in
    short chains and is nearly as fast."""
    selector, gemm = Selector(table_for(gpu)), in_layout(text, layout)
    pick = selector.pick(Call.packed(gemm))
    chosen = replace(selector.kernels[pick.kernel_id].config, split_k=pick.split_k)
    excess = depth(chosen, gemm.k) / allowed_depth(gemm)
    assert math.sqrt(excess) < (1.3 if text == "8192" else 1.12 if text == "16x11008x4096" else 1.01)
