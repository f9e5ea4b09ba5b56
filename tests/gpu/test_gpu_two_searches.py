"""Two searches at once on one GPU and one database: both end, in turns, and nothing is lost, doubled or
taken for a disturbance."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from kills import Search, kill

from autotune.facts.disturbance import NEIGHBOUR, NEIGHBOUR_UNFELT

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(200)]

NUM_TRIALS = 60  # of each: seconds, in which both are at work
LEAST_SWITCHES = 10  # from one's trials to the other's, in the order in which they were stored


@pytest.fixture
def both(tmp_path: Path) -> list[Search]:
    """Each has its own journal, and the first's database."""
    searches = []
    for name, seed in (("one", "1"), ("other", "2")):
        folder = tmp_path / name
        folder.mkdir()
        options = ("--gpu", "0", "--shape", "512", "--trials", str(NUM_TRIALS), "--seed", seed)
        made = Search(folder, *options, AUTOTUNE_CACHE=str(tmp_path / "cache"))
        searches.append(made)
    return searches


def _who(stored: list[str], measured: list[set[str]]) -> list[int]:
    """For each trial whose it is; left out are those that both measured."""
    return [int(key in measured[1]) for key in stored if (key in measured[0]) != (key in measured[1])]


def test_two_searches_take_turns_and_end_with_every_trial_once(both: list[Search]) -> None:
    db = str(both[0].db)
    running = [search.start("--db", db) for search in both]
    try:
        facts = [search.finish(process) for search, process in zip(both, running, strict=True)]
    finally:
        for process in running:
            if process.poll() is None:
                kill(process)
    stored = both[0].stored()  # looks for doubles, too
    measured = [set(search.noted("measured")) for search in both]
    assert set(stored) == measured[0] | measured[1]
    for search, found in zip(both, facts, strict=True):
        assert set(search.noted("told")) <= set(stored)
        assert found["stopped"] == "trials" and found["num_trials"] >= NUM_TRIALS
        assert found["best_time_us"] > found["limit_us"]
        assert not {NEIGHBOUR, NEIGHBOUR_UNFELT} & {*found["marks"], *found["final_marks"]}
    said = [search.said() for search in both]
    assert any("measures on this GPU too: the two take turns" in text for text in said), said
    turns = _who(stored, measured)
    assert sum(one != other for one, other in pairwise(turns)) >= LEAST_SWITCHES
