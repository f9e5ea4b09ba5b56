"""Searches killed with -9 again and again, robbed of their database, two at once: at most the trial in
flight is lost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from kills import Search, kill

from autotune.facts.device import KNOWN
from autotune.files.errors import StoreError
from autotune.kernel.config import Config
from autotune.kernel.rules import broken_rules

from .conftest import SQUARE, trials_of, write

NUM_KILLS = 20
COLD_EVERY = 5  # of the runs one imports everything itself, and is killed wherever that has come to
COLD_S, WARM_S = 1.2, 0.3  # about what a run takes until its first trial
ANSWER_S = 0.01
MOST_ALIVE_S = 0.15  # after the first trial of a run
NUM_TRIALS = 500  # more than the killed runs have the time for
FEW_TRIALS = 60


def configs() -> list[Config]:
    """Legal configs, more than there are trials."""
    choices = product(
        (8, 16), (2, 3, 4), ("row", "row_snake", "col_snake", "zigzag", "pair_snake"), (1, 2), (1, 2, 4, 8),
        ("m", "n"), (1, 2),
    )  # fmt: skip
    made = [
        replace(
            Config(), bk=bk, unroll_k=bk, stages=stages, order=order, frag_buffers=buffers, group=group,
            raster=raster, min_blocks=blocks,
        )
        for bk, stages, order, buffers, group, raster, blocks in choices
    ]  # fmt: skip
    return [config for config in made if not broken_rules(config, KNOWN["h200"], SQUARE)]


@pytest.fixture(scope="module")
def large_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "large.json.gz"
    return write(path, {SQUARE: trials_of(configs())}, without_cublas=(SQUARE,))


@pytest.fixture
def search(large_recording: Path, tmp_path: Path) -> Iterator[Search]:
    made = Search(
        tmp_path, "--gpu", f"replay:{large_recording}", "--shape", "512", delay_s=ANSWER_S,
    )  # fmt: skip
    yield made
    made.close()


def run_and_kill(search: Search, number: int, rng: random.Random) -> None:
    """A third of the kills hits wherever a run is by then: loading, migrating, resuming; the others
    a search at work."""
    is_cold = number % COLD_EVERY == 0
    process = (search.start if is_cold else search.fork)("--trials", str(NUM_TRIALS))
    if is_cold or number % 3 == 0:
        time.sleep(rng.uniform(0, COLD_S if is_cold else WARM_S))
    else:
        search.wait_until(process, lambda: search.noted("told"))
        time.sleep(rng.uniform(0, MOST_ALIVE_S))
    kill(process)


@pytest.mark.stress
def test_kills_lose_at_most_one_trial_each(search: Search) -> None:
    rng = random.Random(3)
    stored: list[str] = []
    num_losses = num_runs_with_trials = 0
    for number in range(NUM_KILLS):
        run_and_kill(search, number, rng)
        before, stored = stored, search.stored()
        requested, text = search.noted("asked"), search.noted("told")
        assert stored[: len(before)] == before
        assert not set(requested) & set(before)  # what is known is never asked again
        assert set(text) <= set(stored)  # what was told of is there
        assert set(stored[len(before) :]) <= set(requested)
        lost = set(requested) - set(stored)
        assert len(lost) <= 1
        num_losses += len(lost)
        num_runs_with_trials += len(stored) > len(before)
    assert num_losses > 0, "no kill met a trial in flight: the test proves nothing"
    assert num_runs_with_trials >= NUM_KILLS // 3
    facts = search.finish(search.start("--trials", str(NUM_TRIALS)))
    assert facts["num_trials"] == NUM_TRIALS == len(search.stored())
    assert facts["num_new"] == NUM_TRIALS - len(stored)
    assert not set(search.noted("asked")) & set(stored)


@pytest.mark.stress
def test_a_database_moved_away_ends_the_search_and_put_back_it_goes_on(search: Search) -> None:
    process = search.fork("--trials", str(FEW_TRIALS))
    search.wait_until(process, lambda: len(search.noted("told")) >= 3)
    away = search.db.with_name("away.db")
    search.db.rename(away)
    assert process.wait(60) == StoreError.exit_code
    assert "was moved, deleted or replaced while in use; put it back" in search.said()
    text, requested = search.noted("told"), search.noted("asked")
    away.rename(search.db)
    stored = search.stored()
    assert set(text) <= set(stored) and len(set(requested) - set(stored)) <= 1
    facts = search.finish(search.fork("--trials", str(FEW_TRIALS)))
    assert facts["num_trials"] == FEW_TRIALS == len(search.stored())
    assert not set(search.noted("asked")) & set(stored)


@pytest.mark.stress
def test_two_searches_at_once_on_one_database_store_each_config_once(search: Search) -> None:
    both = [search.fork("--trials", str(FEW_TRIALS), "--seed", seed) for seed in "12"]
    assert [process.wait(120) for process in both] == [0, 0], search.said()
    stored = search.stored()  # looks for doubles, too
    assert FEW_TRIALS <= len(stored) <= 2 * FEW_TRIALS
    requested = [json.loads(line).get("asked") for line in search.journal.read_text().splitlines()]
    assert set(stored) == set(requested) - {None}
