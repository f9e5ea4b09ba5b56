"""Threads give way sooner while a search runs, and as before behind it."""

from __future__ import annotations

import sys

import pytest

from autotune.search.run.threads import prompt_switching


@pytest.fixture(params=[0.005, 0.0001])
def interval_s(request: pytest.FixtureRequest) -> float:
    """The interval of the program around a search."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    request.addfinalizer(lambda: sys.setswitchinterval(before_s))
    return sys.getswitchinterval()


def test_as_before_behind_a_search_that_ends_or_fails(interval_s: float) -> None:
    with pytest.raises(KeyError), prompt_switching():
        assert sys.getswitchinterval() == pytest.approx(min(interval_s, 0.0005), rel=0.05)
        raise KeyError
    assert sys.getswitchinterval() == pytest.approx(interval_s, rel=0.05)
