"""The cuBLAS that a product with a bias is compared to is the one that adds it, where that was timed."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cli_here import run_here
from table_cases import (
    ENVIRONMENT,
    FIGURES,
    LIMITS,
    FakeDriver,
    make_kernel,
    make_spec,
    make_table,
    rank,
    write_table,
)
from test_cublas_model import figures_of, results_of, shapes, took_us

from autotune import Dispatcher
from autotune.export import exporter, figures
from autotune.export.figures import known_of_cublas, times_as_it_adds
from autotune.facts.cublas_calls import TORCH_BYTES, adds_bias_within
from autotune.facts.gemm import Gemm
from autotune.kernel.launch import BIAS
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.launch.planner import key_of
from autotune.runtime.table.table import Table
from autotune.runtime.torch.routed_engine import ADDING_OTHERWISE, Decided, adds_as_timed

TUNED, OTHER = Gemm(640, 384, 512), Gemm(640, 384, 520)
LEAST_US = 100.0  # of cuBLAS alone; of the kernel it is 150
SLOWER = 3.0  # so many times as long where cuBLAS adds a bias


def times_as(cublas_us: float) -> Table:
    """A table whose kernels are slower than cuBLAS alone, and faster than as it adds a bias."""
    unit = Chooser(make_table(_kernel(), cublas={"NN": figures_of(1.0)})).pick(Call.packed(OTHER))
    assert unit.expected_us and unit.cublas_us
    factor = unit.expected_us / unit.cublas_us
    entry = replace(rank(TUNED, "ours"), cublas_us=9.0, adding_us=27.0)  # the kernel takes 10
    return make_table(
        _kernel(),
        entries=(entry,),
        cublas={"NN": figures_of(factor / SLOWER)},
        cublas_adding={"NN": figures_of(factor * cublas_us)},
    )


def call_of(gemm: Gemm, *, adds_bias: bool) -> Call:
    return Call.packed(gemm)._replace(adds_bias=adds_bias)


def _kernel() -> Any:
    return make_kernel("ours", make_spec(), replace(FIGURES, num_samples=9, relative_error=0.1))


def test_a_pick_is_compared_to_the_cublas_that_adds_the_bias() -> None:
    chooser = Chooser(times_as(SLOWER))
    for gemm in (TUNED, OTHER):
        alone, adding = (chooser.pick(call_of(gemm, adds_bias=adds_bias)) for adds_bias in (False, True))
        assert (alone.provider, adding.provider) == ("cublas", "autotune")
        assert alone.cublas_us and adding.cublas_us
        assert adding.cublas_us == pytest.approx(alone.cublas_us * (3 if gemm == TUNED else SLOWER**2))
        assert "adds the bias" not in alone.reason
    faster = Chooser(times_as(0.5)).pick(call_of(OTHER, adds_bias=True))
    assert "cuBLAS, which adds the bias, is expected" in faster.reason
    chooser = Chooser(replace(times_as(SLOWER), cublas_adding={}, entries=()))
    picks = [chooser.pick(call_of(OTHER, adds_bias=adds_bias)) for adds_bias in (False, True)]
    assert picks[0] == picks[1] and picks[0].reason == picks[1].reason


def test_batches_and_vectors_have_no_bias_added_within() -> None:
    those = (OTHER, Gemm(2, 2, 2))
    others = (
        Gemm(1, 9, 9),
        Gemm(9, 1, 9),
        Gemm(9, 9, 1),
        Gemm(9, 9, 9, batch=2),
        Gemm(9, 9, 9, a_type="bf16"),
    )
    assert [adds_bias_within(gemm) for gemm in (*those, *others)] == [True] * 2 + [False] * 5


def decided(folder: Path, table: Table, gemm: Gemm, *, has_bias: bool) -> Decided:
    driver = FakeDriver(table)
    engines, _ = Dispatcher(folder, driver=driver)._on_gpus()
    kinds = engines.routed_signatures(has_bias=has_bias)
    forms = ((gemm.m, gemm.k, gemm.k, 1), (gemm.k, gemm.n, gemm.n, 1), None)
    return kinds.decide(key_of((0, 0, 0), forms, (0, 0, 0), False, False, None))


def test_routing_serves_what_is_faster_than_torchs_own_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the time up to which any expected winner serves. Where torch is told to call cuBLAS otherwise,
    that is as fast as without a bias."""
    for name in ADDING_OTHERWISE:
        monkeypatch.delenv(name, raising=False)
    table = times_as(SLOWER)
    folder = write_table(table, tmp_path / "t")
    for gemm in (TUNED, OTHER):
        assert "as fast" in decided(folder, table, gemm, has_bias=False).reason
        served = decided(folder, table, gemm, has_bias=True)
        assert served.is_served and served.times_us[1] > 2 * served.times_us[0], served
        for name in ADDING_OTHERWISE:
            monkeypatch.setenv(name, "1")
            assert "as fast" in decided(folder, table, gemm, has_bias=True).reason
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("version", "told_bytes", "is_timed_so"),
    [
        ("2.10.0+cu129", None, True),
        ("2.11.1", None, True),
        ("2.12.0+cu130", None, False),  # may share cuBLAS's workspace, and does not tell
        ("2.13.0", 32 << 20, False),
        ("2.15.0a0+git1", TORCH_BYTES, True),
        ("3.0", None, False),
    ],
)
def test_torch_is_asked_for_the_workspace_with_which_it_adds_a_bias(
    version: str, told_bytes: int | None, is_timed_so: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ADDING_OTHERWISE:
        monkeypatch.delenv(name, raising=False)
    telling = {} if told_bytes is None else {"cublaslt_workspace_size": lambda: told_bytes}
    cuda = SimpleNamespace(**telling)
    torch = SimpleNamespace(__version__=version, backends=SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert adds_as_timed() == is_timed_so
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    assert not adds_as_timed()


def test_a_torch_that_cannot_tell_is_not_compared_by_those_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> int:
        raise RuntimeError("no CUDA GPUs are available")

    cuda = SimpleNamespace(cublaslt_workspace_size=no_gpu)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(backends=SimpleNamespace(cuda=cuda)))
    assert not adds_as_timed()


def test_an_export_learns_from_times_with_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "LEAST_TIMES", 20)
    times_us = {gemm: 2 * took_us(gemm) for gemm in (*shapes(30, 3, "NT"), *shapes(19, 3))}
    results = results_of(adding_us=times_us | {TUNED: 33.0})
    known = known_of_cublas(times_as_it_adds(results), LIMITS)
    assert known.keys() == {"NT", "NN"} and known["NT"].version == ENVIRONMENT.cublas_version
    assert known_of_cublas(times_as_it_adds(results_of(adding_us=times_us)), LIMITS).keys() == {"NT"}
    plain = known_of_cublas(times_as_it_adds(results_of(adding_us={g: took_us(g) for g in times_us})), LIMITS)
    assert known["NT"].level - plain["NT"].level == pytest.approx(math.log(2))
    (entry,) = exporter._entries(results, None)
    assert (entry.cublas_us, entry.adding_us) == (12.0, 33.0)


def test_coverage_counts_what_torch_calls_for_a_bias(tmp_path: Path) -> None:
    table = times_as(SLOWER)
    plain = table.kernels[0]
    variant = replace(plain.variant, epilogue=BIAS)
    spec = replace(plain.spec, variant=variant)
    own = replace(plain, id="ours-bias", model=None, variant=variant, spec=spec)
    folder = write_table(replace(table, kernels=(*table.kernels, own)), tmp_path / "t")
    shape = {"m": 640, "n": 384, "k": 512, "count": 5}
    calls = tmp_path / "calls.json"
    calls.write_text(json.dumps({"version": 2, "shape": [shape, shape | {"epilogue": "bias"}]}))
    facts = json.loads(run_here("coverage", calls, folder, "--json").stdout)
    assert facts["ways"]["cublas"]["num_calls"] == facts["ways"]["tuned"]["num_calls"] == 5
    assert np.isclose(facts["cublas_seconds"], 5 * (9.0 + 27.0) * 1e-6)
    assert np.isclose(facts["seconds"], 5 * (9.0 + 10.0) * 1e-6)
