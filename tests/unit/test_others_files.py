"""Caches of Kernel Tuner and files of T4, of any kernel: what is sound is taken, and the rest is named."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import one_config, search, space, trials_files, trials_merge
from autotune.cli.requests import MergeRequest, SearchRequest, SpaceRequest, T1Request, TimeRequest
from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.facts.other_problem import OtherProblem, is_product, problem_of, read_problem
from autotune.files.errors import DispatchError, UsageError
from autotune.recording.others_files import Made, Tried
from autotune.recording.recorded_space import Recording
from autotune.recording.recording_file import write_recording
from autotune.recording.replay import ReplayTarget, read_recording
from autotune.recording.t1 import to_t1
from autotune.search import Options, tune
from autotune.store import Store
from autotune.target import Baseline
from autotune.tuning import export_table

NAMES = ["x", "y"]
H200 = Environment("NVIDIA H200", "", (9, 0), "580.1", "13.0", "13.4", "13.1", "2026-11-21")
SOUND = {"x": 1, "y": "a", "time": 2.0, "times": [1.0, 2.0, 4.0], "compile_time": 500.0}


def cache_of(folder: Path, entries: dict[str, Any], **changes: Any) -> Path:
    head = {"device_name": "A GPU", "kernel_name": "convolution", "problem_size": [64, 48]}
    path = folder / "cache.json"
    path.write_text(json.dumps({**head, "tune_params_keys": NAMES, "cache": entries, **changes}))
    return path


def only(recording: Recording) -> list[tuple[dict[str, Any], Measurement]]:
    """The points and measurements of its one problem."""
    (problem,) = recording.problems.values()
    points = [
        dict(zip(recording.names, (v[c] for v, c in zip(recording.values, codes, strict=True)), strict=True))
        for codes in problem.codes
    ]
    return list(zip(points, problem.measurements, strict=True))


def test_samples_of_a_gpu_that_warmed_up_meanwhile_are_taken_whole(tmp_path: Path) -> None:
    """The best config of a convolution (W6600) has 4, 2.7, 2.1, 1, 1, ... times its median as samples."""
    slow_first = {**SOUND, "time": 2.0, "times": [9.0, 8.0, 7.0, 2.0, 2.0, 2.0, 2.0]}
    target = ReplayTarget(cache_of(tmp_path, {"1,a": slow_first}))
    (gemm,) = target.gemms
    found = target.look_up(gemm, {"x": 1, "y": "a"}, cutoff_us=2000.0)
    assert (found.time_us, found.is_cut_short) == (2000.0, False)


def test_a_parameter_may_have_very_many_values(tmp_path: Path) -> None:
    """More than a byte counts: all are found in their order, searched, exported in the same format."""
    values = [(3 * number) % 1000 for number in range(1000)]
    path = cache_of(tmp_path, {str(y): {**SOUND, "x": y % 2, "y": y, "time": 2.0 + y} for y in values})
    recording, target = read_recording(path), ReplayTarget(path)
    (gemm,) = target.gemms
    points = [point for point, _ in only(recording)]
    space_of = target.space(gemm)
    assert [space_of.find(point) for point in points] == list(range(1000))
    assert space_of.find({"x": 0, "y": 1000}) is None and space_of.find({"x": 0, "y": 257}) is None
    with Store.open(tmp_path / "a.db") as store:
        tune(target, store, [gemm], Options(trials=12))
        (summary,) = store.studies()
        assert summary.num_trials == 12 and store.best(summary.study)
    environment, problems = replace(H200, recorded_on=""), {gemm: (Baseline(None), only(recording))}
    with pytest.raises(UsageError, match="y has 1,000 values, and 256 are the most"):
        write_recording(
            tmp_path / "r.json.gz", limits=KNOWN["h200"], environment=environment, policy=CachePolicy.COLD,
            source_hash="5" * 64, recorded_on="2026-11-27", problems=problems,
        )  # fmt: skip


# ---- T1


@pytest.mark.parametrize(
    ("entry", "outcome", "reason"),
    [
        ({"__error__": "CompilationFailedConfig"}, Outcome.COMPILE_FAILED, "CompilationFailedConfig"),
        ({"__error__": "RuntimeFailedConfig", "time": 3.0}, Outcome.FAULTED, "RuntimeFailedConfig"),
        ({"__error__": "InvalidConfig"}, Outcome.ILLEGAL, "InvalidConfig"),
        ({"__error__": "SomethingNew"}, Outcome.FAULTED, "SomethingNew"),
        ({"__error__": {"is": ["nested"]}}, Outcome.FAULTED, "{'is': ['nested']}"),
        ({"__error__": None}, Outcome.FAULTED, "None"),
        ({"time": "CompilationFailedConfig"}, Outcome.COMPILE_FAILED, "CompilationFailedConfig"),
        ({"GFLOP/s": "RuntimeFailedConfig", "time": 1.0}, Outcome.FAULTED, "RuntimeFailedConfig"),
        ({"time": math.nan}, Outcome.FAULTED, "time nan"),
        ({"time": math.inf, "times": [1.0]}, Outcome.FAULTED, "time inf"),
        ({"time": -1.0}, Outcome.FAULTED, "time -1.0"),
        ({"time": 0}, Outcome.FAULTED, "time 0"),
        ({"time": 1e20}, Outcome.FAULTED, "time 1e+20"),
        ({"time": 10**400}, Outcome.FAULTED, "time 100000000000000000...0000000000000000000"),
        ({"time": True}, Outcome.FAULTED, "time True"),
        ({"time": [1.0]}, Outcome.FAULTED, "time [1.0]"),
        ({"time": {"value": 1.0}}, Outcome.FAULTED, "time {'value': 1.0}"),
        ({"time": None}, Outcome.FAULTED, "without a time"),
        ({}, Outcome.FAULTED, "without a time"),
    ],
)
def test_a_config_without_a_usable_time_has_failed(tmp_path: Path, entry, outcome, reason) -> None:
    path = cache_of(tmp_path, {"1,a": SOUND, "2,a": {"x": 2, "y": "a", **entry}})
    read = read_recording(path)
    (_, good), (_, bad) = only(read)
    assert (good.time_us, good.compile_s) == (2000.0, 0.5)
    assert (bad.outcome, bad.reason, bad.time_us) == (outcome, reason, None)
    assert read.note == f"{path}: 2 results, 1 failed ({reason})"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "soon", None, [1], {"ms": 1}, 10**400])
def test_what_is_not_needed_may_be_anything(tmp_path: Path, value: object) -> None:
    entry = {**SOUND, "compile_time": value, "verification_time": value, "GFLOP/s": value, "note": value}
    ((_, found),) = only(read_recording(cache_of(tmp_path, {"1,a": {**entry, "times": [1.0, value, 5.0]}})))
    assert found.is_ok and found.samples_us[0] == 1000.0 and found.compile_s == 0.0


@pytest.mark.parametrize("samples", [None, [], ["a"], "1.0", [math.nan], {"a": 1}])
def test_without_usable_samples_the_time_counts(tmp_path: Path, samples: object) -> None:
    ((_, found),) = only(read_recording(cache_of(tmp_path, {"1,a": {**SOUND, "times": samples}})))
    assert found.samples_us == (2000.0,)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.5, 0.5),
        (-1e300, -1e300),
        (True, 1),
        ("a,b=c", "a,b=c"),
        ("", ""),
        (-7, -7),
        ([16, 16], "[16,16]"),
        ({"a": None}, '{"a":null}'),
        (None, "null"),
    ],
)
def test_a_parameter_may_be_anything_that_compares(tmp_path: Path, value: object, kept: object) -> None:
    other = {**SOUND, "x": 33, "y": value, "time": 1.0, "times": []}
    path = cache_of(tmp_path, {"1,a": SOUND, "other": other})
    points = [point for point, _ in only(read_recording(path))]
    assert {"x": 33, "y": kept} in points and len(points) == 2
    with ReplayTarget(path) as target, Store.open(tmp_path / "a.db") as store:
        (shape,) = tune(target, store, target.gemms, Options(trials=2)).shapes
        assert {trial.point["y"] for trial in store.trials(shape.study)} == {"a", kept}
        assert not store.bad_rows


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    entries = {
        "1,a": SOUND,
        "2": {"x": 2, "time": 1.0},
        "nan,a": {**SOUND, "x": math.nan},
        "list": [1],
        "1.0,a": {**SOUND, "x": 1.0},
    }
    read = read_recording(cache_of(tmp_path, entries))
    assert len(only(read)) == 1
    assert read.note.endswith(
        "5 results, 4 left out (cache['2']: no 'y'; cache['nan,a']: x: nan is no value of a parameter; "
        "cache['list']: expected a table, found [1]; ...)"
    )


@pytest.mark.parametrize("end", ["", ",", ',\n"3,a": {"x": 3, "y', ',\n"3,a": ', "}\n}", "\n\n"])
def test_a_cache_that_was_left_open_is_read(tmp_path: Path, end: str) -> None:
    path = cache_of(tmp_path, {"1,a": SOUND, "2,a": {**SOUND, "x": 2}})
    path.write_text(path.read_text().removesuffix("}}") + end)
    assert len(only(read_recording(path))) == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_cache_may_begin_with_a_mark_and_be_packed(tmp_path: Path, encoding: str, is_packed: bool) -> None:
    path = cache_of(tmp_path, {"1,a": SOUND}, kernel_name="Fältung")
    content = path.read_text().replace(", ", ",\r\n").encode(encoding)
    path.write_bytes(gzip.compress(content) if is_packed else content)
    assert [str(problem) for problem in read_recording(path).problems] == ["Fältung:64x48"]


def test_what_a_cache_need_not_say(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({"tune_params": {"x": [1], "y": ["a"]}, "cache": {"1,a": SOUND}}))
    read = read_recording(path)
    assert list(read.problems) == [OtherProblem.of("kernel", ())]
    assert read.environment.gpu_name.startswith("unnamed GPU ")


# ---- Problems


SIZES: list[tuple[str, Any, str]] = [
    ("Xgemm", [4096, 4096], "4096x4096x4096:NN"),
    ("matmul_kernel", [64, 48, 32], "64x48x32:NN"),
    ("sgemm", ["128", 128.0, 1], "128x128x128:NN"),
    ("Xgemm", [64, 48], "Xgemm:64x48"),  # nobody says what k is
    ("sgemm", 4096, "sgemm:4096"),
    ("gemv", [64, 48, 32], "gemv:64x48x32"),
    ("convolution_kernel", [4096, 4096], "convolution_kernel:4096x4096"),
    ("dedispersion", [25000, 2048, 1], "dedispersion:25000x2048x1"),
    ("synthetic", [], "synthetic"),
    ("unsized", None, "unsized"),
    ("hotspot", "callable", "hotspot:callable"),
    ("stencil", [1, 2, 3, 4], "stencil:1x2x3x4"),
    ("stencil", [0, -1], "stencil:0x-1"),
    ("stencil", [2**40, 1.5], "stencil:1099511627776x1.5"),
    ("stencil", {"x": 1}, "stencil:{'x': 1}"),
]


def test_a_problem_is_shown_and_stored_as_what_it_is(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        for name, size, _ in SIZES:
            read = read_recording(cache_of(tmp_path, {"1,a": SOUND}, kernel_name=name, problem_size=size))
            store.study(read.environment, read.source_hash, "", *read.problems)
        stored = [summary.study.gemm for summary in store.studies()]
    assert list(map(str, stored)) == [shown for _, _, shown in SIZES]
    assert [isinstance(problem, OtherProblem) for problem in stored] == [False] * 3 + [True] * 12


def test_nothing_of_another_tool_can_be_exported(tmp_path: Path) -> None:
    path = cache_of(tmp_path, {"1,a": SOUND}, kernel_name="Xgemm", problem_size=[64, 64])
    with ReplayTarget(path) as target, Store.open(tmp_path / "a.db") as store:
        tune(target, store, target.gemms, Options(trials=1))
    with pytest.raises(DispatchError, match="no kernel that ran, but other tools' "):
        export_table(tmp_path / "out", db=str(tmp_path / "a.db"))


def test_another_problem_has_no_limit(tmp_path: Path) -> None:
    """Even on a GPU whose limits are known."""
    path = cache_of(tmp_path, {"1,a": SOUND}, device_name=KNOWN["a100"].name)
    with ReplayTarget(path) as target, Store.open(tmp_path / "a.db") as store:
        (shape,) = tune(target, store, target.gemms, Options(trials=1)).shapes
    assert shape.limit_us is None and shape.verdict is not None and shape.verdict.share_of_limit is None
    assert shape.gemm.tflops(1.0) == 0.0
    assert target.optimum(shape.gemm)[1] == shape.verdict.time_us


def test_what_an_older_autotune_stored_as_a_product_is_shown_as_what_it_is() -> None:
    assert str(problem_of("kernel-tuner:convolution", Gemm(64, 48, 64))) == "convolution:64x48x64"
    assert problem_of("kernel-tuner:Xgemm", Gemm(64, 48, 64)) == Gemm(64, 48, 64)
    assert problem_of("5" * 64, Gemm(64, 48, 64)) == Gemm(64, 48, 64)


def test_problems_have_an_order_and_are_read_as_shown() -> None:
    others = [OtherProblem.of("b", (2, 3)), OtherProblem.of("a:callable", ()), OtherProblem.of("a", (9,))]
    assert sorted([*others, Gemm(4, 4, 4)]) == [Gemm(4, 4, 4), others[2], others[1], others[0]]
    assert max(Gemm(4, 4, 4), others[0]) == others[0]
    assert [read_problem(str(problem)) for problem in others] == others
    assert read_problem("4x5x6b2:NT") == Gemm.parse("4x5x6b2:NT")
    with pytest.raises(UsageError, match="larger than"):
        read_problem("a:99999999999")
    assert [is_product(name) for name in ("gemm_batched", "mat_mul", "hammock")] == [True, True, False]


# ---- T4


def t4_of(folder: Path, results: Any, **metadata: Any) -> Path:
    path = folder / "space.T4.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": results, "metadata": metadata}))
    return path


def result(x: object, time: object = 2.0, unit: str = "ms", **changes: Any) -> dict[str, Any]:
    measurements = [{"name": "time", "value": time, "unit": unit}]
    times = {"compilation": 500.0, "validation": 10, "benchmark": 20, "runtimes": [1.0, 2.0, 4.0]}
    whole = {"configuration": {"x": x}, "times": times, "invalidity": "correct", "correctness": 1}
    return {**whole, "measurements": measurements, **changes}


@pytest.mark.parametrize(
    ("unit", "timeunit", "factor"),
    [
        ("ms", "milliseconds", 1),
        ("ms", None, 1),
        ("", "Miliseconds", 1),
        ("s", "s", 1e3),
        ("", None, 1e3),
        ("us", "microseconds", 1e-3),
        ("", "ns", 1e-6),
    ],
)
def test_times_are_in_the_unit_that_the_file_says(tmp_path: Path, unit, timeunit, factor) -> None:
    path = t4_of(tmp_path, [result(1, unit=unit)], **({"timeunit": timeunit} if timeunit else {}))
    ((_, found),) = only(read_recording(path))
    assert found.time_us == pytest.approx(2e3 * factor)
    assert (found.compile_s, found.verify_s) == pytest.approx((0.5 * factor, 0.01 * factor))


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({"invalidity": "compile"}, Outcome.COMPILE_FAILED, "compile"),
        ({"invalidity": "constraints"}, Outcome.ILLEGAL, "constraints"),
        ({"invalidity": "timeout"}, Outcome.TIMED_OUT, "timeout"),
        ({"invalidity": "correctness"}, Outcome.WRONG_RESULT, "correctness"),
        ({"invalidity": "runtime"}, Outcome.FAULTED, "runtime"),
        ({"invalidity": ["new"]}, Outcome.FAULTED, "['new']"),
        ({"correctness": 0}, Outcome.WRONG_RESULT, "correctness"),
        ({"measurements": [{"name": "time", "value": math.nan}]}, Outcome.FAULTED, "time nan"),
        ({"measurements": "none", "times": {}}, Outcome.FAULTED, "without a time"),
    ],
)
def test_a_result_that_counts_for_nothing_has_failed(tmp_path: Path, changes, outcome, reason) -> None:
    path = t4_of(tmp_path, [result(1, **changes), result(2)], timeunit="ms")
    read = read_recording(path)
    assert [(m.outcome, m.reason) for _, m in only(read)] == [(outcome, reason), (Outcome.OK, "")]
    assert list(read.problems) == [OtherProblem.of("space", ())]


def test_a_space_is_shown_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"x": 2, "y": "b", "__error__": "CompilationFailedConfig"}
    entries = {"1,a": SOUND, "2,b": failed, "2,a": {"x": 2, "y": "a", "time": 4.0}}
    cache = f"replay:{cache_of(tmp_path, entries)}"
    space.run(SpaceRequest(gpu=cache), is_json=False)
    text = capsys.readouterr().out
    assert "convolution:64x48: 3 configs, recorded on A GPU" in text and "failed: 1 compile_failed" in text
    assert "100.0% of its optimum: x=1,y=a" in text and "x          1 2" in text
    space.run(SpaceRequest(gpu=cache, explain="x=2"), is_json=True)
    (facts,) = json.loads(capsys.readouterr().out)["spaces"]
    assert facts["num_configs"] == 2 and facts["best"] == "x=2,y=a" and facts["share_of_optimum"] < 1
    with pytest.raises(UsageError, match="z=1: no config recorded for convolution"):
        space.run(SpaceRequest(gpu=cache, explain="z=1"), is_json=False)
    with pytest.raises(UsageError, match="holds kernels of another tool"):
        one_config.time_configs(TimeRequest(["bm=64"], gpu=cache), is_json=False)


def test_a_problem_is_searched_by_the_name_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_of(tmp_path, {"1,a": SOUND})
    given: dict[str, Any] = {"gpu": f"replay:{cache}", "db": str(tmp_path / "a.db")}
    with pytest.raises(UsageError, match="holds no sobel; ask for one of: convolution:64x48"):
        search.run(SearchRequest(shapes=["sobel"], **given), is_json=True, is_quiet=True)
    search.run(SearchRequest(shapes=["convolution:64x48"], **given), is_json=True, is_quiet=True)
    (found,) = json.loads(capsys.readouterr().out)["shapes"]
    assert (found["shape"], found["best_time_us"]) == ("convolution:64x48", 2000.0)


def test_a_result_without_a_time_has_that_of_its_samples(tmp_path: Path) -> None:
    ((_, found),) = only(read_recording(t4_of(tmp_path, [result(1, measurements=[])], timeunit="ms")))
    assert found.time_us == 2000.0


def test_a_result_without_times_has_what_was_measured(tmp_path: Path) -> None:
    ((_, found),) = only(read_recording(t4_of(tmp_path, [result(1, times=None)])))
    assert (found.time_us, found.samples_us) == (2000.0, (2000.0,))


def test_what_others_name_as_we_do_is_theirs(tmp_path: Path) -> None:
    metadata = {"timeunit": "ms", "source_hash": "5" * 64, "environment": {"gpu": "H200"}}
    read = read_recording(t4_of(tmp_path, [result(1)], **metadata))
    assert list(read.problems) == [OtherProblem.of("space", ())] and len(only(read)) == 1


def test_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    results = [7, {"configuration": []}, result(1), result(1), result(math.inf), {"times": {}}]
    read = read_recording(t4_of(tmp_path, results, timeunit="ms"))
    assert len(only(read)) == 1 and "6 results, 5 left out (results[0]: expected a table" in read.note
    for unusable, why in (([], "it holds no result"), ([7], "no result has a configuration"),
                          ([{"configuration": {"x": math.nan}}], "no result can be read")):  # fmt: skip
        with pytest.raises(UsageError, match=f"no usable T4 file: {why}"):
            read_recording(t4_of(tmp_path, unusable))
    with pytest.raises(UsageError, match="timeunit 'fortnights' is none of"):
        read_recording(t4_of(tmp_path, [result(1)], timeunit="fortnights"))


@pytest.mark.parametrize(
    "begin", ["", "\ufeff", "\r\n ", "utf-16", "gzip"], ids=["plain", "mark", "lines", "utf-16", "gzip"]
)
def test_a_cache_is_merged_and_what_failed_is_told(tmp_path: Path, capsys, begin: str) -> None:
    failed = {"x": 2, "y": "b", "__error__": "CompilationFailedConfig"}
    path, db = cache_of(tmp_path, {"1,a": SOUND, "2,b": failed}), str(tmp_path / "a.db")
    text = path.read_text().replace(", ", ",\r\n")
    packed = {"gzip": gzip.compress(text.encode()), "utf-16": text.encode("utf-16")}
    path.write_bytes(packed.get(begin, (begin + text).encode()))
    for new in (2, 0):
        trials_merge.merge(MergeRequest(str(path), db), is_json=True, is_quiet=True)
        told = capsys.readouterr()
        assert json.loads(told.out)["num_new"] == new
        assert "2 results, 1 failed (CompilationFailedConfig)" in told.err


# ---- GPUs without a name


@pytest.mark.parametrize("form", ["t1", "t4"])
def test_two_gpus_that_nobody_named_are_not_mixed(tmp_path: Path, form: str) -> None:
    """A GPU is the same where its file has grown meanwhile."""

    def gpu_of(*times: float) -> str:
        if form == "t4":
            timed = [result(x, time, times={}) for x, time in enumerate(times)]
            read = read_recording(t4_of(tmp_path, [result(9, invalidity="compile"), *timed]))
        else:
            failed = {"x": 9, "y": "a", "__error__": "InvalidConfig"}
            entries = {str(x): {**SOUND, "x": x, "times": [time]} for x, time in enumerate(times)}
            read = read_recording(cache_of(tmp_path, {"9,a": failed, **entries}, device_name=""))
        return read.environment.gpu_name

    assert gpu_of(2.0) == gpu_of(2.0, 3.0) != gpu_of(3.0, 2.0)


def test_of_several_gpus_it_is_told_which_one_is_written(tmp_path: Path, capsys) -> None:
    db = str(tmp_path / "a.db")
    for name in ("One", "Other"):
        cache = cache_of(tmp_path, {"1,a": SOUND}, device_name=name)
        trials_merge.merge(MergeRequest(str(cache), db), is_json=True, is_quiet=True)
    trials_files.t1(T1Request(tmp_path / "t1.json", db), is_json=True)
    told = capsys.readouterr().err
    newest = "the newest is written (recorded on Other, undated), number 2; --study names another"
    assert f"holds 2 studies of convolution:64x48: {newest}" in told
    assert read_recording(tmp_path / "t1.json").environment.gpu_name == "Other"
    trials_files.t1(T1Request(tmp_path / "t1.json", db, study=1), is_json=True)
    assert not capsys.readouterr().err
    assert read_recording(tmp_path / "t1.json").environment.gpu_name == "One"
    with pytest.raises(UsageError, match="holds no study 3 "):
        trials_files.t1(T1Request(tmp_path / "t1.json", db, study=3), is_json=True)


def test_an_unusable_time_is_told_in_its_own_unit(tmp_path: Path) -> None:
    read = read_recording(t4_of(tmp_path, [result(1), result(2, -1.0)]))
    assert [m.reason for _, m in only(read)] == ["", "time -1.0"]


# ---- What we write


@pytest.mark.parametrize("shape", ["64x48x32b4:NT:shared-b", "64x48x32:NN", "convolution:64x48", "synthetic"])
def test_a_cache_that_we_write_is_read_again(tmp_path: Path, shape: str) -> None:
    failed = {"x": 2, "y": "b", "__error__": "CompilationFailedConfig"}
    read = read_recording(cache_of(tmp_path, {"1,a": SOUND, "2,b": failed}))
    made = Made(read_problem(shape), "5" * 64, H200, CachePolicy.COLD)
    (tmp_path / "t1.json").write_text("".join(to_t1(made, (Tried.of(*one, "") for one in only(read)))))
    again = read_recording(tmp_path / "t1.json")
    assert list(again.problems) == [made.problem] and again.source_hash == made.source
    assert only(again) == only(read)
