"""Merging databases: everything arrives, nothing is doubled, killed or damaged, on either kind."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from postgresql_server import Server
from store_cases import (
    COMPILER,
    H200,
    SOURCE,
    SQUARE,
    add,
    config,
    failed,
    forget_square,
    killed_before,
    merge_in_small_pages,
    ok,
    start,
    study_of,
)

from autotune.cli import trials_compare
from autotune.cli.requests import CompareRequest
from autotune.cli.trials_compare import _winners
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.facts.other_problem import OtherProblem
from autotune.files.errors import StoreError, UsageError
from autotune.search.called import expected_us
from autotune.search.stale import stale_shapes
from autotune.store import ComparisonRecord, FinalEntry, Store, StudyRef, merging, this_process
from autotune.store.models import TrialRow
from autotune.store.optuna_rows import Requested, study_name
from autotune.target import Baseline

FLAT = Gemm(16, 4096, 4096, trans_b=True)
KINDS = ("sqlite", "postgresql")


@pytest.fixture(params=[("sqlite", "sqlite"), KINDS, KINDS[::-1]], ids="-to-".join)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Of the database to read and of the one to write."""
    found = []
    for name, kind in zip(("other", "mine"), request.param, strict=True):
        server = request.getfixturevalue("postgresql") if kind == "postgresql" else None
        found.append(server.new_database() if isinstance(server, Server) else str(tmp_path / f"{name}.db"))
    return found[0], found[1]


def fill(store: Store, numbers: range, gemm: Gemm = SQUARE) -> StudyRef:
    """A study with all that one can have."""
    study = study_of(store, gemm)
    for number in numbers:
        add(store, study, number, failed(reason='"quoted", ü\n%s') if number % 5 == 3 else ok(1.0 + number))
    first, second = (config(number) for number in numbers[:2])
    entries = [
        FinalEntry(one.key, one.to_dict(), rank, True, float(rank), (1.0, 2.0), 0.5)
        for rank, one in enumerate((first, second), 1)
    ]
    store.add_baseline(study, Baseline(4.0, (4.0, 5.0)))
    store.add_search(study, "autotune", 0, {"patience": 3.0})
    store.add_comparison(study, ComparisonRecord((first.key, second.key), ((1.0,), (2.0,)), 0))
    store.set_final(study, entries, Baseline(3.0, (3.0,)), ("drift",))
    store.add_cublas_times(H200, CachePolicy.COLD, {Gemm(8, 8, 8): 7.0})
    store.add_cublas_times(H200, CachePolicy.COLD, {Gemm(8, 8, 8): 9.0}, has_bias=True)
    store.add_cublas_times(H200, CachePolicy.COLD, {Gemm(8, 8, 8, batch=4): 11.0})
    store.end_run(store.begin_run(H200, [str(gemm)]), len(numbers))
    return study


def content(store: Store) -> dict[str, Any]:
    """All that a database says, less ids."""
    found: dict[str, Any] = {"runs": [replace(one, id=0) for one in store.runs()]}
    found["cublas"] = [store.cublas_times(H200, CachePolicy.COLD, has_bias=b) for b in (False, True)]
    found["batches"] = store.cublas_times(H200, CachePolicy.COLD, is_batched=True)
    for summary in store.studies():
        study = summary.study
        trials = sorted((replace(trial, id=0) for trial in store.trials(study)), key=lambda trial: trial.key)
        comparisons, searches = store.comparisons(study), store.searches(study)
        found[str(study.gemm)] = (trials, comparisons, searches, store.final(study), store.baseline(study))
    return found


@pytest.mark.every(3)
def test_everything_arrives_and_nothing_is_doubled(urls: tuple[str, str]) -> None:
    with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
        fill(other, range(12))
        fill(other, range(4), FLAT)
        other.study(H200, "other-kernel:conv", "", OtherProblem.of("conv", (9, 8)))
        merged = mine.merge(other)
        assert (merged.num_studies, merged.num_new, merged.num_known) == (3, 16, 0)
        assert merged.others == {
            "baseline": 4, "search": 2, "duel": 2, "final": 2, "cublas_time": 1, "bias_time": 1,
            "batch_time": 1, "run": 2,
        }  # fmt: skip
        assert content(mine) == content(other)
        again = mine.merge(other)
        assert (again.num_new, again.num_known, set(again.others.values())) == (0, 16, {0})
        assert content(mine) == content(other)


