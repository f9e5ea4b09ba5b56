"""What is shown of many trials is filtered, counted and limited in the database: few are read."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from store_cases import config, failed, ok, study_of

from autotune.cli import trials
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.store import Store, rows

NUM = 300
SHOWN = 5
FAULTS = (
    ("outcome", "fine"), ("time_us", "fast"), ("time_us", float("inf")), ("created_at", "2026-13-01"),
    ("created_at", 7), ("error_over_cublas", "low"),
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shapes; every third trial of the first failed."""
    path = tmp_path_factory.mktemp("many") / "autotune.db"
    with Store.open(path) as store:
        for gemm in (Gemm(64, 64, 64), Gemm(128, 64, 64)):
            study = study_of(store, gemm)
            found = {}
            for number in range(NUM):
                tried, is_failed = config(number), number % 3 == 0 and gemm.m == 64
                found[tried.key] = tried.to_dict(), failed() if is_failed else ok(1.0 + number)
            store.add_trials(study, found, "tpe")
    return path


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many trials are turned into records."""
    counted, read = Counter[str](), rows.trial_record

    def count(*row: object) -> object:
        counted["trials"] += 1
        return read(*row)

    monkeypatch.setattr(rows, "trial_record", count)
    return counted


def test_the_newest_are_read_and_all_are_counted(path: Path, num_read: Counter[str], capsys) -> None:
    trials.failures(str(path), (), SHOWN, is_json=False)
    assert f"{NUM // 3}" in capsys.readouterr().out
    trials.history(str(path), (), SHOWN, is_json=True)
    assert f'"num_trials": {2 * NUM}' in capsys.readouterr().out
    assert num_read["trials"] <= 2 * (SHOWN + 2)  # and the best of each shape


def test_a_shape_has_its_own_newest_and_counts(path: Path, num_read: Counter[str]) -> None:
    with Store.open_existing(path) as store:
        first, second = (summary.study for summary in store.studies())
        assert [record.id for _, record in store.newest([first], 3)] == [NUM - 2, NUM - 1, NUM]
        assert [record.id for _, record in store.newest([first, second], 2)] == [2 * NUM - 1, 2 * NUM]
        assert [record.id for _, record in store.newest([first, second], 1, is_failed=True)] == [NUM - 2]
        assert store.newest([second], 3, is_failed=True) == []
        counts = [summary.counts for summary in store.studies()]
    assert counts == [{Outcome.OK: 200, Outcome.FAULTED: 100}, {Outcome.OK: NUM}]


def test_what_is_damaged_is_counted_by_nobody_and_the_next_is_shown(path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    shutil.copy(path, damaged)
    with closing(sqlite3.connect(damaged)) as db, db:
        db.execute("UPDATE trial SET samples_us = '[1,' WHERE id = ?", (2 * NUM,))
        for number, (column, value) in enumerate(FAULTS, 1):
            db.execute(f"UPDATE trial SET {column} = ? WHERE id = ?", (value, number))
    with Store.open_existing(damaged) as store:
        first, second = store.studies()
        assert first.num_trials == NUM - 6 and second.num_trials == NUM
        assert {damage.id for damage in store.damages} == {1, 2, 3, 4, 5, 6}
        assert [record.id for _, record in store.newest([second.study], 1)] == [2 * NUM - 1]


def test_an_export_reads_the_fastest_of_a_study(path: Path) -> None:
    with Store.open_existing(path) as store:
        study = store.studies()[0].study
        times = store.times(study, most=7)
        assert sorted(times.values()) == sorted(store.times(study).values())[:7]
        assert store.keys(study, among=list(times)[:3]) == set(list(times)[:3])
