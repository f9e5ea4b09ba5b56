"""Trials as T4: what the public results schema (1.0.0) demands, checked by hand, and that no fact is bent."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.device import Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.recording.others_files import Made, Tried
from autotune.recording.replay import read_recording
from autotune.recording.t4 import INVALIDITY, to_t4

ENVIRONMENT = Environment("NVIDIA H200", "GPU-1", (9, 0), "580.1", "13.0", "13.4", "13.1")
GEMM = Gemm(16, 11008, 4096, trans_b=True)
MADE = Made(GEMM, "5" * 64, ENVIRONMENT, CachePolicy.COLD)
STAMP = "2026-11-21T10:00:00+00:00"
ALLOWED = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
NUMBER = (int, float)

seconds = st.floats(0, 1e4)
times_us = st.lists(st.floats(1e-3, 1e8), max_size=4).map(tuple)
measurements = st.builds(
    Measurement,
    outcome=st.sampled_from(list(Outcome)),
    reason=st.text(max_size=20),
    time_us=st.none() | st.floats(1e-3, 1e8),
    samples_us=times_us,
    error_ratio=st.none() | st.floats(0, allow_infinity=True, allow_nan=False),
    registers=st.none() | st.integers(0, 255),
    compile_s=seconds,
    verify_s=seconds,
    measure_s=seconds,
)


def obeys_the_schema(data: dict) -> None:
    """The demands of the schema on types, names and values; it forbids no further fields."""
    assert re.match(r"^[0-9]+\.[0-9]+\.[0-9]+$", data["schema_version"])
    for result in data["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= result.keys()
        assert type(result["timestamp"]) is str
        assert type(result["configuration"]) is dict
        assert type(result["objectives"]) is list
        times = result["times"]
        for name in ("compilation_time", "compilation", "framework", "search_algorithm", "validation"):
            assert isinstance(times[name], NUMBER)
        assert type(times["runtimes"]) is list
        assert result["invalidity"] in ALLOWED
        assert isinstance(result["correctness"], NUMBER)
        for measurement in result["measurements"]:
            assert type(measurement["name"]) is str and type(measurement["unit"]) is str
            assert isinstance(measurement["value"], (*NUMBER, str, list))


def test_every_outcome_has_its_word() -> None:
    assert {outcome.value for outcome in Outcome} <= INVALIDITY.keys()
    assert set(INVALIDITY.values()) == ALLOWED


@given(st.lists(measurements, max_size=5))
def test_any_trials_obey_the_schema(found) -> None:
    trials = [Tried.of({"bm": 64, "order": f"row{i}"}, m, STAMP) for i, m in enumerate(found)]
    data = json.loads("".join(to_t4(MADE, trials)))
    obeys_the_schema(data)
    by_order = {result["configuration"]["order"]: result for result in data["results"]}
    assert data["results"][:1] == [by_order[f"row{i}"] for i, m in enumerate(found) if m.is_ok][:1] or (
        not any(m.is_ok for m in found)
    )
    for i, measurement in enumerate(found):
        result = by_order[f"row{i}"]
        assert (result["invalidity"] == "correct") == (result["correctness"] == 1) == measurement.is_ok
        runtimes = [ms * 1e3 for ms in result["times"]["runtimes"]]
        assert runtimes == pytest.approx(measurement.samples_us, rel=1e-4, abs=1e-3)
        named = {m["name"]: m["value"] for m in result["measurements"]}
        assert ("time" in named) == (measurement.time_us is not None)
        assert all(math.isfinite(v) for v in named.values() if isinstance(v, NUMBER))


def test_the_problem_and_the_machine_stand_beside() -> None:
    data = json.loads("".join(to_t4(MADE, [])))
    assert data["metadata"]["problem"] == {"m": 16, "n": 11008, "k": 4096, "layout": "NT"}
    assert data["metadata"]["environment"]["gpu_name"] == "NVIDIA H200"
    assert data["metadata"]["environment"]["gpu_uuid"] == ""  # of which card is nobody's business


def test_a_batch_is_told() -> None:
    problem = replace(MADE, problem=Gemm.parse("16x8x4b32:NT:shared-b")).to_dict()["problem"]
    single = {"m": 16, "n": 8, "k": 4, "layout": "NT"}
    assert problem == {**single, "batch": 32, "shares_a": False, "shares_b": True}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = {
        1: Measurement(Outcome.SPILLED, "96 bytes spilled", compile_s=0.5),
        2: Measurement(Outcome.OK, time_us=2.0, samples_us=(1.0, 2.0, 4.0), compile_s=0.5, verify_s=0.25),
        4: Measurement(Outcome.ILLEGAL, "breaks a-rule"),
    }
    path = tmp_path / "t4.json"
    path.write_text("".join(to_t4(MADE, [Tried.of({"bm": bm}, m, STAMP) for bm, m in found.items()])))
    read = read_recording(path)
    assert (read.source_hash, read.policy, read.environment.recorded_on) == ("5" * 64, "cold", "2026-11-21")
    assert list(read.problems) == [GEMM] and read.limits.name == "NVIDIA H200"
    assert read.problems[GEMM].measurements == tuple(found.values())
    assert read.note == f"{path}: 3 results, 2 failed (96 bytes spilled; breaks a-rule)"
