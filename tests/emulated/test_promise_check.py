"""What a class of accuracy promises is verified on operands of every kind, on a driver simulated by the
host."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from host_driver import view
from test_checks import checks  # noqa: F401  # the fixture
from test_gpu_session import LIMITS, SPEC, _stored, installed, right

from autotune.facts import accuracy_class as accuracy
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.gpu import protocol, session, worker
from autotune.gpu.memory import Operands
from autotune.gpu.module import Module
from autotune.gpu.protocol import KernelCode, Problem

GEMM = Gemm(70, 60, 66)


class Sgemm:
    """Plays cuBLAS: a chain of additions in FP32, as cublasSgemm adds."""

    def __init__(self, host):
        self.host = host

    def sgemm(self, gemm, operands):
        self.host.enqueue(partial(self._play, gemm, operands))

    def _play(self, gemm, operands):
        a = _stored(operands.a, gemm.m, gemm.k, gemm.lda, gemm.trans_a)
        b = _stored(operands.b, gemm.k, gemm.n, gemm.ldb, gemm.trans_b)
        sums = np.zeros((gemm.m, gemm.n), np.float32)
        for p in range(gemm.k):
            sums += a[:, p, None] * b[None, p]
        view(operands.c, gemm.m, gemm.n, gemm.ldc)[:] = sums


def rounded(host, name, grid, values, change):
    """Plays a kernel: float64's product of operands that were changed, rounded."""
    m, n, k, _, a, lda, b, ldb = values[:8]
    product = change(_stored(a, m, k, lda, False)) @ change(_stored(b, k, n, ldb, False))
    view(values[9], m, n, values[10])[:] = product


def _bits(x, kept):
    """In so many bits of significand, as float64."""
    scale = 2.0 ** (kept - 1 - np.floor(np.log2(np.abs(x.astype(np.float64)))))
    return np.round(x * scale) / scale


def _fixed(x):
    """Above 2^-20 alone: as accurate as need be where exponents are alike."""
    return np.round(x.astype(np.float64) * 2.0**30) / 2.0**30


KERNELS = {
    b"right": partial(right, gemm=GEMM),
    b"tf32": partial(rounded, change=lambda x: _bits(x, 11)),
    b"fixed": partial(rounded, change=_fixed),
    b"endless": partial(rounded, change=lambda x: np.where(np.abs(x) > 1e4, np.inf, x.astype(np.float64))),
}


@pytest.fixture
def host(checks, monkeypatch):  # noqa: F811
    return installed(checks, monkeypatch, KERNELS)


@pytest.fixture
def opened(host):
    found = session.Session(protocol.Start("GPU-0", LIMITS, b"checks"))
    found.cublas = Sgemm(host)
    return found


def _trial(opened, name, requested):
    code = KernelCode(name.encode(), name, SPEC)
    problem = Problem(GEMM, CachePolicy.WARM, accuracy=requested)
    return worker.respond(opened, protocol.RunTrial(problem, code, None))


