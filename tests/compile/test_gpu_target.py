"""The target that a search submits to: real compiling, a worker without a GPU, discovery made up."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.files.errors import DeviceLost, EnvironmentProblem, TrialFailure, UsageError
from autotune.gpu import driver, instance
from autotune.gpu.gpu_target import GpuTarget
from autotune.kernel import compiler
from autotune.kernel.compiler import Cubin
from autotune.kernel.config import Config
from autotune.kernel.resources import launch_spec
from autotune.search import Options, tune
from autotune.search.same_code_trials import TakenOver
from autotune.store import Store
from autotune.target import Cell

LIMITS = KNOWN["h200"]
GEMM = Gemm(128, 128, 64)
POINT = Config(
    bm=32, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, stages=2, unroll_k=8, min_blocks=1, vec_c=4, pad=4
).to_dict()


def test_a_candidate_becomes_a_measurement_with_all_figures(open_target):
    opened = open_target("fine")
    result = opened.submit(GEMM, POINT, None).result(60)
    assert result.outcome is Outcome.OK
    assert result.time_us == 11.0  # the median
    assert result.samples_us == (12.0, 10.0, 11.0)
    assert result.error_ratio == 0.25
    assert 16 <= result.registers <= 255
    assert result.smem_bytes == launch_spec(Config.from_dict(POINT), GEMM, LIMITS).smem_bytes
    assert opened.baseline(GEMM).time_us == 21.0
    environment = opened.environment
    assert (environment.gpu_uuid, environment.driver_version) == ("GPU-0", "580.1")
    assert (environment.cuda_version, environment.cublas_version) == ("13.0", "13.1.0")
    assert environment.nvrtc_version.startswith("13.")
    num_threads = opened.builder.compiler.num_threads
    assert opened.capacity >= num_threads + 4, "none of them runs dry while the search thinks"


def test_an_illegal_point_is_told_at_once_with_its_rules(open_target):
    opened = open_target("fine")
    result = opened.submit(GEMM, {**POINT, "wm": 32}, None).result(0)
    assert result.outcome is Outcome.ILLEGAL
    assert "warp-lanes" in result.reason
    empty = opened.submit(Gemm(0, 5, 5), POINT, None).result(0)
    assert empty.outcome is Outcome.ILLEGAL
    with pytest.raises(UsageError, match="unknown parameter"):
        opened.submit(GEMM, {"zz": 1}, None)
    with pytest.raises(UsageError, match="empty"):
        opened.baseline(Gemm(5, 0, 5))


def test_what_does_not_compile_never_reaches_the_worker(open_target, monkeypatch):
    opened = open_target("crash")

    def fail(config, variant):
        raise TrialFailure(Outcome.COMPILE_FAILED, "ptxas says no")

    monkeypatch.setattr(opened.builder.compiler, "compile", fail)
    result = opened.submit(GEMM, POINT, None).result(60)
    assert (result.outcome, result.reason) == (Outcome.COMPILE_FAILED, "ptxas says no")


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"spill_bytes": instance.ALLOWED_SPILL_BYTES + 1}, Outcome.SPILLED),
        ({"spill_bytes": instance.ALLOWED_SPILL_BYTES}, Outcome.OK),
        ({"static_smem_bytes": 230_000}, Outcome.DOES_NOT_FIT),
    ],
)
def test_the_compilers_figures_decide_before_any_launch(open_target, monkeypatch, change, outcome):
    opened = open_target("fine")
    cubin = Cubin(b"code", "fine", "sm_90", "nvrtc 13.0", 100, 0, 0, 0, 0.5)
    monkeypatch.setattr(opened.builder.compiler, "compile", lambda config, variant: replace(cubin, **change))
    result = opened.submit(GEMM, POINT, None).result(60)
    assert result.outcome is outcome
    assert result.registers == 100
    assert result.compile_s == 0.5


def test_after_an_upgrade_of_the_compiler_equal_code_keeps_its_results(open_target, monkeypatch, tmp_path):
    """What NVRTC makes of a few configs under the name of an older one, and once more under its own."""
    options = Options(trials=3, starts=lambda gemm: [Config.from_dict(POINT)], without_final={GEMM})
    with Store.open(tmp_path / "trials.db") as store:
        with monkeypatch.context() as older:
            older.setattr(compiler, "compiler_version", lambda: "nvrtc 12.9")
            then = tune(open_target("fine"), store, [GEMM], options).shapes[0]
        trials = store.trials(then.study)
        hashes = {trial.key: trial.measurement.code_hash for trial in trials}
        assert then.study.compiler == "nvrtc 12.9" and all(hashes.values())
        opened = open_target("fine")
        now = tune(opened, store, [GEMM], options).shapes[0]
        assert now.study.compiler == opened.builder.compiler.version != "nvrtc 12.9"
        assert now.taken_over == TakenOver("nvrtc 12.9", 3) and now.num_new == 0
        assert {t.key: t.measurement.code_hash for t in store.trials(now.study)} == hashes
    illegal = opened.code_hash(GEMM, {**POINT, "wm": 32})
    assert illegal.result(0) is None

    def fail(config, variant):
        raise TrialFailure(Outcome.COMPILE_FAILED, "ptxas says no")

    monkeypatch.setattr(opened.builder.compiler, "compile", fail)
    assert opened.code_hash(GEMM, POINT).result(60) is None


def test_registers_that_fit_no_sm_are_seen():
    config = Config.from_dict({**POINT, "bm": 256, "bn": 256})
    cubin = Cubin(b"", "", "sm_90", "", 255, 0, 0, 0, 0.0)
    gemm = Gemm(512, 512, 64)
    spec = launch_spec(config, gemm, LIMITS)
    assert spec.threads > 256
    assert "not one block fits" in instance.mismatch(cubin, config, spec, LIMITS, gemm)


@pytest.mark.parametrize(("deed", "outcome"), [("sticky", Outcome.FAULTED), ("wrong", Outcome.WRONG_RESULT)])
def test_a_fatal_candidate_is_a_measurement_with_its_reason(open_target, deed, outcome):
    result = open_target(deed).submit(GEMM, POINT, None).result(60)
    assert result.outcome is outcome
    assert result.reason
    assert result.time_us is None


def test_a_lost_device_is_raised_by_every_future_after(open_target):
    opened = open_target("sticky")
    points = [{**POINT, "group": group, "raster": raster} for group in (1, 2, 4) for raster in ("m", "n")]
    futures = [opened.submit(GEMM, point, None) for point in points]
    errors = [future.exception(60) for future in futures]  # compiling may end in another order
    ran = [future.result() for future, error in zip(futures, errors, strict=True) if error is None]
    assert [found.outcome for found in ran] == [Outcome.FAULTED] * 3
    assert [type(error) for error in errors if error is not None] == [DeviceLost] * 3


def test_comparing_returns_each_points_rounds_and_cublas(open_target):
    rounds = open_target("fine").compare(GEMM, [POINT, {**POINT, "group": 4}], 5)
    assert rounds.samples_us == ((1.0,) * 5, (1.0,) * 5)
    assert rounds.baseline.time_us == 2.0


def test_a_closed_target_leaves_no_future_open(open_target):
    opened = open_target("fine")
    futures = [opened.submit(GEMM, {**POINT, "group": g}, None) for g in (1, 2, 4, 8, 16)]
    opened.close()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError):
        opened.submit(GEMM, POINT, None)


def test_a_machine_without_a_gpu_fails_before_anything_is_started(monkeypatch):
    monkeypatch.setattr(driver, "list_gpus", list)
    with pytest.raises(EnvironmentProblem, match="sees no GPU"):
        GpuTarget("auto")


# ---- kernels that are compiled already


def test_a_compiled_kernel_waits_for_candidates_and_costs_no_compiling(open_target):
    opened = open_target("fine")
    assert opened.submit(GEMM, POINT, None).result(60).is_ok
    order, is_busy, is_free = [], threading.Event(), threading.Event()
    opened.worker._queue.submit(lambda: (is_busy.set(), is_free.wait()))
    assert is_busy.wait(60), "the queue has begun what blocks it"
    reused = opened.submit_compiled(Gemm(256, 128, 64), POINT, None)
    reused.add_done_callback(lambda _: order.append("reused"))
    trial = opened.submit(GEMM, {**POINT, "group": 4}, None)
    trial.add_done_callback(lambda _: order.append("trial"))
    deadline = time.monotonic() + 60
    while not opened.worker._queue._submitted and time.monotonic() < deadline:
        time.sleep(0.01)
    is_free.set()
    found = reused.result(60)
    assert (found.outcome, found.time_us, found.compile_s) == (Outcome.OK, 11.0, 0.0)
    opened.close()  # when all callbacks have run
    assert order == ["trial", "reused"]
    assert opened.kernel_family(GEMM) == opened.kernel_family(Gemm(256, 128, 64))
    assert opened.kernel_family(GEMM) != opened.kernel_family(Gemm.parse("128x128x64:NT"))
    illegal = opened.submit_compiled(GEMM, {**POINT, "wm": 32}, None).result(0)
    assert (illegal.outcome, "warp-lanes" in illegal.reason) == (Outcome.ILLEGAL, True)


def test_a_compiled_kernel_may_fail_to_compile_again_and_bring_the_worker_down(open_target, monkeypatch):
    opened = open_target("sticky")
    assert opened.submit_compiled(GEMM, POINT, None).result(60).outcome is Outcome.FAULTED

    def fail(config, variant):
        raise TrialFailure(Outcome.COMPILE_FAILED, "ptxas says no")

    monkeypatch.setattr(opened.builder.compiler, "compile", fail)
    failed = opened.submit_compiled(GEMM, POINT, None).result(60)
    assert (failed.outcome, failed.reason) == (Outcome.COMPILE_FAILED, "ptxas says no")


# ---- comparisons


def test_a_comparison_waits_for_candidates_and_needs_no_place_among_those_that_compile(
    open_target, monkeypatch
):
    opened = open_target("by name")
    order, is_busy, is_free = [], threading.Event(), threading.Event()
    opened.worker._queue.submit(lambda: (is_busy.set(), is_free.wait()))
    assert is_busy.wait(60), "the queue has begun what blocks it"
    comparison = opened.compare_pair(GEMM, (POINT, POINT), 3, 1)
    comparison.add_done_callback(lambda _: order.append("duel"))
    trial = opened.submit(GEMM, POINT, None)
    trial.add_done_callback(lambda _: order.append("trial"))
    deadline = time.monotonic() + 60
    while not opened.worker._queue._submitted and time.monotonic() < deadline:
        time.sleep(0.01)
    is_free.set()
    assert comparison.result(60).samples_us == ((2.0,) * 3, (2.0,) * 3)
    assert comparison.result().seconds == 0.25
    opened.close()  # when all callbacks have run
    assert order == ["trial", "duel"]


def test_a_comparison_that_kills_the_worker_tells_so_and_the_target_goes_on(open_target, monkeypatch):
    opened = open_target("by name")
    code = instance.code
    monkeypatch.setattr(instance, "code", lambda *args: replace(code(*args), sha256="crash"))
    assert opened.compare_pair(GEMM, (POINT, POINT), 3, 1).result(60).samples_us == ((), ())
    monkeypatch.undo()
    assert opened.submit(GEMM, POINT, None).result(60).is_ok


def test_comparisons_are_dropped_when_the_target_closes(open_target):
    opened = open_target("fine")
    is_free = threading.Event()
    opened.worker._queue.submit(is_free.wait)
    comparisons = [opened.compare_pair(GEMM, (POINT, POINT), 3, shuffle) for shuffle in range(3)]
    threading.Timer(0.2, is_free.set).start()
    opened.close()
    assert all(comparison.cancelled() for comparison in comparisons)


def test_cells_are_timed_without_being_prepared_and_each_tells_why_it_was_not(open_target):
    opened = open_target("fine")
    illegal, other = {**POINT, "wm": 32}, Gemm(96, 64, 64)
    cells = [Cell(GEMM, POINT), Cell(GEMM, None), Cell(GEMM, illegal), Cell(other, POINT, 9.0)]
    timed, cublas, rejected, last = opened.fill(cells).result(60)
    assert (timed.samples_us, cublas.samples_us, last.samples_us) == ((1.0,), (2.0,), (3.0,))
    assert "warp-lanes" in rejected.reason and not rejected.samples_us
    with pytest.raises(UsageError, match="unknown parameter"):
        opened.fill([Cell(GEMM, {"zz": 1})])


def test_a_cell_that_does_not_compile_says_so(open_target, monkeypatch):
    opened = open_target("fine")

    def fail(config, variant):
        raise TrialFailure(Outcome.COMPILE_FAILED, "ptxas says no")

    monkeypatch.setattr(opened.builder.compiler, "compile", fail)
    assert [time.reason for time in opened.fill([Cell(GEMM, POINT)]).result(60)] == ["ptxas says no"]
