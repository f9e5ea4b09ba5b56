"""The kernel on tensor cores (kernels/tensor_sgemm.cu) executed on the host: every layout, edges, batches."""

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
from tensor_problems import NARROW, problem

from autotune.facts.device import KNOWN
from autotune.facts.gemm import A_TYPES, LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel import tensor_config as tensor
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.rules import broken_rules
from autotune.kernel.tensor_config import TensorConfig

SCHEMES = pytest.mark.parametrize("scheme", tensor.SCHEMES)
ORDERS = FORWARD, REVERSE, SHUFFLED
Build = Callable[[TensorConfig, Variant], "Future[Path]"]


@pytest.fixture(scope="session")
def build(builder: Builder) -> Build:
    def submit(config: TensorConfig, variant: Variant) -> Future[Path]:
        macros = template.macros(config, variant) | {"TENSOR": 1}
        return builder.submit(template.kernel_dir() / TensorConfig.main_file, macros)

    return submit


def run_and_check(build: Build, config: TensorConfig, variant: Variant, *problems: LaunchProblem) -> None:
    for one, result in zip(problems, run(build(config, variant).result(), problems), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)


@pytest.mark.every(3)
@SCHEMES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stages_go_round_in_any_order_of_threads(build: Build, layout: str, scheme: str) -> None:
    variant, config = Variant(layout[0] == "T", layout[1] == "T"), replace(NARROW, scheme=scheme)
    cases = [problem(config, variant, (128, 64, 160), order=order, gap=1) for order in ORDERS]
    for one, result in zip(cases, run(build(config, variant).result(), cases), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)
        _check_no_part_is_missing(one, result.c, variant)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("layout", "scheme"),
    [*((one, tensor.TF32X3) for one in LAYOUTS), ("NN", tensor.BF16X6), ("TT", tensor.BF16X6)],
)
def test_any_extents_and_scales(build: Build, layout: str, scheme: str) -> None:
    variant = Variant(layout[0] == "T", layout[1] == "T")
    config = replace(NARROW, vec_a=1, vec_b=1, vec_c=1, promote_k=64, scheme=scheme)
    cases = [
        problem(config, variant, (130, 67, 31), scales=(1.5, -0.5), gap=1),
        problem(config, variant, (1, 1, 1), order=SHUFFLED),
        problem(config, variant, (33, 70, 100), scales=(0.5, 1.0), order=REVERSE),
        problem(config, variant, (5, 6, 0), scales=(2.0, 0.5)),
        problem(config, variant, (5, 6, 7), scales=(0.0, 0.0)),
    ]
    run_and_check(build, config, variant, *cases)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("layout", "a_type", "scheme"),
    [
        (layout, a_type, tensor.SCHEMES[(i + j) % 2])
        for i, layout in enumerate(("NN", "TT"))
        for j, a_type in enumerate(A_TYPES[1:])
    ],
)
def test_an_a_of_two_bytes_is_multiplied_exactly(build: Build, layout: str, a_type: str, scheme: str) -> None:
    """All stages, in any order of threads; edges, of rows that end within a word, too; splits of batches."""
    variant = Variant(layout[0] == "T", layout[1] == "T", a_type=a_type)
    config = replace(NARROW, scheme=scheme)
    cases = [problem(config, variant, (128, 64, 160), order=order, gap=1) for order in ORDERS]
    for one, result in zip(cases, run(build(config, variant).result(), cases), strict=True):
        check(one, result, variant.trans_a, variant.trans_b)
        _check_no_part_is_missing(one, result.c, variant)
    variant = replace(variant, is_batched=True)
    config = replace(config, vec_a=1, vec_b=1, vec_c=1, reduction="two_pass", split_k=2, loaders=1)
    cases = [
        problem(config, variant, (130, 67, 94), scales=(1.5, -0.5), gap=1, products=2, order=SHUFFLED),
        problem(config, variant, (2, 5, 2)),
        problem(config, variant, (5, 6, 0), scales=(2.0, 0.5)),
    ]
    run_and_check(build, config, variant, *cases)


