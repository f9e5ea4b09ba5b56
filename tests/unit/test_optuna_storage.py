"""The store is Optuna's storage: as Optuna's own tests want it, and as processes and searches use it."""

from __future__ import annotations

import io
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna.terminator
import pytest
from fake_target import FakeTarget, bowl_us, product_space
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import TrialState
from store_cases import H200, MEASUREMENTS, SQUARE, add, config, ok, requested, start, study_of

import autotune
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Failure, Outcome
from autotune.kernel.config import PARAMETER
from autotune.search import Options, StopReason, tune
from autotune.search.progress import ShapeStarted
from autotune.search.propose.optuna_sampler import FeasibleSampler, distributions, suggested
from autotune.search.propose.origins import MODELLED
from autotune.search.shape import study_of as study_of_target
from autotune.store import Store, StudyRef
from autotune.store.optuna_rows import study_name
from autotune.store.optuna_storage import TRIAL_ID, OptunaStorage
from autotune.target_finder import default_recording

SPACE = product_space(6, 6, 4, words=3)
FILE_FIRST = pytest.mark.parametrize(  # on a server in `make stress` alone
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.stress)], indirect=True
)


@pytest.fixture(params=("sqlite", pytest.param("postgresql", marks=pytest.mark.stress)))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OptunaStorage]:
    is_file = request.param == "sqlite"
    opened = OptunaStorage(
        tmp_path / "trials.db" if is_file else request.getfixturevalue("postgresql").new_database()
    )
    yield opened
    opened.close()


class TestAsOptunaTests(StorageTestCase):
    """Optuna's own tests of a storage, all of them."""


# ---- studies of searches


@pytest.fixture
def study(either_store: Store) -> StudyRef:
    study = study_of(either_store)
    for number, measurement in enumerate(MEASUREMENTS):
        add(either_store, study, number, measurement)
    return study


@pytest.fixture
def ours(either_store: Store) -> Iterator[OptunaStorage]:
    opened = OptunaStorage(either_store)
    yield opened
    opened.close()


def loaded(storage: OptunaStorage, study: StudyRef, **options: Any) -> optuna.Study:
    return optuna.load_study(study_name=study_name(study), storage=storage, **options)


def test_a_search_is_a_study_of_optuna(either_store: Store, study: StudyRef, ours: OptunaStorage) -> None:
    read = loaded(ours, study)
    assert read.direction == optuna.study.StudyDirection.MINIMIZE
    assert read.user_attrs["gemm"] == str(SQUARE)
    assert read.user_attrs["environment"]["gpu_name"] == H200.gpu_name
    assert [trial.number for trial in read.trials] == list(range(5))
    for stored, trial in zip(either_store.trials(study), read.trials, strict=True):
        measured = stored.measurement
        assert trial.params == stored.point
        assert trial.state == (TrialState.COMPLETE if measured.is_ok else TrialState.FAIL)
        assert trial.value == measured.time_us
        assert trial.user_attrs[TRIAL_ID] == stored.id
        assert trial.user_attrs["outcome"] == measured.outcome
        assert trial.user_attrs.get("reason", "") == measured.reason
        assert tuple(trial.user_attrs["samples_us"]) == measured.samples_us
        assert trial.user_attrs.get("error_ratio") == measured.error_ratio
        assert trial.user_attrs["origin"] == stored.origin
        assert trial.datetime_complete is not None and trial.duration is not None
        assert trial.datetime_complete.astimezone() == stored.created_at
        spent = measured.compile_s + measured.verify_s + measured.measure_s
        assert trial.duration.total_seconds() == spent
    assert read.best_params == config(2).to_dict()
    assert set(optuna.search_space.intersection_search_space(read.trials)) == set(PARAMETER)


