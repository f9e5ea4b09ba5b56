"""The benchmark of picks runs on a folder, and on a table that it makes without a compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from table_cases import make_table, write_table

from autotune.kernel import identity
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import pick_cost


def test_a_folder_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_table(make_table(), tmp_path / "measured_table")
    monkeypatch.setattr(sys, "argv", ["pick_cost.py", str(folder), "--shapes", "12"])
    monkeypatch.setattr(pick_cost, "NUM_PROCESSES", 2)
    pick_cost.main()
    told = capsys.readouterr().out
    for words in ("measured_table: 4 kernels, 1 NN", "| pick, new shape |", "import after numpy and CUDA"):
        assert words in told


def test_what_is_no_table_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pick_cost.py", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        pick_cost.main()
    assert ended.value.code == 6


def test_played_code_says_what_it_stands_for() -> None:
    cubin = pick_cost.PlayedCompiler("sm_90").submit(Config(), Variant()).result()
    assert Config().kernel.key in identity.read(cubin.code)
