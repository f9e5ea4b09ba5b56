"""Of very many trials pages show some, and count all: what they tell is what all would."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from study_cases import HERE, failed, ok_in

from autotune.cli.report import numbers_of
from autotune.facts.gemm import Gemm
from autotune.report import documents, feed, thinned
from autotune.report.activity import runs
from autotune.report.feed import Feed
from autotune.report.numbers import StudyNumbers
from autotune.store import FinalEntry, Follower, Store, StudyRef

NUM, MOST = 900, 120
GEMMS = (Gemm(64, 64, 64), Gemm(64, 64, 128))


def study_in(store: Store, gemm: Gemm) -> StudyRef:
    return store.study(HERE, "0" * 64, "nvrtc 13.4", gemm)


def fill(store: Store, study: StudyRef, first: int, num: int) -> None:
    rng = random.Random(first)
    for n in range(first, first + num):
        one = failed(f"error {n}" if n % 2 else "trap") if rng.random() < 0.2 else ok_in(rng.uniform(90, 300))
        store.add_trial(study, f"a={n}", {"a": n % 7, "b": n}, one, "random")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "a.db"
    with Store.open(path) as store:
        for gemm in GEMMS:
            fill(store, study_in(store, gemm), 0, NUM // 2)
        ranked = store.trials(study_in(store, GEMMS[0]))[7]
        store.set_final(
            study_in(store, GEMMS[0]), [FinalEntry(ranked.key, ranked.point, 1, True, 80.0, (80.0,))]
        )
    return path


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages show few."""
    monkeypatch.setattr(thinned, "MOST_SHOWN", MOST)
    monkeypatch.setattr(feed, "MOST_SHOWN", MOST)


def describe(study: StudyNumbers) -> dict[str, object]:
    """What does not depend on which trials are shown."""
    line = documents.line(study)
    ledger = {name: round(value, 6) for name, value in vars(study.ledger).items()}
    best = [(step.time_us, round(step.elapsed_s, 6), step.key) for step in study.best_so_far]
    groups = sorted((group.outcome, group.count, group.key) for group in study.failures)
    del line["num_shown"]
    return {**line, "ledger": ledger, "best": best, "groups": groups, "cut": study.num_cut_short}


def test_what_is_told_of_some_is_what_all_would_tell(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open_existing(path) as store:
        whole = numbers_of(store, (), None)
        monkeypatch.setattr(thinned, "MOST_SHOWN", MOST)
        some = numbers_of(store, (), None)
    assert [len(study.records.trials) for study in whole] == [NUM // 2] * 2
    assert all(len(study.records.trials) < 0.8 * MOST for study in some)
    for one, other in zip(some, whole, strict=True):
        found, expected = describe(one), describe(other)
        for name, value in expected.items():
            assert found[name] == value, name
    assert "a=7" in {trial.key for trial in some[0].records.trials}  # that of the final
    (run,), (all_of_it,) = runs(some), runs(whole)
    assert run.num_trials == all_of_it.num_trials and run.began_at == all_of_it.began_at
    assert run.num_failed == pytest.approx(all_of_it.num_failed, rel=0.3)


@pytest.mark.usefixtures("few")
def test_a_feed_of_very_many_follows_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        study = study_in(store, GEMMS[0])
        fill(store, study, 0, NUM // 2)
        clock = iter(range(0, 1000, 10))
        with Follower(path) as follower:
            followed = Feed(follower, None, clock=lambda: float(next(clock)))
            (first,) = followed.studies()
            assert len(first.records.trials) < MOST * 2 and first.num_trials == NUM // 2
            fill(store, study, NUM // 2, 50)
            (second,) = followed.studies()
            assert second.num_trials == NUM // 2 + 50 and len(second.later) == 50
            ranked = store.trials(study)[11]
            store.set_final(study, [FinalEntry(ranked.key, ranked.point, 1, True, 80.0, (80.0,))])
            (third,) = followed.studies()
            assert third.num_trials == NUM // 2 + 50 and third.best_trial == ranked
            assert third.elapsed_s == sorted(third.elapsed_s)


def test_rows_that_no_trial_can_be_are_left_out(path: Path, tmp_path: Path) -> None:
    import shutil
    import sqlite3
    from contextlib import closing

    corrupted = tmp_path / "damaged.db"
    shutil.copy(path, corrupted)
    faults = (
        ("outcome", "fine"), ("time_us", "fast"), ("compile_s", "x"), ("measure_s", -1.0), ("created_at", 7),
        ("created_at", "2026-02-30 10:00:00.000000"), ("error_over_cublas", "low"),
    )  # fmt: skip
    with closing(sqlite3.connect(corrupted)) as db, db:
        for number, (column, value) in enumerate(faults, 1):
            db.execute(f"UPDATE trial SET {column} = ? WHERE id = ?", (value, number))
    with Store.open_existing(corrupted) as store:
        seen = [id for one in store.curve(store.studies()[0].study) for id in one.id]
    assert seen == list(range(len(faults) + 1, NUM // 2 + 1))


def test_what_is_shown_is_bounded() -> None:
    assert thinned.share(100, thinned.MOST_SHOWN) == 100
    assert thinned.share(450, 450 * 2000) == thinned.LEAST_SHOWN
    assert thinned.share(4, 10**6) == 4
