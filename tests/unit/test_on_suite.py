"""The benchmark of a table on a suite: which shapes it adds, and what it tells."""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.facts.gemm import Gemm

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import on_suite


def test_other_m_are_added_once() -> None:
    first, other = Gemm(2, 8, 16, False, True), Gemm(4, 8, 16, False, True)
    found = on_suite.with_others([first, other], (4, 5))
    assert [(gemm.m, gemm.layout) for gemm in found] == [(2, "NT"), (4, "NT"), (5, "NT")]


def test_groups_of_m_are_told_with_what_is_least() -> None:
    facts = [(1, True, 1.2), (2, True, 2.0), (32, True, 0.5), (32, False, 1.0), (600, True, 1.1)]
    shapes = [
        {
            "m": m, "shape": f"{m}x8x8", "how": "exact" if is_tuned else "modelled", "served": served,
            "provider": "cublas" if served == 1 else "autotune",
        }
        for m, is_tuned, served in facts
    ]  # fmt: skip
    rows = on_suite.describe(shapes).splitlines()[2:]
    assert rows == [
        "| m <= 1 | tuned | 1 | 1.200 | 1.200 (1x8x8) | 0 |",
        "| m <= 32 | tuned | 2 | 1.000 | 0.500 (32x8x8) | 0 |",
        "| m <= 32 | others | 1 | 1.000 | 1.000 (32x8x8) | 1 |",
        "| m > 512 | tuned | 1 | 1.100 | 1.100 (600x8x8) | 0 |",
    ]


def test_a_class_is_told_beside_strict_kernels_with_what_is_least() -> None:
    shapes = [
        {"shape": f"{m}x8x8", "served": served, "over_strict": ratio}
        for m, served, ratio in ((1, 1.0, 1.0), (512, 4.0, 4.0))
    ]
    assert on_suite.beside_strict(shapes) == (
        "over strict 2.000, over cuBLAS 2.000; least over strict: 1.000 (1x8x8), 4.000 (512x8x8)"
    )
