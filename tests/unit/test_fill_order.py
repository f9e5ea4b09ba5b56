"""search/fill.py: which kernels are timed first, and the problems that they are verified on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known_tiles import DEEP_K, FEW_COLUMNS, LARGE, MEDIUM

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.kernel.config import PARAMETER
from autotune.kernel.relatives import example, relatives, small_problem
from autotune.kernel.rules import broken_rules
from autotune.search.fill import in_order
from autotune.target_finder import matrices

LIMITS = KNOWN["h200"]


def test_known_kernels_are_first_then_best_kernels_of_this_layout_and_of_others_take_turns() -> None:
    own, others, known = [LARGE[:2], MEDIUM[:2]], [DEEP_K], FEW_COLUMNS[:2]
    rows = list(in_order("NN", own, others, LIMITS, known))
    assert [row.in_any_splits for row in known] == rows[:2]
    assert len(rows) == len({row.kernel for row in rows})
    of_others = {r.in_any_splits for c in DEEP_K for r in relatives(c, "NN", LIMITS)}
    foreign = [row for row in rows if row in of_others]
    assert set(foreign) == of_others
    assert rows[3] in of_others and rows[2] not in of_others and rows[4] not in of_others


@pytest.mark.every(3)
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_kernels_that_ship_are_verified_on_few_problems_each_ragged_if_it_may_be(name: str) -> None:
    limits = KNOWN[name]
    problems: dict[Gemm, int] = {}
    for matrix in matrices():
        for row in matrix.rows:
            gemm = small_problem(row.layout, row.config, limits)
            if gemm is None:  # not for this GPU
                assert broken_rules(row.config, limits, example(row.layout), kinds=("template", "device"))
                continue
            assert gemm.layout == row.layout and not broken_rules(row.config, limits, gemm)
            problems[gemm] = problems.get(gemm, 0) + 1
            if row.config.edges == "predicated" and row.layout == "NN":
                assert gemm.m % 2
    assert len(problems) < 40


@pytest.mark.parametrize("extent", PARAMETER["bm"].values)
def test_a_kernel_for_whole_tiles_of_any_size_has_a_problem(extent: int) -> None:
    whole = replace(LARGE[0], bm=extent, wm=extent, tm=1, edges="exact")
    gemm = small_problem("NN", whole, LIMITS)
    assert gemm is None or gemm.m % extent == 0
    assert gemm is not None or broken_rules(whole, LIMITS, example("NN"), kinds=("template", "device"))
