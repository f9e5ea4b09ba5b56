"""`kill -9` at random moments of a search, again and again: each costs at most the trial in flight."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from kills import Search, kill

from autotune import kernel
from autotune.config import Config
from autotune.device import KNOWN
from autotune.measurement import CachePolicy
from autotune.recording_file import write_recording
from autotune.rules import broken_rules
from autotune.target import Baseline

from .conftest import ENVIRONMENT, RECORDED_ON, SQUARE, measured

NUM_KILLS = 50
COLD_EVERY = 5  # of the runs one imports everything itself, and is killed wherever that has come to
COLD_S, WARM_S = 1.2, 0.3  # about what a run takes until its first trial
ANSWER_S = 0.01
MOST_ALIVE_S = 0.15  # after the first trial of a run


def configs() -> list[Config]:
    """More legal configs than the killed runs have the time to try."""
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
    trials = [(config.to_dict(), measured(number)) for number, config in enumerate(configs())]
    write_recording(
        path, limits=KNOWN["h200"], environment=replace(ENVIRONMENT, recorded_on=""),
        policy=CachePolicy.COLD, source_hash=kernel.source_hash(), recorded_on=RECORDED_ON,
        problems={SQUARE: (Baseline(None), trials)},
    )  # fmt: skip
    return path


@pytest.fixture
def search(large_recording: Path, tmp_path: Path) -> Iterator[Search]:
    made = Search(
        tmp_path, "--gpu", f"replay:{large_recording}", "--shape", "512", "--trials", str(len(configs())),
        delay_s=ANSWER_S,
    )  # fmt: skip
    yield made
    made.close()


def run_and_kill(search: Search, number: int, rng: random.Random) -> None:
    """A third of the kills hits wherever a run is by then: loading, migrating, resuming; the others
    a search at work."""
    is_cold = number % COLD_EVERY == 0
    process = search.start() if is_cold else search.fork()
    if is_cold or number % 3 == 0:
        time.sleep(rng.uniform(0, COLD_S if is_cold else WARM_S))
    else:
        search.wait_until(process, lambda: search.noted("told"))
        time.sleep(rng.uniform(0, MOST_ALIVE_S))
    kill(process)


def test_fifty_kills_lose_at_most_one_trial_each(search: Search) -> None:
    num_configs, rng = len(configs()), random.Random(3)
    stored: list[str] = []
    num_losses = num_runs_with_trials = 0
    for number in range(NUM_KILLS):
        run_and_kill(search, number, rng)
        before, stored = stored, search.stored()
        asked, told = search.noted("asked"), search.noted("told")
        assert stored[: len(before)] == before
        assert not set(asked) & set(before)  # what is known is never asked again
        assert set(told) <= set(stored)  # what was told of is there
        assert set(stored[len(before) :]) <= set(asked)
        lost = set(asked) - set(stored)
        assert len(lost) <= 1
        num_losses += len(lost)
        num_runs_with_trials += len(stored) > len(before)
    assert num_losses > 0, "no kill met a trial in flight: the test proves nothing"
    assert num_runs_with_trials >= NUM_KILLS // 3
    facts = search.finish(search.start())
    assert facts["num_trials"] == num_configs == len(search.stored())
    assert facts["num_new"] == num_configs - len(stored)
    assert not set(search.noted("asked")) & set(stored)
