"""What was stored under a looser limit on its error does not win under a tighter one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_target import FakeTarget
from store_cases import COMPILER, H200, SQUARE, add, config, ok

from autotune.cli import bench
from autotune.cli.report import numbers_of
from autotune.cli.trials import _study_facts
from autotune.export.from_store import read_results
from autotune.facts.device import KNOWN
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement
from autotune.files.errors import DispatchError
from autotune.kernel import template
from autotune.search import Options, tune
from autotune.search_policy import SearchPolicy
from autotune.store import FinalEntry, Store, StudyRef
from autotune.target import point_key

ERRORS = (4.0, 1.2, None, 9.0)  # over cuBLAS's, by config; the less accurate, the faster


@pytest.fixture
def study(store: Store) -> StudyRef:
    """As `--max-error 0` leaves it."""
    study = store.study(H200, template.source_hash(), COMPILER, SQUARE)
    for number, error in enumerate(ERRORS):
        time_us = 1.0 if error == 9.0 else 2.0 + number
        add(store, study, number, replace(ok(time_us), error_over_cublas=error))
    return study


def rank(store: Store, study: StudyRef, *numbers: int) -> None:
    entries = [
        FinalEntry(config(n).key, config(n).to_dict(), place, place < 3, 1.0 + place)
        for place, n in enumerate(numbers, 1)
    ]
    store.set_final(study, entries)


def test_trials_and_finals(store: Store, study: StudyRef) -> None:
    assert [t.key for t in store.best(study, 4)] == [config(n).key for n in (3, 0, 1, 2)]
    assert [t.key for t in store.best(study, 4, 1.5)] == [config(n).key for n in (1, 2)]
    rank(store, study, 2, 1)
    rank(store, study, 3, 0)  # newer, and nothing accurate in it
    loose, tight = store.final(study), store.final(study, 1.5)
    assert loose is not None and loose.winner.key == config(3).key
    assert tight is not None and tight.winner.key == config(2).key
    rank(store, study, 3, 0, 1, 2)  # newer still: what was tied with it is gone, the next stands alone
    tight = store.final(study, 1.5)
    assert tight is not None and [(e.key, e.is_tied) for e in tight.entries] == [
        (config(1).key, True), (config(2).key, False)
    ]  # fmt: skip
    assert set(store.times(study, 1.5)) == {config(1).key, config(2).key}


@pytest.mark.parametrize("has_final", [False, True])
def test_everything_that_names_a_winner(store: Store, study: StudyRef, has_final: bool) -> None:
    if has_final:
        rank(store, study, 3, 0, 1, 2)
    for limit, best in ((None, 3), (MAX_ERROR, 1)):
        (summary,) = store.studies()
        assert (
            _study_facts(store, summary, store.final(study, limit), limit)["best_config"]
            == config(best).to_dict()
        )
        (numbers,) = numbers_of(store, (), limit)
        assert numbers.best_point == config(best).to_dict()
        assert numbers.best_so_far[-1].key == config(best).key
        (shape,) = read_results(store, H200, KNOWN["h200"], max_error=limit).shapes
        assert shape.ranked[0].config == config(best)
        assert all(point.config != config(3) for point in shape.ranked[1:])
        assert (config(3) in dict(shape.times)) == (limit is None)
        target = SimpleNamespace(environment=H200, policy=CachePolicy.COLD, max_error=limit)
        assert bench.winners(store, cast(Any, target), [SQUARE]) == {SQUARE: config(best).to_dict()}


def test_a_shape_with_nothing_accurate_is_not_exported(store: Store, study: StudyRef) -> None:
    with pytest.raises(DispatchError, match="no results"):
        read_results(store, H200, KNOWN["h200"], max_error=0.5, gemms=[SQUARE, Gemm(1, 1, 1)])


class Inaccurate(FakeTarget):
    """The fastest third of its points is inaccurate, and nothing is timed that a limit forbids."""

    def measure(self, gemm: Any, point: Any) -> Measurement:
        found = super().measure(gemm, point)
        assert found.time_us is not None
        return replace(found, error_over_cublas=5.0 if found.time_us < 130 else 1.0)


@pytest.mark.parametrize("recorded_on", ["2026-01-01", ""], ids=["a recording", "a GPU"])
def test_what_a_search_tells_of_is_accurate(store: Store, recorded_on: str) -> None:
    """After a search without a limit, one with the default limit on the same trials."""
    loose, tight = Inaccurate(), Inaccurate()
    tight.max_error = MAX_ERROR
    for target in (loose, tight):
        target.environment = replace(target.environment, recorded_on=recorded_on)
        (found,) = tune(
            target, store, [Gemm(64, 64, 64)], Options(trials=60, policy=SearchPolicy(num_finalists=3))
        ).shapes
    assert found.verdict is not None
    errors = {trial.key: trial.measurement.error_over_cublas for trial in store.trials(found.study)}
    assert errors[point_key(found.verdict.point)] == 1.0


def test_a_search_goes_by_its_own_limit(store: Store) -> None:
    gemm, options = Gemm(64, 64, 64), Options(trials=60, policy=SearchPolicy(num_finalists=3))
    (loose,) = tune(Inaccurate(), store, [gemm], options).shapes
    assert loose.best is not None and loose.best.measurement.error_over_cublas == 5.0
    tight = Inaccurate()
    tight.max_error = MAX_ERROR
    (found,) = tune(tight, store, [gemm], options).shapes  # the same trials, nothing new
    assert found.num_new == 0 and found.best is not None and found.final is not None
    assert found.best.measurement.error_over_cublas == 1.0
    keys = {trial.key: trial.measurement for trial in store.trials(found.study)}
    assert all(keys[entry.key].error_over_cublas == 1.0 for entry in found.final.entries)
    assert found.num_failed > loose.num_failed  # to this search they are failures
