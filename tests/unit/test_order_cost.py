"""benchmarks/order_cost.py: the best within an order over the best of all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.summation_order import SummationOrder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import order_cost

LONG, SHORT = Gemm(640, 640, 4096), Gemm(640, 640, 512)
CHAIN, SPLIT = Config().key, Config(reduction="last_block", split_k=8).key
PLANES = Config(reduction="two_pass", split_k=5).key
TIMES = {LONG: {CHAIN: 12.0, SPLIT: 10.0, PLANES: 11.0}, SHORT: {CHAIN: 3.0, SPLIT: 2.0}}
BEST = {LONG: 10.0, SHORT: 2.0}


@pytest.mark.parametrize(
    ("what", "order", "expected"),
    [
        (order_cost.always, "chain", {LONG: 1.2, SHORT: 1.5}),
        (order_cost.always, "chunks:512", {}),
        (order_cost.here, "chunks:512", {LONG: 1.0, SHORT: 1.5}),
        (order_cost.like, "chunks:512", {LONG: 1.1, SHORT: 1.5}),
        (order_cost.like, "chunks:256", {LONG: 1.2, SHORT: 1.5}),
    ],
)
def test_the_best_within_an_order_is_told_beside_the_best(what, order, expected):
    assert order_cost.costs(TIMES, BEST, what(SummationOrder.parse(order))) == pytest.approx(expected)
    assert order_cost.row_of("name", {LONG: 2.0, Gemm(8, 640, 512): 8.0})[-2:] == ["4.000 (2)", "2.000 (1)"]
