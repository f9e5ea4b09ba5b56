"""Checking an exported folder finds kernels that are wrong, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import FakeDriver, make_kernel, make_spec, make_table, rank, write_table

from autotune.export.check import error_ratio, ragged_shape, verify_table
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.launch import rejection
from autotune.runtime.table.table import Table

TUNED = Gemm(128, 64, 96)


def _table() -> Table:
    return make_table(
        make_kernel("exact", make_spec(vec_a=4, vec_b=4, vec_c=4, is_exact=True)),
        make_kernel("two", make_spec("NT", reduction="two_pass", split_k=3)),
        make_kernel("last", make_spec("TN", vec_a=2, reduction="last_block", split_k=2)),
        make_kernel("cluster", make_spec("TT", reduction="cluster", split_k=4)),
        entries=(rank(TUNED, "exact"), rank(Gemm(2**20, 2**12, 4), "exact")),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_table(_table(), tmp_path / "t")


def test_right_kernels_pass(folder: Path) -> None:
    driver = FakeDriver(_table())
    report = [*verify_table(folder, driver=driver)]
    assert all(c.is_ok for c in report)
    assert {c.kernel_id for c in report} == {k.id for k in _table().kernels}
    assert all(c.error_ratio < 1 for c in report)
    assert not driver.context_stack


@pytest.mark.parametrize("error", [1e-3, np.nan, np.inf])
def test_wrong_kernels_fail(folder: Path, error: float) -> None:
    report = [*verify_table(folder, driver=FakeDriver(_table(), result_error=error))]
    assert report and all(not c.is_ok and c.reason and c.error_ratio > 1 for c in report)


def test_kernels_are_checked_beyond_a_limit_on_their_workspace(tmp_path: Path) -> None:
    free = _table()
    kernels = tuple(replace(k, spec=replace(k.spec, max_workspace=0)) for k in free.kernels)
    table = replace(free, kernels=kernels, max_workspace=0)
    found = [*verify_table(write_table(table, tmp_path / "limited"), driver=FakeDriver(free))]
    assert all(c.is_ok for c in found) and len({c.kernel_id for c in found}) == len(kernels)


def test_a_table_for_another_gpu_is_refused(folder: Path) -> None:
    driver = FakeDriver(_table())
    with pytest.raises(DispatchError, match="NVIDIA T4"):
        next(verify_table(folder, driver=driver, device=2))
    assert not driver.launches


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_one_wrong_element_at_an_edge_is_seen(data: st.DataObject) -> None:
    gemm = Gemm(700, 900, 8)
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((700, 8), np.float32), rng.standard_normal((8, 900), np.float32)
    c: Any = np.zeros((700, 900), np.float32)
    result = a @ b
    assert error_ratio(gemm, (a, b, c), result, (1.0, 0.0), rng) < 1
    row = data.draw(st.sampled_from((0, 1, 698, 699)))
    column = data.draw(st.sampled_from((0, 63, 899)))
    result[row, column] += 0.01
    assert error_ratio(gemm, (a, b, c), result, (1.0, 0.0), rng) > 1


VECTORS = st.sampled_from((1, 2, 4))


@given(st.sampled_from(LAYOUTS), VECTORS, VECTORS, VECTORS, st.booleans(), st.sampled_from((1, 7)))
def test_the_ragged_shape_is_legal_and_ragged(
    layout: str, vec_a: int, vec_b: int, vec_c: int, is_exact: bool, split_k: int
) -> None:
    reduction = "two_pass" if split_k > 1 else "none"
    spec = make_spec(
        layout, vec_a=vec_a, vec_b=vec_b, vec_c=vec_c, is_exact=is_exact, split_k=split_k, reduction=reduction
    )
    gemm = ragged_shape(make_kernel("k", spec))
    assert gemm.layout == layout
    assert rejection(spec, gemm.m, gemm.n, gemm.k, (gemm.lda, gemm.ldb, gemm.ldc)) is None
    assert gemm.k % spec.bk and gemm.k >= spec.bk * split_k
    assert is_exact or (gemm.m % spec.bm and gemm.n % spec.bn)
