"""benchmarks/order_race.py: what it tells of orders."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import order_race


def test_orders_are_told_by_width_and_against_a_cublas_with_their_bits() -> None:
    times = [
        ("9x9x9", False, 8.0, 4.0, ["chain"]),
        ("1x9x9", True, 1.0, 4.0, []),
        ("9x9x1", False, 2.0, 4.0, []),
    ]
    shapes = [
        {
            "shape": shape, "is_narrow": narrow, "same_as_cublas": same,
            "us": {"free": free, "chain": us, "cublas": 3.0},
        }
        for shape, narrow, free, us, same in times
    ]  # fmt: skip
    row = order_race.describe(shapes, ["chain"]).splitlines()[2]
    assert row.split(" | ")[1:] == [
        "1.000 (2; least 0.500, 9x9x1)", "0.250 (1; least 0.250, 1x9x9)", "0.750 (1; least 0.750, 9x9x9) |"
    ]  # fmt: skip
    assert order_race.describe(shapes[2:], ["chain"]).endswith("| 0.500 (1; least 0.500, 9x9x1) | - | - |")
