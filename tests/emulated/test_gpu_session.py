"""The worker's session on a driver simulated by the host: real arguments, real checks, planted faults."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from host_driver import HostDriver, play_pack, view
from test_checks import checks  # noqa: F401  # the fixture

from autotune.facts import accuracy_class
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Discarded, GpuState, Outcome
from autotune.files.errors import EnvironmentProblem
from autotune.gpu import candidate, cublas, driver, protocol, session, timer, timing, verification, worker
from autotune.gpu.driver import GpuInfo
from autotune.gpu.memory import num_sets
from autotune.gpu.protocol import KernelCode, Problem
from autotune.kernel.launch import LaunchSpec, Variant, plan, schedule

GEMM = Gemm(70, 60, 33)
SPEC = LaunchSpec(32, 32, 8, 128, 0, 1, 1, 1, False, "none", 1, Variant())
LIMITS = replace(KNOWN["h200"], l2_bytes=40_000)  # 3 operand sets of GEMM when cold


def _stored(address, rows, columns, lead, is_transposed):
    if is_transposed:
        return view(address, columns, rows, lead).T
    return view(address, rows, columns, lead)


def right(host, name, grid, values, gemm=GEMM, spec=SPEC):
    """Plays `sgemm`, `sgemm_pack` and `sgemm_reduce`, reading every argument where launch.Grid says it is."""
    if name == "sgemm_pack":
        play_pack(grid, values)
        return
    if name == "sgemm_reduce":
        m, n, alpha, beta, c, ldc, workspace, splits, padded_m, padded_n, group_bits, blocks, stride, _ = (
            values
        )
        assert (blocks, grid) == (-(-m * n // 2**group_bits), (blocks * gemm.batch, 1))
        for product in range(gemm.batch):
            at = workspace + 4 * product * splits * padded_m * padded_n
            planes = view(at, splits * padded_m, padded_n, padded_n).reshape(splits, padded_m, padded_n)
            sums = np.sum(planes, axis=0, dtype=np.float32)
            view(c + 4 * product * stride, m, n, ldc)[:] = alpha * sums[:m, :n]
        return
    m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, workspace, splits, walk, strides, none = values
    assert (m, n, k, alpha, beta) == (gemm.m, gemm.n, gemm.k, 1.0, 0.0)
    assert not any(getattr(none, name) for name, _ in none._fields_)
    assert tuple(walk) == schedule(spec, plan(spec, m, n, k, gemm.strides))
    assert grid == (-(-m // spec.bm) * -(-n // spec.bn) * gemm.batch, splits)
    padded_m, padded_n = -(-m // spec.bm) * spec.bm, -(-n // spec.bn) * spec.bn
    for product in range(gemm.batch):
        pairs = ((a, strides.stride_a), (b, strides.stride_b), (c, strides.stride_c))
        at_a, at_b, at_c = (x + 4 * product * stride for x, stride in pairs)
        op_a = _stored(at_a, m, k, lda, gemm.trans_a or spec.packs_a).astype(np.float64)
        op_b = _stored(at_b, k, n, ldb, gemm.trans_b and not spec.packs_b).astype(np.float64)
        if splits == 1:
            view(at_c, m, n, ldc)[:] = op_a @ op_b
            continue
        for s, part in enumerate(np.array_split(np.arange(k), splits)):
            at = workspace + 4 * (product * splits + s) * padded_m * padded_n
            view(at, padded_m, padded_n, padded_n)[:m, :n] = op_a[:, part] @ op_b[part]


def c_of(values):
    return view(values[9], values[0], values[1], values[10])


def wrong_element(host, name, grid, values):
    right(host, name, grid, values)
    c_of(values)[5, 7] += 0.01


def inaccurate(host, name, grid, values):
    """Right, but about twenty times as far off as float32 has to be."""
    right(host, name, grid, values, Gemm(*values[:3]))
    c_of(values)[:] += 3e-6


def lost_term(host, name, grid, values):
    right(host, name, grid, values)
    a, b = view(values[4], 70, 33, 33), view(values[6], 33, 60, 60)
    c_of(values)[:] -= np.outer(a[:, 32], b[32])


def left_out(host, name, grid, values):
    right(host, name, grid, values)
    c_of(values)[69, 59] = np.frombuffer(b"\xff\xff\xff\x7f", np.float32)[0]


def overrun(host, name, grid, values):
    right(host, name, grid, values)
    ctypes.c_float.from_address(values[9] + 4 * 70 * 60).value = 0.0


def underrun(host, name, grid, values):
    right(host, name, grid, values)
    ctypes.c_float.from_address(values[9] - 4).value = 1.0


def fault(host, name, grid, values):
    host.pending = 700


def rejected(host, name, grid, values):
    host.pending = 1


def wrong_later(host, name, grid, values):
    right(host, name, grid, values)
    host.later = getattr(host, "later", 0) + 1
    if host.later > 5:
        c_of(values)[0, 0] = 100.0


KERNELS = {f.__name__.encode(): f for f in (
    right, inaccurate, wrong_element, lost_term, left_out, overrun, underrun, fault, rejected, wrong_later
)}  # fmt: skip


class HostCublas:
    """Plays cuBLAS: C = op(A) op(B) in float64, rounded."""

    def __init__(self, host):
        self.host, self.error = host, 0.0

    def sgemm(self, gemm, operands):
        self.host.enqueue(partial(self._play, gemm, operands))

    def _play(self, gemm, operands):
        products, *strides = gemm.strides
        for product in range(products):
            shifts = (4 * product * stride for stride in strides)
            a, b, c = (
                x + shift for x, shift in zip((operands.a, operands.b, operands.c), shifts, strict=True)
            )
            op_a = _stored(a, gemm.m, gemm.k, gemm.lda, gemm.trans_a).astype(np.float64)
            op_b = _stored(b, gemm.k, gemm.n, gemm.ldb, gemm.trans_b).astype(np.float64)
            view(c, gemm.m, gemm.n, gemm.ldc)[:] = op_a @ op_b + self.error


def installed(checks, monkeypatch, kernels):  # noqa: F811
    """A driver of these kernels, for sessions that open one; without cuBLAS."""
    host = HostDriver(checks, dict(kernels))
    gpu = GpuInfo(0, "NVIDIA H200", "GPU-0", (9, 0), host.num_bytes)
    monkeypatch.setattr(driver, "find_gpu", lambda selector: gpu)
    monkeypatch.setattr(driver, "open_driver", lambda: host)
    monkeypatch.setattr(cublas, "load_library", lambda: None)
    return host


@pytest.fixture
def host(checks, monkeypatch):  # noqa: F811
    return installed(checks, monkeypatch, KERNELS)


@pytest.fixture
def open_session(host):
    return session.Session(protocol.Start("GPU-0", LIMITS, b"checks"))


COLD = Problem(GEMM, CachePolicy.COLD)


def _trial(opened, name, spec=SPEC, problem=COLD, cutoff_us=None):
    code = KernelCode(name.encode(), name, spec)
    return worker.respond(opened, protocol.RunTrial(problem, code, cutoff_us))


def test_a_right_kernel_is_verified_and_timed(host, open_session):
    result = _trial(open_session, "right")
    assert result.outcome is Outcome.OK, result.reason
    assert set(result.samples_us) == {100.0}
    assert 0 < result.error_ratio < 1
    assert not result.is_cut_short


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong_element", r"C\[5, 7\] is off"),
        ("lost_term", "times the bound"),
        ("left_out", "1 elements of C are NaN"),
        ("overrun", "1 words written outside the operands, behind C of set 0"),
        ("underrun", "1 words written outside the operands, behind B of set 0"),
        ("wrong_later", r"after repeated launches C\[0, 0\] is off"),
    ],
)
def test_a_wrong_kernel_is_caught_and_the_next_one_is_fine(host, open_session, name, words):
    result = _trial(open_session, name)
    assert result.outcome is Outcome.WRONG_RESULT
    assert re.search(words, result.reason), result.reason
    assert not result.is_last
    assert _trial(open_session, "right").outcome is Outcome.OK


def test_a_fault_is_reported_as_the_last_answer(host, open_session):
    result = _trial(open_session, "fault")
    assert (result.outcome, result.is_last) == (Outcome.FAULTED, True)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in result.reason


def test_an_error_that_spares_the_context_spares_the_worker(host, open_session):
    assert not _trial(open_session, "refused").is_last
    host.pending = 0
    assert _trial(open_session, "unloadable").outcome is Outcome.FAULTED
    assert (
        _trial(open_session, "right", replace(SPEC, smem_bytes=0, threads=1056)).outcome
        is Outcome.DOES_NOT_FIT
    )
    assert _trial(open_session, "right").outcome is Outcome.OK


def test_more_than_48_kb_of_shared_memory_is_requested_for(host, open_session):
    assert _trial(open_session, "right", replace(SPEC, smem_bytes=100_000)).outcome is Outcome.OK
    assert host.smem_allowed == 100_000


@pytest.mark.parametrize("shape", ["70x60x33:NT", "70x60x33:TN", "70x60x33:TT", "1x1x1", "129x5x0"])
def test_every_layout_reaches_the_kernels_as_it_is(host, open_session, shape):
    gemm = Gemm.parse(shape)
    host.sgemms[b"this"] = lambda *rest: right(*rest, gemm=gemm)
    result = _trial(open_session, "this", problem=Problem(gemm, CachePolicy.WARM))
    assert result.outcome is Outcome.OK, result.reason


def test_split_k_gets_planes_poisoned_and_a_second_pass(host, open_session):
    spec = replace(SPEC, reduction="two_pass", split_k=3)
    assert _trial(open_session, "right", spec).outcome is Outcome.OK

    def one_plane_short(driver, name, grid, values):
        if name == "sgemm":
            values = [*values[:12], 2, *values[13:]]
            grid = (grid[0], 2)
        right(driver, name, grid, values)

    host.sgemms[b"short"] = one_plane_short
    result = _trial(open_session, "short", spec)
    assert result.outcome is Outcome.WRONG_RESULT
    assert "NaN" in result.reason


PACKED = replace(SPEC, packs_a=True, packs_b=True)


@pytest.mark.parametrize("shape", ["70x60x33:NN", "70x60x33:NT", "70x60x33:TN", "70x60x33:TT", "129x5x0"])
@pytest.mark.parametrize("changes", [{}, {"reduction": "two_pass", "split_k": 3}], ids=["whole", "split"])
def test_packed_operands_lie_in_the_workspace(host, open_session, shape, changes):
    gemm, names = Gemm.parse(shape), []
    spec = replace(PACKED, variant=Variant(gemm.trans_a, gemm.trans_b), **changes)
    shown = spec if gemm.k else SPEC  # nothing is packed where there is nothing

    def spy(driver, name, grid, values):
        names.append(name)
        right(driver, name, grid, values, gemm, shown)

    host.sgemms[b"spy"] = spy
    result = _trial(open_session, "spy", spec, Problem(gemm, CachePolicy.COLD))
    assert result.outcome is Outcome.OK, result.reason
    passes = ["sgemm_pack"] * (2 if gemm.k else 0) + ["sgemm"] + ["sgemm_reduce"] * bool(changes)
    assert names == passes * (len(names) // len(passes))


BATCHES = ["70x60x33b3:NN", "70x60x33b3:TT", "70x60x33b2:NT:shared-a", "5x7x33b40:TN:shared-b", "129x5x0b2"]
WAYS = {
    "whole": {},
    "split": {"reduction": "two_pass", "split_k": 3},
    "packed": {"packs_a": True, "packs_b": True},
    "all": {"reduction": "two_pass", "split_k": 3, "packs_a": True, "packs_b": True},
    "raster": {"group": 4, "is_along_m": True},
}


def of_batch(gemm, **changes):
    return replace(SPEC, variant=Variant(gemm.trans_a, gemm.trans_b, is_batched=True), **changes)


@pytest.mark.every(3)
@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("way", WAYS)
def test_all_products_of_a_batch_are_computed_and_checked(host, open_session, shape, way):
    """Packed or not, in one pass or two; what they share is packed once. cuBLAS computes the same."""
    gemm = Gemm.parse(shape)
    spec = of_batch(gemm, **WAYS[way])
    shown = spec if gemm.k else replace(spec, packs_a=False, packs_b=False)
    host.sgemms[b"this"] = lambda *rest: right(*rest, gemm=gemm, spec=shown)
    open_session.cublas = HostCublas(host)
    problem = Problem(gemm, CachePolicy.COLD)
    prepared = open_session.prepare(problem)
    assert (prepared.reference_share, set(prepared.baseline_us)) == (1.0, {100.0})
    result = _trial(open_session, "this", spec, problem)
    assert result.outcome is Outcome.OK, result.reason
    assert result.error_over_cublas is None or result.error_over_cublas < 3  # sums of rounded sums


@pytest.mark.parametrize("product", [0, 1, 2])
def test_a_wrong_element_is_found_in_its_product(host, open_session, product):
    gemm = Gemm.parse("70x60x33b3")

    def off(driver, name, grid, values):
        right(driver, name, grid, values, gemm)
        view(values[9] + 4 * product * values[14].stride_c, 70, 60, 60)[68, 3] += 0.01

    host.sgemms[b"off"] = off
    result = _trial(open_session, "off", of_batch(gemm), Problem(gemm, CachePolicy.WARM))
    assert result.outcome is Outcome.WRONG_RESULT
    assert f"C[{product}, 68, 3] is off" in result.reason


def test_a_product_left_out_and_operands_of_the_first_are_wrong(host, open_session):
    gemm = Gemm.parse("70x60x33b3:shared-b")

    def first_alone(driver, name, grid, values):
        right(driver, name, (grid[0] // 3, 1), values, replace(gemm, batch=1, shares_b=False))

    def same_a(driver, name, grid, values):
        values[14].stride_a = 0
        right(driver, name, grid, values, gemm)

    host.sgemms |= {b"first_alone": first_alone, b"same_a": same_a}
    problem = Problem(gemm, CachePolicy.WARM)
    result = _trial(open_session, "first_alone", of_batch(gemm), problem)
    assert "8400 elements of C are NaN" in result.reason
    assert re.search(r"C\[[12], .*is off", _trial(open_session, "same_a", of_batch(gemm), problem).reason)


@pytest.mark.parametrize("overlaps", [False, True])
def test_kernels_that_wait_for_those_before_are_launched_early(host, open_session, overlaps):
    """All of a call's, also where they are captured; the kernels that check results never."""
    spec = replace(PACKED, reduction="two_pass", split_k=3, overlaps=overlaps)
    host.sgemms[b"this"] = lambda *rest: right(*rest, spec=spec)
    assert _trial(open_session, "this", spec).outcome is Outcome.OK
    ours = [early for name, early in host.overlapping if name.startswith("sgemm")]
    assert len(ours) % 4 == 0 and set(ours) == {overlaps}
    others = {early for name, early in host.overlapping if not name.startswith("sgemm")}
    assert others == {False}


