"""The kernel on scaled operands (kernels/scaled_sgemm.cu) on the host: layouts, edges, special values."""

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
    NARROW,
    SPOILS,
    check_no_part_is_missing,
    far_apart_rows,
    in_one_operand,
    instances,
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
from autotune.kernel.scaled_config import ScaledConfig

ORDERS = FORWARD, REVERSE, SHUFFLED
Build = Callable[[ScaledConfig, Variant], "Future[Path]"]


@pytest.fixture(scope="session")
def build(builder: Builder) -> Build:
    def submit(config: ScaledConfig, variant: Variant) -> Future[Path]:
        macros = template.macros(config, variant) | {"TENSOR": 1}
        return builder.submit(template.kernel_dir() / ScaledConfig.main_file, macros)

    return submit


def run_and_check(build: Build, config: ScaledConfig, variant: Variant, *problems: LaunchProblem) -> None:
    for one, result in zip(problems, run(build(config, variant).result(), problems), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)
        if one.epilogue == PLAIN and one.alpha == 1 and one.beta == 0:
            check_no_part_is_missing(one, result.c, variant)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stages_go_round_in_any_order_of_threads(build: Build, layout: str) -> None:
    variant = Variant(layout[0] == "T", layout[1] == "T")
    cases = [problem(NARROW, variant, (128, 64, 320), order=order, gap=1) for order in ORDERS]
    run_and_check(build, NARROW, variant, *cases)


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_any_extents_and_scales(build: Build, layout: str) -> None:
    variant = Variant(layout[0] == "T", layout[1] == "T")
    config = replace(NARROW, vec_c=1, promote_k=32)
    cases = [
        problem(config, variant, (130, 67, 31), scales=(1.5, -0.5), gap=1),
        problem(config, variant, (1, 1, 1), order=SHUFFLED),
        problem(config, variant, (33, 70, 100), scales=(0.5, 1.0), order=REVERSE),
        problem(config, variant, (5, 6, 0), scales=(2.0, 0.5)),
        problem(config, variant, (5, 6, 7), scales=(0.0, 0.0)),
    ]
    run_and_check(build, config, variant, *cases)


@pytest.mark.every(3)
@pytest.mark.parametrize(("bn", "promote_k"), [(128, 64), (128, 16), (192, 64), (192, 32)])
def test_wide_tiles(build: Build, bn: int, promote_k: int) -> None:
    config, variant = ScaledConfig(bn=bn, stages=2, promote_k=promote_k, raster="m"), Variant(trans_b=True)
    run_and_check(build, config, variant, problem(config, variant, (256, 2 * bn, 192), order=SHUFFLED))


def test_the_instances_of_others(build: Build) -> None:
    """Splits, batches, epilogues: what a sanitizer looks at, too."""
    for config, variant in list(instances())[:3]:
        run_and_check(build, config, variant, *problems(config, variant))


def test_a_batch_may_share_an_operand(build: Build) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("rows"))
    config = replace(NARROW, reduction="two_pass", split_k=2)
    run_and_check(build, config, variant, problem(config, variant, (70, 66, 200), products=3, gap=1))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", SPOILS)
def test_what_fp16_cannot_hold_is_multiplied_all_the_same(build: Build, name: str) -> None:
    """Element by element within 2^-20 of |A| |B|, whatever the exponents are."""
    for config in (NARROW, ScaledConfig(stages=2, promote_k=16)):
        for variant in (Variant(), Variant(trans_a=True, trans_b=True)):
            one = problem(config, variant, (129, 100, 160), order=SHUFFLED, spoil=SPOILS[name])
            run_and_check(build, config, variant, one)


def test_special_values_are_those_of_sgemm(build: Build) -> None:
    """An infinity gives infinities of either sign, or NaN where it meets a zero or another; NaN gives NaN."""

    one = problem(NARROW, Variant(), (128, 64, 160), spoil=spoil_with_special_values)
    (result,) = run(build(NARROW, Variant()).result(), [one])
    check(one, result)
    (c,) = result.c
    assert np.isnan(c[3, 40]) and np.isposinf(c[3]).any() and np.isneginf(c[3]).any()
    assert not c[11, np.arange(64) != 8].any() and not np.signbit(c[11, np.arange(64) != 8]).any()


def test_sums_beyond_fp32_are_infinite(build: Build) -> None:
    def spoil(a: np.ndarray, b: np.ndarray) -> None:
        a[:, :4] = np.abs(a[:, :4]) * np.float32(2.0**60) + 1
        b[:, :, :4] = np.abs(b[:, :, :4]) * np.float32(2.0**67) + 1

    one = problem(NARROW, Variant(), (128, 64, 128), spoil=spoil)
    (result,) = run(build(NARROW, Variant()).result(), [one])
    assert np.isposinf(result.c[0, :4, :4]).all() and np.isfinite(result.c[0, 4:, 4:]).all()


