"""Which samples are marked, which are taken again, and that a GPU that is never quiet stays affordable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.facts import disturbance
from autotune.facts.disturbance import PASSING, PERSISTENT, Level, Repeats
from autotune.gpu import nvml

REASONS = st.sets(st.sampled_from(sorted(nvml.throttle_names(0xFFF))))
MARKS = st.sets(st.sampled_from(sorted(PASSING | PERSISTENT))).map(sorted).map(tuple)


@given(REASONS, st.sampled_from([None, False, True]), st.booleans())
def test_every_throttle_reason_is_passing_standing_or_a_setting(reasons, has_drift, has_neighbour):
    found = disturbance.marks(reasons, has_drift=has_drift, has_neighbour=has_neighbour)
    assert reasons - set(found) <= {"applications_clocks", "display_clocks"}
    assert (disturbance.DRIFT in found) == bool(has_drift)
    assert (disturbance.NEIGHBOUR in found) == (has_neighbour and has_drift is not False)
    assert (disturbance.NEIGHBOUR_UNFELT in found) == (has_neighbour and has_drift is False)
    assert disturbance.is_passing(found) == bool(PASSING & set(found))
    assert list(found) == sorted(set(found))


def test_a_power_cap_is_told_and_not_repeated():
    found = disturbance.marks(["sw_power_cap"], has_drift=False, has_neighbour=False)
    assert found == ("sw_power_cap",)
    assert not Repeats().should_repeat(found, 0)


@given(st.lists(MARKS, max_size=300))
def test_repeats_are_bounded_for_each_candidate_and_over_all(candidates):
    repeats, total, undisturbed = Repeats(), 0, 0
    for found in candidates:  # as disturbed at every attempt
        num = 0
        while repeats.should_repeat(found, num):
            num += 1
        assert num <= disturbance.MAX_REPEATS <= len(disturbance.PAUSES_S)
        assert num == 0 or disturbance.is_passing(found)
        total += num
        undisturbed += not disturbance.is_passing(found)
    assert total <= disturbance.START_CREDIT + disturbance.CREDIT_STEP * undisturbed
    assert 0 <= repeats.credit <= disturbance.MOST_CREDIT


def test_a_single_disturbance_in_a_quiet_search_is_always_repeated():
    repeats = Repeats()
    for _ in range(50):
        assert repeats.should_repeat(("neighbour",), 0)
        for _ in range(8):
            assert not repeats.should_repeat((), 0)


@given(st.floats(1.0, 1e5), st.lists(st.floats(-0.014, 0.014), max_size=40))
def test_scatter_is_no_drift(level_us, scatter):
    level = Level(level_us)
    assert not any(level.is_drift(level_us * (1 + s)) for s in scatter)


@given(st.floats(1.0, 1e5), st.sampled_from([0.5, 0.9, 1.1, 2.0]), st.integers(1, 30))
def test_a_lasting_change_is_drift_first_and_the_new_level_then(level_us, factor, quiet):
    level = Level(level_us)
    for _ in range(quiet):
        level.is_drift(level_us)
    changed = [level.is_drift(level_us * factor) for _ in range(disturbance.LEVEL_READINGS + 1)]
    assert changed[0] and not changed[-1]
    assert changed == sorted(changed, reverse=True)  # once accepted, it stays so
    assert level.is_drift(level_us)  # and the way back is one again