@pytest.mark.parametrize("lost", [0, 1], ids=["A", "B"])
def test_an_operand_that_was_not_packed_is_nan(host, open_session, lost):
    seen = []

    def forgets(driver, name, grid, values):
        seen.append(name)
        if name != "sgemm_pack" or seen.count(name) % 2 == lost:
            right(driver, name, grid, values, GEMM, PACKED)

    host.sgemms[b"forgets"] = forgets
    result = _trial(open_session, "forgets", PACKED)
    assert result.outcome is Outcome.WRONG_RESULT
    assert "NaN" in result.reason


def test_a_write_around_the_workspace_is_caught(host, open_session):
    def overhead(driver, name, grid, values):
        right(driver, name, grid, values)
        if name == "sgemm":
            ctypes.c_float.from_address(values[11] + 4 * 2 * 96 * 64).value = 0.0

    host.sgemms[b"beyond"] = overhead
    result = _trial(open_session, "beyond", replace(SPEC, reduction="two_pass", split_k=2))
    assert "around the workspace" in result.reason


def test_no_memory_for_the_workspace_costs_the_candidate(host, open_session):
    spec = replace(SPEC, reduction="two_pass", split_k=10_000)
    result = _trial(open_session, "right", spec)
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert "GiB" in result.reason
    assert _trial(open_session, "right").outcome is Outcome.OK


