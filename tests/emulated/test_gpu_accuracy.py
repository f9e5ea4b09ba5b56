"""Errors against float64, and one kernel for seconds, on a driver simulated by the host."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from host_driver import view
from test_checks import checks  # noqa: F401  # a fixture
from test_gpu_session import host, open_session  # noqa: F401  # fixtures

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import spells
from accuracy import accuracy

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.gpu import verification
from autotune.gpu.problem import PreparedProblem
from autotune.gpu.protocol import Problem


def _prepared(opened, gemm, policy=CachePolicy.WARM):
    problem = Problem(gemm, policy)
    return PreparedProblem(opened.driver, opened.checks, problem, opened.limits, None, opened.stream)


def _exact(prepared, gemm):
    """Of all products, one below the other."""
    operands = prepared.operands.sets[0]
    a = view(operands.a, gemm.batch * gemm.m, gemm.k, gemm.k).reshape(gemm.batch, gemm.m, gemm.k)
    b = view(operands.b, gemm.batch * gemm.k, gemm.n, gemm.n).reshape(gemm.batch, gemm.k, gemm.n)
    return (a.astype(np.float64) @ b.astype(np.float64)).reshape(-1, gemm.n)


@pytest.mark.parametrize(
    "shape", ["70x130x33", "64x64x5", "1x1x1", "3x200x9", "129x5x7", "70x130x9b3", "3x5x2b20"]
)
def test_errors_are_those_that_numpy_finds(open_session, shape):  # noqa: F811
    gemm = Gemm.parse(shape)
    prepared = _prepared(open_session, gemm)
    exact = _exact(prepared, gemm)
    c = view(prepared.operands.sets[0].c, *exact.shape, gemm.n)
    c[:] = exact
    c[-1, -1] += 0.25
    address = prepared.operands.sets[0].c
    found = accuracy(open_session.driver, open_session.stream, gemm, prepared.verifier, address)
    assert found.max_error == pytest.approx(np.abs(c - exact).max(), rel=1e-6)
    assert found.relative_error == pytest.approx(np.linalg.norm(c - exact) / np.linalg.norm(exact), rel=1e-6)
    assert found.share == 1.0


def test_only_tiles_with_a_reference_count(open_session, monkeypatch):  # noqa: F811
    gemm = Gemm(130, 130, 9)
    monkeypatch.setattr(verification, "choose_tiles", lambda *rest: [0, 2, 7])
    prepared = _prepared(open_session, gemm)
    exact = _exact(prepared, gemm)
    address = prepared.operands.sets[0].c
    c = view(address, 130, 130, 130)
    c[:] = exact
    c[70, 70] = 1e6  # tile 4
    ask = (open_session.driver, open_session.stream, gemm, prepared.verifier, address)
    assert accuracy(*ask).max_error < 1e-4
    c[129, 100] += 2.0  # tile 7
    assert accuracy(*ask).max_error == pytest.approx(2.0, rel=1e-4)
    assert accuracy(*ask).share == (64 * 64 + 64 * 2 + 2 * 64) / 130**2


def test_a_product_of_nothing_is_exact(open_session):  # noqa: F811
    gemm = Gemm(10, 10, 0)
    prepared = _prepared(open_session, gemm)
    address = prepared.operands.sets[0].c
    view(address, 10, 10, 10)[:] = 0
    found = accuracy(open_session.driver, open_session.stream, gemm, prepared.verifier, address)
    assert (found.max_error, found.relative_error) == (0.0, 0.0)


def test_one_kernel_runs_for_as_long_as_requested(host, open_session):  # noqa: F811
    launches, used = [], host.num_handles
    sets = _prepared(open_session, Gemm(70, 60, 33), CachePolicy.COLD).operands.sets
    host.kernel_us = 2000.0

    def enqueue(operands):
        host.enqueue(lambda: launches.append(operands.c))

    found = spells.sustain(open_session, enqueue, sets, 2000.0, 1.2)
    assert [spell.time_us for spell in found] == [2000.0] * len(found)
    assert sum(spell.num_launches for spell in found) == len(launches)
    assert 1.2 <= sum(s.time_us * s.num_launches for s in found) / 1e6 < 1.9
    assert len(set(launches)) == len(sets) == 3
    assert host.num_handles == used
