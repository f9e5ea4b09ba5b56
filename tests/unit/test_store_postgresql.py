"""The store on a PostgreSQL server: several processes at once, a server that goes away, other databases.

What goes in and comes out is in `test_store`, for both kinds of database.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
from fake_target import FakeTarget
from postgresql_server import Server
from sqlalchemy import Executable, delete, make_url, update
from sqlalchemy.exc import OperationalError
from store_cases import add, add_all, config, create, ok, requested, start, study_of, write_until_killed

from autotune.facts.gemm import Gemm
from autotune.files.errors import StoreError
from autotune.search import Options, tune
from autotune.search.progress import TrialDone
from autotune.store import Follower, Store, Wanted, connect, database, exists, optuna_rows, shown, typed
from autotune.store.models import OptunaTrialRow, RequestRow, WorkerRow
from autotune.store.optuna_storage import OptunaStorage


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_database()


def test_several_processes_make_the_tables_at_once(url: str) -> None:
    creators = [start(create, url) for _ in range(4)]
    for creator in creators:
        creator.join()
    assert [creator.exitcode for creator in creators] == [0] * 4
    with Store.open(url) as store:
        assert store.studies() == []


def test_each_trial_is_stored_once_by_whoever_comes_first(url: str, tmp_path: Path) -> None:
    numbers = list(range(40))
    reports = [tmp_path / str(i) for i in range(3)]
    writers = [start(add_all, url, numbers, report) for report in reports]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 3
    added = [int(number) for report in reports for number in report.read_text(encoding="ascii").split()]
    assert sorted(added) == numbers
    with Store.open(url) as store:
        assert store.keys(study_of(store)) == {config(number).key for number in numbers}


def test_a_follower_is_told_of_what_others_write(url: str) -> None:
    with Store.open(url) as store:
        study = study_of(store)
        add(store, study, 1, ok(1.0))
        with Follower(url) as follower:
            latest = follower.newest()
            assert follower.studies_after(0) == [study]
            add(store, study, 2, ok(2.0))
            assert follower.newest() == latest._replace(trial=latest.trial + 1)
            assert follower.trials_after(latest.trial) == [(study.id, store.trials(study)[-1])]


def test_a_killed_writer_loses_nothing_that_was_committed(url: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    writer = start(write_until_killed, url, report)
    deadline = time.monotonic() + 60
    while not report.exists() or len(report.read_bytes().split()) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.kill()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    notes = {int(trial_id) for trial_id in report.read_text(encoding="ascii").split()}
    with Store.open(url) as store:
        stored = {trial.id for trial in store.trials(study_of(store))}
    assert notes <= stored
    assert len(stored - notes) <= 1, "the one that was committed and not yet told"


def test_a_server_that_stays_away_is_told_and_comes_back_with_all_trials(
    url: str, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RECONNECT_S", 0.2)
    with Store.open(url) as store:
        study = study_of(store)
        add(store, study, 0, ok(1.0))
        postgresql.stop()
        try:
            with pytest.raises(StoreError, match=r"the server runs .*run the same command again") as notes:
                add(store, study, 1, ok(2.0))
            with pytest.raises(StoreError, match="the server runs"):
                Store.open(url)
        finally:
            postgresql.start()
        assert "secret" not in str(notes.value)
        assert "\n" not in str(notes.value)
        add(store, study, 1, ok(2.0))
    with Store.open(url) as store:
        assert [trial.measurement for trial in store.trials(study)] == [ok(1.0), ok(2.0)]


@pytest.mark.stress
def test_a_restart_of_the_server_is_outlasted(url: str, postgresql: Server) -> None:
    """Whatever is called next, once the connections are broken and while the server is down."""
    notes: list[str] = []
    with Store.open(url) as store, store.claims() as claims:
        store.tell_when_away(notes.append)
        study = study_of(store)
        postgresql.stop()
        starting = threading.Timer(0.5, postgresql.start)
        starting.start()
        try:
            assert claims.claim(study, requested(0)).owned == {config(0).key}
            add(store, study, 0, ok(1.0))
        finally:
            starting.join()
        postgresql.stop()
        postgresql.start()
        add(store, study, 1, ok(2.0))
        assert len(store.trials(study)) == 2
    assert notes and all("trying again for 60 s" in line and "secret" not in line for line in notes)


@pytest.mark.stress
def test_a_search_goes_on_through_restarts_of_the_server(url: str, postgresql: Server) -> None:
    stops = iter((5, 12, 13))
    next_stop = next(stops)
    starting = threading.Timer(0.0, lambda: None)
    starting.start()

    def restart(event: object) -> None:
        nonlocal next_stop, starting
        if isinstance(event, TrialDone) and event.num_done == next_stop:
            next_stop = next(stops, 0)
            starting.join()  # pg_ctl waits a moment longer than those who connect
            postgresql.stop()
            starting = threading.Timer(0.3, postgresql.start)
            starting.start()

    target = FakeTarget()
    with Store.open(url) as store:
        result = tune(target, store, [Gemm(64, 64, 64)], Options(trials=25), restart)
        assert result.num_new == 25
        assert len(store.trials(result.shapes[0].study)) == 25
    starting.join()


def in_the_way(store: Store, first: Executable, work: Callable[[], object], then: Executable) -> None:
    """Run `work` while a transaction holds what `first` changes, and then wants what `then` does. A server
    rolls one of the two back where each has what the other wants."""
    notes: list[str] = []
    store.tell_when_away(notes.append)
    with ThreadPoolExecutor(1) as threads, store._database.writing() as session:
        session.execute(first)
        working = threads.submit(work)
        wait([working], timeout=0.1)
        session.execute(then)
        session.commit()
        working.result(30)
    assert notes == []


def test_whoever_cleans_up_and_whoever_stores_do_not_wait_for_each_other(url: str) -> None:
    with Store.open(url) as store, store.claims() as claims:
        study, key = study_of(store), config(1).key
        claims.claim(study, requested(1))
        dead = update(WorkerRow).values(expires_s=0.0)
        in_the_way(store, dead, lambda: add(store, study, 1, ok(1.0)), delete(OptunaTrialRow))
        assert store.keys(study) == {key}


def test_whoever_begins_does_not_wait_for_what_the_dead_had(url: str) -> None:
    with Store.open(url) as store, store.claims() as claims:
        claims.claim(study_of(store), requested(1, 2))
        with store._database.writing() as session:
            session.execute(update(WorkerRow).values(expires_s=0.0))
        first, last = (delete(OptunaTrialRow).where(OptunaTrialRow.number == number) for number in range(2))
        in_the_way(store, last, lambda: store.claims().close(), first)


def test_whoever_claims_in_optunas_way_and_whoever_searches_do_not_wait_for_each_other(url: str) -> None:
    """A trial that waits is begun by a search and by somebody who asks, at the same time: by one of them."""
    with Store.open(url) as store, store.claims() as claims, closing(OptunaStorage(store)) as storage:
        study = study_of(store)
        claims.claim(study, requested(0))
        own = optuna.load_study(study_name=optuna_rows.study_name(study), storage=storage)
        notes: list[str] = []
        store.tell_when_away(notes.append)
        for number in range(1, 9):
            own.enqueue_trial(config(number).to_dict())
            with ThreadPoolExecutor(2) as threads:
                asked = threads.submit(own.ask)
                claimed = threads.submit(claims.claim, study, requested(number))
            is_asked = dict(asked.result(30).params) == config(number).to_dict()
            assert is_asked != bool(claimed.result(30).owned)
        assert notes == []


def test_two_that_ask_for_the_same_shapes_do_not_wait_for_each_other(url: str) -> None:
    small, large = (Wanted(Gemm(n, n, n)) for n in (64, 512))
    with Store.open(url) as store:
        queue = store.queue()
        ids = queue.submit([small, large])
        counted = [update(RequestRow).where(RequestRow.id == one).values(num_calls=1) for one in ids]
        then, first = counted  # "512..." is taken first
        for wanted in ([small, large], [large, small]):
            in_the_way(store, first, partial(queue.submit, wanted), then)
        assert queue.submit([large, small]) == ids[::-1]


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_transaction_that_was_in_anothers_way_is_repeated_without_a_word(
    state: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OperationalError("INSERT", None, psycopg.errors.lookup(state)("deadlock detected"))
    notes: list[str] = []
    with Store.open(url) as store:
        store.tell_when_away(notes.append)
        tries = iter([error, error])

        def refuse(*_: object) -> None:
            if (refused := next(tries, None)) is not None:
                raise refused

        monkeypatch.setattr(optuna_rows, "end", lambda *_, **__: refuse())
        study = study_of(store)
        add(store, study, 1, ok(1.0))
        assert next(tries, None) is None
    assert notes == [] and "other processes write the same rows" in str(connect.explain(error, make_url(url)))


@pytest.mark.parametrize(
    ("what", "is_away"),
    [("57P01", True), ("57P03", True), ("08006", True), ("40P01", True), ("53100", False), ("42P01", False)],
)
def test_which_errors_pass(what: str, is_away: bool) -> None:
    error = psycopg.errors.lookup(what)("told") if what != "08006" else psycopg.OperationalError("told")
    assert connect.is_away(OperationalError("SELECT", None, error)) is is_away


def test_a_study_that_was_deleted_is_not_blamed_on_the_server(url: str) -> None:
    with Store.open(url) as store, Store.open(url) as beside:
        study = study_of(store)
        beside.forget(study)
        with pytest.raises(StoreError, match="its study may have been deleted: run the same command again"):
            add(store, study, 0, ok(1.0))


def test_a_value_that_a_server_cannot_store_is_refused_as_such(url: str) -> None:
    with closing(OptunaStorage(url)) as storage, pytest.raises(StoreError, match="stores no such value"):
        optuna.create_study(study_name="a\0b", storage=storage)


def test_tables_of_another_application_are_left_alone(url: str) -> None:
    storage = optuna.storages.RDBStorage(url)
    storage.remove_session()
    storage.engine.dispose()
    with pytest.raises(StoreError, match="another application"):
        Store.open(url)


@pytest.mark.parametrize(
    "other", ["mysql://me:secret@here/db", "mssql+pyodbc://x", "http://x/y", "duckdb:///x"]
)
def test_other_databases_are_refused_before_they_are_tried(other: str) -> None:
    with pytest.raises(StoreError, match=r"neither SQLite nor PostgreSQL; write a path, ") as notes:
        Store.open(other)
    assert "secret" not in str(notes.value)


@pytest.mark.parametrize("other", [None, 3, b"a.db", ["a.db"]])
def test_what_is_no_text_names_no_database(
    other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opened in (Store.open, Store.open_existing, OptunaStorage):
        with pytest.raises(StoreError, match="names no database; write a path"):
            opened(other)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("scheme", ["postgres", "postgre", "postgressql"])
def test_a_name_of_postgresql_that_is_nearly_right_is_hinted_at(scheme: str) -> None:
    expected = r"did you mean postgresql://me:\*\*\*@here/db\? Write a path"
    with pytest.raises(StoreError, match=expected) as notes:
        Store.open(f"{scheme}://me:secret@here/db")
    assert "secret" not in str(notes.value)


@pytest.mark.parametrize(
    ("url", "words", "hint"),
    [
        ("a b.db", "'a b.db'", ""),
        ("postgresql://me@here/db", "postgresql://me@here/db", ""),
        ("postgresql://me:s%2Fcret@here:1/db", "postgresql://me@here:1/db", "PGPASSWORD"),
        ("postgresql://me:secret@here/db?a=b", "'postgresql://me@here/db?a=b'", ".pgpass"),
        ("postgresql:///db?password=secret&passfile=cret", "postgresql:///db", "PGPASSWORD"),
        ("postgresql://me:s@cret@here/db", "postgresql://me@here/db", "PGPASSWORD"),
    ],
)
def test_a_database_is_named_so_that_it_can_be_typed(url: str, words: str, hint: str) -> None:
    notes, password = typed(url)
    assert notes == words and hint in password and bool(password) is bool(hint)
    assert "***" not in notes and "cret" not in notes


def test_whether_there_is_something_to_read(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    assert not exists(path)
    assert not exists(f"sqlite:///{path}")
    Store.open(path).close()
    assert exists(str(path))
    assert exists(f"sqlite:///{path}")
    assert exists("postgresql://me@nowhere/db"), "asked when it is opened"


def test_a_password_is_not_shown() -> None:
    assert shown("postgresql://me:secret@here/db") == "postgresql://me:***@here/db"
    assert shown("some/autotune.db") == "some/autotune.db"
    assert (
        shown("postgresql://me:s@ecret@here/db?sslpassword=secret&a=b") == "postgresql://me:***@here/db?a=b"
    )
    assert shown("postgresql://here:port/db?pass%77ord=secret") == "postgresql://here:port/db"


@pytest.mark.parametrize("text", ["postgresql://me:secret@here:port/db", "post gresql://me:sec@ret@here/db"])
def test_what_is_no_url_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(StoreError, match="is not a database URL") as rejected:
        Store.open(text)
    assert "***@here" in str(rejected.value) and "ret" not in str(rejected.value)