def test_a_kernel_that_keeps_the_promise_is_timed(opened):
    assert _trial(opened, "right", accuracy.FP32).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tf32", "times the bound"),
        ("fixed", "not of accuracy fp32: on scaled operands its error is"),
        ("endless", "on wide operands: .* elements of C are NaN, Inf"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_kernel_that_breaks_it_is_refused_untimed_with_the_kind(opened, name, words):
    result = _trial(opened, name, accuracy.FP32)
    assert result.outcome in (Outcome.INACCURATE, Outcome.WRONG_RESULT)
    assert not result.samples_us
    assert re.search(words, result.reason), result.reason
    assert _trial(opened, "right", accuracy.FP32).outcome is Outcome.OK  # and the next one is fine


def test_a_strict_problem_asks_for_no_more_than_before(host, opened):
    assert _trial(opened, "fixed", accuracy.STRICT).outcome is Outcome.OK
    assert host.num_launches and "fill_operand" not in {name for name, _ in host.overlapping}


def test_without_cublas_nothing_can_be_promised(opened):
    opened.cublas = None
    with pytest.raises(EnvironmentProblem, match="verified against cuBLAS"):
        opened.prepare(Problem(GEMM, CachePolicy.WARM, accuracy=accuracy.FP32))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_are_of_their_kind_in_every_layout(host, layout):
    gemm = Gemm.parse(f"40x36x50:{layout}")
    module = Module(host, 0, b"checks")
    operands = Operands(host, module, gemm, 1, 3, 0)
    (found,) = operands.sets
    errors = {}
    for number, kind in enumerate(accuracy.KINDS):
        operands.fill(module.kernel("fill_operand"), gemm, number, 3)
        a = _stored(found.a, gemm.m, gemm.k, gemm.lda, gemm.trans_a).astype(np.float64)
        b = _stored(found.b, gemm.k, gemm.n, gemm.ldb, gemm.trans_b).astype(np.float64)
        size = np.abs(a) @ np.abs(b)
        errors[kind] = (a.copy(), b.copy(), np.abs(a @ b) / size)
    assert (errors["uniform"][2] == 1).all()
    assert errors["cancelling"][2].max() < 1e-3 < np.median(errors["normal"][2])
    for operand in errors["wide"][:2]:
        assert np.ptp(np.log2(np.abs(operand))) > 30  # octaves
    stored = errors["scaled"][0].T if gemm.trans_a else errors["scaled"][0]
    levels = np.log2(np.abs(stored)).mean(axis=1)
    assert np.ptp(levels) > 15
    assert np.ptp(np.log2(np.abs(stored)), axis=1).max() < 20


@pytest.mark.parametrize(("a_type", "largest"), [("bf16", 2.0**127), ("fp16", 65504.0)])
def test_an_a_of_two_bytes_is_rounded_in_both_forms(host, a_type, largest):
    """To the nearest, halves to even; FP16 to no infinity."""
    gemm = Gemm.parse(f"40x36x51:a-{a_type}")
    module = Module(host, 0, b"checks")
    operands = Operands(host, module, gemm, 2, 3, 0)
    exact = Operands(host, module, replace(gemm, a_type="fp32"), 1, 3, 0)
    for kind in range(-1, len(accuracy.KINDS)):
        if kind >= 0:
            for one in (operands, exact):
                one.fill(module.kernel("fill_operand"), gemm, kind, 3)
        (before,) = exact.sets
        drawn = _stored(before.a, gemm.m, gemm.k, gemm.lda, False)
        for one in operands.sets:
            floats = _stored(one.a, gemm.m, gemm.k, gemm.lda, False)
            bits = np.frombuffer(
                view(one.short_a, 1, gemm.m * gemm.k // 2, gemm.m * gemm.k // 2).tobytes(), "<u2"
            )
            short = (
                (bits.astype(np.uint32) << 16).view(np.float32) if a_type == "bf16" else bits.view(np.float16)
            )
            np.testing.assert_array_equal(floats.ravel(), short.astype(np.float32))
            if a_type == "fp16":
                clipped = np.clip(drawn, -largest, largest)
                np.testing.assert_array_equal(floats, clipped.astype(np.float16).astype(np.float32))
            else:
                apart = np.abs(floats.astype(np.float64) - drawn) / np.abs(drawn)
                assert apart.max() <= 2.0**-8
    assert operands.sets[0].of_a("fp32") != operands.sets[0].of_a(a_type)


def test_classes_hold_those_before_them():
    assert accuracy.serves("strict", "fp32")
    assert not accuracy.serves("fp32", "strict")
    assert accuracy.held_by("fp32") == ("strict", "fp32")
    assert accuracy.held_by("fp32-range") == accuracy.CLASSES
    assert not accuracy.serves(accuracy.read("fp32-range"), "fp32")
    with pytest.raises(UsageError, match="say 'strict', 'fp32' or 'fp32-range'"):
        accuracy.read("FP32")
    assert accuracy.excess((0.0, 1.0), (0.0, 2.0)) == 0.5
    assert accuracy.excess((1e-9, 1.0), (0.0, 2.0)) == float("inf")
