"""Leases on both kinds of database: one holder at a time, lapse without help, nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from store_cases import start, study_of

from autotune.files.errors import EnvironmentProblem, StoreError
from autotune.store import Store, leases, process_name
from autotune.store.database import Database
from autotune.store.leases import Worker
from autotune.store.models import LeaseRow, WorkerRow


@pytest.fixture
def database(url: str | Path) -> Iterator[Database]:
    with Store.open(url) as store:
        yield store._database


def acquire(database: Database, worker: Worker, *tasks: str, scope: str = "here") -> set[str]:
    with database.writing() as session:
        return leases.acquire(session, worker.id, scope, tasks)


def held(database: Database, worker: Worker, *scopes: str) -> set[tuple[str, str]]:
    with database.reading() as session:
        return leases.held_by_others(session, worker.id, scopes)


def stop_beating(database: Database, worker: Worker) -> None:
    """As a worker that was killed, a while later."""
    with database.writing() as session:
        expired = update(WorkerRow).values(expires_s=leases.now_s() - 1)
        session.execute(expired.where(WorkerRow.id == worker.id))


def suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a machine that slept: of all clocks of a process, only the one since its start goes on."""
    clock = time.clock_gettime
    asleep_s = {time.CLOCK_BOOTTIME: leases.LEASE_S}
    monkeypatch.setattr(leases.time, "clock_gettime", lambda which: clock(which) + asleep_s.get(which, 0.0))


def num_rows(database: Database) -> tuple[int | None, int | None]:
    """Of workers, and of leases."""
    with database.reading() as session:
        workers, held = (session.scalar(select(func.count(row.id))) for row in (WorkerRow, LeaseRow))
    return workers, held


def test_a_task_has_one_holder(database: Database) -> None:
    with Worker(database) as one, Worker(database) as other:
        assert acquire(database, one, "a", "b") == {"a", "b"}
        assert acquire(database, other, "b", "c") == {"c"}
        assert acquire(database, one, "a", "c") == {"a"}, "who holds a task may ask for it again"
        assert acquire(database, other, "a", scope="there") == {"a"}, "another scope"
        assert held(database, one, "here", "there") == {("here", "c"), ("there", "a")}
        assert held(database, other, "here") == {("here", "a"), ("here", "b")}


def test_what_is_released_is_free(database: Database) -> None:
    with Worker(database) as one, Worker(database) as other:
        acquire(database, one, "a", "b", "c")
        with database.writing() as session:
            leases.release(session, "here", {"a"})
        assert acquire(database, other, "a", "b") == {"a"}
        one.close()
        assert acquire(database, other, "b", "c") == {"b", "c"}
    assert num_rows(database) == (0, 0)


def test_leases_of_the_dead_lapse(database: Database) -> None:
    with Worker(database) as dead, Worker(database) as alive:
        acquire(database, dead, "a", "b")
        stop_beating(database, dead)
        assert held(database, alive, "here") == set()
        assert acquire(database, alive, "a") == {"a"}
        with Worker(database):
            assert num_rows(database) == (2, 1), "the next worker forgets the dead, with what they held"


def test_who_was_taken_for_dead_comes_back_with_nothing(database: Database) -> None:
    with Worker(database) as suspended, Worker(database) as other:
        acquire(database, suspended, "a", "b")
        stop_beating(database, suspended)
        acquire(database, other, "a")
        with Worker(database), database.writing() as session:
            before = suspended.id
            suspended.id = leases.heartbeat(session, suspended.name)
        assert suspended.id not in (before, other.id)
        assert acquire(database, suspended, "a", "b") == {"b"}


def test_no_other_has_the_id_of_who_was_taken_for_dead(database: Database) -> None:
    with Worker(database) as suspended:
        stop_beating(database, suspended)
        with Worker(database) as other:
            assert suspended.id != other.id
            assert acquire(database, other, "a") == {"a"}
            assert acquire(database, suspended, "a") == set()
            with database.writing() as session:
                leases.release_all(session, suspended.id)
            assert held(database, suspended, "here") == {("here", "a")}