FAULTS = {
    "none": ("", ""),
    "a stage is multiplied before it is filled": ("stages.filled[stage].wait(turn.is_odd);", ""),
    "a stage is filled before it is free": ("stages.freed[stage].wait(!turn.is_odd);", ""),
    "half of the warps that read a stage free it": ("* WARPGROUP / WARP);", "* WARPGROUP / WARP / 2);"),
    "sums are read before they are there": ("        wait_for_sums();\n        if ", "        if "),
    "a stage is never free again": ("stages.freed[stage].arrive();", ";"),
    "fewer bytes are expected than come": ("(TILE_A + TILE_B + DIVISORS) * 4", "(TILE_A + TILE_B) * 4"),
    "the low parts of A are left out": ("rows_a.at(1, step)", "rows_a.at(0, step)"),
    "the low parts of B are left out": ("rows_b.at(1, step)", "rows_b.at(0, step)"),
    "small products count as large ones": ("tensor_sums[0][i], 1 / LOW_SCALE", "tensor_sums[0][i], 1"),
    "a row has the divisor of another": ("a.divisors + at.row + SWIZZLED_ROWS", "a.divisors + at.row"),
    "columns are not multiplied by their divisors": ("* of_columns.v[e % 2]", ""),
    "chunks are not swizzled": ("(chunk ^ in_group) * CHUNK", "chunk * CHUNK"),
    "low parts lie elsewhere": ("(at + PART, low)", "(at + PART - ROW, low)"),
    "half of a row is looked at for its largest": ("apart < SHARES", "apart < SHARES / 2"),
    "a number beyond is not noticed": ("exponent() - of_least <= RANGE", "true"),
    "others do not notice a row beyond": ("apart < WARP; apart *= 2", "apart < 1; apart *= 2"),
    "an infinity is not noticed": ("apart <= MOST &&", ""),
    "a block as it was is read as another": ("row / BLOCK * BLOCK_WORDS;\n        if", "0;\n        if"),
    "FMAs leave out the last of k": ("for (int p = 0; p < BK; ++p) {", "for (int p = 0; p < BK - 1; ++p) {"),
    "the low part is left out by FMAs": ("multiply_add(low, 1 / LOW_SCALE, high)", "high"),
    "blocks of another row of tiles are copied": (" * padded + origin) * BK;", " * padded) * BK;"),
    "a split stores in the plane of another": ("(product * splits + block_index_y()) * plane", "0"),
    "a split begins where another does": ("first_tile = most * block_index_y();", ""),
    "the edge of k is not looked at": ("i < extent && p < k ?", "i < extent ?"),
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(builder: Builder, tmp_path: Path, fault: str) -> None:
    """Each in one order of threads or another, or on one kind of operands."""
    old, new = FAULTS[fault]
    config, is_changed = ScaledConfig(stages=2), False
    if "split" in fault:
        config = replace(config, reduction="two_pass", split_k=2)
    for path in template.kernel_dir().glob("*.cu*"):
        text = path.read_text("utf-8")
        is_changed |= path.name.startswith("scaled") and old in text
        (tmp_path / path.name).write_text(text.replace(old, new), "utf-8")
    assert is_changed
    macros = template.macros(config, Variant()) | {"TENSOR": 1}
    built = builder.submit(tmp_path / ScaledConfig.main_file, macros, (), kernel_watch=())
    cases = [problem(config, Variant(), (256, 128, 253), order=order) for order in ORDERS]
    spoiled = [one_beyond, far_apart_rows, in_one_operand, nothing_but_an_infinity]
    cases += [problem(config, Variant(), (256, 128, 253), spoil=spoil) for spoil in spoiled]
    with nullcontext() if fault == "none" else pytest.raises((EmulatedFault, AssertionError)):
        for case in cases:
            (result,) = run(built.result(), [case])
            check(case, result)
            check_no_part_is_missing(case, result.c, Variant())


def test_the_launch_fits_every_layout() -> None:
    for layout in LAYOUTS:
        gemm = Gemm.parse(f"512:{layout}")
        assert broken_rules(ScaledConfig(), KNOWN["h100"], gemm) == ()
        broken = broken_rules(ScaledConfig(stages=4), KNOWN["h100"], gemm)
        assert [r.id for r in broken] == ["scaled-stages"]
        assert broken_rules(ScaledConfig(), KNOWN["rtx-4090"], gemm)
