"""benchmarks/record_matrix.py with real compiles and a worker that plays the GPU: what becomes a row, a cell,
a file, and that it goes on where it was."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.gemm import Gemm
from autotune.kernel.config import Config
from autotune.measurement import Measurement, Outcome
from autotune.search import study_of
from autotune.store import Store
from autotune.target import point_key

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import matrix
import record_matrix

COLUMNS = (Gemm(256, 256, 512), Gemm(70, 61, 4000), Gemm(64, 64, 4096, trans_b=True))
TUNED = Config(bm=32, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, stages=2, unroll_k=8, min_blocks=1, vec_c=4)
SPLIT = replace(TUNED, reduction="two_pass", split_k=8)


@pytest.fixture
def target(open_target):
    return open_target("fine")


@pytest.fixture
def store(target, tmp_path):
    with Store.open(str(tmp_path / "any.db")) as opened:
        study = study_of(opened, target, COLUMNS[0])
        for config, time_us in ((TUNED, 10.0), (SPLIT, 11.0), (replace(TUNED, tm=8), 30.0)):
            ok = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,))
            opened.add_trial(study, point_key(config.to_dict()), config.to_dict(), ok, "test")
        yield opened


def test_rows_are_leaders_then_relatives_then_families(target, store) -> None:
    origins = record_matrix.rows_from(store, target, COLUMNS)
    rows = list(origins)
    assert origins[rows[0]] == str(COLUMNS[0]) and set(origins.values()) == {str(COLUMNS[0]), ""}
    assert [row.config.kernel for row in rows[:1]] == [TUNED.kernel]
    kernels = [(row.layout, row.config.kernel) for row in rows]
    assert len(set(kernels)) == len(kernels)
    assert ("NN", SPLIT.kernel) in kernels and ("NN", replace(TUNED, tm=8).kernel) not in kernels
    assert ("NN", replace(TUNED, edges="predicated").kernel) in kernels
    assert {row.layout for row in rows} == {"NN", "NT"}


def test_splits_fill_the_gpu_and_have_work(target) -> None:
    row = record_matrix._row("NN", SPLIT)
    assert record_matrix.splits(record_matrix._row("NN", TUNED), COLUMNS[0], 64, target) == [1]
    few, many = (record_matrix.splits(row, Gemm(32 * n, 64, 65536), 64, target) for n in (1, 1000))
    assert few == [64, 128, 256]
    assert many == [2]
    assert record_matrix.splits(row, Gemm(64, 64, 8), 64, target) == []


def test_a_matrix_is_filled_written_and_gone_on_with(target, store, tmp_path) -> None:
    out = tmp_path / "matrix.json.gz"
    found = record_matrix.begin(out, target, COLUMNS)
    assert all(time_us for time_us in found.cublas_us.values())
    rows = [
        record_matrix._row("NN", config)
        for config in (TUNED, SPLIT, replace(TUNED, edges="predicated", vec_a=1, vec_b=1, vec_c=1))
    ]
    assert record_matrix._verify(found, dict.fromkeys(rows, ""), target) == []
    assert all(16 <= facts.registers <= 255 for facts in found.known.values())
    for row in rows:
        record_matrix.fill(found, row, target)
    served = {row: {gemm for r, gemm, _ in found.cells if r == row} for row in rows}
    assert served[rows[0]] == {COLUMNS[0]}
    assert served[rows[2]] == {COLUMNS[0], COLUMNS[1]}
    num_bytes = matrix.write(out, found)
    assert out.stat().st_size == num_bytes
    again = record_matrix.begin(out, target, COLUMNS)
    assert (again.cells, again.known, again.cublas_us) == (found.cells, found.known, found.cublas_us)
    assert [record_matrix.fill(again, row, target) for row in rows] == [0, 0, 0]
    matrix.write(tmp_path / "again.json.gz", again)
    assert (tmp_path / "again.json.gz").read_bytes() == out.read_bytes()


def test_a_file_of_another_kernel_is_refused(target, tmp_path) -> None:
    out = tmp_path / "matrix.json.gz"
    found = record_matrix.begin(out, target, ())
    found.facts = found.facts | {"source_hash": "of before"}
    matrix.write(out, found)
    with pytest.raises(record_matrix.UsageError, match="name another file"):
        record_matrix.begin(out, target, COLUMNS)
