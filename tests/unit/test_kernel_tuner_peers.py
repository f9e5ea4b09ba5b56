"""Kernel Tuner and autotuning-methodology themselves read what we write, and we what Kernel Tuner writes.

Skipped without the two: `make peers-test` installs them, which takes half a gigabyte.

tests/data/convolution_a4000_t1.json.gz is a part of a T1 cache of the Auto-Tuning Association's benchmark hub
(MIT licence, release of 2025-05): its 2D convolution on an RTX A4000, 395 of 4,362 configs, 3 of 32 samples.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import trials_files
from autotune.cli.requests import T4Request
from autotune.facts.measurement import Outcome
from autotune.facts.other_problem import OtherProblem
from autotune.recording.recorded_space import Recording
from autotune.recording.replay import read_recording

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of theirs
    pytest.mark.xdist_group("kernel_tuner"),  # which takes a second to load
]
CONVOLUTION = Path(__file__).parents[1] / "data" / "convolution_a4000_t1.json.gz"
PROBLEM = OtherProblem.of("convolution_kernel", (4096, 4096))


@pytest.fixture
def kernel_tuner() -> Any:
    return pytest.importorskip("kernel_tuner")


def written(folder: Path, form: str, source: Path = CONVOLUTION) -> Path:
    """What we write of the convolution."""
    path = folder / f"convolution.{form}.json"
    getattr(trials_files, form)(T4Request(path, recording=source), is_json=False)
    return path


def best_of(recording: Recording) -> float:
    """The least time of its one problem in us."""
    (problem,) = recording.problems.values()
    return min(m.time_us for m in problem.measurements if m.time_us)


def test_a_part_of_a_published_space_is_read() -> None:
    read = read_recording(CONVOLUTION)
    assert list(read.problems) == [PROBLEM] and read.limits.name == "NVIDIA RTX A4000"
    failed = "16 failed (10 times RuntimeFailedConfig; 6 times CompilationFailedConfig)"
    assert f"395 results, {failed}" in read.note


def test_kernel_tuner_searches_what_we_write(kernel_tuner: Any, tmp_path: Path) -> None:
    cache = str(written(tmp_path, "t1"))
    results, _ = kernel_tuner.interface.tune_cache(cache, strategy="brute_force", quiet=True)
    timed = [result for result in results if "__error__" not in result]
    assert len(timed) == 379
    best_us = 1e3 * min(result["time"] for result in timed)
    assert best_us == pytest.approx(best_of(read_recording(CONVOLUTION)))


def test_kernel_tuner_knows_the_failures_that_we_write(kernel_tuner: Any, tmp_path: Path) -> None:
    cache = kernel_tuner.util.read_cache(str(written(tmp_path, "t1")), open_cache=False)["cache"]
    failed = [str(entry["__error__"]) for entry in cache.values() if "__error__" in entry]
    assert sorted(failed) == ["CompilationFailedConfig"] * 6 + ["RuntimeFailedConfig"] * 10


def test_we_read_the_cache_that_kernel_tuner_writes(kernel_tuner: Any, tmp_path: Path) -> None:
    """As its tuner writes it, entry by entry: failures, floats, words, NaN; left open, and closed."""
    util, path = kernel_tuner.util, tmp_path / "cache.json"
    entries = [
        {"x": 0.5, "w": "a", "time": 2.0, "times": [1.0, 2.0, 3.0], "compile_time": 500.0},
        {"x": 1, "w": "b", "__error__": util.CompilationFailedConfig()},
        {"x": 2, "w": "b", "__error__": util.RuntimeFailedConfig()},
        {"x": 4, "w": "b", "time": float("nan")},
    ]
    head = {
        "device_name": "A GPU", "kernel_name": "conv", "problem_size": [64, 48],
        "tune_params_keys": ["x", "w"], "tune_params": {"x": [0.5, 1, 2, 4], "w": ["a", "b"]},
        "objective": "time", "cache": {},
    }  # fmt: skip
    path.write_text(json.dumps(head, cls=util.NpEncoder, indent="")[:-3])
    for entry in entries:
        util.store_cache(f"{entry['x']},{entry['w']}", entry, str(path), {})
    for _ in range(2):
        (problem,) = read_recording(path).problems.values()
        found = [(m.outcome, m.time_us) for m in problem.measurements]
        faulted = (Outcome.FAULTED, None)
        assert found == [(Outcome.OK, 2000.0), (Outcome.COMPILE_FAILED, None), faulted, faulted]
        util.close_cache(str(path))


def test_we_read_the_results_that_kernel_tuner_writes(kernel_tuner: Any, tmp_path: Path) -> None:
    """T4 of a run on the cache that we wrote."""
    cache, out = written(tmp_path, "t1"), tmp_path / "kt_results.json"
    results, _ = kernel_tuner.interface.tune_cache(str(cache), strategy="random_sample", quiet=True)
    failure = kernel_tuner.util.CompilationFailedConfig()
    results.append({**results[0], "block_size_x": 512, "__error__": failure})
    kernel_tuner.file_utils.store_output_file(str(out), results, json.loads(cache.read_text())["tune_params"])
    read = read_recording(out)
    assert list(read.problems) == [OtherProblem.of("kt_results", ())]
    (problem,) = read.problems.values()
    assert 1e3 * min(r["time"] for r in results) == pytest.approx(best_of(read))
    assert [m.outcome for m in problem.measurements if not m.is_ok] == [Outcome.COMPILE_FAILED]


def test_methodology_reads_what_we_write(tmp_path: Path) -> None:
    statistics = pytest.importorskip("autotuning_methodology.searchspace_statistics")
    data, source = json.loads(gzip.decompress(CONVOLUTION.read_bytes())), tmp_path / "failed_first.json"
    first = next(iter(data["cache"].values()))
    first["__error__"] = "RuntimeFailedConfig"  # it refuses a file that begins so
    source.write_text(json.dumps(data))
    read = read_recording(source)
    (problem,) = read.problems.values()
    assert not problem.measurements[0].is_ok
    keys = ["compilation", "benchmark", "framework", "search_algorithm", "validation"]
    found = statistics.SearchspaceStatistics(
        "convolution", "A4000", True, keys, ["time"], written(tmp_path, "t4", source)
    )
    assert found.size == 395 and found.objective_performances_number_of_nan == 17
    assert 1e3 * found.total_performance_absolute_optimum() == pytest.approx(best_of(read), rel=1e-5)
    compile_s = sum(m.compile_s for m in problem.measurements)
    assert found.objective_times["compilation"].sum() == pytest.approx(compile_s)


def test_methodology_and_kernel_tuner_accept_our_t4(kernel_tuner: Any, tmp_path: Path) -> None:
    validators = pytest.importorskip("autotuning_methodology.validators")
    jsonschema = pytest.importorskip("jsonschema")
    data = json.loads(written(tmp_path, "t4").read_text())
    validators.validate_T4(data)
    jsonschema.validate(data, kernel_tuner.file_utils.output_file_schema("results")[1])