def test_no_memory_for_the_problem_is_the_environments_problem(host, open_session):
    answer = worker.respond(open_session, protocol.Prepare(Problem(Gemm(9000, 9000, 9), CachePolicy.WARM)))
    assert isinstance(answer, protocol.Failed)
    assert answer.kind == "environment"
    assert "operand sets of 9000x9000x9" in answer.message
    assert _trial(open_session, "right").outcome is Outcome.OK


def test_nothing_leaks_over_many_problems_and_candidates(host, open_session, monkeypatch):
    monkeypatch.setattr(candidate, "MAX_MODULES", 2)
    used, handles = host.used_bytes, host.num_handles
    for n in (60, 61, 62):
        gemm = Gemm(70, n, 33)
        host.sgemms[b"this %d" % n] = lambda *rest, gemm=gemm: right(*rest, gemm=gemm)
        result = _trial(open_session, f"this {n}", problem=Problem(gemm, CachePolicy.COLD))
        assert result.outcome is Outcome.OK, result.reason
    assert _trial(open_session, "wrong_element").outcome is Outcome.WRONG_RESULT  # lets go of all problems
    open_session.loader.trim()  # as between requests
    assert host.used_bytes == used
    assert host.num_handles == handles + 2


def test_a_too_slow_candidate_is_cut_short(host, open_session):
    host.kernel_us = 500.0
    launches = host.num_launches
    result = _trial(open_session, "right", cutoff_us=100.0)
    assert result.is_cut_short
    assert min(result.samples_us) == 500.0
    assert host.num_launches < launches + 30


