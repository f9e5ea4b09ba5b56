"""benchmarks/portfolio_reach.py: kernels are chosen on some columns and judged on others."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import portfolio_reach
import write_matrix

from autotune.recording import matrix
from autotune.recording.matrix import CellRecord, MatrixRow, RowFacts, TimeMatrix

SCRIPT = Path(portfolio_reach.__file__)
LIMITS = KNOWN["h200"]
ENVIRONMENT = Environment(LIMITS.name, "GPU-0", (9, 0), "580", "13.0", "13.4", "13.1")
FACTS = {"source_hash": "of this", "policy": "cold", "policy_version": 1}
COLUMNS = [Gemm(64 * (i + 2), 128, 512) for i in range(20)]


def made(times: dict[str, list[float]], origins: dict[str, str] | None = None) -> TimeMatrix:
    """Rows by name, with a time on each column; cuBLAS takes 20 us on each."""
    found = TimeMatrix(LIMITS, ENVIRONMENT, FACTS, cublas_us=dict.fromkeys(COLUMNS, 20.0))
    for number, (name, row_us) in enumerate(times.items()):
        row = MatrixRow("NN", replace(Config(), stages=2 + number))
        found.known[row] = RowFacts((origins or {}).get(name, ""), 64, 0)
        for gemm, time_us in zip(COLUMNS, row_us, strict=True):
            found.cells[row, gemm, 1] = CellRecord(time_us)
    return found


def test_what_was_found_on_a_column_held_apart_is_not_chosen_for_it() -> None:
    lucky = [1.0] + [11.0] * 19
    found = made({"lucky": lucky, "plain": [10.0] * 20}, {"lucky": str(COLUMNS[0])})
    evaluated = {one.gemm: one for one in portfolio_reach.held_apart(found, 2, 5)}
    first, others = evaluated[COLUMNS[0]], [evaluated[gemm] for gemm in COLUMNS[1:]]
    assert (first.best_us, first.chosen_us, first.picked_us) == (1.0, 10.0, 10.0)
    assert all(one.chosen_us == one.best_us == 10.0 for one in others)
    assert portfolio_reach.mean_ratio((one.cublas_us or 0.0, one.picked_us) for one in others) > 1.8


def test_a_file_is_read_as_it_was_written_and_judged_by_the_script(tmp_path: Path) -> None:
    found = made({"even": [10.0, 19.0] * 10, "odd": [19.0, 10.0] * 10})
    path = tmp_path / "matrix.json.gz"
    write_matrix.write(path, found)
    again = matrix.read(path)
    assert (again.cells, again.known, again.cublas_us) == (found.cells, found.known, found.cublas_us)
    assert again.environment == ENVIRONMENT and again.limits == LIMITS
    command = [sys.executable, SCRIPT, path, "--sizes", "1,2"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 kernels, 20 columns, NVIDIA H200" in out
    rows = [line for line in out.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert [row.count("-") for row in rows] == [3, 3]  # kinds that there is no column of
