"""Following a database: what a feed knows is what the store holds, however it came there, at little cost."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from study_cases import GEMM, HERE, failed, ok_in

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Failure, Outcome
from autotune.files.errors import StoreError
from autotune.report.feed import MIN_PAUSE_S, MOST_SHARE, Feed, RateLimited
from autotune.store import FinalEntry, Follower, Store, StudyRef
from autotune.target import Baseline


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def study_in(store: Store, gemm: Gemm = GEMM) -> StudyRef:
    return store.study(HERE, "0" * 64, "nvrtc 13.4", gemm)


def add(store: Store, study: StudyRef, *numbers: int) -> None:
    for n in numbers:
        point = {"a": n}
        store.add_trial(study, f"a={n}", point, failed() if n % 5 == 0 else ok_in(100.0 + n), "random")


def check_same(feed: Feed, store: Store) -> None:
    """All that the feed tells of each study is what the store has of it."""
    text = {one.study.id: one.records for one in feed.studies()}
    summaries = [summary for summary in store.studies() if summary.num_trials]
    assert set(text) == {summary.study.id for summary in summaries}
    for summary in summaries:
        records = text[summary.study.id]
        assert list(records.trials) == store.trials(summary.study)
        assert records.final == store.final(summary.study)
        assert records.baseline_us == store.cublas_us(summary.study)


def test_a_feed_knows_what_the_store_holds_after_every_step(db: Path) -> None:
    rng, clock = random.Random(0), Clock()
    gemms = [Gemm(size, 64, 64) for size in (16, 32, 48)]
    with Store.open(db) as store:
        study_in(store, gemms[0])
        with Follower(db) as follower:
            feed = Feed(follower, None, clock=clock)
            tried: dict[Gemm, list[int]] = {gemm: [] for gemm in gemms}
            for step in range(40):
                gemm = rng.choice(gemms)
                study = study_in(store, gemm)
                what = rng.choice(("trials", "trials", "baseline", "final", "condemn"))
                ok = [n for n in tried[gemm] if n % 5]
                if what == "trials" or not ok:
                    numbers = range(100 * step + 1, 100 * step + rng.randint(2, 9))
                    add(store, study, *numbers)
                    tried[gemm] += numbers
                elif what == "baseline":
                    store.add_baseline(study, Baseline(float(step + 1)))
                else:
                    if what == "condemn" and len(ok) > 1:  # by the final: it turned out to be wrong
                        store.invalidate(study, f"a={ok[-1]}", Failure(Outcome.WRONG_RESULT, "no"))
                        tried[gemm].remove(ok.pop())
                    entry = FinalEntry(f"a={ok[0]}", {"a": ok[0]}, 1, True, float(step + 1), (1.0,))
                    store.set_final(study, [entry], Baseline(9.0))
                clock.now += MIN_PAUSE_S
                check_same(feed, store)


def test_the_database_is_looked_at_once_a_second_and_only_news_are_read(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with Store.open(db) as store, Follower(db) as follower:
        study = study_in(store)
        add(store, study, *range(1, 400))
        feed = Feed(follower, None, clock=clock)
        assert len(feed.studies()[0].records.trials) == 399
        requested: list[int] = []
        trials_after = follower.trials_after
        version = feed.version
        monkeypatch.setattr(follower, "newest", lambda: pytest.fail("it was looked at within the second"))
        for _ in range(50):
            clock.now += MIN_PAUSE_S / 60
            feed.studies()
        monkeypatch.undo()
        monkeypatch.setattr(follower, "trials_after", lambda i: requested.append(i) or trials_after(i))
        clock.now += MIN_PAUSE_S
        feed.look()
        assert (feed.version, requested) == (version, []), "nothing was new"
        add(store, study, 401)
        clock.now += MIN_PAUSE_S
        assert feed.look() == version + 1
        assert requested and requested[0] > 300, "not from the first trial on"
        assert len(feed.studies()[0].records.trials) == 400


def test_a_feed_of_some_problems_knows_no_others(db: Path) -> None:
    with Store.open(db) as store, Follower(db) as follower:
        for gemm in (GEMM, Gemm(8, 8, 8)):
            add(store, study_in(store, gemm), 1)
        feed = Feed(follower, None, {GEMM})
        assert [one.study.gemm for one in feed.studies()] == [GEMM]
        assert feed.study(study_in(store, Gemm(8, 8, 8)).id) is None


def test_a_follower_writes_nothing_and_holds_no_lock(db: Path) -> None:
    """Writers go on while it reads, and it cannot write even if it would."""
    with Store.open(db) as store:
        study = study_in(store)
        add(store, study, 1)
        with Follower(db) as follower:
            with pytest.raises(StoreError, match="read"):
                follower.add_baseline(study, Baseline(1.0))
            feed, stop = Feed(follower, None, clock=lambda: time.monotonic() * 1e6), threading.Event()
            looks = []

            def look() -> None:
                while not stop.is_set():
                    looks.append(len(feed.studies()[0].records.trials))

            thread = threading.Thread(target=look)
            thread.start()
            try:
                writer = sqlite3.connect(db, timeout=0)  # fails rather than wait for anybody
                for n in range(200):
                    writer.execute("UPDATE trial SET registers = ?", (n,))
                    writer.commit()
                writer.close()
            finally:
                stop.set()
                thread.join()
            assert looks


def test_a_follower_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError):
        Follower(tmp_path / "empty.db")
    with pytest.raises(StoreError):
        Follower(tmp_path / "none.db")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]


def test_what_takes_long_is_seldom_computed() -> None:
    clock, made = Clock(), []

    def make() -> int:
        clock.now += 0.2
        made.append(clock.now)
        return len(made)

    spared: RateLimited[int] = RateLimited(clock)
    assert [spared.get(1, make) for _ in range(9)] == [1] * 9, "nothing has changed"
    started = clock.now
    for version in range(2, 4000):
        clock.now += 0.01
        spared.get(version, make)
    share = 0.2 * (len(made) - 1) / (clock.now - started)
    assert 0.5 * MOST_SHARE < share <= 1.02 * MOST_SHARE


def test_a_database_that_is_moved_away_is_told(db: Path) -> None:
    clock = Clock()
    with Store.open(db) as store:
        add(store, study_in(store), 1)
    with Follower(db) as follower:
        feed = Feed(follower, None, clock=clock)
        assert feed.studies()
        db.rename(db.with_name("b.db"))
        clock.now += 1
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            feed.studies()


def test_a_look_that_failed_is_told_until_the_next_which_reads_all_of_what_is_there_then(db: Path) -> None:
    """It flipped between a fault and none, and never got over a database that was replaced."""
    clock = Clock()
    with Store.open(db) as store:
        add(store, study_in(store), 1, 2, 3)
    with Follower(db) as follower:
        feed = Feed(follower, None, clock=clock)
        assert len(feed.study(1).records.trials) == 3
        version = feed.version
        db.rename(db.with_name("away.db"))
        for _ in range(6):
            clock.now += MIN_PAUSE_S / 2
            if clock.now > 1000.0 + MIN_PAUSE_S / 2:
                with pytest.raises(StoreError, match=r"a\.db"):
                    feed.look()
        with Store.open(db) as store:
            add(store, study_in(store), 4)
            clock.now += MIN_PAUSE_S
            assert [dict(trial.point) for trial in feed.study(1).records.trials] == [{"a": 4}]
            assert feed.version > version and feed.epoch == 1
            check_same(feed, store)
            add(store, study_in(store), 6)
            clock.now += MIN_PAUSE_S
            check_same(feed, store)
            assert feed.epoch == 1


@pytest.mark.parametrize("forgotten", [0, 1])
def test_a_study_that_is_forgotten_is_shown_no_more_nor_in_the_place_of_another(
    db: Path, forgotten: int
) -> None:
    """SQLite gave its id, and those of its trials, to the next."""
    clock = Clock()
    with Store.open(db) as store, Follower(db) as follower:
        studies = [study_in(store, Gemm(size, 64, 64)) for size in (16, 32)]
        for study in studies:
            add(store, study, 1, 2, 3)
        feed = Feed(follower, None, clock=clock)
        check_same(feed, store)
        store.forget(studies[forgotten])
        add(store, study_in(store, Gemm(48, 64, 64)), 4, 6, 7)
        for number in (8, 9):
            clock.now += MIN_PAUSE_S
            check_same(feed, store)
            assert sorted(one.study.gemm.m for one in feed.studies()) == [studies[1 - forgotten].gemm.m, 48]
            add(store, study_in(store, Gemm(48, 64, 64)), number)
        assert feed.epoch == 1


def test_an_environment_of_the_same_shape_is_another_study(db: Path) -> None:
    with Store.open(db) as store, Follower(db) as follower:
        add(store, study_in(store), 1)
        other = store.study(replace(HERE, gpu_uuid="GPU-1"), "0" * 64, "nvrtc 13.4", GEMM)
        add(store, other, 1, 2)
        assert [len(one.records.trials) for one in Feed(follower, None).studies()] == [1, 2]
