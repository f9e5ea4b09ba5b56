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
    asked = store.queue()
    asked.submit([Wanted(A, H100, 10, 1.0), Wanted(B, H100, 3, 5.0), Wanted(C, "another", 100, 9.0)])
    again = asked.submit([Wanted(A, H100, 10, 1.0, {"ld": [256, 256, 256]}, "me")])
    with asked.join("gpu", H100) as one:
        first = asked.claim(one, [H100], 60)
        assert first and first.id == again[0] and first.wanted.num_calls == 20
        assert (first.wanted.gemm, first.wanted.call, first.priority) == (A, {"ld": [256, 256, 256]}, 20.0)
        second = asked.claim(one, [H100], 60)
        assert second and second.wanted.gemm == B
        assert asked.claim(one, [H100], 60) is None
        assert asked.finish(second, RequestState.TUNED, result={"time_us": 4.0})
        assert not asked.finish(second, RequestState.REFUSED, "twice"), "a request ends once"
        assert asked.finish(first, RequestState.REFUSED, "too large")
        done = {one.wanted.gemm: one for one in asked.requests()}
        assert (done[A].state, done[A].reason) == (RequestState.REFUSED, "too large")
        assert done[B].result == {"time_us": 4.0} and done[B].ended_s
        assert asked.counts()[RequestState.WAITING] == 1
        assert asked.submit([Wanted(A, H100)])[0] != first.id, "what has ended may be asked for again"


def test_claims_of_the_dead_lapse_and_count_no_more(store: Store) -> None:
    asked = store.queue()
    asked.submit([Wanted(A)])
    with asked.join("gpu", H100) as lost, asked.join("gpu", H100) as other:
        claimed = asked.claim(lost, [H100], 60)
        assert claimed
        stop_beating(store._database, lost.worker)
        again = asked.claim(other, [H100], 60)
        assert again and (again.id, again.num_tries, again.number) == (claimed.id, 1, 2)
        assert not asked.finish(claimed, RequestState.TUNED), "another has taken it up"
        assert not asked.give_back(claimed) and not asked.fail(claimed, "late")
        assert asked.finish(again, RequestState.TUNED)


def test_who_was_taken_for_dead_may_end_what_nobody_took_up(store: Store) -> None:
    asked = store.queue()
    asked.submit([Wanted(A)])
    with asked.join("gpu") as suspended:
        claimed = asked.claim(suspended, [H100], 60)
        stop_beating(store._database, suspended.worker)
        assert claimed and asked.finish(claimed, RequestState.TUNED)


def test_a_worker_that_lives_and_is_stuck_holds_nothing_for_ever(store: Store) -> None:
    asked = store.queue()
    asked.submit([Wanted(A)])
    with asked.join("gpu") as stuck, asked.join("gpu") as other:
        assert asked.claim(stuck, [], 0.0)
        assert asked.claim(other, [], 60)


def test_a_request_is_given_up_after_its_tries(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = store.queue()
    asked.submit([Wanted(A)])
    monkeypatch.setattr(queue, "RETRY_S", -1.0)
    with asked.join("gpu") as one:
        for number in range(1, queue.MOST_TRIES + 1):
            claimed = asked.claim(one, [], 60)
            assert claimed and claimed.number == number
            assert asked.fail(claimed, f"no memory, {number}")
        assert asked.claim(one, [], 60) is None
        (given_up,) = asked.requests()
        assert (given_up.state, given_up.reason) == (RequestState.GIVEN_UP, "no memory, 3")


def test_what_failed_waits_a_while_and_what_is_given_back_does_not(store: Store) -> None:
    asked = store.queue()
    asked.submit([Wanted(A)])
    with asked.join("gpu") as one:
        claimed = asked.claim(one, [], 60)
        assert claimed and asked.give_back(claimed)
        claimed = asked.claim(one, [], 60)
        assert claimed and claimed.num_tries == 0
        assert asked.fail(claimed, "no memory")
        assert asked.claim(one, [], 60) is None


def test_workers_are_listed_with_what_they_do(store: Store) -> None:
    asked = store.queue()
    with asked.join("gpu", H100, "GPU-1") as lost:
        with asked.join("compile", slots=8) as ended:
            ended.tell("compiling", is_done=True)
        lost.tell("searching 4096")
        stop_beating(store._database, lost.worker)
        of_lost, of_ended = asked.workers()
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
    asked = store.queue()
    asked.submit([Wanted(Gemm(n, n, n)) for n in range(1, 41)])

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
    database, asked = store._database, store.queue()
    asked.submit([Wanted(A)])
    with asked.join("gpu") as lost, asked.join("gpu") as other:
        assert asked.claim(lost, [], 60)
        with database.writing() as session:  # as heartbeats before it look
            session.execute(update(WorkerRow).values(expires_s=leases.now_s() + 86_400))
            leases.beat(session, other.name)
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
    asked: Queue = store.queue()
    asked.submit([Wanted(A), Wanted(B)])
    with store._database.writing() as session:
        session.execute(update(RequestRow).where(RequestRow.m == A.m).values(state="?"))
    assert [one.wanted.gemm for one in asked.requests()] == [B]
    assert "request" in store.damages.text