@pytest.mark.parametrize("a_type", A_TYPES[1:])
@SCHEMES
def test_special_values_of_two_bytes(build: Build, scheme: str, a_type: str) -> None:
    """NaN of any bits gives NaN, infinity NaN or infinity; subnormals and the largest count as they are."""
    config, variant = replace(NARROW, scheme=scheme), Variant(a_type=a_type)
    one = problem(config, variant, (128, 64, 160))
    assert one.a.words is not None
    bits, (values,) = one.a.words.view(np.uint16)[0], one.a.matrices
    infinity, least, most = (0x7F80, 1, 0x7F7F) if a_type == "bf16" else (0x7C00, 1, 0x7BFF)
    bits[3, 10], bits[5, 7], bits[6, 7], bits[7, 1] = infinity, infinity + 1, 0xFFFF, infinity | 0x8000
    bits[9], bits[10], bits[11] = least, 0, 0x8000
    bits[10, 4] = most
    (b,) = one.b.matrices
    b[4] *= np.float32(2.0**-10)
    wide = bits.astype(np.uint32) << 16
    values[:] = wide.view(np.float32) if a_type == "bf16" else bits.view(np.float16).astype(np.float32)
    (result,) = run(build(config, variant).result(), [one])
    (c,) = result.c
    assert np.isnan(c[[5, 6]]).all()
    assert not np.isfinite(c[[3, 7]]).any()
    rest = np.delete(np.arange(128), [3, 5, 6, 7])
    x, y = values[rest].astype(np.float64), b.astype(np.float64)
    tiny = np.finfo(np.float32).tiny
    assert (np.abs(c[rest] - x @ y) <= 2.0**-20 * (np.abs(x) @ np.abs(y)) + tiny).all()


@SCHEMES
def test_wide_tiles_and_two_loading_warpgroups(build: Build, scheme: str) -> None:
    config, variant = TensorConfig(raster="m", flush_k=0, promote_k=16, scheme=scheme), Variant()
    run_and_check(build, config, variant, problem(config, variant, (256, 256, 128), order=SHUFFLED))


def test_batches_and_epilogues(build: Build) -> None:
    variant = Variant(is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))
    run_and_check(build, NARROW, variant, problem(NARROW, variant, (136, 72, 64), products=3, gap=2))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("layout", "scheme"), [*((one, tensor.TF32X3) for one in LAYOUTS), ("NT", tensor.BF16X6)]
)
def test_splits_of_k_and_packed_operands(build: Build, layout: str, scheme: str) -> None:
    """Rows that are no vectors are copied first; splits of k, the last ragged or empty, are added after."""
    variant = Variant(layout[0] == "T", layout[1] == "T", is_batched=True, epilogue=Epilogue("columns"))
    config = replace(NARROW, pack_a=1, pack_b=1, vec_c=1, reduction="two_pass", split_k=3, promote_k=64)
    config = replace(config, scheme=scheme)
    cases = [
        problem(config, variant, (131, 67, 205), scales=(1.5, -0.5), gap=1, products=2, order=SHUFFLED),
        problem(config, variant, (37, 5, 129)),
        problem(config, variant, (9, 11, 64), scales=(0.0, 0.5)),
    ]
    run_and_check(build, config, variant, *cases)


@SCHEMES
def test_special_values_are_as_the_manual_says(build: Build, scheme: str) -> None:
    """What infinity, NaN, or a value that rounds to infinity is part of is NaN, and nothing else is."""
    config = replace(NARROW, scheme=scheme)
    one = problem(config, Variant(), (128, 64, 160))
    (a,), (b,) = one.a.matrices, one.b.matrices
    a[3, 10], a[5, 7], b[20, 8] = np.inf, np.nan, -np.inf
    a.view(np.uint32)[15, 1], b.view(np.uint32)[30, 9] = 0x7FFFFFFF, 0xFFFFFFFF  # the NaN that a GPU computes
    if scheme == tensor.TF32X3:
        a[5, 7] = np.float32(3.4028e38)
    a[11], a[12, 3:] = -0.0, 0.0
    (result,) = run(build(config, Variant()).result(), [one])
    (c,) = result.c
    is_part = np.zeros(c.shape, bool)
    is_part[[3, 5, 15]] = is_part[:, [8, 9]] = True
    np.testing.assert_array_equal(np.isnan(c), is_part)
    assert np.isfinite(c[~is_part]).all()
    assert not c[11, ~is_part[11]].any()
    np.testing.assert_allclose(c[12, ~is_part[12]], (a[12, :3] @ b[:3])[~is_part[12]], rtol=1e-5)