def test_cold_batches_use_every_set_and_warm_ones_only_one(host, open_session):
    for policy, expected in ((CachePolicy.COLD, 3), (CachePolicy.WARM, 1)):
        seen = set()
        host.sgemms[b"spy"] = lambda *rest, seen=seen: (seen.add(rest[3][9]), right(*rest))
        assert _trial(open_session, "spy", problem=Problem(GEMM, policy)).outcome is Outcome.OK
        assert len(seen) == expected


def test_it_tells_which_problems_it_holds(host, open_session, monkeypatch):
    problems = [replace(COLD, seed=seed) for seed in (1, 2, 3)]
    monkeypatch.setattr(open_session, "_memory_bytes", 2 * open_session._build(problems[0]).num_bytes)
    assert [open_session.prepare(problem).held for problem in problems] == [
        (problems[0],), (problems[0], problems[1]), (problems[1], problems[2]),
    ]  # fmt: skip
    assert open_session.prepare(problems[1]).held == (problems[2], problems[1]), "that used last goes last"
    request = protocol.RunTrial(problems[2], KernelCode(b"wrong_element", "sha", SPEC), None)
    assert open_session.trial(request).outcome is Outcome.WRONG_RESULT
    assert open_session.prepare(problems[2]).held == (problems[2],)


