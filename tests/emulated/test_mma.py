"""The kernel on tensor cores without warpgroups (kernels/mma_sgemm.cu) executed on the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulator import Builder, EmulatedFault, LaunchProblem, run
from mma_problems import NARROW, problem
from problems import FORWARD, REVERSE, SHUFFLED
from product_check import check

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.rules import broken_rules
from autotune.kernel.tensor_config import BF16X6, SCHEMES, TF32X3

EACH_SCHEME = pytest.mark.parametrize("scheme", SCHEMES)
ORDERS = FORWARD, REVERSE, SHUFFLED
UNALIGNED = {"vec_a": 1, "vec_b": 1, "vec_c": 1}
Build = Callable[[MmaConfig, Variant], "Future[Path]"]


@pytest.fixture(scope="session")
def build(builder: Builder) -> Build:
    def submit(config: MmaConfig, variant: Variant) -> Future[Path]:
        return builder.submit(template.kernel_dir() / MmaConfig.main_file, template.macros(config, variant))

    return submit


def run_and_check(build: Build, config: MmaConfig, variant: Variant, *problems: LaunchProblem) -> None:
    for one, result in zip(problems, run(build(config, variant).result(), problems), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)


@pytest.mark.every(3)
@EACH_SCHEME
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stages_go_round_in_any_order_of_threads(build: Build, layout: str, scheme: str) -> None:
    variant, config = Variant(layout[0] == "T", layout[1] == "T"), replace(NARROW, scheme=scheme)
    cases = [problem(config, variant, (64, 128, 80), order=order, gap=1) for order in ORDERS]
    for one, result in zip(cases, run(build(config, variant).result(), cases), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)
        _check_no_part_is_missing(one, result.c, variant)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("layout", "scheme"), [*((one, TF32X3) for one in LAYOUTS), ("NN", BF16X6), ("TT", BF16X6)]
)
def test_any_extents_and_scales(build: Build, layout: str, scheme: str) -> None:
    variant = Variant(layout[0] == "T", layout[1] == "T")
    config = replace(NARROW, **UNALIGNED, bk=32, promote_k=32, stages=2, scheme=scheme)
    cases = [
        problem(config, variant, (66, 67, 31), scales=(1.5, -0.5), gap=1),
        problem(config, variant, (1, 1, 1), order=SHUFFLED),
        problem(config, variant, (33, 70, 100), scales=(0.5, 1.0), order=REVERSE),
        problem(config, variant, (5, 6, 0), scales=(2.0, 0.5)),
        problem(config, variant, (5, 6, 7), scales=(0.0, 0.0)),
    ]
    run_and_check(build, config, variant, *cases)


@pytest.mark.every(3)
@EACH_SCHEME
@pytest.mark.parametrize(("wm", "wn"), [(64, 32), (32, 64), (32, 32)])
def test_wide_tiles_and_any_warps(build: Build, wm: int, wn: int, scheme: str) -> None:
    config, variant = MmaConfig(wm=wm, wn=wn, raster="m", stages=2, scheme=scheme), Variant(trans_b=True)
    run_and_check(build, config, variant, problem(config, variant, (256, 128, 48), order=SHUFFLED))


def test_batches_and_epilogues(build: Build) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))
    run_and_check(build, NARROW, variant, problem(NARROW, variant, (72, 68, 32), products=3, gap=2))


@pytest.mark.every(2)
@pytest.mark.parametrize(("layout", "scheme"), [*((one, TF32X3) for one in LAYOUTS), ("NT", BF16X6)])
def test_splits_of_k_and_packed_operands(build: Build, layout: str, scheme: str) -> None:
    """Rows that are no vectors are copied first; splits of k, the last ragged or empty, are added after."""
    variant = Variant(layout[0] == "T", layout[1] == "T", is_batched=True, epilogue=Epilogue("columns"))
    config = replace(NARROW, pack_a=1, pack_b=1, vec_c=1, reduction="two_pass", split_k=3, scheme=scheme)
    cases = [
        problem(config, variant, (67, 65, 101), scales=(1.5, -0.5), gap=1, products=2, order=SHUFFLED),
        problem(config, variant, (37, 5, 65)),
        problem(config, variant, (9, 11, 32), scales=(0.0, 0.5)),
    ]
    run_and_check(build, config, variant, *cases)


def test_splits_alone_store_planes_of_whole_tiles(build: Build) -> None:
    config, variant = replace(NARROW, **UNALIGNED, reduction="two_pass", split_k=4), Variant()
    run_and_check(build, config, variant, problem(config, variant, (129, 65, 80), order=REVERSE))


@EACH_SCHEME
def test_special_values_are_as_the_manual_says(build: Build, scheme: str) -> None:
    """What infinity, NaN, or a value that rounds to infinity is part of is NaN, and nothing else is."""
    config = replace(NARROW, scheme=scheme)
    one = problem(config, Variant(), (64, 64, 80))
    (a,), (b,) = one.a.matrices, one.b.matrices
    a[3, 10], a[5, 7], b[20, 8] = np.inf, np.nan, -np.inf
    a.view(np.uint32)[15, 1], b.view(np.uint32)[30, 9] = 0x7FFFFFFF, 0xFFFFFFFF  # the NaN that a GPU computes
    if scheme == TF32X3:
        a[5, 7] = np.float32(3.4028e38)
    a[11], a[12, 3:] = -0.0, 0.0
    (result,) = run(build(config, Variant()).result(), [one])
    (c,) = result.c
    is_part = np.zeros(c.shape, bool)
    is_part[[3, 5, 15]] = is_part[:, [8, 9]] = True
    np.testing.assert_array_equal(np.isnan(c), is_part)
    assert np.isfinite(c[~is_part]).all()
    assert not c[11, ~is_part[11]].any()
    np.testing.assert_allclose(c[12, ~is_part[12]], (a[12, :3] @ b[:3])[~is_part[12]], atol=1e-6)


FAULTS = {
    "none": ("", ""),
    "a tile is multiplied before all have copied it": ("        barrier();  // RAW: the tile", "        // "),
    "copies are not waited for": ("wait_copies<STAGES - 2>();", ""),
    "a tile too few is waited for": ("wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();"),
    "groups do not count tiles": ("        commit_copies();\n", ""),
    "the low parts of A are left out": ("a.part[of_a][step]", "a.part[0][step]"),
    "the low parts of B are left out": ("b[j].part[smallest - of_a][step]", "b[j].part[0][step]"),
    "small products are left out": ("smallest = PARTS - 1; smallest", "smallest = PARTS - 2; smallest"),
    "all that sums have is added again": ("!is_first || adds", "true"),
    "the second group begins at zero": ("k > 0, tensor_sums", "false, tensor_sums"),
    "rows of an instruction are mixed up": ("bits[word % 2 * 2 + half]", "bits[word % 2 + half * 2]"),
    "k of B are others than those of A": ("read<IS_K_MAJOR_B, PITCH_B>(tile, column, k, x)",
                                          "read<IS_K_MAJOR_B, PITCH_B>(tile, column, k ^ 1, x)"),
    "flushed sums are left out": ("flushed.add_to(sums);", ";"),
    "sums are flushed twice": ("            sum = 0;\n", ""),
    "a split stores in the plane of another": ("(product * splits + block_index_y()) * plane", "0"),
    "a split begins where another does": ("a += IS_K_MAJOR_A ? first * BK : first * BK * lda;", ""),
    "the edge of k is not looked at": ("&& left_k > (IS_K_MAJOR ? 0 : at)", ""),
    "the edge of C is not looked at": ("left > (IS_K_MAJOR ? at : 0) &&", ""),
    "the kernels before are not waited for": ("    wait_for_kernels_before();\n", ""),
}  # fmt: skip
OF_BF16 = {
    "none": ("", ""),
    "what is left of a float is left out": ("bits_of(rest - float_of(mid))", "0"),
    "small products are left out": FAULTS["small products are left out"],
    "neighbours of A are in another order": ("x[word * PACKED + i]", "x[(word * PACKED + i) % VALUES / 2]"),
}


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("fault", "scheme"), [*((fault, TF32X3) for fault in FAULTS), *((fault, BF16X6) for fault in OF_BF16)]
)
def test_a_fault_is_found(builder: Builder, tmp_path: Path, fault: str, scheme: str) -> None:
    """Each in one order of threads or another."""
    old, new = (FAULTS | OF_BF16)[fault]
    variant, is_changed = Variant(), False
    config = replace(NARROW, vec_a=1, bk=32, promote_k=32, scheme=scheme)
    if "split" in fault:
        config = replace(config, reduction="two_pass", split_k=2)
    for path in template.kernel_dir().glob("*.cu*"):
        text = path.read_text("utf-8")
        if is_ours := path.name.startswith(("mma", "tensor_split")) and old in text:
            text, is_changed = text.replace(old, new), is_ours
        (tmp_path / path.name).write_text(text, "utf-8")
    assert is_changed
    built = builder.submit(tmp_path / MmaConfig.main_file, template.macros(config, variant), ())
    cases = [problem(config, variant, (67, 64, 157), order=order) for order in ORDERS]
    with nullcontext() if fault == "none" else pytest.raises((EmulatedFault, AssertionError)):
        for case, result in zip(cases, run(built.result(), cases), strict=True):
            check(case, result)
            _check_no_part_is_missing(case, result.c, variant)


def _check_no_part_is_missing(case: LaunchProblem, c: np.ndarray, variant: Variant) -> None:
    """Without a small product an element errs by 2^-18 of |A| |B| or more; with all of them by 2^-20 at
    most."""
    a, b = (one.matrices.astype(np.float64) for one in (case.a, case.b))
    a, b = a.mT if variant.trans_a else a, b.mT if variant.trans_b else b
    assert (np.abs(c - a @ b) <= 2.0**-20 * (np.abs(a) @ np.abs(b))).all()


def test_the_launch_fits_every_gpu_that_can() -> None:
    for layout in LAYOUTS:
        gemm = Gemm.parse(f"512:{layout}")
        for name in ("a100", "rtx-3090", "rtx-4090", "h200", "b200", "rtx-5090"):
            assert broken_rules(MmaConfig(), KNOWN[name], gemm) == ()
        broken = broken_rules(MmaConfig(), KNOWN["rtx-2080-ti"], gemm)
        assert {rule.id for rule in broken} >= {"mma-device"}
        broken = broken_rules(MmaConfig(bk=32, stages=3), KNOWN["rtx-3090"], gemm)
        assert [rule.id for rule in broken] == ["mma-stages"]
