"""What is shown of many trials is filtered, counted and limited in the database: few are read."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from store_cases import config, failed, ok, study_of

from autotune.cli import report, trials
from autotune.cli.requests import FailuresRequest, HistoryRequest, ReportRequest
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Discarded, Outcome
from autotune.kernel.where import Where
from autotune.report import feed, numbers
from autotune.store import Follower, Store, rows
from autotune.store.records import TrialFacts
from autotune.target import read_key

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


def test_the_latest_are_read_and_all_are_counted(path: Path, num_read: Counter[str], capsys) -> None:
    trials.failures(FailuresRequest(str(path), limit=SHOWN), is_json=False)
    assert f"{NUM // 3}" in capsys.readouterr().out
    trials.history(HistoryRequest(str(path), limit=SHOWN), is_json=True)
    assert f'"num_trials": {2 * NUM}' in capsys.readouterr().out
    assert num_read["trials"] <= 2 * (SHOWN + 2)  # and the best of each shape


def test_a_shape_has_its_own_latest_and_counts(path: Path, num_read: Counter[str]) -> None:
    with Store.open_existing(path) as store:
        first, second = (summary.study for summary in store.studies())
        assert [record.id for _, record in store.latest([first], 3)] == [NUM - 2, NUM - 1, NUM]
        assert [record.id for _, record in store.latest([first, second], 2)] == [2 * NUM - 1, 2 * NUM]
        assert [record.id for _, record in store.latest([first, second], 1, is_failed=True)] == [NUM - 2]
        assert store.latest([second], 3, is_failed=True) == []
        counts = [summary.counts for summary in store.studies()]
    assert counts == [{Outcome.OK: 200, Outcome.FAULTED: 100}, {Outcome.OK: NUM}]


def test_what_is_damaged_is_counted_by_nobody_and_the_next_is_shown(path: Path, tmp_path: Path) -> None:
    corrupted = tmp_path / "damaged.db"
    shutil.copy(path, corrupted)
    with closing(sqlite3.connect(corrupted)) as db, db:
        db.execute("UPDATE trial SET samples_us = '[1,' WHERE id = ?", (2 * NUM,))
        for number, (column, value) in enumerate(FAULTS, 1):
            db.execute(f"UPDATE trial SET {column} = ? WHERE id = ?", (value, number))
    with Store.open_existing(corrupted) as store:
        first, second = store.studies()
        assert first.num_trials == NUM - 6 and second.num_trials == NUM
        assert {damage.id for damage in store.bad_rows} == {1, 2, 3, 4, 5, 6}
        assert [record.id for _, record in store.latest([second.study], 1)] == [2 * NUM - 1]


def test_an_export_reads_the_fastest_of_a_study(path: Path) -> None:
    with Store.open_existing(path) as store:
        study = store.studies()[0].study
        times = store.times(study, most=7)
        assert sorted(times.values()) == sorted(store.times(study).values())[:7]
        assert store.keys(study, within=list(times)[:3]) == set(list(times)[:3])


def test_times_that_obey_are_chosen_by_the_database(path: Path, num_read: Counter[str]) -> None:
    """Few of many obey: as many are found as are asked for, the fastest."""
    with Store.open_existing(path) as store:
        study = store.studies()[1].study
        everything = store.timed(study)
        assert set(everything.values()) == {(1.0 + number, "tpe") for number in range(NUM)}
        for text in ("split_k=8", "split_k!=8", "split_k>=290", "split_k>=290,split_k!=295,bm=64", "group=1"):
            where = Where.parse(text)
            matching = {key: one for key, one in everything.items() if where.holds(read_key(key))}
            assert store.timed(study, where=where) == matching
            assert store.timed(study, most=4, where=where) == dict(list(matching.items())[:4])
            (best,) = store.best(study, where=where) or (None,)
            assert (best and best.key) == next(iter(matching), None)


def test_pages_show_the_latest_of_very_many_shapes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    for module in (numbers, feed):
        monkeypatch.setattr(module, "MOST_STUDIES", 1)
    request = ReportRequest(out=tmp_path / "r.html", db=str(path), max_error=None)
    report.run(request, is_json=False)
    assert "1 study (the newest 1 of 2 shapes), 300 trials" in capsys.readouterr().out
    assert "(the newest 1 of 2 shapes)" in (tmp_path / "r.html").read_text(encoding="utf-8")
    report.run(replace(request, shapes=["64"]), is_json=False)
    assert "(the newest" not in capsys.readouterr().out
    followed = tmp_path / "followed.db"
    shutil.copy(path, followed)
    clock = iter(range(0, 100, 10))
    with Follower(followed) as follower, Store.open(followed) as store:
        following = feed.Feed(follower, None, clock=lambda: next(clock))
        assert [str(one.study.gemm) for one in following.studies()] == ["128x64x64:NN"]
        assert following.part == " (the newest 1 of 2 shapes)"
        tried = config(NUM)
        store.add_trial(study_of(store, Gemm(64, 64, 64)), tried.key, tried.to_dict(), ok(0.5), "tpe")
        (searched,) = following.studies()
        assert str(searched.study.gemm) == "64x64x64:NN" and searched.best_us == 0.5


def test_columns_of_a_csv_are_requested_for_once_a_kernel(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    requested = []
    monkeypatch.setattr(Store, "best", lambda store, study, *_, **__: requested.append(study) or [])
    trials.history(HistoryRequest(str(path), limit=SHOWN), is_json=False, is_csv=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(requested) == 1 and len(lines) == 1 + SHOWN and "config.split_k" in lines[0]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_table_has_what_records_have(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Lines are made from rows: sound ones, and those that have to be read first."""
    url = str(tmp_path / "t.db") if kind == "sqlite" else request.getfixturevalue("postgresql").new_database()
    with Store.open(url) as store:
        study = study_of(store, Gemm(64, 64, 64))
        reason = 'ptxas: "C", line 3\nno'
        discarded = (Discarded((5.0, 6.0), ("drift", "heat")),)
        others = {"a=x,b=0.5": {"a": 'x,"y', "b": 0.5}, "c=1": {"c": 1}}
        odd = replace(ok(0.1 + 0.2), samples_us=(0.3, 1e-7), discarded=discarded, error_ratio=math.inf)
        found = {config(n).key: (config(n).to_dict(), ok(1.0 + n)) for n in range(3)}
        found |= {key: (point, replace(odd, reason=reason)) for key, point in others.items()}
        found |= {config(7).key: (config(7).to_dict(), replace(failed(), reason=reason))}
        store.add_trials(study, found, "tpe,x")
        first = {"study": study.id, "gpu": "NVIDIA {H200}, or so"}
        records = [{**first, **record.flat()} for record in store.trials(study)]
        names = list(dict.fromkeys(name for record in records for name in record))
        read = list(csv.DictReader(io.StringIO("".join(store.csv_lines({study: first}, names))), names))
        for record, line in zip(records, read, strict=True):
            cells = {name: line[name] for name in names if line[name]}
            tuples = {name: one for name, one in record.items() if isinstance(one, tuple)}
            listed = json.loads(json.dumps(tuples))
            assert {name: json.loads(cells.pop(name)) for name in listed} == listed
            texts = {name: str(record[name]) for name in record.keys() - listed.keys()}
            assert cells == {name: one for name, one in texts.items() if one not in ("", "None")}
        for facts, record in zip(store.facts(study), store.trials(study), strict=True):
            assert json.loads(f"{{{','.join(facts.items)}}}") == record.point
            assert facts.values == [*map(str, record.point.values())]
            told = {**facts._asdict(), "samples_us": tuple(facts.samples_us)}
            known = {**record.flat(), "items": facts.items, "values": facts.values}
            assert told == {name: known[name] for name in facts._fields}


