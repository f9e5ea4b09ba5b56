"""Recordings: written, read, damaged, searched; and Kernel Tuner's T1 caches.

tests/data/clblast_t1.json.gz is a part of a T1 cache of the Auto-Tuning Association's benchmark hub (MIT
licence): CLBlast's SGEMM at 4096, RTX 2080 Ti, 2,019 of 17,956 configs, 5 of 32 samples.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.files.errors import UsageError
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.recording.recording_file import SAMPLE_DIGITS, write_recording
from autotune.recording.replay import ReplayTarget, read_recording
from autotune.search.propose.samplers import make_proposer
from autotune.target import Baseline, Target

CLBLAST = Path(__file__).parents[1] / "data" / "clblast_t1.json.gz"
LIMITS = KNOWN["h200"]
ENVIRONMENT = Environment("NVIDIA H200", "GPU-1", (9, 0), "580.1", "13.0", "13.4", "13.1")
ONE, TWO = Gemm(64, 64, 64), Gemm(64, 128, 64, trans_b=True)
DATE = "2026-11-21"


def _trial(i: int, rng: np.random.Generator):
    point = {"a": 2 ** (i % 5), "b": f"w{i // 5}"}
    if i % 7 == 3:
        return point, Measurement(Outcome.COMPILE_FAILED, "error: expected ';'", compile_s=0.5)
    samples = tuple(map(float, 100 * (1 + i) * (1 + 0.01 * rng.random(6))))
    return point, Measurement(
        Outcome.OK,
        time_us=statistics.median(samples),
        samples_us=samples,
        error_ratio=0.25,
        error_over_cublas=1.25,
        registers=100 + i,
        spill_bytes=0,
        smem_bytes=4096,
        compile_s=0.8,
        verify_s=0.001,
        measure_s=0.02,
        marks=("drift", "sw_power_cap") if i == 5 else (),
    )


def _write(path: Path, *, num=20, **changes) -> list:
    rng = np.random.default_rng(0)
    trials = [_trial(i, rng) for i in range(num)]
    facts = {
        "limits": LIMITS,
        "environment": ENVIRONMENT,
        "policy": CachePolicy.COLD,
        "source_hash": "abc",
        "recorded_on": DATE,
        "problems": {
            ONE: (Baseline(50.0, (49.0, 50.0, 51.0)), trials[::-1]),
            TWO: (Baseline(None), trials[:7]),
        },
    }
    write_recording(path, **{**facts, **changes})
    return trials


@pytest.fixture
def recording(tmp_path) -> Path:
    path = tmp_path / "recording.json.gz"
    _write(path)
    return path


def _edit(path: Path, change) -> None:
    data = json.loads(gzip.decompress(path.read_bytes()))
    change(data)
    path.write_bytes(gzip.compress(json.dumps(data).encode()))


def test_what_was_written_is_read(tmp_path):
    trials = _write(tmp_path / "r.gz")
    target: Target = ReplayTarget(tmp_path / "r.gz")
    assert target.gemms == (ONE, TWO)
    assert target.environment.recorded_on == DATE
    assert target.environment.is_recorded
    assert (target.limits, target.policy, target.source_hash) == (LIMITS, CachePolicy.COLD, "abc")
    assert len(target.space(ONE)) == 20 and len(target.space(TWO)) == 7
    for point, expected in trials:
        found = target.submit(ONE, point, None).result()
        assert found.samples_us == pytest.approx(expected.samples_us, rel=10.0 ** (1 - SAMPLE_DIGITS))
        if expected.is_ok:
            assert found.time_us == statistics.median(found.samples_us)
        names = ("outcome", "reason", "registers", "spill_bytes", "smem_bytes", "marks")
        for name in (*names, "error_ratio", "error_over_cublas"):
            assert getattr(found, name) == getattr(expected, name)
        assert (found.compile_s, found.is_cut_short) == (expected.compile_s, expected.is_cut_short)


def test_the_same_trials_give_the_same_bytes(tmp_path):
    _write(tmp_path / "a.gz")
    _write(tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_values_keep_their_natural_order(tmp_path):
    gemm = Gemm(1024, 1024, 1024)
    space = feasible_set(KNOWN["quadro-rtx-5000"], gemm)
    rng = np.random.default_rng(1)
    points = [space.point(int(n)) for n in rng.choice(len(space), 30, replace=False)]
    measured = Measurement(Outcome.OK, time_us=5.0, samples_us=(5.0,))
    problems = {gemm: (Baseline(None), [(point, measured) for point in points])}
    _write(tmp_path / "r.gz", problems=problems)
    recorded = ReplayTarget(tmp_path / "r.gz").space(gemm)
    for name, values in zip(recorded.names, recorded.values, strict=True):
        full = dict(zip(space.names, space.values, strict=True))[name]
        assert values == tuple(v for v in full if v in values)
    keys = {Config.from_dict(recorded.point(n)).key for n in range(len(recorded))}
    assert keys == {Config.from_dict(point).key for point in points}


def test_thousands_of_configs_fit_two_megabytes(tmp_path):
    gemm = Gemm(4096, 4096, 4096)
    space = feasible_set(KNOWN["quadro-rtx-5000"], gemm)
    rng = np.random.default_rng(1)
    trials = []
    for number in rng.choice(len(space), 5000, replace=False):
        samples = tuple(map(float, 3000 * rng.random() * (1 + 0.01 * rng.standard_normal(15))))
        measured = Measurement(Outcome.OK, time_us=1.0, samples_us=samples, registers=int(rng.integers(256)))
        trials.append((space.point(int(number)), measured))
    _write(tmp_path / "r.gz", problems={gemm: (Baseline(None), trials)})
    assert (tmp_path / "r.gz").stat().st_size < 2e6


@pytest.mark.parametrize(
    ("problems", "reason"),
    [
        ({}, "nothing to record"),
        ({ONE: (Baseline(None), [])}, "nothing to record"),
        ({ONE: (Baseline(None), [({"a": 1}, None), ({"b": 1}, None)])}, "parameters differ"),
        ({ONE: (Baseline(None), [({"a": 1}, None)] * 2)}, "twice"),
        ({ONE: (Baseline(None), [({"a": i}, None) for i in range(300)])}, "parameter a has 300 values"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, problems, reason):
    with pytest.raises(UsageError, match=reason):
        _write(tmp_path / "r.gz", problems=problems)
    assert not list(tmp_path.iterdir())


# ---- damage


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("names"),
        lambda d: d["names"].append("c"),
        lambda d: d["values"][0].pop(),
        lambda d: d["limits"].pop("num_sms"),
        lambda d: d["environment"].update(color="red"),
        lambda d: d.update(policy="tepid"),
        lambda d: d["configs"].pop(),
        lambda d: d["configs"].__setitem__(3, "zz"),
        lambda d: d["configs"].__setitem__(1, d["configs"][0]),
        lambda d: d.pop("configs"),
        lambda d: d.pop("compile_threads"),
        lambda d: d.update(compile_threads=0),
        lambda d: d["problems"][1]["rows"].__setitem__(0, 99),
        lambda d: d["problems"][1]["rows"].reverse(),
        lambda d: d["problems"][1].pop("rows"),
        lambda d: d["problems"][0]["marks"].append([99, "drift"]),
        lambda d: d["problems"][0]["marks"].append([]),
        lambda d: d["problems"][0]["outcomes"].__setitem__(0, "excellent"),
        lambda d: d["problems"][0]["outcome"].__setitem__(0, 99),
        lambda d: d["problems"][0]["samples_us"].__setitem__(0, []),
        lambda d: d["problems"][0]["samples_us"].__setitem__(0, [-1.0]),
        lambda d: d["problems"][0]["samples_us"].__setitem__(0, 7),
        lambda d: d["problems"][0].pop("compile_s"),
        lambda d: d["problems"][0].update(gemm="four"),
        lambda d: d["problems"][0].update(gemm="0x4x4:NN"),
        lambda d: d.update(problems=None),
    ],
)
def test_a_damaged_recording_is_refused_with_its_name(recording, change):
    _edit(recording, change)
    with pytest.raises(UsageError, match=r"recording\.json\.gz is a damaged recording"):
        ReplayTarget(recording)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(polcy="cold"), "at the top: unknown key 'polcy' .did you mean 'policy'"),
        (lambda d: d["limits"].update(num_sm=1), "limits: unknown key 'num_sm' .did you mean 'num_sms'"),
        (lambda d: d["environment"].update(gpu="x"), "environment: unknown key 'gpu'"),
        (lambda d: d["problems"][1].update(markz=[]), "problem 2: unknown key 'markz' .did you mean 'marks'"),
    ],
)
def test_a_key_that_is_not_known_is_refused(recording, change, message):
    _edit(recording, change)
    with pytest.raises(UsageError, match=message):
        ReplayTarget(recording)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["limits"].update(fma_tflops=0),
        lambda d: d["limits"].update(num_sms=0),
        lambda d: d["environment"].update(recorded_on=""),
        lambda d: d["environment"].update(gpu_name="\ud800"),
        lambda d: d["problems"].append(d["problems"][0]),
        lambda d: d["problems"][1]["rows"].__setitem__(0, -1),
        lambda d: d["problems"][0]["reason"].__setitem__(0, -1),
        lambda d: d["problems"][0]["registers"].__setitem__(0, 2**70),
        lambda d: d["problems"][0]["compile_s"].__setitem__(0, -1.0),
        lambda d: d["problems"][0]["samples_us"].__setitem__(0, [float("inf")]),
        lambda d: d["problems"][0]["cublas_us"].__setitem__(0, 10**400),
        lambda d: d["values"][0].__setitem__(1, d["values"][0][0]),
        lambda d: d.update(compile_threads=10**9),
    ],
)
def test_values_that_nothing_can_be_computed_with_are_refused(recording, change):
    _edit(recording, change)
    with pytest.raises(UsageError, match=r"recording\.json\.gz is a damaged recording"):
        ReplayTarget(recording)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" + "9" * 5000 + "]"])
def test_endless_brackets_and_numbers_are_refused(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match="is no readable recording"):
        ReplayTarget(tmp_path / "r.json")


def test_a_newer_version_is_refused(recording):
    _edit(recording, lambda d: d.update(version=3))
    with pytest.raises(UsageError, match=r"a recording of version 3, newer than 2, .*use a newer autotune"):
        ReplayTarget(recording)


def test_the_first_version_is_read(recording):
    """It kept the configs in each problem, and did not say on how many threads they were compiled."""

    def downgrade(data):
        configs = data.pop("configs")
        for problem in data["problems"]:
            rows = problem.pop("rows")
            problem["configs"] = configs if rows is None else [configs[row] for row in rows]
        del data["compile_threads"]
        data["version"] = 1

    new = read_recording(recording)
    _edit(recording, downgrade)
    old = read_recording(recording)
    assert old.compile_threads == 16
    for gemm in (ONE, TWO):
        assert old.problems[gemm].measurements == new.problems[gemm].measurements
        assert old.problems[gemm].codes.tolist() == new.problems[gemm].codes.tolist()


@pytest.mark.parametrize("content", [b"", b"[1]", b"no json", b"\x1f\x8bgarbage", b"{}", b"\xff\xfe"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UsageError, match="other"):
        ReplayTarget(tmp_path / "other")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="recording"):
            ReplayTarget(path)


@given(st.integers(0, 2000))
def test_a_truncated_recording_is_refused(tmp_path_factory, kept):
    path = tmp_path_factory.getbasetemp() / "cut.gz"
    path.write_bytes(CLBLAST.read_bytes()[:kept])
    with pytest.raises(UsageError, match=r"cut\.gz"):
        ReplayTarget(path)


# ---- standing in for a GPU


def test_the_clock_is_that_of_the_recording(recording):
    """Two threads compile 20 candidates, 0.8 s (or 0.5 s for failures) each, while the GPU runs 0.021 s."""
    target = ReplayTarget(recording, num_threads=2)
    space = target.space(ONE)
    first = target.submit(ONE, space.point(0), None).result()
    assert target.now() == pytest.approx(first.compile_s + first.verify_s + first.measure_s)
    found = [first, *(target.submit(ONE, space.point(i), None).result() for i in range(1, 20))]
    compile_s, run_s = (
        sum(m.compile_s for m in found),
        sum(m.verify_s + m.measure_s for m in found),
    )
    assert compile_s / 2 <= target.now() <= compile_s / 2 + 0.8 + run_s


def test_a_kernel_is_compiled_once(recording):
    target = ReplayTarget(recording)
    point = target.space(ONE).point(0)
    found = target.submit(ONE, point, None).result()
    first_s = target.now()
    target.submit(ONE, point, None)
    assert target.now() == pytest.approx(first_s + found.verify_s + found.measure_s)
    again = target.pipeline()
    assert again.done_s == 0.0
    again.submit("some kernel", found.compile_s, found.verify_s + found.measure_s)
    assert again.done_s == pytest.approx(first_s)


def test_a_compile_that_was_not_timed_takes_as_long_as_others(recording):
    _edit(recording, lambda d: d["problems"][0]["compile_s"].__setitem__(0, 0.0))
    target = ReplayTarget(recording)
    found = target.submit(ONE, target.space(ONE).point(0), None).result()
    assert target.now() == pytest.approx(0.8 + found.verify_s + found.measure_s)


def test_what_a_problem_forbids_is_not_in_its_space(tmp_path):
    """Both problems are recorded over the same configs; half of them are illegal for one."""
    illegal = Measurement(Outcome.ILLEGAL, "breaks extent-a")
    ok = Measurement(Outcome.OK, time_us=5.0, samples_us=(5.0,))
    points = [{"a": a, "b": b} for a in (1, 2, 4, 8) for b in ("x", "y")]
    problems = {
        ONE: (Baseline(None), [(point, ok) for point in points]),
        TWO: (Baseline(None), [(point, illegal if point["a"] < 4 else ok) for point in points]),
    }
    _write(tmp_path / "r.gz", problems=problems)
    target = ReplayTarget(tmp_path / "r.gz")
    assert len(target.space(ONE)) == 8
    space = target.space(TWO)
    assert [space.point(number) for number in range(len(space))] == points[4:]
    assert all(target.submit(TWO, space.point(i), None).result().is_ok for i in range(len(space)))
    clock = target.now()
    assert target.submit(TWO, points[0], None).result().outcome is Outcome.ILLEGAL
    assert target.now() == clock
    kept = read_recording(tmp_path / "r.gz").problems[TWO].measurements
    assert [m.reason for m in kept] == ["breaks extent-a"] * 4 + [""] * 4


def test_the_too_slow_are_cut_short(recording):
    target = ReplayTarget(recording)
    point, best_us = target.optimum(ONE)
    slow = {"a": 16, "b": "w3"}
    found = target.submit(ONE, slow, best_us).result()
    assert found.is_cut_short and len(found.samples_us) == 3
    assert found.time_us == statistics.median(found.samples_us)
    assert not target.submit(ONE, slow, None).result().is_cut_short
    assert not target.submit(ONE, point, best_us).result().is_cut_short


def test_the_optimum_is_the_fastest(recording):
    target = ReplayTarget(recording)
    space = target.space(ONE)
    times = [target.submit(ONE, space.point(n), None).result().time_us for n in range(len(space))]
    point, time_us = target.optimum(ONE)
    assert time_us == min(t for t in times if t)
    assert target.submit(ONE, point, None).result().time_us == time_us


def test_what_was_not_recorded_is_refused(recording):
    target = ReplayTarget(recording)
    assert target.submit(ONE, {"a": 3, "b": "w0"}, None).result().outcome is Outcome.ILLEGAL
    for ask in (target.space, target.baseline, target.optimum):
        with pytest.raises(UsageError, match="holds no 8x8x8:NN; ask for one of: 64x64x64:NN, 64x128x64:NT"):
            ask(Gemm(8, 8, 8))
    failed, unknown = {"a": 8, "b": "w0"}, {"a": 3, "b": "w0"}
    rounds = target.compare(ONE, [failed, {"a": 1, "b": "w0"}, unknown], 3)
    assert [len(samples) for samples in rounds.samples_us] == [0, 3, 0]
    assert {n: one.outcome for n, one in rounds.failures.items()} == dict.fromkeys((0, 2), Outcome.ILLEGAL)


def test_draws_are_reproducible_and_go_on(recording):
    best, second = {"a": 1, "b": "w0"}, {"a": 2, "b": "w0"}
    one, other = ReplayTarget(recording), ReplayTarget(recording)
    rounds = one.compare(ONE, [best, second], 6)
    (first, _), baseline = rounds.samples_us, rounds.baseline
    (again,) = other.compare(ONE, [best], 3).samples_us
    (rest,) = other.compare(ONE, [best], 3).samples_us
    assert again + rest == first  # in parts or at once, alone or with others
    assert set(baseline.samples_us) <= {49.0, 50.0, 51.0}
    assert one.compare(TWO, [best], 2).baseline == Baseline(None)


# ---- Kernel Tuner


def test_a_t1_cache_is_a_space():
    with ReplayTarget(CLBLAST) as target:
        (gemm,) = target.gemms
        assert gemm == Gemm(4096, 4096, 4096)
        assert len(target.space(gemm)) == 2019
        assert target.limits.name == target.environment.gpu_name == "NVIDIA GeForce RTX 2080 Ti"
        assert target.environment.is_recorded
        point, time_us = target.optimum(gemm)
        assert (point["MWG"], point["NWG"]) == (128, 128)
        assert 10_000 < time_us < 12_000  # T1 counts in ms
        assert target.baseline(gemm) == Baseline(None)
        assert 1 < gemm.tflops(time_us) < target.limits.fma_tflops


def _t1(**changes) -> dict:
    entries = {
        "1,x": {"A": 1, "B": "x", "time": 2.0, "times": [1.0, 2.0, 4.0], "compile_time": 500.0},
        "2,x": {"A": 2, "B": "x", "time": "RuntimeFailedConfig"},
        "4,x": {"A": 4, "B": "x", "time": "CompilationFailedConfig"},
        "8,x": {"A": 8, "B": "x", "time": "SomethingNew"},
        "16,x": {"A": 16, "B": "x", "time": 3.0},
    }
    data = {
        "device_name": "Unheard-of GPU",
        "kernel_name": "gemm",
        "problem_size": [32, 16, 8],
        "tune_params_keys": ["A", "B"],
        "tune_params": {"A": [1, 2, 4, 8, 16], "B": ["x"]},
        "cache": entries,
    }
    return {**data, **changes}


def test_t1_failures_and_units(tmp_path):
    (tmp_path / "t1.json").write_text(json.dumps(_t1()))
    target = ReplayTarget(tmp_path / "t1.json")
    gemm = Gemm(32, 16, 8)
    found = [target.submit(gemm, {"A": a, "B": "x"}, None).result() for a in (1, 2, 4, 8, 16)]
    outcomes = [Outcome.OK, Outcome.FAULTED, Outcome.COMPILE_FAILED, Outcome.FAULTED, Outcome.OK]
    assert [m.outcome for m in found] == outcomes
    assert found[0].time_us == 2000.0 and found[4].samples_us == (3000.0,)
    assert found[0].compile_s == 0.5
    assert found[3].reason == "SomethingNew"
    assert target.limits.name == "Unheard-of GPU"


@pytest.mark.parametrize(
    "changes",
    [
        {"cache": {}},
        {"cache": {"k": {"A": 1}}},
        {"cache": [1]},
        {"cache": {"k": {"A": 1, "B": math.nan, "time": 1.0}}},
        {"tune_params_keys": ["A", "A"]},
    ],
)
def test_an_unusable_t1_cache_is_refused(tmp_path, changes):
    (tmp_path / "t1.json").write_text(json.dumps(_t1(**changes)))
    with pytest.raises(UsageError, match="no usable Kernel Tuner T1 cache"):
        read_recording(tmp_path / "t1.json")


def test_the_search_beats_chance_on_a_recorded_space():
    target = ReplayTarget(CLBLAST)
    (gemm,) = target.gemms
    space = target.space(gemm)
    _, optimum_us = target.optimum(gemm)

    def reached(sampler: str, seed: int) -> float:
        proposer, best_us = make_proposer(space, sampler, seed), float("inf")
        for _ in range(100):
            number = proposer.ask().number
            time_us = target.submit(gemm, space.point(number), None).result().time_us
            proposer.tell(number, time_us)
            best_us = min(best_us, time_us)
        return optimum_us / best_us

    ours = statistics.mean(reached("autotune", seed) for seed in range(4))
    assert ours > 0.96
    assert ours > statistics.mean(reached("random", seed) for seed in range(4)) + 0.03
