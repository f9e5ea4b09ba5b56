"""benchmarks/portfolio.py: kernels are chosen on some columns and judged on others."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device import KNOWN, Environment
from autotune.gemm import Gemm
from autotune.kernel.config import Config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import matrix
import portfolio
from matrix import CellRecord, Matrix, Row, RowFacts

SCRIPT = Path(portfolio.__file__)
LIMITS = KNOWN["h200"]
ENVIRONMENT = Environment(LIMITS.name, "GPU-0", (9, 0), "580", "13.0", "13.4", "13.1")
FACTS = {"source_hash": "of this", "policy": "cold", "policy_version": 1}
COLUMNS = [Gemm(64 * (i + 2), 128, 512) for i in range(10)]


def made(times: dict[str, list[float]], origins: dict[str, str] | None = None) -> Matrix:
    """Rows by name, with a time on each column; cuBLAS takes 20 us on each."""
    found = Matrix(LIMITS, ENVIRONMENT, FACTS, cublas_us=dict.fromkeys(COLUMNS, 20.0))
    for number, (name, row_us) in enumerate(times.items()):
        row = Row("NN", replace(Config(), stages=2 + number))
        found.known[row] = RowFacts((origins or {}).get(name, ""), 64, 0)
        for gemm, time_us in zip(COLUMNS, row_us, strict=True):
            found.cells[row, gemm, 1] = CellRecord(time_us)
            found.cells[row, gemm, 2] = CellRecord(3 * time_us)  # another split, slower
    return found


def test_two_specialists_beat_an_allrounder_once_two_are_allowed() -> None:
    half = [10.0, 19.0] * 5
    found = made({"even": half, "odd": half[::-1], "both": [12.0] * 10})
    _, _, table = portfolio.regrets(found)
    assert portfolio.choose(table, [0, 1, 2], 1) == [2]
    assert set(portfolio.choose(table, [0, 1], 5)) == {0, 1}
    regret = portfolio.held_apart(found, 3, 5)
    assert portfolio.share(regret, COLUMNS) == pytest.approx(1.0)
    assert portfolio.over_cublas(found, regret) == pytest.approx(2.0)
    alone = portfolio.held_apart(found, 1, 5)
    assert portfolio.share(alone, COLUMNS) == pytest.approx(10 / 12)


def test_what_was_found_on_a_column_held_apart_is_not_chosen_for_it() -> None:
    lucky = [1.0] + [11.0] * 9
    found = made({"lucky": lucky, "plain": [10.0] * 10}, {"lucky": str(COLUMNS[0])})
    regret = portfolio.held_apart(found, 2, 5)
    assert regret[COLUMNS[0]] == pytest.approx(math.log(portfolio.FAR))
    assert portfolio.share(regret, COLUMNS[1:]) == pytest.approx(1.0)


def test_a_file_is_read_as_it_was_written_and_judged_by_the_script(tmp_path: Path) -> None:
    found = made({"even": [10.0, 19.0] * 5, "odd": [19.0, 10.0] * 5})
    path = tmp_path / "matrix.json.gz"
    matrix.write(path, found)
    again = matrix.read(path)
    assert (again.cells, again.known, again.cublas_us) == (found.cells, found.known, found.cublas_us)
    assert again.environment == ENVIRONMENT and again.limits == LIMITS
    command = [sys.executable, SCRIPT, path, "--sizes", "1,2"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 kernels, 10 columns, NVIDIA H200" in out
    assert "| 2 | 1.000 | - | - | - | 1.000 | 2.000 |" in out


@pytest.mark.parametrize(
    ("shape", "number"),
    [("1x5000x300", 0), ("64x64x100000", 1), ("128x128x4096", 2), ("4096", 3), ("300x70x1000", 3)],
)
def test_kinds(shape: str, number: int) -> None:
    assert portfolio.kind_of(Gemm.parse(shape)) == portfolio.KINDS[number]
