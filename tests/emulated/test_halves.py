"""The kernel on scaled operands without warpgroups (kernels/halves_sgemm.cu) executed on the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulator import Builder, EmulatedFault, LaunchProblem, run
from problems import FORWARD, REVERSE, SHUFFLED
from product_check import check
from scaled_problems import (
    OF_HALVES,
    SPOILS,
    check_no_part_is_missing,
    far_apart_rows,
    in_one_operand,
    instances_of_halves,
    nothing_but_an_infinity,
    one_beyond,
    problem,
    problems,
    spoil_with_special_values,
)

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel.launch import PLAIN, Epilogue, Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import HalvesConfig

ORDERS = FORWARD, REVERSE, SHUFFLED
Build = Callable[[HalvesConfig, Variant], "Future[Path]"]


@pytest.fixture(scope="session")
def build(builder: Builder) -> Build:
    def submit(config: HalvesConfig, variant: Variant) -> Future[Path]:
        return builder.submit(template.kernel_dir() / config.main_file, template.macros(config, variant))

    return submit


def run_and_check(build: Build, config: HalvesConfig, variant: Variant, *problems: LaunchProblem) -> None:
    for one, result in zip(problems, run(build(config, variant).result(), problems), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)
        if one.epilogue == PLAIN and one.alpha == 1 and one.beta == 0:
            check_no_part_is_missing(one, result.c, variant)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("depth", [16, 32])
def test_stages_go_round_in_any_order_of_threads(build: Build, depth: int, layout: str) -> None:
    variant, config = Variant(layout[0] == "T", layout[1] == "T"), replace(OF_HALVES, depth=depth)
    cases = [problem(config, variant, (64, 128, 144), order=order, gap=1) for order in ORDERS]
    run_and_check(build, config, variant, *cases)


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_any_extents_and_scales(build: Build, layout: str) -> None:
    variant = Variant(layout[0] == "T", layout[1] == "T")
    config = replace(OF_HALVES, vec_c=1, depth=32)
    cases = [
        problem(config, variant, (130, 67, 31), scales=(1.5, -0.5), gap=1),
        problem(config, variant, (1, 1, 1), order=SHUFFLED),
        problem(config, variant, (33, 70, 100), scales=(0.5, 1.0), order=REVERSE),
        problem(config, variant, (5, 6, 0), scales=(2.0, 0.5)),
        problem(config, variant, (5, 6, 7), scales=(0.0, 0.0)),
    ]
    run_and_check(build, config, variant, *cases)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "tile", [(128, 128, 64, 16), (128, 64, 64, 16), (64, 128, 32, 32), (128, 64, 32, 32)], ids=str
)
def test_wide_tiles_and_any_warps(build: Build, tile: tuple[int, int, int, int]) -> None:
    config, variant = HalvesConfig(*tile, raster="m"), Variant(trans_b=True)
    run_and_check(build, config, variant, problem(config, variant, (256, 128, 96), order=SHUFFLED))


def test_the_instances_of_others(build: Build) -> None:
    """Splits, batches, epilogues: what a sanitizer looks at, too."""
    for config, variant in list(instances_of_halves())[:3]:
        run_and_check(build, config, variant, *problems(config, variant))


def test_a_batch_may_share_an_operand_and_splits_may_be_empty(build: Build) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("rows"))
    config = replace(OF_HALVES, reduction="two_pass", split_k=4)
    cases = [problem(config, variant, (70, 66, k), products=3, gap=1) for k in (200, 40)]
    cases += [problem(config, variant, (70, 66, 130), products=3, shares=name) for name in "ab"]
    run_and_check(build, config, variant, *cases)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", SPOILS)
def test_what_fp16_cannot_hold_is_multiplied_all_the_same(build: Build, name: str) -> None:
    """Element by element within 2^-20 of |A| |B|, whatever the exponents are."""
    for config in (OF_HALVES, replace(OF_HALVES, bm=128, depth=32)):
        for variant in (Variant(), Variant(trans_a=True, trans_b=True)):
            one = problem(config, variant, (129, 100, 160), order=SHUFFLED, spoil=SPOILS[name])
            run_and_check(build, config, variant, one)


def test_special_values_are_those_of_sgemm(build: Build) -> None:
    """An infinity gives infinities of either sign, or NaN where it meets a zero or another; NaN gives NaN."""
    one = problem(OF_HALVES, Variant(), (128, 64, 160), spoil=spoil_with_special_values)
    (result,) = run(build(OF_HALVES, Variant()).result(), [one])
    check(one, result)
    (c,) = result.c
    assert np.isnan(c[3, 40]) and np.isposinf(c[3]).any() and np.isneginf(c[3]).any()
    assert not c[11, np.arange(64) != 8].any() and not np.signbit(c[11, np.arange(64) != 8]).any()


FAULTS = {
    "none": ("", ""),
    "a stage is multiplied before it is whole": ("        barrier();  // RAW: the stage", "        // "),
    "the stage that is multiplied is filled": ("shared_memory() + slice % STAGES", "shared_memory() + 0"),
    "the next slice is not stored": ("if (has_next) stages.store(slice + 1);", ""),
    "a slice is that of another": ("stages.load(slice + 1);", "stages.load(slice);"),
    "slices of a row are mixed up": ("slice % SLICES ^ in_group / SLICE_CHUNKS", "slice % SLICES"),
    "chunks are not swizzled": ("(first / CHUNK ^ in_group % SLICE_CHUNKS)", "(first / CHUNK)"),
    "the low parts of A are left out": ("of_a[0][1].v[step], of_a[1][1]", "of_a[0][0].v[step], of_a[1][0]"),
    "the low parts of B are left out": ("of_b[j][1].v[step], true", "of_b[j][0].v[step], true"),
    "rows of an instruction are the same": ("i * MMA_M + half * SWIZZLED_ROWS", "i * MMA_M"),
    "small products count as large ones": ("small[j][e], 1 / LOW_SCALE,", "small[j][e], 1,"),
    "all that sums have is added again": ("step > 0);", "true);"),
    "only the last of a slice counts": ("of_b[j][1].v[step], true);", "of_b[j][1].v[step], false);"),
    "a row has the divisor of another": ("MMA_M + SWIZZLED_ROWS)};", "MMA_M)};"),
    "columns are not multiplied by their divisors": ("product * of_columns.v[e % 2]", "product"),
    "divisors are those of the first 64 of k": ("(slice / SLICES) * padded", "(0) * padded"),
    "blocks are those of the first 64 of k": ("(slice / SLICES) * BK", "(0) * BK"),
    "blocks of another row of tiles are copied": ("static_cast<long long>(origin) * BK", "0"),
    "a block as it was is not noticed": ("if (!is_exact_a && !is_exact_b) {", "if (true) {"),
    "a block as it was is read as another": ("blocks + row / BLOCK * BLOCK_WORDS", "blocks"),
    "FMAs leave out the last of k": ("p < a.first_p + DEPTH; ++p", "p < a.first_p + DEPTH - 1; ++p"),
    "FMAs take k of another slice": ("first_p = slice % SLICES * DEPTH;", "first_p = 0;"),
    "the low part is left out by FMAs": ("multiply_add(low, 1 / LOW_SCALE, high)", "high"),
    "a split stores in the plane of another": ("(product * splits + block_index_y()) * plane", "0"),
    "a split begins where another does": ("first = most * block_index_y();", ""),
    "the last of k is left out": ("k / DEPTH + (k % DEPTH != 0)", "k / DEPTH"),
    "the kernels before are not waited for": ("    wait_for_kernels_before();\n    if", "    if"),
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(builder: Builder, tmp_path: Path, fault: str) -> None:
    """Each in one order of threads or another, or on one kind of operands."""
    old, new = FAULTS[fault]
    config, is_changed = replace(OF_HALVES, bm=128), False
    if "split" in fault:
        config = replace(config, reduction="two_pass", split_k=2)
    for path in template.kernel_dir().glob("*.cu*"):
        text = path.read_text("utf-8")
        if is_ours := path.name.startswith("halves") and old in text:
            text, is_changed = text.replace(old, new), is_ours
        (tmp_path / path.name).write_text(text, "utf-8")
    assert is_changed
    macros = template.macros(config, Variant())
    built = builder.submit(tmp_path / HalvesConfig.main_file, macros, (), kernel_watch=())
    cases = [problem(config, Variant(), (256, 128, 157), order=order) for order in ORDERS]
    spoiled = [one_beyond, far_apart_rows, in_one_operand, nothing_but_an_infinity]
    cases += [problem(config, Variant(), (256, 128, 157), spoil=spoil) for spoil in spoiled]
    with nullcontext() if fault == "none" else pytest.raises((EmulatedFault, AssertionError)):
        for case in cases:
            (result,) = run(built.result(), [case])
            check(case, result)
            check_no_part_is_missing(case, result.c, Variant())


def test_the_launch_fits_every_gpu_that_can() -> None:
    narrow = HalvesConfig(bm=64, bn=128, wm=32, depth=32)
    for layout in LAYOUTS:
        gemm = Gemm.parse(f"512:{layout}")
        for limits in KNOWN.values():
            for config in (HalvesConfig(), OF_HALVES, narrow):
                assert broken_rules(config, limits, gemm) == ()
        wide = HalvesConfig(depth=32)
        broken = broken_rules(wide, KNOWN["quadro-rtx-5000"], gemm)
        assert "halves-stages" in {rule.id for rule in broken}
        older = replace(KNOWN["quadro-rtx-5000"], compute_capability=(7, 0))
        assert [rule.id for rule in broken_rules(OF_HALVES, older, gemm)] == ["halves-device"]
