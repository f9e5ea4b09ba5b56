"""What a search tells of disturbances."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from autotune.cli.search_ending import disturbance_facts, disturbance_text
from autotune.facts.measurement import Discarded, Measurement, Outcome
from autotune.store import Final, FinalEntry, TrialRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _trial(*marks: str, discarded: tuple[Discarded, ...] = ()) -> TrialRecord:
    measurement = Measurement(Outcome.OK, time_us=1.0, samples_us=(1.0,), marks=marks, discarded=discarded)
    return TrialRecord(1, "key", {}, measurement, "seed", NOW)


def test_a_quiet_search_says_nothing() -> None:
    facts = disturbance_facts([_trial(), _trial()], None)
    assert facts == {"num_disturbed": 0, "num_repeated": 0, "marks": {}, "final_marks": []}
    assert disturbance_text([facts], is_recorded=False) == ""


def test_disturbed_repeated_and_capped_trials_are_told_apart() -> None:
    again = (Discarded((2.0,), ("drift",)),)
    trials = [_trial("sw_power_cap"), _trial(discarded=again), _trial("drift", "neighbour", discarded=again)]
    final = Final((FinalEntry("key", {}, 1, True, 1.0),), None, NOW, ("sw_power_cap",))
    facts = disturbance_facts(trials, final)
    assert (facts["num_disturbed"], facts["num_repeated"]) == (1, 2)
    assert facts["marks"] == {"drift": 1, "neighbour": 1, "sw_power_cap": 1}
    text = disturbance_text([facts, disturbance_facts([_trial("drift")], None)], is_recorded=False)
    assert "2 trials were disturbed" in text and "2 trials were timed again" in text
    assert "cuBLAS drifted beside them (2)" in text
    assert "Seen during finals: at the power limit." in text


def test_a_mark_without_words_of_its_own_is_told_as_it_is() -> None:
    facts = disturbance_facts([_trial("hw_slowdown")], None)
    assert "hw_slowdown (1)" in disturbance_text([facts], is_recorded=False)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_one_disturbed_trial_is_one_and_a_recording_is_not_told_to_cool(is_recorded: bool) -> None:
    facts = disturbance_facts([_trial("drift", discarded=(Discarded((2.0,), ("drift",)),))], None)
    text = disturbance_text([facts], is_recorded=is_recorded)
    assert "1 trial was disturbed" in text and "1 trial was timed again" in text
    assert ("let it cool" in text) is not is_recorded
