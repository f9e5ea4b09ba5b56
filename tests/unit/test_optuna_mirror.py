"""Optuna shows the store's trials: all of them, once, whatever happens while they are copied."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import Engine, event
from store_cases import (
    H200,
    SQUARE,
    add,
    config,
    failed,
    integrity,
    killed_before,
    ok,
    publish,
    start,
    study_of,
)

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.files.errors import StoreError
from autotune.kernel.config import PARAMETER, Value
from autotune.store import Store, StudyRef, TrialRecord, optuna_mirror
from autotune.store.optuna_mirror import TRIAL_ID, study_name

MEASUREMENTS = [ok(5.0), failed(), ok(3.0), failed(Outcome.SPILLED, "8 bytes"), ok(4.0)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "autotune.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def study(store: Store) -> StudyRef:
    study = study_of(store)
    for number, measurement in enumerate(MEASUREMENTS):
        add(store, study, number, measurement)
    return study


def read(url: str, study: StudyRef) -> optuna.Study:
    """What optuna-dashboard reads; the connections are closed again."""
    storage = optuna.storages.RDBStorage(url)
    loaded = optuna.load_study(study_name=study_name(study), storage=storage)
    memory = optuna.create_study(direction=loaded.direction)
    memory.add_trials(loaded.trials)
    for key, value in loaded.user_attrs.items():
        memory.set_user_attr(key, value)
    assert [t.number for t in loaded.trials] == list(range(len(loaded.trials)))
    storage.remove_session()
    storage.engine.dispose()
    return memory


@contextmanager
def statements() -> Iterator[list[str]]:
    """The SQL that is executed within."""
    executed: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        executed.append(sql)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_optuna_reads_what_we_stored(store: Store, study: StudyRef) -> None:
    assert optuna_mirror.publish(store, [study]) == 5
    mirrored = read(store.url, study)
    assert mirrored.direction == optuna.study.StudyDirection.MINIMIZE
    assert mirrored.user_attrs["gemm"] == str(SQUARE)
    assert mirrored.user_attrs["environment"]["gpu_name"] == H200.gpu_name
    for ours, theirs in zip(store.trials(study), mirrored.trials, strict=True):
        assert theirs.params == ours.point
        assert theirs.state == (TrialState.COMPLETE if ours.measurement.is_ok else TrialState.FAIL)
        assert theirs.value == ours.measurement.time_us
        assert theirs.user_attrs[TRIAL_ID] == ours.id
        assert theirs.user_attrs["outcome"] == ours.measurement.outcome
        assert theirs.user_attrs.get("reason", "") == ours.measurement.reason
        assert theirs.user_attrs["origin"] == ours.origin
        assert theirs.datetime_complete is not None
        assert theirs.datetime_complete.astimezone() == ours.created_at
        assert theirs.duration is not None
        spent = ours.measurement
        assert theirs.duration.total_seconds() == spent.compile_s + spent.verify_s + spent.measure_s
    assert mirrored.best_params == config(2).to_dict()
    space = optuna.search_space.intersection_search_space(mirrored.trials)
    assert set(space) == set(PARAMETER)


def test_publishing_again_copies_only_what_is_new(store: Store, study: StudyRef) -> None:
    assert [optuna_mirror.publish(store, [study]) for _ in range(3)] == [5, 0, 0]
    add(store, study, 7, ok(1.0))
    assert optuna_mirror.publish(store, [study]) == 1
    assert read(store.url, study).best_value == 1.0


def test_many_trials_take_several_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_mirror, "_BATCH", 7)
    study = study_of(store)
    for number in range(20):
        add(store, study, number, ok(1.0 + number))
    assert optuna_mirror.publish(store, [study]) == 20
    assert [t.user_attrs[TRIAL_ID] for t in read(store.url, study).trials] == list(range(1, 21))


def test_what_is_stored_is_read_once_for_all_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at all before each batch would cost the square of the number of trials."""
    monkeypatch.setattr(optuna_mirror, "_BATCH", 2)
    study = study_of(store)
    for number in range(20):
        add(store, study, number, ok(1.0 + number))
    with statements() as executed:
        assert optuna_mirror.publish(store, [study]) == 20
        assert optuna_mirror.publish(store, [study]) == 0
    assert sum("DISTINCT" in sql for sql in executed) == 1


