"""Maps of a table: every cell is what the table itself picks, and regrets are what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_selector import Selector
from kind_cases import FIRST, SECOND, add
from study_cases import STARTED, at_s, ok_in, study_of
from table_cases import ENVIRONMENT, FIGURES, make_kernel, make_spec, make_table, rank, write_table

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.report.table_maps import DEPTHS, SIDES, Maps, table_document
from autotune.runtime.choose.chooser import Call
from autotune.runtime.table.table import Table
from autotune.store import Final, FinalEntry
from autotune.target import Baseline

TUNED = Gemm(1024, 1024, 1024)


def table_of(error: float = 0.02) -> Table:
    """Two kernels of each layout that are as fast, nearly, and one tuned shape."""
    figures = replace(FIGURES, relative_error=error)
    kernels = [
        make_kernel(f"{layout.lower()}-group{group}", make_spec(layout, group=group), figures)
        for layout in ("NN", "NT", "TN", "TT")
        for group in (1, 4)
    ]
    return make_table(*kernels, entries=(rank(TUNED, "nn-group1", "nn-group4"),))


def test_a_cell_is_what_the_table_picks() -> None:
    table = table_of()
    maps, selector = Maps(table), Selector(table)
    for gemm in (TUNED, Gemm(1, 16384, 64), Gemm(512, 8, 4096, True, True)):
        cell, pick = maps.cell(gemm), selector.pick(Call.packed(gemm))
        assert (cell.kernel, cell.split_k, cell.how, cell.provider, cell.expected_us) == (
            pick.kernel_id, pick.split_k, pick.how, pick.provider, pick.expected_us,
        )  # fmt: skip
    assert maps.cell(TUNED).how == "exact"
    assert maps.cell(TUNED).risk is None, "it was measured"
    assert maps.cell(Gemm(512, 512, 512)).error == 0.02


def test_nothing_is_at_risk_where_models_are_sure_and_more_where_they_are_not() -> None:
    gemm = Gemm(512, 512, 512)
    risks = [Maps(table_of(error)).cell(gemm).risk for error in (0.0, 0.01, 0.1, 0.3)]
    assert risks[0] == 0.0
    assert risks == sorted(risks)
    assert risks[-1] > 0.02


def test_the_risk_of_two_equal_launches_is_what_theory_says() -> None:
    """Of two kernels with errors of s each that is E[exp(max(d, 0))] - 1, d normal with deviation
    s * sqrt(2)."""
    s = 0.2
    d = s * math.sqrt(2) * np.random.default_rng(5).standard_normal(400_000)
    maps = Maps(table_of(s))
    (first, *_) = maps._chooser.ranked(Call.packed(Gemm(512, 512, 512)), 1)
    twin = replace(first, kernel_id=next(k.id for k in maps.table.kernels if k.id.startswith("tt")))
    assert maps._risk([first, twin]) == pytest.approx(float(np.exp(np.maximum(d, 0)).mean() - 1), rel=0.15)
    assert maps._risk([first]) == 0.0


def test_regret_is_what_the_picked_launch_took_over_the_best() -> None:
    table = table_of()
    maps = Maps(table)
    gemm = Gemm(640, 640, 640)
    cell = maps.cell(gemm)
    kernel = next(kernel for kernel in table.kernels if kernel.id == cell.kernel)
    key = replace(kernel.config, split_k=cell.split_k).key
    trials = [at_s(1, ok_in(100.0), key=key), at_s(2, ok_in(80.0))]

    def regret(**changes) -> float | None:
        (served,) = maps.served([study_of(trials, environment=ENVIRONMENT, gemm=gemm, **changes)])
        return served.regret

    assert regret(cublas_us=None) == pytest.approx(0.25)
    assert regret(cublas_us=50.0) == pytest.approx(1.0), "cuBLAS was faster, and is not picked"
    entries = (
        FinalEntry("a=2", {"a": 2}, 1, True, 80.0),
        FinalEntry(key, kernel.config.to_dict(), 2, True, 80.8),
    )
    assert regret(final=Final(entries, Baseline(None), STARTED), cublas_us=None) == pytest.approx(0.01)
    trials[0] = at_s(1, ok_in(100.0))
    assert regret(cublas_us=None) is None, "it was not timed"


def test_batches_are_told_beside_single_products() -> None:
    """One that was not tuned is cuBLAS's; a launch for each product has no time of its own."""
    trials = [at_s(1, ok_in(4.0))]
    batch = replace(TUNED, batch=4)
    (served,) = Maps(table_of()).served(
        [study_of(trials, gemm=batch, environment=ENVIRONMENT, cublas_us=5.0)]
    )
    assert (served.shape, served.cell.provider) == (str(batch), "cublas")
    assert served.regret == pytest.approx(0.25)


def test_shapes_of_other_gpus_are_not_held_against_the_table() -> None:
    other = replace(ENVIRONMENT, gpu_name="NVIDIA A100")
    trials = [at_s(1, ok_in(1.0))]
    assert Maps(table_of()).served([study_of(trials, environment=other)]) == []


def test_the_document_has_every_cell_of_every_layout(tmp_path: Path) -> None:
    folder = write_table(table_of(), tmp_path / "t")
    found = json.loads(json.dumps(table_document(folder, []), allow_nan=False))
    assert set(found["layouts"]) == {"NN", "NT", "TN", "TT"}
    cells = found["layouts"]["TN"]
    rows = cells["kernel"].get("rows")
    at = (DEPTHS.index(1024) * len(SIDES) + SIDES.index(256)) * len(SIDES) + SIDES.index(64)
    picked = Maps(table_of()).cell(Gemm(256, 64, 1024, True, False))
    number = cells["kernel"]["values"][rows[at]] if rows else cells["kernel"]["all"]
    assert found["kernels"][number]["id"] == picked.kernel
    assert len(cells["limit_us"]) == len(DEPTHS) * len(SIDES) ** 2
    assert found["folder"] == "t"


def test_of_several_kinds_the_one_that_was_measured_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.report.table_maps.SIDES", SIDES[8:10])  # the maps are drawn above
    folder = write_table(FIRST, tmp_path / "t")
    add(SECOND, folder)
    theirs = replace(ENVIRONMENT, gpu_name="NVIDIA H100")
    mine, other = (study_of([at_s(1, ok_in(1.0))], environment=one) for one in (ENVIRONMENT, theirs))
    for studies, gpu in (([], "NVIDIA H200"), ([mine], "NVIDIA H200"), ([mine, other, other], "NVIDIA H100")):
        found = table_document(folder, studies)
        assert {found["gpu"], *found["other_gpus"]} == {"NVIDIA H200", "NVIDIA H100"} and found["gpu"] == gpu
    assert table_document(folder / "kinds" / "nvidia_h100_sm_90", [])["gpu"] == "NVIDIA H100"


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DispatchError, match=r"no table\.json"):
        table_document(tmp_path, [])