DAMAGED = (
    ("outcome", "fine"), ("time_us", None), ("time_us", -1.0), ("samples_us", "[1.0"),
    ("samples_us", "[1.0],[2.0"), ("samples_us", "[[1.0]]"), ("samples_us", "[0.0]"),
    ("samples_us", "[NaN]"), ("samples_us", '["1"]'),
    ("is_cut_short", 2), ("verify_s", -1.0), ("measure_s", 1e10), ("power_w", "much"), ("marks", "[1]"),
    ("throttle_reasons", "{}"), ("discarded", "[1]"), ("created_at", "2026-02-30 00:00:00.000000"),
    ("created_at", "1926-02-20 00:00:00.000000"), ("config_id", 10**6), ("origin", b"\xff"),
    ("registers", "few"),
)  # fmt: skip


def test_damaged_trials_hide_no_sound_one_among_which_they_stand(path: Path, tmp_path: Path) -> None:
    """Many are checked at a time: a column of values, and texts of JSON put together."""
    damaged = tmp_path / "damaged.db"
    shutil.copy(path, damaged)
    with closing(sqlite3.connect(damaged)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        ids = [row[0] for row in db.execute("SELECT id FROM trial WHERE study_id = 2 ORDER BY id")]
        for (name, value), at in zip(DAMAGED, ids[3::7], strict=False):
            db.execute(f"UPDATE trial SET {name} = ? WHERE id = ?", (value, at))
        db.execute("UPDATE config SET point = '{\"bm\": 7}' WHERE id = 150")
        db.commit()
    with Store.open(damaged) as store:
        (study,) = (one.study for one in store.studies() if one.study.id == 2)
        expected = store.trials_by_id(study, ids)  # one by one
        assert len(ids) - len(expected) == len(DAMAGED) + 1
        assert store.trials(study) == expected
        names = ["study", *expected[0].flat()]
        lines = list(store.csv_lines({study: {"study": 2}}, names))
        read = [int(row["id"]) for row in csv.DictReader(io.StringIO("".join(lines)), names)]
        assert read == [record.id for record in expected]
        written = [one.created_at for one in store.facts(study)]
        assert len(written) == len(expected) + sum(name not in TrialFacts._fields for name, _ in DAMAGED) - 1
        assert {record.created_at.isoformat() for record in expected} <= {*written}
