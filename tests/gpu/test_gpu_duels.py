"""Comparisons: contenders timed against each other while no candidate is ready, what comes of them, and where
the seconds are counted."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kills import Search

from autotune.facts import stats
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.gpu import GpuTarget
from autotune.search.compare.final import NUM_LOOKS
from autotune.search.compare.ranking import Ranking
from autotune.search_policy import SearchPolicy
from autotune.store import Store, StudyRef

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]

GEMM = Gemm(1024, 1024, 1024)
POLICY = SearchPolicy()
SECONDS = "15"
NUM_CORES = 6  # with an empty cache: the GPU waits for the compiler much of the time
NUM_ROUNDS = 24
APART = 1.3  # times as slow, in trials: no drift is as much


@pytest.fixture
def target(tmp_path: Path) -> Iterator[GpuTarget]:
    with GpuTarget("auto", cache_dir=tmp_path / "cache") as target:
        yield target


@pytest.mark.alone  # beside sixteen processes each candidate had two times: 104 and 64 us, 84 and 121 us
def test_the_clearly_faster_wins_in_either_order(target: GpuTarget) -> None:
    feasible, rng = target.space(GEMM), random.Random(1)
    points = [feasible.point(rng.randrange(len(feasible))) for _ in range(16)]
    futures = [target.submit(GEMM, point, None) for point in points]
    results = [future.result(120) for future in futures]
    times = sorted((r.time_us, i) for i, r in enumerate(results) if r.time_us is not None)
    fast, slow = points[times[0][1]], points[times[-1][1]]
    assert times[-1][0] > APART * times[0][0], "no two that are clearly apart"
    for faster, pair in enumerate(((fast, slow), (slow, fast))):
        found = target.compare_pair(GEMM, pair, NUM_ROUNDS, faster).result(120)
        assert [len(samples) for samples in found.samples_us] == [NUM_ROUNDS] * 2
        assert min(map(min, found.samples_us)) > 0
        first_us, second_us = found.samples_us
        assert stats.faster_of(first_us, second_us, POLICY.duel_error) == faster
        worked_s = sum(map(sum, found.samples_us)) / 1e6
        assert found.seconds > worked_s


@pytest.fixture
def few_cores() -> Iterator[None]:
    """Where there are many cores a GPU never waits for the compiler."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[:NUM_CORES])
    yield
    os.sched_setaffinity(0, usable)


def _study(store: Store) -> StudyRef:
    (summary,) = store.studies()
    return summary.study


@pytest.mark.alone
@pytest.mark.usefixtures("few_cores")
def test_a_search_records_its_comparisons_and_goes_by_them(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    search = Search(tmp_path, "--gpu", "0", "--shape", str(GEMM), "--seconds", SECONDS, AUTOTUNE_CACHE=cache)
    facts = search.finish(search.start())
    with Store.open(search.db) as store:
        study = _study(store)
        assert study.policy is CachePolicy.COLD
        trials, comparisons, final = store.trials(study), store.comparisons(study), store.final(study)
    ranking = Ranking(POLICY)
    for trial in trials:
        if trial.measurement.time_us is not None:
            ranking.enter(trial.key, trial.point, trial.measurement.time_us)
    assert comparisons, f"no duel was decided: {json.dumps(facts['ledger'])}"
    for comparison in comparisons:
        num_rounds = len(comparison.samples_us[0])
        assert num_rounds == len(comparison.samples_us[1]) < POLICY.most_rounds * (1 + 1 / NUM_LOOKS)
        assert comparison.winner == stats.faster_of(*comparison.samples_us, POLICY.duel_error)
        assert comparison.winner is not None or num_rounds >= POLICY.most_rounds  # over: decided, or tied
        assert ranking.restore(comparison), "a duel of configs without a time"
    ledger = facts["ledger"]
    rounds_s = sum(sum(map(sum, comparison.samples_us)) for comparison in comparisons) / 1e6
    assert rounds_s < ledger["refine_s"] < ledger["search_s"]
    assert ledger["gpu_idle_s"] + ledger["verify_s"] + ledger["measure_s"] + ledger["refine_s"] <= (
        ledger["search_s"] + 1e-6
    )
    assert final is not None and ranking.incumbent is not None
    assert ranking.incumbent.key in {entry.key for entry in final.entries}  # nobody else would be the winner
