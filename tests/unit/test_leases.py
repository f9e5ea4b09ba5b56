"""What a search is at, on both kinds of database: one holder at a time, free without help, nothing left."""

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
from store_cases import SQUARE, start, study_of

from autotune.facts.gemm import Gemm
from autotune.files.errors import EnvironmentProblem, StoreError
from autotune.store import Claims, Requested, Store, claims, leases, this_process
from autotune.store.leases import Worker
from autotune.store.models import OptunaTrialRow, WorkerRow


@pytest.fixture
def store(url: str | Path) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


def begin(store: Store, search: Claims, *keys: str, gemm: Gemm = SQUARE) -> set[str]:
    """Configs of these keys that a search may try."""
    requested = {key: Requested({"name": key}, "") for key in keys}
    return set(search.claim(study_of(store, gemm), requested).owned)


def held(store: Store, search: Claims, gemm: Gemm = SQUARE) -> set[str]:
    study = study_of(store, gemm)
    with store._reading() as session:
        return claims.held(session, study, search._worker.id)


def beat(store: Store, worker: Worker) -> None:
    with store._writing() as session:
        worker.id = leases.heartbeat(session, worker.name)


def stop_beating(store: Store, worker: Worker) -> None:
    """As a worker that was killed, a while later."""
    with store._writing() as session:
        expired = update(WorkerRow).values(expires_s=leases.now_s() - 1)
        session.execute(expired.where(WorkerRow.id == worker.id))


def suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a machine that slept: of all clocks of a process, only the one since its start goes on."""
    clock = time.clock_gettime
    asleep_s = {time.CLOCK_BOOTTIME: leases.LEASE_S}
    monkeypatch.setattr(leases.time, "clock_gettime", lambda which: clock(which) + asleep_s.get(which, 0.0))


def num_rows(store: Store) -> tuple[int | None, int | None]:
    """Of workers, and of trials that were begun."""
    with store._reading() as session:
        workers, begun = (session.scalar(select(func.count(row.id))) for row in (WorkerRow, OptunaTrialRow))
    return workers, begun


def test_a_config_has_one_search(store: Store) -> None:
    other_gemm = Gemm(64, 64, 64)
    with store.claims() as one, store.claims() as other:
        assert begin(store, one, "a", "b") == {"a", "b"}
        assert begin(store, other, "b", "c") == {"c"}
        assert begin(store, one, "a", "c") == {"a"}, "who is at a config may ask for it again"
        assert begin(store, other, "a", gemm=other_gemm) == {"a"}, "another problem"
        assert held(store, one) == {"c"} and held(store, one, other_gemm) == {"a"}
        assert held(store, other) == {"a", "b"}


def test_what_a_search_leaves_is_free(store: Store) -> None:
    with store.claims() as one, store.claims() as other:
        begin(store, one, "a", "b")
        one.release_all()
        assert begin(store, other, "a") == {"a"}
        assert begin(store, one, "a", "b") == {"b"}
        one.close()
        assert begin(store, other, "b") == {"b"}
    assert num_rows(store) == (0, 0)


def test_what_the_dead_were_at_is_free(store: Store) -> None:
    with store.claims() as dead, store.claims() as alive:
        begin(store, dead, "a", "b")
        stop_beating(store, dead._worker)
        assert held(store, alive) == set()
        assert begin(store, alive, "a") == {"a"}
        with store.claims():
            assert num_rows(store) == (2, 1), "the next worker forgets the dead, with what they were at"


def test_who_was_taken_for_dead_comes_back_with_nothing(store: Store) -> None:
    with store.claims() as suspended, store.claims() as other:
        begin(store, suspended, "a", "b")
        stop_beating(store, suspended._worker)
        begin(store, other, "a")
        before = suspended._worker.id
        with store.claims():
            beat(store, suspended._worker)
        assert suspended._worker.id not in (before, other._worker.id)
        assert begin(store, suspended, "a", "b") == {"b"}


def test_no_other_has_the_id_of_who_was_taken_for_dead(store: Store) -> None:
    with store.claims() as suspended:
        stop_beating(store, suspended._worker)
        with store.claims() as other:
            assert suspended._worker.id != other._worker.id
            assert begin(store, other, "a") == {"a"}
            assert begin(store, suspended, "a") == set()
            suspended.release_all()
            assert held(store, suspended) == {"a"}


def test_who_was_stopped_for_a_while_shows_that_it_lives_before_it_begins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.claims() as stopped:
        worker = stopped._worker
        before = worker.id
        stop_beating(store, worker)
        with store.claims() as other:
            suspend(monkeypatch)
            beats = [threading.Thread(target=worker.renew_heartbeat) for _ in range(4)]
            for thread in beats:
                thread.start()
            for thread in beats:
                thread.join()
            assert worker.id != before and num_rows(store) == (2, 0)
            assert begin(store, stopped, "a") == {"a"}
            assert begin(store, other, "a") == set()


def test_a_search_that_was_stopped_for_a_while_claims_as_one_that_lives(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.claims() as stopped:
        stop_beating(store, stopped._worker)
        with store.claims() as other:
            suspend(monkeypatch)
            assert begin(store, stopped, "a") == {"a"}
            assert begin(store, other, "a") == set()


def die_at_a_config(url: str | Path) -> None:
    store = Store.open(url)
    begin(store, store.claims(), "a")
    os.kill(os.getpid(), signal.SIGKILL)


def test_who_was_killed_on_this_machine_is_forgotten_at_once(url: str | Path, store: Store) -> None:
    killed = start(die_at_a_config, url)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and num_rows(store) == (1, 1)
    with store.claims() as search:
        assert begin(store, search, "a") == {"a"}


def test_names_tell_whether_a_process_is_gone() -> None:
    mine = this_process.my_name()
    place, process, _ = mine.rsplit("/", 2)
    assert not this_process.is_gone(mine)
    assert this_process.is_gone(f"{place}/{process}0/token"), "the number was given to another process"
    assert not this_process.is_gone(f"elsewhere/{process}0/token")
    for strange in ("", "/", "a/b", f"{place}/x@1/t", f"{place}/1/t", f"{place}/@/t", f"{place}/²@1/t"):
        assert not this_process.is_gone(strange)


def test_a_heartbeat_keeps_what_a_search_is_at(store: Store) -> None:
    with store.claims() as one, store.claims() as other:
        begin(store, one, "a")
        stop_beating(store, one._worker)
        before = one._worker.id
        beat(store, one._worker)
        assert one._worker.id == before
        assert begin(store, other, "a") == set()


def test_a_disk_that_was_full_for_a_while_stops_no_heart(
    store: Store, monkeypatch: pytest.MonkeyPatch
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
    with Worker(store._database):
        assert beaten.wait(30)


def test_the_heart_beats_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.01)
    with store.claims() as one, store.claims() as other:
        begin(store, one, "a")
        stop_beating(store, one._worker)
        while "a" not in held(store, other):  # the test's timeout ends this
            pass


def take_all(url: str | Path, keys: list[str], report: Path, num_takers: int) -> None:
    """Claim one by one and all at once, in an order of its own; report what was got. Ends with the last."""
    with Store.open(url) as store:
        search = store.claims()
        got = set()
        for key in keys[::7]:
            got |= begin(store, search, key)
        got |= begin(store, search, *keys)
        report.write_text("\n".join(sorted(got)), encoding="ascii")
        while len(list(report.parent.glob("report*"))) < num_takers:
            time.sleep(0.01)


@pytest.mark.every(2)
def test_of_several_processes_each_config_has_one(url: str | Path, store: Store, tmp_path: Path) -> None:
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
            st.sampled_from(("begin", "leave", "die", "revive")),
            st.integers(0, 2),
            st.sets(st.sampled_from("abc"), max_size=3),
        ),
        max_size=30,
    )
)
def test_claims_behave_like_a_dictionary(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    """Against a model: holder by config, and who is alive."""
    path = tmp_path_factory.mktemp("leases") / "trials.db"
    with Store.open(path) as store:
        searches = [store.claims() for _ in range(3)]
        holder: dict[str, int] = {}
        alive = [True] * 3
        for what, who, keys in steps:
            if what == "begin" and alive[who]:
                free = {k for k in keys if k not in holder or holder[k] == who or not alive[holder[k]]}
                assert begin(store, searches[who], *keys) == free
                holder |= dict.fromkeys(free, who)
            elif what == "leave":
                searches[who].release_all()
                holder = {key: other for key, other in holder.items() if other != who}
            elif what == "die":
                stop_beating(store, searches[who]._worker)
                alive[who] = False
            elif what == "revive":
                beat(store, searches[who]._worker)
                alive[who] = True
            for me in range(3):
                others = {key for key, other in holder.items() if other != me and alive[other]}
                assert held(store, searches[me]) == others
        for search in searches:
            search.close()
        assert num_rows(store) == (0, 0)