def test_who_was_stopped_for_a_while_shows_that_it_lives_before_it_leases(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(database) as stopped:
        before = stopped.id
        stop_beating(database, stopped)
        with Worker(database) as other:
            suspend(monkeypatch)
            beats = [threading.Thread(target=stopped.renew_heartbeat) for _ in range(4)]
            for thread in beats:
                thread.start()
            for thread in beats:
                thread.join()
            assert stopped.id != before and num_rows(database) == (2, 0)
            assert acquire(database, stopped, "a") == {"a"}
            assert acquire(database, other, "a") == set()


def test_a_search_that_was_stopped_for_a_while_claims_as_one_that_lives(
    url: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(url) as store, store.claims() as stopped:
        study, keys = study_of(store), ["a"]
        stop_beating(store._database, stopped._worker)
        with store.claims() as other:
            suspend(monkeypatch)
            assert stopped.claim(study, keys).owned == {"a"}
            assert other.claim(study, keys).owned == frozenset()


def die_with_a_lease(url: str | Path) -> None:
    store = Store.open(url)
    acquire(store._database, Worker(store._database), "a")
    os.kill(os.getpid(), signal.SIGKILL)


def test_who_was_killed_on_this_machine_is_forgotten_at_once(url: str | Path, database: Database) -> None:
    killed = start(die_with_a_lease, url)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and num_rows(database) == (1, 1)
    with Worker(database) as worker:
        assert acquire(database, worker, "a") == {"a"}


def test_names_tell_whether_a_process_is_gone() -> None:
    mine = process_name.my_name()
    place, process, _ = mine.rsplit("/", 2)
    assert not process_name.is_gone(mine)
    assert process_name.is_gone(f"{place}/{process}0/token"), "the number was given to another process"
    assert not process_name.is_gone(f"elsewhere/{process}0/token")
    for strange in ("", "/", "a/b", f"{place}/x@1/t", f"{place}/1/t", f"{place}/@/t", f"{place}/²@1/t"):
        assert not process_name.is_gone(strange)


def test_a_heartbeat_keeps_leases(database: Database) -> None:
    with Worker(database) as one, Worker(database) as other:
        acquire(database, one, "a")
        stop_beating(database, one)
        with database.writing() as session:
            assert leases.heartbeat(session, one.name) == one.id
        assert acquire(database, other, "a") == set()


def test_a_disk_that_was_full_for_a_while_stops_no_heart(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat, failures = (
        leases.heartbeat,
        iter([EnvironmentProblem("the disk is full"), StoreError("locked")]),
    )
    beaten = threading.Event()

    def fail_twice(session: Session, name: str) -> int:
        for error in failures:
            raise error
        beaten.set()
        return heartbeat(session, name)

    monkeypatch.setattr(leases, "heartbeat", fail_twice)
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    with Worker(database):
        assert beaten.wait(30)


def test_the_heart_beats_by_itself(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    with Worker(database) as one, Worker(database) as other:
        acquire(database, one, "a")
        stop_beating(database, one)
        while ("here", "a") not in held(database, other, "here"):  # the test's timeout ends this
            pass


def take_all(url: str | Path, tasks: list[str], report: Path, num_takers: int) -> None:
    """Lease task by task and all at once, in an order of its own; report what was got. Ends with the last."""
    with Store.open(url) as store:
        worker = Worker(store._database)
        got = set()
        for task in tasks[::7]:
            got |= acquire(store._database, worker, task)
        got |= acquire(store._database, worker, *tasks)
        report.write_text("\n".join(sorted(got)), encoding="ascii")
        while len(list(report.parent.glob("report*"))) < num_takers:
            time.sleep(0.01)


@pytest.mark.every(2)
def test_of_several_processes_each_task_has_one(url: str | Path, database: Database, tmp_path: Path) -> None:
    tasks = [f"task {i}" for i in range(60)]
    reports = [tmp_path / f"report{i}" for i in range(4)]
    takers = [
        start(take_all, url, tasks[i::-1] + tasks[i + 1 :], report, len(reports))
        for i, report in zip((0, 20, 40, 59), reports, strict=True)
    ]
    for taker in takers:
        taker.join()
    assert [taker.exitcode for taker in takers] == [0] * 4
    taken = [task for report in reports for task in report.read_text(encoding="ascii").splitlines()]
    assert sorted(taken) == sorted(tasks)


@pytest.mark.stress
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("acquire", "release", "die", "revive")),
            st.integers(0, 2),
            st.sets(st.sampled_from("abc"), max_size=3),
        ),
        max_size=30,
    )
)
def test_leases_behave_like_a_dictionary(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    """Against a model: holder by task, and who is alive."""
    path = tmp_path_factory.mktemp("leases") / "trials.db"
    with Store.open(path) as store:
        database = store._database
        workers = [Worker(database) for _ in range(3)]
        holder: dict[str, int] = {}
        alive = [True] * 3
        for what, who, tasks in steps:
            if what == "acquire" and alive[who]:
                free = {t for t in tasks if t not in holder or holder[t] == who or not alive[holder[t]]}
                assert acquire(database, workers[who], *tasks) == free
                holder |= dict.fromkeys(free, who)
            elif what == "release":
                with database.writing() as session:
                    leases.release(session, "here", tasks)
                for task in tasks:
                    holder.pop(task, None)
            elif what == "die":
                stop_beating(database, workers[who])
                alive[who] = False
            elif what == "revive":
                with database.writing() as session:
                    leases.heartbeat(session, workers[who].name)
                alive[who] = True
            for me in range(3):
                others = {("here", t) for t, w in holder.items() if w != me and alive[w]}
                assert held(database, workers[me], "here") == others
        for worker in workers:
            worker.close()
        assert num_rows(database) == (0, 0)
