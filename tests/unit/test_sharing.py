"""Searches that share a database: nothing twice, all learn of everything, nobody waits for the dead."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fake_target import ENVIRONMENT, FakeTarget, bowl_us, fails_by_turns, product_space
from sqlalchemy import update
from store_cases import SQUARE, add, config, failed, ok, requested, study_of

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.search import Options, sharing, tune
from autotune.search import study_of as study_on
from autotune.search.progress import TrialDone
from autotune.search.propose.origins import FILL, SEED, TRANSFER
from autotune.search.propose.samplers import SAMPLERS, missing_package
from autotune.search.shape import ShapeSearch
from autotune.search.sharing import POLL_S, Sharing
from autotune.store import Claims, Known, Store, leases, queries
from autotune.store.models import WorkerRow
from autotune.target import point_key

GEMM = Gemm(64, 64, 64)


@pytest.fixture
def store(either_store: Store) -> Store:
    return either_store


def keys_of(target: FakeTarget) -> set[str]:
    return {point_key(point) for _, point in target.submitted}


def lapse(store: Store, claims: Claims) -> None:
    with store._database.writing() as session:
        worker = WorkerRow.id == claims._worker.id
        session.execute(update(WorkerRow).where(worker).values(expires_s=leases.now_s() - 1))


# ---- claims


def test_a_claim_is_leased_busy_or_known(store: Store) -> None:
    study = study_of(store)
    add(store, study, 0, ok(5.0))
    add(store, study, 1, failed())
    keys = [config(number).key for number in range(4)]
    with store.claims() as one, store.claims() as other:
        claimed = one.claim(study, requested(*range(3)))
        assert claimed.owned == {keys[2]}
        assert claimed.known == {keys[0]: Known(5.0, True, "tpe"), keys[1]: Known(None, True, "tpe")}
        claimed = other.claim(study, requested(*range(4)))
        assert (claimed.owned, set(claimed.known)) == ({keys[3]}, {keys[0], keys[1]}), "the third is away"
        add(store, study, 2, ok(7.0))
        assert other.claim(study, requested(2)).known == {keys[2]: Known(7.0, True, "tpe")}
        assert other.given_up(study, keys[2:]) == {keys[2]: Known(7.0, True, "tpe"), keys[3]: None}
        assert one.given_up(study, keys[2:]) == {keys[2]: Known(7.0, True, "tpe")}


def test_news_leave_out_what_is_known(store: Store) -> None:
    study = study_of(store)
    for number in range(3):
        add(store, study, number, ok(5.0 + number))
    with store.claims() as claims:
        new = claims.new_trials({study.id: {config(0).key, config(2).key}}, after=0)
        assert [(item.key, item.point, item.time_us) for item in new] == [
            (config(1).key, config(1).to_dict(), 6.0)
        ]
        assert claims.new_trials({study.id: {config(number).key for number in range(3)}}, after=0) == []
        assert claims.new_trials({}, after=0) == []


def test_more_is_requested_for_at_once_than_a_statement_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST_NAMED", 6)
    with Store.open(tmp_path / "a.db") as store, store.claims() as claims:
        study = study_of(store)
        ids = [add(store, study, number, ok(5.0)) for number in range(20)]
        keys = {config(number).key for number in range(20)}
        with store._reading() as session:  # the pool keeps this connection
            driver = session.connection().connection.dbapi_connection
            driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 10)
        assert store.keys(study, keys | {"other"}) == keys
        assert [trial.id for trial in store.trials_by_id(study, ids[::-1])] == ids
        new = claims.new_trials({study.id: ()}, after=0)
        assert [item.key for item in new] == [config(number).key for number in range(20)]
        others = [replace(study, id=1_000 + number) for number in range(20)]
        assert [trial.id for _, trial in store.latest([study, *others], 2)] == ids[-2:]


def test_another_gpu_of_the_kind_is_heard_of(store: Store) -> None:
    mine = study_of(store)
    environment = mine.environment

    def study_with(**change: object):
        who = replace(environment, **change)
        return store.study(who, mine.source_hash, mine.compiler, SQUARE)

    kin = study_with(gpu_uuid="GPU-2")
    add(store, kin, 0, ok(5.0))
    add(store, kin, 1, failed(Outcome.OUT_OF_MEMORY))
    add(store, kin, 2, failed(Outcome.WRONG_RESULT))
    add(store, study_with(driver_version="590.1"), 3, ok(5.0))
    add(store, study_with(gpu_name="NVIDIA H100"), 3, ok(5.0))
    keys = [config(number).key for number in range(4)]
    with store.claims() as claims, store.claims() as on_kin:
        claimed = claims.claim(mine, requested(*range(4)))
        assert claimed.owned == set(keys)
        assert claimed.known == {keys[0]: Known(5.0, False, "tpe"), keys[2]: Known(None, False, "tpe")}
        assert not on_kin.claim(kin, requested(3)).owned, "what one GPU is at, another leaves alone"


# ---- searches


@pytest.mark.every(3)
@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if not missing_package(name)])
def test_two_searches_at_once_try_nothing_twice_and_know_it_all(store: Store, sampler: str) -> None:
    first, second = (FakeTarget(outcome=fails_by_turns) for _ in range(2))
    notes = []

    def search_too(event: object) -> None:
        if isinstance(event, TrialDone) and event.num_done == 3 and not notes:
            notes.append(tune(second, store, [GEMM], Options(trials=12, seed=1, sampler=sampler)))

    result = tune(first, store, [GEMM], Options(trials=18, seed=2, sampler=sampler), search_too)
    stored = [trial.key for trial in store.trials(study_on(store, first, GEMM))]
    assert not keys_of(first) & keys_of(second)
    assert sorted(stored) == sorted(keys_of(first) | keys_of(second))
    assert result.num_new + notes[0].num_new == len(stored)


def shape_search(
    store: Store, claims: Claims, target: FakeTarget | None = None, seed: int = 0
) -> ShapeSearch:
    target = target or FakeTarget()
    return ShapeSearch(target, store, claims, GEMM, target.space(GEMM), seed=seed)


def settle(shape: ShapeSearch, target: FakeTarget, num: int) -> None:
    for _ in range(num):
        [ask] = shape.points.ask()
        measurement = target.measure(GEMM, ask.point)
        shape.keep(ask, measurement)
        shape.tell(ask, measurement)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 2 * POLL_S
        return self.now


def test_what_others_found_is_taken_in(store: Store) -> None:
    target = FakeTarget()
    with store.claims() as mine, store.claims() as theirs:
        me, them = shape_search(store, mine), shape_search(store, theirs, seed=1)
        sharing = Sharing(mine, Clock())
        ours = me.points.ask(3)
        settle(them, target, 20)
        waiting = them.points.ask(2)
        sharing.poll([me])
        assert me.findings.num_total == 20 and me.time_usage.num_new == 0
        best = me.findings.best
        assert best is not None and best.time_us == them.findings.best.time_us
        requested = [ask.key for ask in me.points.ask(20)]
        assert not {ask.key for ask in waiting} & set(requested)
        assert len({*requested, *(ask.key for ask in ours)}) == 23
        for ask in ours:
            me.keep(ask, target.measure(GEMM, ask.point))  # stored, and not told yet
        sharing.poll([me])
        assert me.findings.num_total == 20, "our own trials count when they are told"
        for ask in ours:
            me.tell(ask, target.measure(GEMM, ask.point))
        sharing.poll([me])
        assert me.findings.num_total == 23


def test_what_others_found_may_have_steps_to_polish_and_their_cells_are_no_trials(store: Store) -> None:
    target = FakeTarget()
    with store.claims() as mine, store.claims() as theirs:
        me, them = shape_search(store, mine), shape_search(store, theirs, seed=1)
        sharing = Sharing(mine, Clock())
        settle(them, target, 3)
        sharing.poll([me])
        me.points.is_polished = True
        sharing.poll([me])
        assert me.points.is_polished, "nothing new"
        (ask,) = them.points.ask()
        slowest = replace(target.measure(GEMM, ask.point), time_us=1e6)
        store.add_trial(them.study, ask.key, ask.point, slowest, FILL)
        sharing.poll([me])
        assert not me.points.is_polished and ask.key in me.findings.known
        assert me.findings.num_total == 3


def test_points_of_a_search_that_died_are_requested_for_again(store: Store) -> None:
    space = product_space(3, 3)
    with store.claims() as mine, store.claims() as theirs:
        me, them = (shape_search(store, claims, FakeTarget(space)) for claims in (mine, theirs))
        sharing = Sharing(mine, Clock())
        lost = {ask.key for ask in them.points.ask(2)}
        settle(me, FakeTarget(space), len(space) - 2)
        assert not me.points.ask() and me.points._away.keys() == lost
        sharing.poll([me])
        assert me.points._away.keys() == lost, "they live"
        lapse(store, theirs)
        sharing.poll([me])
        assert {ask.key for ask in me.points.ask(2)} == lost
        assert not me._proposer._named, "they came from no one else"


def test_a_search_waits_for_the_last_points_of_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored by the other, or tried here once the other is dead: nothing is left out."""
    monkeypatch.setattr(sharing, "POLL_S", 0.01)
    space = product_space(3, 3)
    target = FakeTarget(space)
    with store.claims() as theirs, store.claims() as dead:
        them, lost = (shape_search(store, claims, FakeTarget(space)) for claims in (theirs, dead))
        held, dying = them.points.ask(2), lost.points.ask(2)
        for number, ask in enumerate(held, 1):
            threading.Timer(0.2 * number, them.keep, (ask, target.measure(GEMM, ask.point))).start()
        threading.Timer(0.5, lapse, (store, dead)).start()
        result = tune(target, store, [GEMM], Options(trials=1000))
    assert (result.reason, result.shapes[0].num_trials) == ("exhausted", len(space))
    stored_keys = {trial.key for trial in store.trials(result.shapes[0].study)}
    assert keys_of(target) == stored_keys - {ask.key for ask in held}
    assert {ask.key for ask in dying} <= keys_of(target)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("origin", "time_us", "is_tried"),
    [(TRANSFER, 1e6, True), (TRANSFER, None, False), (SEED, 1e6, False), (SEED, 1.0, True)],
)
def test_what_failed_on_another_gpu_is_not_tried_even_if_it_is_lent(
    store: Store, origin: str, time_us: float | None, is_tried: bool
) -> None:
    there, here = FakeTarget(), FakeTarget()
    here.environment = replace(ENVIRONMENT, gpu_uuid="GPU-2")
    with store.claims() as claims:
        me = shape_search(store, claims, here)
        settle(me, here, 20)
        point = next(
            p for p in map(me.space.point, range(len(me.space))) if point_key(p) not in me.findings.known
        )
        known = failed() if time_us is None else ok(time_us)
        store.add_trial(study_on(store, there, GEMM), point_key(point), point, known, "random")
        me._proposer.offer(me.space.find(point), origin)
        (ask,) = me.points.ask()
        assert (ask.key == point_key(point)) == is_tried


def test_what_is_slow_on_another_gpu_of_the_kind_is_not_tried_here(store: Store) -> None:
    there, here = FakeTarget(), FakeTarget(time_us=lambda point: 0.99 * bowl_us(point))
    here.environment = replace(ENVIRONMENT, gpu_uuid="GPU-2")
    tune(there, store, [GEMM], Options(trials=60, seed=1))
    tune(here, store, [GEMM], Options(trials=60, seed=1))
    again = keys_of(there) & keys_of(here)
    times = {t.key: t.measurement.time_us for t in store.trials(study_on(store, there, GEMM))}
    best_us, lent = min(times.values()), {t.key for t in store.best(study_on(store, there, GEMM), 8)}
    assert lent <= again, "the best are tried here, too"
    assert len(again) < 20
    assert all(times[key] < 1.10 * best_us for key in again - lent)
    assert len(keys_of(here)) == 60