def test_cublas_is_timed_checked_and_kept_for_comparison(host, open_session):
    open_session.cublas = HostCublas(host)
    prepared = open_session.prepare(COLD)
    assert set(prepared.baseline_us) == {100.0}
    assert (prepared.num_sets, prepared.reference_share) == (3, 1.0)
    launches = host.num_launches
    assert replace(open_session.prepare(COLD), seconds=prepared.seconds) == prepared
    assert host.num_launches == launches  # not computed again
    assert _trial(open_session, "right").outcome is Outcome.OK
    assert _trial(open_session, "wrong_element").outcome is Outcome.WRONG_RESULT


def test_what_float64_does_not_see_cublas_does(host, open_session, monkeypatch):
    """With a reference of few tiles, an element of another tile is held against cuBLAS alone."""
    monkeypatch.setattr(verification, "choose_tiles", lambda gemm, budget, seed: [0])
    host.sgemms[b"tail"] = lambda *rest: (right(*rest), c_of(rest[3]).__setitem__((69, 59), 9.0))
    open_session.cublas = HostCublas(host)
    result = _trial(open_session, "tail")
    assert result.outcome is Outcome.WRONG_RESULT
    assert "differs from cuBLAS" in result.reason


def test_a_reference_that_cublas_contradicts_is_not_used(host, open_session):
    open_session.cublas = HostCublas(host)
    open_session.cublas.error = 0.1
    used = host.used_bytes
    with pytest.raises(EnvironmentProblem, match="disagree on 70x60x33:NN"):
        open_session.prepare(COLD)
    assert host.used_bytes == used


def test_a_race_times_each_in_every_round_and_leaves_out_the_wrong(host, open_session):
    spec = replace(SPEC, reduction="two_pass", split_k=3)
    kernels = [("right", SPEC), ("wrong_element", SPEC), ("right", spec)]
    codes = tuple(KernelCode(name.encode(), name, s) for name, s in kernels)
    used = host.used_bytes
    open_session.prepare(COLD)
    prepared = host.used_bytes
    result = worker.respond(open_session, protocol.RunRace(COLD, codes, 4))
    assert result.samples_us == ((100.0,) * 4, (), (200.0,) * 4)
    assert host.used_bytes == prepared > used


# ---- less accurate than cuBLAS


STRICT = replace(COLD, max_error=1.5)


@pytest.fixture
def beside_cublas(host, open_session):
    open_session.cublas = HostCublas(host)
    open_session.prepare(STRICT)
    return open_session


def test_less_accurate_than_cublas_is_a_failure_that_nobody_times(host, beside_cublas):
    launches = host.num_launches
    result = _trial(beside_cublas, "inaccurate", problem=STRICT)
    assert (result.outcome, result.samples_us, result.is_last) == (Outcome.INACCURATE, (), False)
    words = r"right, but its error is [0-9.]+ times cuBLAS's; the limit is 1.5 times"
    assert re.fullmatch(words, result.reason)
    assert 5 < result.error_over_cublas < 100
    assert 0 < result.error_ratio < 1
    spent = host.num_launches - launches
    assert _trial(beside_cublas, "right", problem=STRICT).outcome is Outcome.OK
    assert host.num_launches - launches > 3 * spent


def test_the_error_is_told_whether_it_counts_or_not(beside_cublas):
    assert _trial(beside_cublas, "right", problem=STRICT).error_over_cublas == pytest.approx(1.0)
    result = _trial(beside_cublas, "inaccurate")
    assert (result.outcome, result.error_over_cublas > 5) == (Outcome.OK, True)


def test_the_limit_is_a_multiple_of_cublas_own_error(host, open_session):
    open_session.cublas = HostCublas(host)
    open_session.cublas.error = 3e-6
    result = _trial(open_session, "inaccurate", problem=STRICT)
    assert (result.outcome, result.error_over_cublas) == (Outcome.OK, pytest.approx(1.0, rel=0.05))
    assert _trial(open_session, "right", problem=STRICT).error_over_cublas < 0.2