def test_splits_alone_store_planes_of_whole_tiles(build: Build) -> None:
    config, variant = replace(NARROW, vec_a=1, vec_b=1, vec_c=1, reduction="two_pass", split_k=4), Variant()
    run_and_check(build, config, variant, problem(config, variant, (129, 65, 160), order=REVERSE))


FAULTS = {
    "none": ("", ""),
    "a stage is multiplied before it is filled": ("stages.filled[turn.stage].wait(turn.is_odd);", ""),
    "a stage is filled before it is free": ("stages.freed[turn.stage].wait(!turn.is_odd);", ""),
    "more than all stages are filled at first": (
        "tile < STAGES && tile < num_tiles",
        "tile < num_tiles",
    ),
    "a warpgroup without rows is waited for": ("stages.begin(multipliers)", "stages.begin(MULTIPLIERS)"),
    "one with rows does nothing": ("m - origin_m > MMA_M ? MULTIPLIERS : 1", "1"),
    "sums are read before they are there": ("        wait_for_sums();\n", ""),
    "tensor cores were not shown what they read": ("            show_tensor_cores();\n", ""),
    "a stage is never free again": ("stages.freed[stage].arrive();", ";"),
    "the low parts of A are left out": ("a.part[of_a][step]", "a.part[0][step]"),
    "the low parts of B are left out": ("b.at(smallest - of_a, step)", "b.at(0, step)"),
    "the last sums are left out": ("is_last || (tile + 1)", "(tile + 1)"),
    "flushed sums are left out": ("flushed.add_to(sums);", ";"),
    "sums are flushed twice": ("            sums[i] = 0;\n", ""),
    "chunks are not swizzled": ("(at / CHUNK ^ row / PACKED % (ROW / CHUNK))", "at / CHUNK"),
    "a split stores in the plane of another": ("(product * splits + block_index_y()) * plane", "0"),
    "a split begins where another does": ("further(a, IS_K_MAJOR_A ? first * BK : first * BK * lda)", "a"),
    "the edge of k is not looked at": ("&& left_k > (IS_K_MAJOR_A ? 0 : at)", ""),
}
OF_BF16 = {
    "none": ("", ""),
    "what is left of a float is left out": ("bits_of(rest - float_of(mid))", "0"),
    "small products are left out": ("smallest = PARTS - 1; smallest", "smallest = PARTS - 2; smallest"),
    "chunks are swizzled as those of longer rows": ("row / PACKED % (ROW", "row % (ROW"),
    "the planes of parts lie elsewhere": ("planes + part * PLANE + to", "planes + part * (PLANE / 2) + to"),
}


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("fault", "scheme"),
    [*((fault, tensor.TF32X3) for fault in FAULTS), *((fault, tensor.BF16X6) for fault in OF_BF16)],
)
def test_a_fault_is_found(builder: Builder, tmp_path: Path, fault: str, scheme: str) -> None:
    """Each in one order of threads or another."""
    old, new = (FAULTS | OF_BF16)[fault]
    variant, config, is_changed = Variant(), replace(NARROW, vec_a=1, promote_k=64), False
    config = replace(config, scheme=scheme)
    if "split" in fault:
        config = replace(config, reduction="two_pass", split_k=2)
    for path in template.kernel_dir().glob("*.cu*"):
        text = path.read_text("utf-8")
        is_changed |= old in text
        (tmp_path / path.name).write_text(text.replace(old, new), "utf-8")
    assert is_changed
    macros = template.macros(config, variant) | {"TENSOR": 1}
    built = builder.submit(tmp_path / TensorConfig.main_file, macros, (), kernel_watch=())
    rows = 128, 60, 65
    cases = [problem(config, variant, (m, 64, 157), order=at) for m, at in zip(rows, ORDERS, strict=True)]
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


def test_the_launch_fits_every_layout() -> None:
    for layout in LAYOUTS:
        gemm = Gemm.parse(f"512:{layout}")
        assert broken_rules(TensorConfig(), KNOWN["h100"], gemm) == ()
        assert len(broken_rules(TensorConfig(stages=4), KNOWN["h100"], gemm)) == 1
        assert broken_rules(TensorConfig(), KNOWN["rtx-4090"], gemm)