def test_values_met_later_keep_earlier_trials_comparable(either_store: Store, ours: OptunaStorage) -> None:
    """Points of other tools: nobody names their values in advance."""
    study = study_of(either_store)
    points = [{"MWG": 64, "KIND": "b"}, {"MWG": 16, "KIND": "a"}, {"MWG": 64, "KIND": "c"}]
    for number, point in enumerate(points):
        either_store.add_trial(study, str(number), point, ok(1.0 + number), "replay")
        trials = loaded(ours, study).trials
        assert [trial.params for trial in trials] == points[: number + 1]
        assert len({str(trial.distributions) for trial in trials}) == 1


def test_a_deleted_trial_moves_no_number(either_store: Store, study: StudyRef, ours: OptunaStorage) -> None:
    """The next number is one that no trial had, even after the last is deleted; and its config is free."""
    read = loaded(ours, study)
    before = {trial.number: trial.params for trial in read.trials}
    ids = [trial.user_attrs[TRIAL_ID] for trial in read.trials]
    with either_store._database.writing() as session:
        session.connection().exec_driver_sql(f"DELETE FROM trial WHERE id IN ({ids[1]}, {ids[4]})")
    kept = {number: params for number, params in before.items() if number not in (1, 4)}
    for storage in (ours, OptunaStorage(either_store)):  # which has read them, and which has not
        assert {t.number: t.params for t in loaded(storage, study).trials} == kept
    add(either_store, study, 7, ok(1.0))
    assert [trial.number for trial in read.trials] == [0, 2, 3, 5]
    waiting = read.ask()
    assert ours.claim(waiting._trial_id, before[4], {})
    assert [trial.number for trial in read.trials] == [0, 2, 3, 5, 6]
    read.tell(waiting, 3.5)
    assert read.trials[-1].params == before[4] and read.trials[-1].value == 3.5


def test_a_condemned_trial_fails(either_store: Store, study: StudyRef, ours: OptunaStorage) -> None:
    read = loaded(ours, study)
    assert read.best_value == 3.0
    either_store.invalidate(study, config(2).key, Failure(Outcome.WRONG_RESULT, "NaN"))
    assert read.trials[2].state is TrialState.FAIL and read.trials[2].user_attrs["reason"] == "NaN"
    assert read.best_value == 4.0


def test_a_study_that_is_forgotten_is_gone(either_store: Store, study: StudyRef, ours: OptunaStorage) -> None:
    other = study_of(either_store, Gemm(8, 8, 8))
    assert sorted(optuna.get_all_study_names(ours)) == sorted(map(study_name, (study, other)))
    either_store.forget(study)
    assert optuna.get_all_study_names(ours) == [study_name(other)]
    optuna.delete_study(study_name=study_name(other), storage=ours)
    assert either_store.studies() == []


def test_what_is_told_is_a_trial_of_the_search(
    either_store: Store, study: StudyRef, ours: OptunaStorage
) -> None:
    read = loaded(ours, study)
    notes = [read.ask() for _ in range(3)]
    for number, trial in zip((11, 13, 15), notes, strict=True):
        assert ours.claim(trial._trial_id, config(number).to_dict(), {})
        assert not ours.claim(read.ask()._trial_id, config(number).to_dict(), {}), "another one is of it"
    assert not ours.claim(notes[0]._trial_id, config(0).to_dict(), {}), "it was tried"
    read.tell(notes[0], 2.5)
    notes[1].set_user_attr("outcome", "spilled")
    read.tell(notes[1], state=TrialState.FAIL)
    read.tell(notes[2], state=TrialState.PRUNED)
    stored = either_store.trials(study)[-3:]
    assert [trial.point for trial in stored] == [config(number).to_dict() for number in (11, 13, 15)]
    assert [trial.measurement.time_us for trial in stored] == [2.5, None, None]
    outcomes = [Outcome.OK, Outcome.SPILLED, Outcome.FAILED]
    assert [trial.measurement.outcome for trial in stored] == outcomes
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]
    assert [read.trials[trial.number].state for trial in notes] == states
    with pytest.raises(ValueError, match="no time"):
        extra = read.ask()
        assert ours.claim(extra._trial_id, config(17).to_dict(), {})
        read.tell(extra, -1.0)