def test_without_cublas_there_is_nothing_to_be_held_against(open_session):
    result = _trial(open_session, "inaccurate", problem=STRICT)
    assert (result.outcome, result.error_over_cublas) == (Outcome.OK, None)


def test_a_few_elements_do_not_tell_accuracy_from_luck(beside_cublas):
    few = replace(STRICT, gemm=Gemm(7, 9, 33))
    result = _trial(beside_cublas, "inaccurate", problem=few)
    assert (result.outcome, result.error_over_cublas) == (Outcome.OK, None)


# ---- disturbed, and too good to be true


@pytest.fixture
def sensor(open_session):
    """What the GPU is in, look by look; the last for ever."""
    states = [GpuState()]
    open_session.timer._watch = lambda: states.pop(0) if len(states) > 1 else states[0]
    open_session.guard._sleep = lambda seconds: None
    return states


def test_samples_of_a_hot_gpu_are_kept_and_taken_again(host, open_session, sensor):
    sensor[:] = [GpuState(throttle_reasons=("hw_thermal_slowdown",)), GpuState(1980)]
    result = _trial(open_session, "right")
    assert (result.outcome, result.marks) == (Outcome.OK, ())
    (left_out,) = result.discarded
    assert left_out.marks == ("hw_thermal_slowdown",)
    assert set(left_out.samples_us) == {100.0}


def test_a_capped_gpu_is_told_and_not_waited_for(host, open_session, sensor):
    sensor[:] = [GpuState(throttle_reasons=("sw_power_cap",))]
    result = _trial(open_session, "right")
    assert (result.marks, result.discarded) == (("sw_power_cap",), ())
    assert result.state.throttle_reasons == ("sw_power_cap",)


@pytest.mark.parametrize("is_race", [False, True])
def test_a_busy_process_is_a_neighbour_unless_it_takes_turns(host, open_session, sensor, is_race):
    open_session.monitor._busy_processes = lambda: frozenset({5})
    open_session.monitor.own_pid = 7
    code = KernelCode(b"right", "right", SPEC)
    for peers, marks in ((frozenset({5}), ()), (frozenset({6}), ("neighbour",))):
        open_session.guard._neighbours_due_s = 0.0
        request = protocol.RunTrial(COLD, code, None, peers)
        if is_race:
            request = protocol.RunRace(COLD, (code,), 3, peers=peers)
        assert worker.respond(open_session, request).marks == marks


def test_throttling_seen_at_any_look_is_told(host, open_session, sensor):
    sensor[:] = [GpuState(throttle_reasons=("sw_power_cap",)), GpuState(1980)]
    result = _trial(open_session, "right")
    assert result.state == GpuState(1980, throttle_reasons=("sw_power_cap",))


def test_a_gpu_that_has_slowed_down_is_noticed_by_cublas(host, open_session, sensor):
    open_session.cublas = HostCublas(host)
    open_session.prepare(COLD)
    host.kernel_us = 110.0
    result = _trial(open_session, "right")
    assert result.marks == ("drift",)
    assert [left_out.marks for left_out in result.discarded] == [("drift",)] * 2


def test_disturbed_rounds_are_run_again_for_everyone(host, open_session, sensor):
    sensor[:] = [GpuState(throttle_reasons=("hw_slowdown",)), GpuState()]
    codes = tuple(KernelCode(name.encode(), name, SPEC) for name in ("right", "wrong_element", "right"))
    result = worker.respond(open_session, protocol.RunRace(COLD, codes, 4))
    assert result.marks == ()
    kept = Discarded((100.0,) * 4, ("hw_slowdown",))
    assert result.discarded == ((kept,), (), (kept,))


def test_faster_than_the_hardware_allows_is_no_time(host, open_session, monkeypatch):
    monkeypatch.setattr(timing, "BATCH_US", 50.0)  # else of 3,000 launches
    host.kernel_us = 0.001
    result = _trial(open_session, "right")
    assert result.outcome is Outcome.TOO_FAST
    assert "this GPU needs 0.01 at least" in result.reason
    assert result.samples_us


@pytest.mark.stress
def test_how_fast_is_too_fast_follows_from_the_units_of_the_kernel(host, open_session):
    code, warm = KernelCode(b"right", "right", SPEC), replace(COLD, policy=CachePolicy.WARM)
    host.kernel_us = 0.45 * GEMM.limit_us(LIMITS.fma_tflops, math.inf)
    expected = ((accuracy_class.STRICT, Outcome.TOO_FAST), (accuracy_class.FP32, Outcome.OK))
    for accuracy, outcome in expected:
        request = protocol.RunTrial(warm, replace(code, accuracy=accuracy), None)
        assert worker.respond(open_session, request).outcome is outcome


