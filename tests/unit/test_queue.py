"""The queue of a service on both kinds of database: a request ends once, whatever becomes of workers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import update
from test_leases import stop_beating

from autotune.facts.gemm import Gemm
from autotune.store import Queue, RequestState, Store, Wanted, leases, queue
from autotune.store.models import RequestRow, WorkerRow

A, B, C = (Gemm(n, n, n) for n in (256, 512, 1024))
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def store(url: str | Path) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


def test_what_promises_most_is_claimed_first(store: Store) -> None:
    requested = store.queue()
    requested.submit([Wanted(A, H100, 10, 1.0), Wanted(B, H100, 3, 5.0), Wanted(C, "another", 100, 9.0)])
    again = requested.submit([Wanted(A, H100, 10, 1.0, {"ld": [256, 256, 256]}, "me")])
    with requested.join("gpu", H100) as one:
        first = requested.claim(one, [H100], 60)
        assert first and first.id == again[0] and first.wanted.num_calls == 20
        assert (first.wanted.gemm, first.wanted.call, first.priority) == (A, {"ld": [256, 256, 256]}, 20.0)
        second = requested.claim(one, [H100], 60)
        assert second and second.wanted.gemm == B
        assert requested.claim(one, [H100], 60) is None
        assert requested.finish(second, RequestState.TUNED, result={"time_us": 4.0})
        assert not requested.finish(second, RequestState.REFUSED, "twice"), "a request ends once"
        assert requested.finish(first, RequestState.REFUSED, "too large")
        done = {one.wanted.gemm: one for one in requested.requests()}
        assert (done[A].state, done[A].reason) == (RequestState.REFUSED, "too large")
        assert done[B].result == {"time_us": 4.0} and done[B].ended_s
        assert requested.counts()[RequestState.WAITING] == 1
        assert requested.submit([Wanted(A, H100)])[0] != first.id, "what has ended may be asked for again"


def test_claims_of_the_dead_lapse_and_count_no_more(store: Store) -> None:
    requested = store.queue()
    requested.submit([Wanted(A)])
    with requested.join("gpu", H100) as lost, requested.join("gpu", H100) as other:
        claimed = requested.claim(lost, [H100], 60)
        assert claimed
        stop_beating(store, lost.worker)
        again = requested.claim(other, [H100], 60)
        assert again and (again.id, again.num_tries, again.number) == (claimed.id, 1, 2)
        assert not requested.finish(claimed, RequestState.TUNED), "another has taken it up"
        assert not requested.give_back(claimed) and not requested.fail(claimed, "late")
        assert requested.finish(again, RequestState.TUNED)


def test_who_was_taken_for_dead_may_end_what_nobody_took_up(store: Store) -> None:
    requested = store.queue()
    requested.submit([Wanted(A)])
    with requested.join("gpu") as suspended:
        claimed = requested.claim(suspended, [H100], 60)
        stop_beating(store, suspended.worker)
        assert claimed and requested.finish(claimed, RequestState.TUNED)


def test_a_worker_that_lives_and_is_stuck_holds_nothing_for_ever(store: Store) -> None:
    requested = store.queue()
    requested.submit([Wanted(A)])
    with requested.join("gpu") as stuck, requested.join("gpu") as other:
        assert requested.claim(stuck, [], 0.0)
        assert requested.claim(other, [], 60)


def test_a_request_is_given_up_after_its_tries(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = store.queue()
    requested.submit([Wanted(A)])
    monkeypatch.setattr(queue, "RETRY_S", -1.0)
    with requested.join("gpu") as one:
        for number in range(1, queue.MAX_ATTEMPTS + 1):
            claimed = requested.claim(one, [], 60)
            assert claimed and claimed.number == number
            assert requested.fail(claimed, f"no memory, {number}")
        assert requested.claim(one, [], 60) is None
        (given_up,) = requested.requests()
        assert (given_up.state, given_up.reason) == (RequestState.GIVEN_UP, "no memory, 3")


def test_what_failed_waits_a_while_and_what_is_given_back_does_not(store: Store) -> None:
    requested = store.queue()
    requested.submit([Wanted(A)])
    with requested.join("gpu") as one:
        claimed = requested.claim(one, [], 60)
        assert claimed and requested.give_back(claimed)
        claimed = requested.claim(one, [], 60)
        assert claimed and claimed.num_tries == 0
        assert requested.fail(claimed, "no memory")
        assert requested.claim(one, [], 60) is None
        with store._database.writing() as session:  # as after its clock was set back by a day
            session.execute(update(RequestRow).values(not_before_s=RequestRow.not_before_s + 86_400))
        assert requested.claim(one, [], 60)


def test_workers_are_listed_with_what_they_do(store: Store) -> None:
    requested = store.queue()
    with requested.join("gpu", H100, "GPU-1") as lost:
        with requested.join("compile", slots=8) as ended:
            ended.tell("compiling", is_done=True)
        lost.tell("searching 4096")
        stop_beating(store, lost.worker)
        of_lost, of_ended = requested.workers()
        assert (of_lost.doing, of_lost.gpu, of_lost.is_alive, of_lost.ended_s) == (
            "searching 4096",
            H100,
            False,
            None,
        )
        assert (of_ended.kind, of_ended.slots, of_ended.num_done, of_ended.is_alive) == (
            "compile",
            8,
            1,
            False,
        )
        assert of_ended.ended_s


def test_workers_claim_side_by_side_and_none_twice(store: Store) -> None:
    requested = store.queue()
    requested.submit([Wanted(Gemm(n, n, n)) for n in range(1, 41)])

    def serve(_: int) -> list[int]:
        with Store.open(store.url) as own, (queue := own.queue()).join("gpu") as member:
            found = []
            while claimed := queue.claim(member, [], 60):
                assert queue.finish(claimed, RequestState.TUNED)
                found.append(claimed.id)
            return found

    with ThreadPoolExecutor(4) as threads:
        claimed = [one for found in threads.map(serve, range(4)) for one in found]
    assert len(claimed) == len(set(claimed)) == 40


def test_a_clock_that_is_set_back_makes_no_lease_last_for_ever(store: Store) -> None:
    database, requested = store._database, store.queue()
    requested.submit([Wanted(A)])
    with requested.join("gpu") as lost, requested.join("gpu") as other:
        assert requested.claim(lost, [], 60)
        with database.writing() as session:  # as heartbeats before it look
            session.execute(update(WorkerRow).values(expires_s=leases.now_s() + 86_400))
            leases.heartbeat(session, other.name)
            expires_s = leases.now_s() + leases.LEASE_S
            assert (
                session.scalar(
                    update(WorkerRow)
                    .where(WorkerRow.expires_s > expires_s)
                    .values(name="x")
                    .returning(WorkerRow.id)
                )
                is None
            )


def test_damaged_requests_are_named(store: Store) -> None:
    requested: Queue = store.queue()
    requested.submit([Wanted(A), Wanted(B)])
    with store._database.writing() as session:
        session.execute(update(RequestRow).where(RequestRow.m == A.m).values(state="?"))
    assert [one.wanted.gemm for one in requested.requests()] == [B]
    assert "request" in store.bad_rows.text
