"""benchmarks/drawn_suite.py: equal arguments draw equal suites, which a search can read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune.suite import read_suite

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "drawn_suite.py"


def _draw(*options: str) -> str:
    return subprocess.run(
        [sys.executable, SCRIPT, *options], check=True, capture_output=True, text=True
    ).stdout


def test_equal_arguments_draw_equal_suites() -> None:
    assert _draw("--seed", "3", "--num", "8") == _draw("--seed", "3", "--num", "8")
    assert _draw("--seed", "3", "--num", "8") != _draw("--seed", "4", "--num", "8")


def test_a_search_can_read_what_was_drawn(tmp_path: Path) -> None:
    suite = tmp_path / "odd.toml"
    suite.write_text(_draw("--seed", "5", "--num", "30", "--odd", "--layouts"))
    gemms = read_suite(suite)
    assert len(gemms) == 30
    assert all(gemm.m % 2 and gemm.n % 2 and gemm.k % 2 for gemm in gemms)
    assert len({gemm.layout for gemm in gemms}) > 1


def test_batches_are_drawn_with_and_without_shared_operands(tmp_path: Path) -> None:
    suite = tmp_path / "batches.toml"
    suite.write_text(_draw("--seed", "5", "--num", "40", "--batches", "--layouts"))
    gemms = read_suite(suite)
    assert len(gemms) == 40
    assert all(gemm.is_batched for gemm in gemms)
    assert {(gemm.shares_a, gemm.shares_b) for gemm in gemms} == {(0, 0), (0, 1), (1, 0)}
