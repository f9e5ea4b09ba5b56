"""The store shared by processes: killed at any moment, racing, locked, and read while written."""

from __future__ import annotations

import multiprocessing
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from store_cases import (
    add,
    add_all,
    config,
    create,
    hold_write_lock,
    integrity,
    killed_before,
    ok,
    start,
    study_of,
    write_until_killed,
)

from autotune.files.errors import StoreError
from autotune.store import Store


def _reported(report: Path) -> list[int]:
    """Ids that a writer named; the last line may be missing, never half."""
    return [int(line) for line in report.read_text(encoding="ascii").split()] if report.exists() else []


def test_kill_takes_at_most_the_trial_in_flight(tmp_path: Path) -> None:
    path, report, rng = tmp_path / "autotune.db", tmp_path / "report", random.Random(2)
    num_unreported = 0
    for _ in range(20):
        writer = start(write_until_killed, path, report)
        num_before = len(_reported(report))
        while len(_reported(report)) == num_before and writer.is_alive():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        assert integrity(path) == "ok"
        with Store.open(path) as store:
            trials = store.trials(study_of(store))
        ids = {trial.id for trial in trials}
        unreported = ids - set(_reported(report))
        assert set(_reported(report)) <= ids
        assert len(unreported) <= num_unreported + 1
        num_unreported = len(unreported)
        assert [trial.key for trial in trials] == [config(number).key for number in range(len(trials))]
        assert [trial.measurement for trial in trials] == [ok(1.0 + i) for i in range(len(trials))]


@pytest.mark.stress
def test_a_database_half_made_is_made_whole(quick_folder: Path) -> None:
    """Killed before its first writing statement, its second, ... until one lives to the end."""
    for statement in range(200):
        path = quick_folder / f"{statement}.db"
        process = start(killed_before, statement, create, path)
        process.join()
        with Store.open(path) as store:
            add(store, study_of(store), 0, ok(1.0))
        assert integrity(path) == "ok"
        if process.exitcode == 0:
            break
    assert 10 < statement < 199


def test_two_searches_store_each_config_once(tmp_path: Path) -> None:
    path, numbers = tmp_path / "autotune.db", list(range(120))
    reports = [tmp_path / "one", tmp_path / "two"]
    orders = [numbers, random.Random(1).sample(numbers, len(numbers))]
    racers = [start(add_all, path, order, report) for order, report in zip(orders, reports, strict=True)]
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    added = [[int(n) for n in report.read_text(encoding="ascii").split()] for report in reports]
    assert sorted(added[0] + added[1]) == numbers
    with Store.open(path) as store:
        trials = store.trials(study_of(store))
        assert len(store.studies()) == 1
    assert sorted(trial.key for trial in trials) == sorted(config(number).key for number in numbers)


def test_a_writer_waits_for_another_and_then_says_who_it_is(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    context = multiprocessing.get_context("forkserver")
    with Store.open(path, timeout_s=0.3) as store:
        study = study_of(store)
        is_held, may_end = context.Event(), context.Event()
        holder = start(hold_write_lock, path, is_held, may_end)
        assert is_held.wait(30)
        with pytest.raises(StoreError, match=rf"is locked by (process {holder.pid}|another process);.*run"):
            add(store, study, 0, ok(1.0))
        assert store.trials(study) == []  # readers do not wait
        with Store.open(path, timeout_s=0.3) as other:
            assert other.trials(study) == []  # nor is opening held up
        may_end.set()
        holder.join()
        assert add(store, study, 0, ok(1.0)) == 1


def test_a_writer_that_gets_its_turn_in_time_notices_nothing(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    context = multiprocessing.get_context("forkserver")
    with Store.open(path) as store:
        study = study_of(store)
        is_held, may_end = context.Event(), context.Event()
        holder = start(hold_write_lock, path, is_held, may_end)
        assert is_held.wait(30)
        may_end.set()
        assert add(store, study, 0, ok(1.0)) == 1
        holder.join()


def test_readers_see_whole_transactions_and_hold_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    with Store.open(path) as store:
        study = study_of(store)
        add(store, study, 0, ok(1.0))
        reader = sqlite3.connect(path, isolation_level=None)
        try:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM trial").fetchone() == (1,)
            add(store, study, 1, ok(1.0))  # while the reader is in the middle
            assert reader.execute("SELECT count(*) FROM trial").fetchone() == (1,)
            reader.execute("COMMIT")
            assert reader.execute("SELECT count(*) FROM trial").fetchone() == (2,)
        finally:
            reader.close()