def test_what_is_there_stays_and_the_latest_counts(urls: tuple[str, str]) -> None:
    """A final that was merged later was not made later."""
    with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
        fill(other, range(12))
        study = fill(mine, range(6, 20))
        add(mine, study, 2, ok(0.25))
        before, final = {trial.key: trial for trial in mine.trials(study)}, mine.final(study)
        merged = mine.merge(other)
        assert (merged.num_new, merged.num_known) == (5, 7)
        after = {trial.key: trial for trial in mine.trials(study)}
        assert len(after) == 20 and {key: after[key] for key in before} == before
        assert mine.final(study) == final and len(mine.runs()) == 2
        other.merge(mine)
        assert other.final(study_of(other)) == final
        assert set(other.keys(study_of(other))) == set(after)


def test_all_pages_are_read(urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PAGE", 3)
    pages: list[tuple[int, int]] = []
    with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
        fill(other, range(10))
        fill(other, range(4), FLAT)
        mine.merge(other, lambda done, total: pages.append((done, total)))
        assert pages == [(3, 14), (6, 14), (9, 14), (12, 14), (14, 14)]
        assert content(mine) == content(other)


def test_between_files_no_sound_trial_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the first file stay attached when another is merged; a page with a damaged trial is read."""
    monkeypatch.setattr(merging, "PAGE", 3)
    read, fetched = [], merging._fetched
    monkeypatch.setattr(merging, "_fetched", lambda *args, **kw: read.append(args[1]) or fetched(*args, **kw))
    with Store.open(tmp_path / "mine.db") as mine:
        for name, gemm in (("other.db", SQUARE), ("more.db", FLAT)):
            with Store.open(tmp_path / name) as other:
                fill(other, range(10), gemm)
                mine.merge(other)
                assert content(mine)[str(gemm)] == content(other)[str(gemm)]
                assert TrialRow not in read
                assert mine.merge(other).num_known == 10
        with Store.open(tmp_path / "other.db") as other:
            add(other, study_of(other), 11, ok(1.0))
            with closing(sqlite3.connect(tmp_path / "other.db")) as raw, raw:
                raw.execute("UPDATE trial SET samples_us = '[1.0],[2.0]' WHERE id = 11")
            merged = mine.merge(other)
            assert (merged.num_new, merged.num_known) == (0, 10)
            assert [one.id for one in other.bad_rows] == [11] and read.count(TrialRow) == 1


@pytest.mark.every(11)
@pytest.mark.parametrize("statement", range(1, 55, 5))
@pytest.mark.parametrize("urls", [(kind, kind) for kind in KINDS], ids="-to-".join, indirect=True)
def test_a_merge_that_is_killed_goes_on(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    """Before any statement that writes, and once more a few later. Half of them into a database that has some
    of it; all of it is there in the end, once, and what is there before is part of that."""
    monkeypatch.setattr(merging, "PAGE", 5)
    with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
        fill(other, range(12))
        if statement % 2:
            mine.merge(other)
        fill(other, range(4), FLAT)
    for number in (statement, statement // 2):
        process = start(killed_before, number, merge_in_small_pages, *urls)
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), "it may have taken fewer"
        with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
            keys = {str(one.study.gemm): other.keys(one.study) for one in other.studies()}
            for one in mine.studies():
                kept = [trial.key for trial in mine.trials(one.study)]
                assert len(kept) == len(set(kept)) and set(kept) <= keys[str(one.study.gemm)]
    with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
        mine.merge(other)
        assert content(mine) == content(other)
        assert not any(mine.merge(other).others.values())


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_rows_are_named_and_left_out(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("postgresql") if kind == "postgresql" else None
    path, url = tmp_path / "other.db", server.new_database() if server else str(tmp_path / "mine.db")
    with Store.open(path) as other:
        study = fill(other, range(12))
        with closing(sqlite3.connect(path)) as raw:
            for number, (column, value) in enumerate(
                [
                    ("time_us", "soon"), ("samples_us", "[1.0"), ("outcome", "great"),
                    ("created_at", "never"),
                    ("config_id", 999), ("study_id", 77), ("origin", b"\xff\xfe"), ("is_cut_short", 7),
                ],
                1,
            ):  # fmt: skip
                raw.execute(f"UPDATE trial SET {column} = ? WHERE id = ?", (value, number))
            raw.execute("UPDATE duel SET first_us = '{}'")
            raw.commit()
        with Store.open(url) as mine:
            merged = mine.merge(other)
            assert merged.num_new == 4 and not mine.bad_rows
            assert {(damage.table, damage.id) for damage in other.bad_rows} == {
                *(("trial", number) for number in range(1, 9)),
                ("duel", 1),
            }
            assert mine.final(study_of(mine)) == other.final(study)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_others_wrote_oddly_stops_no_merge(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Moments with a T or a quote, and what SQLite holds and PostgreSQL does not."""
    server = request.getfixturevalue("postgresql") if kind == "postgresql" else None
    path, url = tmp_path / "other.db", server.new_database() if server else str(tmp_path / "mine.db")
    with Store.open(path) as other, Store.open(url) as mine:
        fill(other, range(8))
        with closing(sqlite3.connect(path)) as raw, raw:
            for table, mark in (
                ("baseline", "T"),
                ("duel", "T"),
                ("search", "'"),
                ("final", "'"),
                ("run", "T"),
            ):
                at = "began_at" if table == "run" else "created_at"
                raw.execute(f"UPDATE {table} SET {at} = replace({at}, ' ', ?)", (mark,))
            raw.execute("UPDATE trial SET reason = 'a' || char(0) || 'b', outcome = 'faulted' WHERE id = 5")
            raw.execute("UPDATE trial SET registers = 1 << 40 WHERE id = 6")
            raw.execute("UPDATE config SET key = key || char(0) WHERE id = 8")
        merged, again = mine.merge(other), mine.merge(other)
        odd = {("trial", 5), ("trial", 6), ("trial", 8), ("config", 8)}
        assert {(damage.table, damage.id) for damage in other.bad_rows} == (odd if server else set())
        assert merged.num_new == (5 if server else 8)
        assert again.num_new == 0 and not any(again.others.values())
        assert mine.final(study_of(mine)) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_with_an_odd_name_stops_no_merge(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("postgresql") if kind == "postgresql" else None
    path, url = tmp_path / "other.db", server.new_database() if server else str(tmp_path / "mine.db")
    with Store.open(path) as other, Store.open(url) as mine:
        fill(other, range(8))
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("UPDATE environment SET gpu_name = gpu_name || char(0)")
        merged = mine.merge(other)
        assert merged.num_new == (0 if server else 8)
        assert {"environment", "study"} <= {one.table for one in other.bad_rows} or not server


def test_the_same_database_is_refused(tmp_path: Path) -> None:
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    link.symlink_to(path)
    with Store.open(path) as one, Store.open(link) as other, pytest.raises(UsageError, match="itself"):
        one.merge(other)


def test_the_gpu_that_was_measured_last_is_exported_whatever_was_merged_last(tmp_path: Path) -> None:
    with Store.open(tmp_path / "other.db") as other, Store.open(tmp_path / "mine.db") as mine:
        old = other.study(replace(H200, gpu_name="NVIDIA H100 80GB HBM3"), "5" * 64, "", SQUARE)
        add(other, old, 0, ok(1.0))
        add(mine, study_of(mine), 0, ok(1.0))
        mine.merge(other)
        assert [e.gpu_name for e in mine.environments()] == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]


def test_of_several_studies_of_a_shape_the_latest_with_a_result_counts(tmp_path: Path) -> None:
    """Not the one of the largest id: a merge stores older ones later. Nor a newer one without a result."""
    path = tmp_path / "mine.db"
    with Store.open(tmp_path / "other.db") as other, Store.open(path) as mine:
        for number, store in enumerate((other, mine), 1):
            study = store.study(replace(H200, driver_version=f"{number}.0"), SOURCE, COMPILER, SQUARE)
            add(store, study, 0, ok(float(number)))
            entry = FinalEntry(config(0).key, config(0).to_dict(), 1, True, float(number), (1.0,), None)
            store.set_final(study, [entry], None)
        mine.merge(other)
        now = replace(H200, driver_version="3.0")
        target = SimpleNamespace(max_error=None, environment=now, policy=CachePolicy.COLD, source_hash=SOURCE)
        assert ("driver", "2.0", "3.0") in stale_shapes(mine, target)[SQUARE].changes
        assert expected_us(target, mine, [SQUARE]) == {SQUARE: 2.0}
        add(mine, mine.study(now, SOURCE, COMPILER, SQUARE), 0, failed())
    assert [winner.driver for winner in _winners(str(path), None)[SQUARE]] == ["2.0"]


def test_times_of_one_gpu_policy_and_class_are_compared(tmp_path: Path, capsys) -> None:
    """Whichever of its studies a shape has as the newest."""
    fp32, h100 = f"{SOURCE}:fp32", replace(H200, gpu_name="NVIDIA H100")
    kinds = [(H200, SOURCE, "cold"), (h100, SOURCE, "cold"), (H200, SOURCE, "warm"), (H200, fp32, "cold")]
    urls = [str(tmp_path / name) for name in ("a.db", "b.db")]
    for url, order, factor in zip(urls, (kinds, kinds[::-1]), (1.0, 2.0), strict=True):
        with Store.open(url) as store:
            for environment, source, policy in order:
                time_us = factor * (1 + kinds.index((environment, source, policy)))
                study = store.study(environment, source, COMPILER, SQUARE, CachePolicy(policy))
                add(store, study, 0, ok(time_us))
    trials_compare.run(CompareRequest(*urls), is_json=False)
    out = capsys.readouterr().out
    assert out.count("2.000x") == 5 and "1 shape: " in out and "; too few samples to tell on 4" in out
    assert "driver 580.1, warm operands" in out and "accuracy fp32" in out


def test_a_run_is_stored_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["/bin/autotune", "search", "--db", "postgresql://me:secret@host/db", "--shape", "4096"]
    monkeypatch.setattr("sys.argv", arguments)
    with Store.open(tmp_path / "a.db") as store:
        name = store.begin_run(H200, ["4096x4096x4096:NN"])
        (started,) = store.runs()
        assert started.command == "autotune search --db 'postgresql://me:***@host/db' --shape 4096"
        assert (started.state, started.num_trials) == ("not ended", None)
        assert {"autotune", "python", "numpy"} <= started.versions.keys()
        store.end_run(name, 7)
        (ended,) = store.runs()
        assert (ended.state, ended.num_trials) == ("ended", 7)
        assert ended.ended_at is not None and ended.ended_at - ended.began_at < timedelta(minutes=5)
        gone = replace(started, name=started.name.replace("@", "9@", 1))
        assert gone.state == "was ended"


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("/lib/autotune/__main__.py", "autotune '--db=postgresql://me@here/db?a=b'"),
        ("/lib/pytest/__main__.py", "__main__.py"),
        ("/home/me/train.py", "train.py"),
        ("-c", "-c"),
        ("", "python"),
    ],
)
def test_of_a_run_no_secret_is_stored(program: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program, "--db=postgresql://me@here/db?password=secret&a=b"])
    assert this_process.command() == text


