"""Optuna's dashboard can follow a search: trials are copied while it runs, whatever happens."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_cases import add, integrity, ok, start, study_of

from autotune.facts.measurement import Failure, Outcome
from autotune.files.errors import EnvironmentProblem, StoreError
from autotune.store import Store, optuna_mirror, publisher
from autotune.store.publisher import Publisher


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "autotune.db"


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(publisher, "LEAST_REST_S", 0.05)
    monkeypatch.setattr(publisher, "DUTY", 1.0)
    with Store.open(path) as opened:
        yield opened


def count(path: Path, sql: str) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute(sql).fetchone()[0])
    except sqlite3.OperationalError:
        return -1  # no such table yet
    finally:
        connection.close()


def awaited(path: Path, sql: str, expected: int) -> None:
    deadline = time.monotonic() + 60
    while count(path, sql) != expected:
        assert time.monotonic() < deadline, f"{sql}: {count(path, sql)} and not {expected}"
        time.sleep(0.02)


COPIED = "SELECT count(*) FROM trials"


def test_the_dashboard_opens_at_once_and_follows(store: Store, path: Path) -> None:
    with Publisher(store) as following:
        awaited(path, "SELECT count(*) FROM studies", 0)  # Optuna's tables are there
        study = study_of(store)
        following.follow(study)
        awaited(path, "SELECT count(*) FROM studies", 1)
        for number in range(4):
            add(store, study, number, ok(1.0 + number))
        awaited(path, COPIED, 4)
        add(store, study, 4, ok(9.0))
        following.finish([study])
    assert count(path, COPIED) == 5


def test_it_rests_in_proportion_to_what_it_took(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(publisher, "DUTY", 0.02)
    monkeypatch.setattr(Publisher, "_copy", lambda self: 3.0)
    monkeypatch.setattr(Publisher, "_rest", lambda self, s: (rests.append(s), self._is_over.set()))
    with Publisher(store):
        pass
    assert rests in ([], [150.0])  # none if it was left before it began


def test_what_fails_meanwhile_does_not_end_a_search(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([StoreError("locked"), EnvironmentProblem("the disk is full")])
    copy = optuna_mirror.Mirror.copy

    def fail_twice(self: optuna_mirror.Mirror, *args: Any) -> int:
        for error in failures:
            raise error
        return copy(self, *args)

    monkeypatch.setattr(optuna_mirror.Mirror, "copy", fail_twice)
    study = study_of(store)
    add(store, study, 0, ok(1.0))
    with Publisher(store) as following:
        following.follow(study)
        awaited(Path(store.url.removeprefix("sqlite:///")), COPIED, 1)


def test_a_finalist_that_failed_after_all_fails_in_the_copy_too(store: Store, path: Path) -> None:
    study = study_of(store)
    for number in range(2):
        add(store, study, number, ok(1.0 + number))
    mirror = optuna_mirror.Mirror(store)
    assert mirror.copy([study]) == 2
    key = store.trials(study)[0].key
    store.condemn(study, key, Failure(Outcome.FAULTED, "illegal address"))
    assert mirror.copy([study]) == 0
    mirror.close()
    assert count(path, "SELECT count(*) FROM trials WHERE state = 'FAIL'") == 1
    assert count(path, "SELECT count(*) FROM trial_values") == 1
    outcome = (
        "SELECT count(*) FROM trial_user_attributes WHERE key = 'outcome' AND value_json = '\"faulted\"'"
    )
    assert count(path, outcome) == 1


def follow_without_end(path: Path) -> None:
    """A search as far as the copy sees it."""
    publisher.LEAST_REST_S, publisher.DUTY = 0.01, 1.0
    with Store.open(path) as store, Publisher(store) as following:
        study = study_of(store)
        following.follow(study)
        number = len(store.keys(study))
        while True:
            add(store, study, number, ok(1.0 + number))
            number += 1


@pytest.mark.stress
def test_kills_leave_trials_and_copy_whole(path: Path) -> None:
    for _ in range(5):
        process = start(follow_without_end, path)
        before = count(path, COPIED)
        awaited_more(path, before)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert integrity(path) == "ok"
    with Store.open(path) as store:
        study = study_of(store)
        optuna_mirror.publish(store, [study])
        trials = len(store.trials(study))
    assert count(path, COPIED) == trials
    assert (
        count(
            path,
            "SELECT count(DISTINCT value_json) FROM trial_user_attributes WHERE key = 'autotune_trial_id'",
        )
        == trials
    )


def awaited_more(path: Path, before: int) -> None:
    deadline = time.monotonic() + 60
    while count(path, COPIED) <= max(before, 0):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_searches_copy_one_study(path: Path) -> None:
    processes = [start(copy_some, path, first) for first in (0, 20)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert count(path, COPIED) == 40


def copy_some(path: Path, first: int) -> None:
    publisher.LEAST_REST_S, publisher.DUTY = 0.01, 1.0
    with Store.open(path) as store, Publisher(store) as following:
        study = study_of(store)
        following.follow(study)
        for number in range(first, first + 20):
            add(store, study, number, ok(1.0 + number))
        following.finish([study])
