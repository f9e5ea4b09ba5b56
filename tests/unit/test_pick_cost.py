"""The benchmark of what a table costs runs on a folder, and tells what it could not measure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from table_cases import make_table, write_table

from autotune.files.errors import DispatchError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import pick_cost


def test_a_folder_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_table(make_table(), tmp_path / "measured_table")
    monkeypatch.setattr(sys, "argv", ["pick_cost.py", str(folder), "--shapes", "12"])
    monkeypatch.setattr(pick_cost, "NUM_PROCESSES", 2)
    monkeypatch.setattr(pick_cost, "call_costs_us", lambda folder, gemms: [7.0 + g.m % 2 for g in gemms])
    pick_cost.main()
    text = capsys.readouterr().out
    for words in (
        "measured_table: 4 kernels, 1 NN", "4 cubins: 0.00 MB (bar: 5)", "| pick, new shape |",
        "import after numpy and CUDA", "| call of a new shape, its kernel loaded |", "| 1000 |",
    ):  # fmt: skip
        assert words in text


def test_what_is_no_table_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pick_cost.py", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        pick_cost.main()
    assert ended.value.code == 6


def test_a_machine_without_a_gpu_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(folder: Path, gemms: object) -> list[float]:
        raise DispatchError("no CUDA driver")

    monkeypatch.setattr(pick_cost, "call_costs_us", nothing)
    assert pick_cost._call_rows(tmp_path, []) == []
    assert "Calls were not measured: no CUDA driver" in capsys.readouterr().err