def test_a_search_tries_what_was_lined_up_first(either_store: Store, ours: OptunaStorage) -> None:
    target = FakeTarget(SPACE)
    study = study_of_target(either_store, target, SQUARE)
    tune(target, either_store, [SQUARE], Options(trials=1, seed=3))
    wanted = next(
        SPACE.point(n) for n in range(len(SPACE)) if SPACE.point(n) != either_store.trials(study)[0].point
    )
    loaded(ours, study).enqueue_trial(wanted)
    assert loaded(ours, study).trials[1].state is TrialState.WAITING
    tune(target, either_store, [SQUARE], Options(trials=2))
    assert either_store.trials(study)[1].point == wanted
    trial = loaded(ours, study).trials[1]
    assert (trial.number, trial.params, trial.state) == (1, wanted, TrialState.COMPLETE)


def test_a_search_tells_of_what_is_lined_up_and_not_feasible(
    either_store: Store, ours: OptunaStorage
) -> None:
    target, events = FakeTarget(SPACE), list[Any]()
    study = study_of_target(either_store, target, SQUARE)
    tune(target, either_store, [SQUARE], Options(trials=1))
    for unfit in (99, "x", None):
        loaded(ours, study).enqueue_trial({**SPACE.point(0), SPACE.names[0]: unfit})
    for unfit in ({SPACE.names[0]: 2}, loaded(ours, study).best_params):  # not whole, tried before
        loaded(ours, study).enqueue_trial(unfit)
    tune(target, either_store, [SQUARE], Options(trials=2), events.append)
    assert [event.num_unfit for event in events if isinstance(event, ShapeStarted)] == [5]
    assert len(loaded(ours, study).get_trials(states=[TrialState.WAITING])) == 5, "nothing is lost"


