"""A measurement survives JSON, and an older reader survives a newer writer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.measurement import Discarded, GpuState, Measurement, Outcome

NUMBERS = st.floats(0, 1e9)
COUNTS = st.none() | st.integers(0, 2**31)
STATES = st.builds(
    GpuState, COUNTS, COUNTS, st.none() | NUMBERS, COUNTS, st.lists(st.text(), max_size=3).map(tuple)
)
MEASUREMENTS = st.builds(
    Measurement,
    outcome=st.sampled_from(Outcome),
    reason=st.text(),
    time_us=st.none() | NUMBERS,
    samples_us=st.lists(NUMBERS, max_size=5).map(tuple),
    is_cut_short=st.booleans(),
    error_ratio=st.none() | NUMBERS,
    error_over_cublas=st.none() | NUMBERS,
    registers=COUNTS,
    spill_bytes=COUNTS,
    smem_bytes=COUNTS,
    compile_s=NUMBERS,
    verify_s=NUMBERS,
    measure_s=NUMBERS,
    state=STATES,
    marks=st.lists(st.text(), max_size=3).map(tuple),
    discarded=st.lists(
        st.builds(Discarded, st.lists(NUMBERS, max_size=3).map(tuple), st.lists(st.text()).map(tuple)),
        max_size=2,
    ).map(tuple),
)


@given(MEASUREMENTS)
def test_a_measurement_survives_json(measurement: Measurement) -> None:
    again = Measurement.from_dict(json.loads(json.dumps(measurement.to_dict())))
    assert again == measurement
    assert again.outcome is measurement.outcome
    assert hash(again) == hash(measurement), "tuples came back as tuples"


@given(MEASUREMENTS)
def test_what_a_newer_version_adds_is_left_out(measurement: Measurement) -> None:
    data = measurement.to_dict()
    newer = data | {"joules": 1.5, "state": data["state"] | {"fan_percent": 30}}
    assert Measurement.from_dict(newer) == measurement


def test_only_the_outcome_is_needed() -> None:
    assert Measurement.from_dict({"outcome": "faulted"}) == Measurement(Outcome.FAULTED)


@pytest.mark.parametrize("outcome", Outcome)
def test_only_ok_is_ok(outcome: Outcome) -> None:
    assert Measurement(outcome).is_ok == (outcome == "ok")


def test_an_unknown_outcome_is_not_taken_for_another() -> None:
    with pytest.raises(ValueError, match="melted"):
        Measurement.from_dict({"outcome": "melted"})