def test_a_study_is_forgotten_with_all_that_it_had(urls: tuple[str, str]) -> None:
    with Store.open(urls[0]) as store:
        study, other = fill(store, range(4)), fill(store, range(6), FLAT)
        kept = content(store)[str(FLAT)]
        store.forget(study)
        assert [summary.study for summary in store.studies()] == [other]
        assert content(store)[str(FLAT)] == kept
        assert store.trials(study_of(store)) == []
        with pytest.raises(StoreError):
            add(store, study, 0, ok(1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.every(6)
@pytest.mark.parametrize("statement", range(1, 13, 2))
def test_a_study_is_forgotten_as_a_whole_or_not_at_all(
    kind: str, statement: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Killed before any statement that writes; asked again it is gone, and another shape's is whole."""
    url = str(tmp_path / "a.db") if kind == "sqlite" else request.getfixturevalue("postgresql").new_database()
    with Store.open(url) as store:
        fill(store, range(12)), fill(store, range(4), FLAT)
        whole = content(store)
    process = start(killed_before, statement, forget_square, url)
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0), "it may have taken fewer"
    with Store.open(url) as store:
        left = {name: one for name, one in whole.items() if name != str(SQUARE)}
        assert content(store) in (whole, left)
        store.forget(study_of(store))
        assert content(store) == left


def test_a_study_is_requested_beside_one_whose_environment_was_edited(tmp_path: Path) -> None:
    """That one has the name in Optuna that the study of the true environment gets."""
    url = str(tmp_path / "edited.db")
    for number in (1, 2):
        one = config(number)
        with Store.open(url) as store, store.claims() as claims:
            study = study_of(store)
            assert claims.claim(study, {one.key: Requested(one.to_dict(), "random")}).owned
        with closing(sqlite3.connect(url)) as database, database:
            database.execute("UPDATE environment SET driver_version = '1.2' WHERE id = 1")
            names = [name for (name,) in database.execute("SELECT name FROM optuna_study ORDER BY id")]
    assert names == [f"{study_name(study)} before {study.id}", study_name(study)]


def test_a_copy_compares_as_equal(urls: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(urls[0]) as other, Store.open(urls[1]) as mine:
        fill(other, range(12))
        mine.merge(other)
    trials_compare.run(CompareRequest(*urls), is_json=True)
    (shape,) = json.loads(capsys.readouterr().out)["shapes"]
    assert shape["shape"] == str(SQUARE) and shape["ratio"] == 1.0