def test_a_final_on_a_recording_condemns_what_was_told_and_not_recorded(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    best = autotune.tune(4096, gpu="auto", trials=4, db=db).best[4096]
    assert best is not None
    with closing(OptunaStorage(db)) as storage:
        read = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
        read.enqueue_trial({**best.point, "bm": 1})
        read.tell(read.ask(), best.time_us / 2)
        again = autotune.tune(4096, gpu="auto", trials=6, db=db).best[4096]
        assert again is not None and again.time_us > best.time_us / 2
        (told,) = (trial for trial in read.trials if trial.params["bm"] == 1)
        assert told.state is TrialState.FAIL and "no time of it was recorded" in told.user_attrs["reason"]
        assert told.user_attrs["samples_us"] == (best.time_us / 2,), "nothing is lost"


@pytest.mark.parametrize("unfit", [{1, 2}, b"x", object()])
def test_attributes_that_are_not_json_are_refused(storage: OptunaStorage, unfit: Any) -> None:
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    for target in (study, trial):
        with pytest.raises(TypeError, match="not JSON serializable; give numbers, texts"):
            target.set_user_attr("key", unfit)
    with pytest.raises(TypeError, match="not JSON serializable"):
        study.enqueue_trial({"x": unfit})


def test_an_origin_of_another_type_is_told_as_text(
    either_store: Store, study: StudyRef, ours: OptunaStorage
) -> None:
    read = loaded(ours, study)
    read.enqueue_trial(config(7).to_dict(), user_attrs={"origin": {"a": 1}})
    read.tell(read.ask(), 2.0)
    assert either_store.trials(study)[-1].origin == "{'a': 1}"


@FILE_FIRST
def test_a_search_shows_what_is_under_way(url: str | Path) -> None:
    """Points are trials from when they are claimed, all of a block at once, and are gone with the search."""
    with Store.open(url) as store, Store.open(url) as beside:
        seen: list[list[TrialState]] = []
        storage = OptunaStorage(beside)
        target = FakeTarget(SPACE, capacity=8, is_backwards=True)
        study = study_of_target(store, target, SQUARE)

        def look(_: Any) -> None:
            seen.append([trial.state for trial in loaded(storage, study).trials])

        tune(target, store, [SQUARE], Options(trials=24), look)
        assert max(states.count(TrialState.RUNNING) for states in seen) >= 2
        after = loaded(storage, study).trials
        assert [trial.state for trial in after] == [TrialState.COMPLETE] * 24
        assert sorted(trial.number for trial in after) == list(range(24))
        assert {t.user_attrs["origin"] for t in after} == {t.origin for t in store.trials(study)}
        storage.close()


def test_what_was_lined_up_may_be_requested_for(
    either_store: Store, study: StudyRef, ours: OptunaStorage
) -> None:
    """A whole config is claimed by whoever asks, and a search does not try it meanwhile."""
    read = loaded(ours, study)
    read.enqueue_trial(config(7).to_dict())
    read.enqueue_trial({"bm": 128})
    with either_store.claims() as claims:
        assert claims.waiting([study]) == [(study.id, config(7).to_dict()), (study.id, {})]
        asked = read.ask()
        assert asked.params == config(7).to_dict()
        assert claims.waiting([study]) == [(study.id, {})]
        assert not claims.claim(study, requested(7)).owned
    read.tell(asked, 2.0)
    assert either_store.best(study)[0].point == config(7).to_dict()
    assert read.ask().suggest_categorical("bm", (64, 128)) == 128


def test_merged_trials_get_numbers_of_their_own(
    either_store: Store, ours: OptunaStorage, tmp_path: Path
) -> None:
    study = study_of(either_store)
    add(either_store, study, 0, ok(5.0))
    read = loaded(ours, study)
    assert [trial.number for trial in read.trials] == [0]
    with Store.open(tmp_path / "other.db") as other:
        for number in range(3):
            add(other, study_of(other), number, ok(7.0 + number))
        either_store.merge(other)
    assert [(trial.number, trial.value) for trial in read.trials] == [(0, 5.0), (1, 8.0), (2, 9.0)]


# ---- what users of Optuna bring along


def search_recording(db: Path, **options: Any) -> tuple[autotune.Result, optuna.Study]:
    result = autotune.tune("512x512x16384", gpu=f"replay:{default_recording()}", db=db, **options)
    with closing(autotune.OptunaStorage(db)) as storage:
        (name,) = optuna.get_all_study_names(storage)
        study = optuna.create_study()
        study.add_trials(optuna.load_study(study_name=name, storage=storage).trials)
    return result, study


def test_callbacks_hear_of_each_trial_and_a_terminator_ends_the_search(tmp_path: Path) -> None:
    heard: list[optuna.trial.FrozenTrial] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls them experimental
        stagnation = optuna.terminator.BestValueStagnationEvaluator(max_stagnation_trials=5)
        error = optuna.terminator.StaticErrorEvaluator(0.0)
        ends = optuna.terminator.TerminatorCallback(optuna.terminator.Terminator(stagnation, error, 8))
    callbacks = [lambda study, trial: heard.append(trial), ends]
    result, study = search_recording(tmp_path / "a.db", trials=400, callbacks=callbacks)
    assert result.search.reason is StopReason.STOPPED and result.shapes[0].final is not None
    assert 8 <= result.search.num_new < 400
    assert [trial.number for trial in heard] == list(range(result.search.num_new))
    assert [trial.params for trial in heard] == [trial.params for trial in study.trials]


def test_any_sampler_may_propose(tmp_path: Path) -> None:
    """Its wishes become feasible points: the same search with the same seed, and its name is kept."""
    found = [
        search_recording(tmp_path / f"{turn}.db", trials=25, sampler=optuna.samplers.NSGAIISampler(seed=1))
        for turn in range(2)
    ]
    assert found[0][1].best_params == found[1][1].best_params
    origins = {trial.user_attrs["origin"] for trial in found[0][1].trials}
    assert "NSGAIISampler" in origins and not origins & {*MODELLED}


def test_a_data_frame_has_a_row_for_each_trial(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    _, study = search_recording(tmp_path / "a.db", trials=12)
    frame = study.trials_dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 12
    assert {"value", "params_bm", "user_attrs_origin", "user_attrs_outcome"} <= set(frame.columns)


def test_the_dashboard_shows_trials_as_they_are(tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    with Store.open(tmp_path / "a.db") as store, closing(OptunaStorage(store)) as storage:
        study = study_of(store)

        def requested(path: str) -> Any:
            app = dashboard.wsgi(storage)  # anew: one looks at a study every 10 s at most
            heard: list[str] = []
            environment = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "wsgi.input": io.BytesIO()}
            environment["wsgi.errors"] = io.StringIO()
            body = b"".join(app(environment, lambda status, *_: heard.append(status)))
            assert heard == ["200 OK"]
            return json.loads(body)

        (shown,) = requested("/api/studies")["study_summaries"]
        assert shown["study_name"] == study_name(study)
        for number in range(3):
            add(store, study, number, ok(5.0 + number))
            trials = requested(f"/api/studies/{shown['study_id']}")["trials"]
            assert [trial["number"] for trial in trials] == list(range(number + 1))


@pytest.mark.parametrize("is_autotune", [False, True])
def test_several_jobs_of_a_study_try_no_point_twice(tmp_path: Path, is_autotune: bool) -> None:
    with closing(OptunaStorage(tmp_path / "a.db")) as storage:
        sampler = FeasibleSampler(SPACE)
        study = optuna.create_study(storage=storage if is_autotune else None, sampler=sampler)
        study.optimize(lambda trial: bowl_us(suggested(SPACE, trial)), n_trials=30, n_jobs=3)
        assert len({SPACE.find(trial.params) for trial in study.trials}) == 30
        assert sorted(trial.number for trial in study.trials) == list(range(30))


# ---- several processes


def ask_and_tell(url: str | Path, num: int, name: str, seed: int, report: Path) -> None:
    """Reports the numbers of the points that it tried, and what its proposer knows in the end."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with closing(OptunaStorage(url)) as storage:
        sampler = FeasibleSampler(SPACE, seed=seed)
        study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
        tried = []
        for _ in range(num):
            trial = study.ask()
            point = suggested(SPACE, trial)
            tried.append(SPACE.find(point))
            study.tell(trial, bowl_us(point))
        report.write_text(" ".join(map(str, tried)), encoding="ascii")


@FILE_FIRST
@pytest.mark.parametrize("num", [25, pytest.param(60, marks=pytest.mark.stress)])
@pytest.mark.parametrize("is_of_search", [False, True])
def test_two_processes_try_no_point_twice_and_learn_all(
    url: str | Path, tmp_path: Path, is_of_search: bool, num: int
) -> None:
    with Store.open(url) as store, closing(OptunaStorage(store)) as storage:
        name = "mine"
        if is_of_search:
            name = study_name(study_of_target(store, FakeTarget(SPACE), SQUARE))
            study = optuna.load_study(study_name=name, storage=storage)
        else:
            study = optuna.create_study(study_name=name, storage=storage)
        reports = [tmp_path / str(number) for number in range(2)]
        processes = [start(ask_and_tell, url, num, name, seed, report) for seed, report in enumerate(reports)]
        for process in processes:
            process.join()
            assert process.exitcode == 0
        tried = [int(number) for report in reports for number in report.read_text(encoding="ascii").split()]
        assert len(set(tried)) == len(tried) == 2 * num
        assert sorted(trial.number for trial in study.trials) == list(range(2 * num))
        assert {SPACE.find(trial.params) for trial in study.trials} == set(tried)
        sampler = FeasibleSampler(SPACE)
        optuna.load_study(study_name=name, storage=storage, sampler=sampler).ask()
        assert sampler._proposer._results.keys() == set(tried)


@FILE_FIRST
def test_a_search_and_somebody_who_asks_share_a_study(url: str | Path, tmp_path: Path) -> None:
    """Each learns what the other tried, and tries something else."""
    with Store.open(url) as store, closing(OptunaStorage(store)) as storage:
        target, heard = FakeTarget(SPACE, capacity=4, is_backwards=True), []
        study = study_of_target(store, target, SQUARE)
        requesting = start(ask_and_tell, url, 25, study_name(study), 5, tmp_path / "tried")
        tune(target, store, [SQUARE], Options(trials=80, seed=1), heard.append)
        requesting.join()
        assert requesting.exitcode == 0
        requested = [int(number) for number in (tmp_path / "tried").read_text(encoding="ascii").split()]
        submitted = [SPACE.find(point) for _, point in target.submitted]
        assert len({*requested, *submitted}) == len(requested) + len(submitted)
        trials = loaded(storage, study).trials
        assert len({trial.number for trial in trials}) == len(trials) == len(store.trials(study))
        origins = {trial.user_attrs["origin"] for trial in trials}
        assert len(trials) == len(requested) + len(submitted) and "random" in origins


def ask_and_wait(url: str | Path, name: str, report: Path) -> None:
    """Asks, reports its point, and is never done."""
    study = optuna.load_study(study_name=name, storage=OptunaStorage(url), sampler=FeasibleSampler(SPACE))
    number = SPACE.find(suggested(SPACE, study.ask()))
    report.with_suffix(".part").write_text(str(number), encoding="ascii")
    report.with_suffix(".part").rename(report)
    time.sleep(60)


@FILE_FIRST
def test_a_killed_process_leaves_its_point_to_the_next(url: str | Path, tmp_path: Path) -> None:
    with closing(OptunaStorage(url)) as storage:
        study = optuna.create_study(study_name="mine", storage=storage)
        requesting = start(ask_and_wait, url, "mine", tmp_path / "asked")
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        (trial,) = study.trials
        assert trial.state is TrialState.RUNNING
        requesting.kill()
        requesting.join()
        left = SPACE.point(int((tmp_path / "asked").read_text(encoding="ascii")))
        again = study.ask()
        assert storage.claim(again._trial_id, left, distributions(SPACE))
        assert [(trial.number, trial.params) for trial in study.trials] == [(1, left)]


def take(url: str | Path, name: str, num: int, report: Path) -> None:
    with closing(OptunaStorage(url)) as storage:
        study = optuna.load_study(study_name=name, storage=storage)
        numbers = [study.ask().number for _ in range(num)]
    report.write_text(" ".join(map(str, numbers)), encoding="ascii")


@FILE_FIRST
def test_what_is_lined_up_goes_to_one_process(url: str | Path, tmp_path: Path) -> None:
    with closing(OptunaStorage(url)) as storage:
        study = optuna.create_study(study_name="mine", storage=storage)
        for number in range(30):
            study.enqueue_trial({"x": number})
        reports = [tmp_path / str(number) for number in range(2)]
        processes = [start(take, url, "mine", 15, report) for report in reports]
        for process in processes:
            process.join()
            assert process.exitcode == 0
    taken = [int(number) for report in reports for number in report.read_text(encoding="ascii").split()]
    assert sorted(taken) == list(range(30))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_forked_processes_have_connections_and_claims_of_their_own(url: str | Path) -> None:
    with closing(OptunaStorage(url)) as storage:
        study = optuna.create_study(storage=storage, sampler=FeasibleSampler(SPACE))
        asked = study.ask()

        def work() -> None:
            study.optimize(lambda trial: bowl_us(suggested(SPACE, trial)), n_trials=8)

        def fork() -> None:
            work()
            storage.close()

        children = [multiprocessing.get_context("fork").Process(target=fork) for _ in range(3)]
        for child in children:
            child.start()
        work()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * 3
        study.tell(asked, 5.0)
        trials = study.trials
        assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 33
        assert len({SPACE.find(trial.params) for trial in trials}) == 33