def test_a_leap_is_looked_at_twice_and_believed(host, open_session):
    used = host.used_bytes
    assert _trial(open_session, "right").outcome is Outcome.OK
    prepared = host.used_bytes
    launches = host.num_launches
    assert _trial(open_session, "right").outcome is Outcome.OK
    once, launches = host.num_launches - launches, host.num_launches
    assert _trial(open_session, "right", cutoff_us=1000.0).outcome is Outcome.OK
    assert host.num_launches - launches > 1.8 * once
    assert host.used_bytes == prepared > used


def test_a_result_left_over_from_before_is_found_by_fresh_inputs(host, open_session):
    cached_pick = {}

    def remembers(driver, name, grid, values):
        """Computes its first product only, and hands it out ever after."""
        if "c" not in cached_pick:
            right(driver, name, grid, values)
            cached_pick["c"] = c_of(values).copy()
        c_of(values)[:] = cached_pick["c"]

    host.sgemms[b"remembers"] = remembers
    assert _trial(open_session, "remembers").outcome is Outcome.OK  # all sets hold the same numbers
    result = _trial(open_session, "remembers", cutoff_us=1000.0)
    assert result.outcome is Outcome.WRONG_RESULT
    assert _trial(open_session, "right").outcome is Outcome.OK


def test_energy_is_power_times_time(host, open_session, monkeypatch):
    seconds = itertools.count(step=0.001)
    clock = SimpleNamespace(perf_counter=lambda: next(seconds), sleep=lambda s: None)
    monkeypatch.setattr(timer, "time", clock)
    last = [0.0]

    def counter():  # 500 W, in steps of 20 ms
        last[0] = next(seconds)
        return 500.0 * (last[0] // 0.02) * 0.02

    open_session.races._monitor = SimpleNamespace(energy_j=counter)
    codes = tuple(KernelCode(name.encode(), name, SPEC) for name in ("right", "wrong_element"))
    open_session.prepare(COLD)
    handles = host.num_handles
    joules = worker.respond(open_session, protocol.RunRace(COLD, codes, 4, energy_s=0.4)).joules
    assert joules == (pytest.approx(500.0 * 100e-6, rel=0.1), None)
    assert host.num_handles <= handles + 2  # the modules
    open_session.races._monitor = SimpleNamespace(energy_j=lambda: None)
    assert worker.respond(open_session, protocol.RunRace(COLD, codes, 4, energy_s=0.4)).joules == (None, None)


def test_cublas_beside_a_kernel_does_not_hide_what_it_does_later(host, open_session):
    open_session.cublas = HostCublas(host)
    open_session.prepare(COLD)
    result = _trial(open_session, "wrong_later")
    assert result.outcome is Outcome.WRONG_RESULT
    assert "after repeated launches" in result.reason


def test_one_that_writes_anywhere_takes_no_other_out_of_a_race(host, open_session):
    names = ("right", "overrun", "right", "underrun", "right")
    codes = tuple(KernelCode(name.encode(), name, SPEC) for name in names)
    result = worker.respond(open_session, protocol.RunRace(COLD, codes, 3))
    assert [bool(samples) for samples in result.samples_us] == [True, False, True, False, True]
    assert set(result.failures) == {1, 3}


def test_a_kernel_of_another_name_is_launched_by_its_entry(host, open_session):
    names = []
    host.sgemms[b"both"] = lambda driver, name, *rest: (names.append(name), right(driver, name, *rest))
    codes = tuple(KernelCode(b"both", "both", SPEC, entry) for entry in ("sgemm", "other"))
    result = worker.respond(open_session, protocol.RunRace(COLD, codes, 3))
    assert result.samples_us == ((100.0,) * 3,) * 2
    assert names[:2] == ["sgemm", "other"]


def test_a_request_from_nowhere_is_an_internal_failure(open_session):
    assert worker.respond(open_session, "nonsense").kind == "internal"


def test_a_worker_wants_to_be_started_first():
    answer = worker.RequestHandler()(protocol.Prepare(COLD))
    assert (answer.kind, answer.is_last) == ("internal", True)


# ------------------------------------------------------------------------------------ many cells


def _cells(opened, *cells, policy=CachePolicy.COLD):
    full = ((*cell, False)[:4] for cell in cells)  # without a bias, unless told
    return worker.respond(opened, protocol.RunCells(tuple(full), policy))


def _code(name, spec=SPEC):
    return KernelCode(name.encode(), name, spec)


def test_cells_are_timed_on_numbers_from_a_pool(host, open_session):
    """Sets that share nothing, larger than L2 together; nothing is verified, and what is read stays."""
    seen: dict[Gemm, set[int]] = {}

    def spy(driver, name, grid, values):
        gemm, (a, b, c) = Gemm(*values[:3]), (values[4], values[6], values[9])
        for address, num_bytes in zip((a, b, c), gemm.operand_bytes, strict=True):
            assert driver.is_allocated(address, num_bytes)
        assert abs(float(np.mean(view(a, gemm.m, gemm.k, gemm.k)))) < 0.2  # normal numbers
        seen.setdefault(gemm, set()).update((a, b, c))
        view(c, gemm.m, gemm.n, gemm.n)[:] = np.float32(1e9)

    host.sgemms[b"spy"] = spy
    gemms = (Gemm(90, 70, 50), GEMM, Gemm(90, 70, 50))
    times = _cells(open_session, *((gemm, _code("spy"), None) for gemm in gemms)).times
    assert [set(time.samples_us) for time in times] == [{100.0}] * 3
    for gemm, addresses in seen.items():
        assert len(addresses) == 3 * num_sets(gemm, LIMITS.l2_bytes, CachePolicy.COLD)
        least = min(end - begin for begin, end in itertools.pairwise(sorted(addresses)))
        assert least >= min(gemm.operand_bytes)


def test_a_cell_that_fails_is_told_and_the_next_one_is_timed(host, open_session):
    greedy = replace(SPEC, threads=2048)
    cells = ((GEMM, _code("right", greedy), None), (GEMM, _code("right"), None), (GEMM, None, None))
    failed, timed, cublas_cell = _cells(open_session, *cells).times
    assert failed.reason and not failed.samples_us
    assert timed.samples_us
    assert "cuBLAS was not found" in cublas_cell.reason
    open_session.cublas = HostCublas(host)
    assert set(_cells(open_session, (GEMM, None, None)).times[0].samples_us) == {100.0}


def test_cublas_with_a_bias_is_timed_where_there_is_a_cublaslt(host, open_session, monkeypatch):
    asked = []

    class Lt:
        def product(self, gemm, bias):
            assert bias % 256 == 0
            asked.append(gemm)
            return self

        def first(self, operands):
            if asked[-1] != GEMM:
                raise cublas.CublasError("nothing for this")

        def enqueue(self, algorithm, operands):
            HostCublas(host).sgemm(GEMM, operands)

        def free(self):
            asked.append("freed")

    monkeypatch.setattr(session.cublaslt, "load_library", lambda: None)
    cells = (GEMM, None, None, True), (Gemm(9, 900, 9), None, None, True)
    assert "cuBLASLt was not found" in _cells(open_session, *cells).times[0].reason
    open_session.__dict__["_lt"] = Lt()
    timed, refused = _cells(open_session, *cells).times
    assert timed.samples_us and not refused.samples_us and "nothing for this" in refused.reason
    assert asked == [GEMM, "freed", Gemm(9, 900, 9), "freed"]


def test_a_lost_context_ends_the_cells(host, open_session):
    result = _cells(
        open_session, (GEMM, _code("right"), None), (GEMM, _code("fault"), None), (GEMM, _code("right"), None)
    )
    assert result.is_last and len(result.times) == 1


@pytest.mark.parametrize(("kernel_us", "launches"), [(1000.0, 2), (5000.0, 1)])
def test_a_slow_cell_is_cut_short(host, open_session, kernel_us, launches):
    _cells(open_session, (GEMM, _code("right"), None))  # which fills the pool
    host.kernel_us, before = kernel_us, host.num_launches
    [time] = _cells(open_session, (GEMM, _code("right"), 100.0)).times
    assert time.is_cut_short and time.samples_us == (kernel_us,)
    # The first one may have loaded the kernel for so long, or have waited for the host.
    assert host.num_launches == before + launches


@pytest.mark.parametrize("is_scarce", [False, True])
def test_a_pool_takes_the_memory_of_prepared_problems_where_it_must(host, open_session, is_scarce):
    for seed in range(3):
        open_session.prepare(replace(COLD, seed=seed))
    if is_scarce:
        host.num_bytes = host.used_bytes + 4096
    assert _cells(open_session, (GEMM, _code("right"), None)).times[0].samples_us
    assert len(open_session._problems) == (0 if is_scarce else 3)


def test_a_product_that_no_pool_holds_is_told_and_nothing_is_kept(host, open_session):
    open_session.prepare(COLD)
    used = host.used_bytes
    [time] = _cells(open_session, (Gemm(3000, 3000, 3000), _code("right"), None)).times
    assert "GPU memory" in time.reason
    assert host.used_bytes <= used
    assert _trial(open_session, "right").outcome is Outcome.OK
