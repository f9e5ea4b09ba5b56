"""benchmarks/cublas_margin.py: what was judged on a GPU, decided anew."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import cublas_margin
from cublas_margin import Replayed

RESULTS = Path(cublas_margin.__file__).parents[1] / "studies/results"


def test_a_wider_margin_leaves_more_to_cublas_and_less_below_it() -> None:
    found = list(cublas_margin.replayed(RESULTS / "h200-any-shape-seed15486.json.xz", 3.0))
    assert len(found) == 200
    rows = [cublas_margin.row_of(margin, found, 0.1) for margin in (0.0, 1.5, 3.0)]
    for wide, narrow in zip(rows[1:], rows, strict=False):
        assert int(wide[2]) <= int(narrow[2]) and float(wide[5].split()[0]) < float(narrow[5].split()[0])
    assert float(rows[1][1]) > float(rows[2][1]) > 1


def test_what_goes_to_cublas_is_as_fast_as_cublas() -> None:
    sure, unsure = (Replayed(0.0, 0.0, gain, -0.1, 0.1) for gain in (0.5, 0.1))
    _, served, slower, much_slower, least, share = cublas_margin.row_of(2.0, [sure, unsure], 0.0)
    assert float(served) == pytest.approx(math.exp(-0.05), abs=5e-4)
    assert (slower, much_slower, share) == ("1", "1", "50 %")
    assert float(least) == pytest.approx(math.exp(-0.1), abs=5e-4)
