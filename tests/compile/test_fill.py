"""Kernels that searches found are timed on all shapes: real compiles, a worker that plays the GPU, a real
database; from it a matrix is written."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from autotune.export.from_store import read_results
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.kernel.config import Config
from autotune.kernel.where import Where
from autotune.recording import matrix
from autotune.search import study_of
from autotune.search.cublas_times import time_cublas, with_bias
from autotune.search.fill import Filled, Filler, ignore_fill
from autotune.store import Store
from autotune.target import Baseline, point_key

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import write_matrix

COLUMNS = (
    Gemm(256, 256, 512), Gemm(70, 61, 4000), *(Gemm(64 * i, 128, 256) for i in range(1, 6)),
    Gemm(64, 64, 4096, trans_b=True),
)  # fmt: skip
TUNED = Config(bm=32, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, stages=2, unroll_k=8, min_blocks=1, vec_c=4)
SPLIT = replace(TUNED, reduction="two_pass", split_k=8)


@pytest.fixture
def target(open_target):
    return open_target("fine")


@pytest.fixture
def store(target, tmp_path):
    with Store.open(str(tmp_path / "any.db")) as opened:
        study = study_of(opened, target, COLUMNS[0])
        opened.add_baseline(study, Baseline(20.0, (20.0,)))
        for config, time_us in ((TUNED, 10.0), (SPLIT, 11.0), (replace(TUNED, tm=8), 30.0)):
            ok = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,), registers=64, spill_bytes=0)
            opened.add_trial(study, point_key(config.to_dict()), config.to_dict(), ok, "seed")
        yield opened


def fill(target, store, gemms, seconds, *how, **options) -> Filled:
    return Filler(target, store, gemms, *how, **options).run(target.now() + seconds)


def test_rows_are_best_kernels_then_relatives_then_what_leads_in_other_layouts(target, store) -> None:
    rows = list(Filler(target, store, COLUMNS, ignore_fill)._rows())
    kernels = [(layout, config.kernel) for layout, config in rows]
    assert len(set(kernels)) == len(kernels)
    assert ("NN", SPLIT.kernel) in kernels and ("NN", replace(TUNED, tm=8).kernel) not in kernels
    assert ("NN", replace(TUNED, edges="predicated").kernel) in kernels
    assert {layout for layout, _ in rows} == {"NN", "NT"}


def test_what_serves_any_alignment_does_not_wait_for_all_best_kernels(target, store) -> None:
    study = study_of(store, target, COLUMNS[0])
    best_kernels = [replace(TUNED, stages=2 + i, vec_c=1) for i in range(4)]
    for i, config in enumerate(best_kernels):
        ok = Measurement(Outcome.OK, time_us=10 + 0.1 * i, samples_us=(10.0,), registers=64, spill_bytes=0)
        store.add_trial(study, point_key(config.to_dict()), config.to_dict(), ok, "seed")
    own = [row for layout, row in Filler(target, store, COLUMNS, ignore_fill)._rows() if layout == "NN"]
    widths = [max(row.vec_a, row.vec_b, row.vec_c) for row in own]
    assert widths[0] == 4 and 1 in widths[: len(best_kernels)]


def test_splits_fill_the_gpu_and_have_work(target, store) -> None:
    filler = Filler(target, store, COLUMNS, ignore_fill)
    assert filler._splits(TUNED, COLUMNS[0], 64) == [1]
    few, many = (filler._splits(SPLIT, Gemm(32 * n, 64, 65536), 64) for n in (1, 1000))
    assert few == [2, 64, 128, 256]
    assert many == [2]
    assert filler._splits(SPLIT, Gemm(64, 64, 8), 64) == []


def test_only_what_obeys_conditions_is_timed(target, store) -> None:
    where = Where.parse("edges=predicated,split_k!=64,vec_c<=2")
    filler = Filler(target, store, COLUMNS, ignore_fill, {"NN": [SPLIT]}, where=where)
    assert all(where.holds(config.to_dict()) for _, config in filler._rows())
    assert filler._splits(replace(SPLIT, vec_c=2), Gemm(32, 64, 65536), 64) == [2, 128, 256]
    deep = Filler(target, store, COLUMNS, ignore_fill, {"NN": [SPLIT]}, where=Where.parse("split_k>=12"))
    rows = list(deep._rows())
    assert rows and {(config.reduction, config.split_k) for _, config in rows} == {("two_pass", 12)}
    before = {gemm: store.keys(study_of(store, target, gemm)) for gemm in COLUMNS}
    found = fill(target, store, COLUMNS[:2], 1e6, shipped={"NN": [replace(SPLIT, vec_c=1)]}, where=where)
    assert found.num_cells
    for gemm in COLUMNS:
        new = [t for t in store.trials(study_of(store, target, gemm)) if t.key not in before[gemm]]
        assert all(where.holds(trial.point) for trial in new)


@pytest.mark.stress
def test_the_matrix_is_filled_gone_on_with_and_written(target, store, tmp_path) -> None:
    notes: list[tuple[int, int, int]] = []
    first = fill(target, store, COLUMNS, 300, lambda *far: notes.append(far))
    assert first.is_complete and first.num_kernels > 3 and first.num_refused == 0
    assert notes[-1] == (first.num_kernels, first.num_cells, 0)
    origins = {trial.origin for gemm in COLUMNS for trial in store.trials(study_of(store, target, gemm))}
    assert origins == {"seed", "fill"}
    again = fill(target, store, COLUMNS, 300)
    assert (again.num_kernels, again.num_cells, again.is_complete) == (0, 0, True)
    found = write_matrix.read(store, target.limits, target.policy)
    assert set(found.columns) == set(COLUMNS) and found.cublas_us[COLUMNS[0]] == 20.0
    assert {found.known[row].origin for row in found.known if row.config == TUNED} <= {str(COLUMNS[0])}
    out = tmp_path / "matrix.json.gz"
    assert write_matrix.write(out, found) == out.stat().st_size
    read = matrix.read(out)
    assert (read.cells, read.known, read.cublas_us) == (found.cells, found.known, found.cublas_us)


@pytest.mark.stress
def test_no_time_is_no_kernel(target, store) -> None:
    filled = fill(target, store, COLUMNS, 0)
    assert (filled.num_kernels, filled.num_cells, filled.is_complete) == (0, 0, False)
    every = fill(target, store, COLUMNS, 300)
    assert filled.num_left == every.num_kernels  # as many as were left there are


@pytest.mark.stress
def test_what_is_left_when_the_time_is_over_is_what_the_next_call_times(target, store, monkeypatch) -> None:
    filler, clock = Filler(target, store, COLUMNS, ignore_fill), iter(range(100))
    monkeypatch.setattr(target, "now", lambda: next(clock))
    first = filler.run(2.0)
    assert (first.num_kernels, first.is_complete) == (2, False)
    again = Filler(target, store, COLUMNS, ignore_fill).run(100.0)
    assert (again.num_kernels, again.is_complete) == (first.num_left, True)


def test_shapes_that_kernels_of_others_serve_better_are_told(target, store) -> None:
    for gemm, time_us in ((COLUMNS[2], 1e6), (COLUMNS[3], 1e-3)):
        study, config = study_of(store, target, gemm), replace(TUNED, stages=3)
        slow = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,), registers=64, spill_bytes=0)
        store.add_trial(study, point_key(config.to_dict()), config.to_dict(), slow, "seed")
    filled = fill(target, store, COLUMNS, 300)
    assert COLUMNS[2] in filled.improved and COLUMNS[3] not in filled.improved


def test_cublas_is_timed_on_what_it_was_not(target, store, monkeypatch) -> None:
    requested: list[Gemm] = []
    whole = target.fill

    def watched(cells):
        requested.extend(cell.gemm for cell in cells)
        return whole(cells)

    monkeypatch.setattr(target, "fill", watched)
    assert time_cublas(target, store, COLUMNS[:3], target.now() + 300) == 3
    assert time_cublas(target, store, COLUMNS, target.now() + 300) == len(COLUMNS) - 3
    assert time_cublas(target, store, COLUMNS, target.now() + 300) == 0
    assert requested == list(COLUMNS)
    known = store.cublas_times(target.environment, target.policy)
    assert set(known) == set(COLUMNS) and min(known.values()) > 0
    assert time_cublas(target, store, [Gemm(1, 2, 3)], target.now()) == 0


def test_cublas_is_timed_with_a_bias_where_torch_has_it_add_one(target, store) -> None:
    """The shapes of a search first, though as many others are known as were drawn."""
    vector, batch, turned = Gemm(1, 768, 768), Gemm(8, 8, 8, batch=2), Gemm(64, 64, 64, trans_a=True)
    linear, own = Gemm(64, 768, 768, trans_b=True), Gemm(65, 768, 768, trans_b=True)
    assert with_bias([vector, batch, linear, turned, Gemm(64, 64, 64)]) == [linear, Gemm(64, 64, 64)]
    until_s = target.now() + 300
    assert time_cublas(target, store, [linear], until_s, has_bias=True) == 1
    assert time_cublas(target, store, [Gemm(9, 9, 9)], until_s, has_bias=True) == 0
    assert time_cublas(target, store, [linear], until_s, first=[own, linear], has_bias=True) == 1
    known = partial(store.cublas_times, target.environment, target.policy)
    assert set(known(has_bias=True)) == {linear, own} and not known()


def test_times_of_another_gpu_of_the_kind_count(target, store) -> None:
    """A fill that goes on there times nothing again, and an export sees both."""
    first = fill(target, store, COLUMNS, 300)
    assert first.num_cells
    here = target.environment
    target.environment = replace(here, gpu_uuid="GPU-of-the-same-kind")
    study, mine = study_of(store, target, COLUMNS[0]), replace(TUNED, stages=3)
    ok = Measurement(Outcome.OK, time_us=9.0, samples_us=(9.0,), registers=64, spill_bytes=0)
    store.add_trial(study, point_key(mine.to_dict()), mine.to_dict(), ok, "seed")
    known = store.times(store.sibling_studies(study)[0])
    results = read_results(store, target.environment, target.limits, gemms=[COLUMNS[0]], policy=target.policy)
    times = {config.key: time_us for config, time_us in results.shapes[0].times}
    assert known.items() <= times.items() and times[mine.key] == 9.0
    again = fill(target, store, COLUMNS[:1], 300)
    filled = store.keys(study) - {mine.key}
    assert not filled & set(known) and again.is_complete