def test_another_publisher_between_two_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds trials, and a value that the first publisher has not met."""
    monkeypatch.setattr(optuna_mirror, "_BATCH", 2)
    study = study_of(store)
    for number in range(6):
        store.add_trial(study, str(number), {"MWG": number}, ok(1.0 + number), "replay")
    copy_some = optuna_mirror._StudyMirror._copy_some

    def interrupted(mirror: optuna_mirror._StudyMirror, trials: Sequence[TrialRecord]) -> int:
        num_copied = copy_some(mirror, trials[:2])
        monkeypatch.setattr(optuna_mirror._StudyMirror, "_copy_some", copy_some)
        store.add_trial(study, "6", {"MWG": 6}, ok(7.0), "replay")
        assert optuna_mirror.publish(store, [study]) == 5
        return num_copied

    monkeypatch.setattr(optuna_mirror._StudyMirror, "_copy_some", interrupted)
    assert optuna_mirror.publish(store, [study]) == 2
    mirrored = read(store.url, study)
    assert [t.params for t in mirrored.trials] == [{"MWG": number} for number in range(7)]
    assert len({str(t.distributions) for t in mirrored.trials}) == 1


def test_several_studies_take_one_connection_to_optuna(
    store: Store, study: StudyRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = study_of(store, Gemm(8, 8, 8))
    add(store, other, 0, ok(9.0))
    opened, open_storage = [], optuna_mirror._open_storage
    monkeypatch.setattr(optuna_mirror, "_open_storage", lambda url: opened.append(url) or open_storage(url))
    assert optuna_mirror.publish(store, [study, other]) == 6
    assert opened == [store.url]
    assert [t.value for t in read(store.url, other).trials] == [9.0]


def test_studies_stay_apart(store: Store, study: StudyRef) -> None:
    other = study_of(store, Gemm(8, 8, 8))
    add(store, other, 0, ok(9.0))
    assert optuna_mirror.publish(store, [other]) == 1
    assert optuna_mirror.publish(store, [study]) == 5
    assert optuna_mirror.publish(store, [study_of(store, Gemm(9, 9, 9))]) == 0
    assert [t.value for t in read(store.url, other).trials] == [9.0]
    assert len(read(store.url, study).trials) == 5


def test_values_met_later_keep_earlier_trials_readable(store: Store) -> None:
    """Points of other tools: nobody names their values in advance."""
    study = study_of(store)
    points: list[dict[str, Value]] = [
        {"MWG": 64, "KIND": "b"},
        {"MWG": 16, "KIND": "a"},
        {"MWG": 64, "KIND": "c"},
    ]
    for number, point in enumerate(points):
        store.add_trial(study, str(number), point, ok(1.0 + number), "replay")
        assert optuna_mirror.publish(store, [study]) == 1
    mirrored = read(store.url, study)
    assert [t.params for t in mirrored.trials] == points
    assert len({str(t.distributions) for t in mirrored.trials}) == 1
    assert mirrored.trials[0].distributions["KIND"].choices == ("b", "a", "c")


def test_another_database_can_take_the_copy(store: Store, study: StudyRef, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/optuna.db"
    assert optuna_mirror.publish(store, [study], url) == 5
    assert len(read(url, study).trials) == 5
    with pytest.raises(StoreError, match="another application"):
        Store.open(url)


def test_optuna_says_nothing_of_it(store: Store, study: StudyRef, capfd: pytest.CaptureFixture[str]) -> None:
    verbosity = optuna.logging.get_verbosity()
    optuna_mirror.publish(store, [study])
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == verbosity


@pytest.mark.stress
def test_a_kill_between_any_two_statements_is_made_good(
    path: Path, store: Store, study: StudyRef, quick_folder: Path
) -> None:
    """Killed before its first writing statement, its second, ... until one lives to the end."""
    for statement in range(100):
        copy = quick_folder / f"{statement}.db"
        process = start(killed_before, statement, publish, path, f"sqlite:///{copy}")
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        optuna_mirror.publish(store, [study], f"sqlite:///{copy}")
        assert _copied(copy) == [(number, str(number + 1)) for number in range(5)]
    assert 20 < statement < 99


def _copied(path: Path) -> list[tuple[int, str]]:
    """Optuna's numbers of the trials, and ours."""
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT number, value_json FROM trials JOIN trial_user_attributes USING (trial_id)"
        " WHERE key = ? ORDER BY trial_id",
        (TRIAL_ID,),
    ).fetchall()
    connection.close()
    return rows


def test_two_publishers_at_once_copy_each_trial_once(path: Path, store: Store, study: StudyRef) -> None:
    for number in range(10, 60):
        add(store, study, number, ok(1.0 + number))
    publishers = [start(publish, path, None) for _ in range(3)]
    for publisher in publishers:
        publisher.join()
        assert publisher.exitcode == 0
    ids = [t.user_attrs[TRIAL_ID] for t in read(store.url, study).trials]
    assert ids == [t.id for t in store.trials(study)]
    assert integrity(path) == "ok"


def test_a_locked_storage(store: Store, study: StudyRef, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_mirror, "DEFAULT_TIMEOUT_S", 0.1)
    optuna_mirror.publish(store, [study])
    add(store, study, 7, ok(1.0))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreError, match="is locked by"):
            optuna_mirror.publish(store, [study])
    finally:
        holder.close()
    assert optuna_mirror.publish(store, [study]) == 1


def test_a_storage_of_another_optuna(store: Store, study: StudyRef, path: Path) -> None:
    optuna_mirror.publish(store, [study])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = 'v99'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"Optuna cannot use .*updating optuna"):
        optuna_mirror.publish(store, [study])
