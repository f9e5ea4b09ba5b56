"""What goes into the store comes out, and its questions are answered from all that is in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_cases import COMPILER, H200, SOURCE, SQUARE, add, config, failed, ok, study_of

from autotune.facts.gemm import MAX_EXTENT, Gemm
from autotune.facts.measurement import CachePolicy, Failure, GpuState, Measurement, Outcome
from autotune.files.errors import DuplicateTrial, StoreError
from autotune.kernel.where import ANY
from autotune.store import Final, FinalEntry, Store, StudyRef, repository
from autotune.target import Baseline

_FRESH = itertools.count()


BACKENDS = ("sqlite", "postgresql")


def _fresh(request: pytest.FixtureRequest) -> str | Path:
    """A database of this backend with nothing in it; skips where its server is not installed."""
    if request.param == "sqlite":
        return request.getfixturevalue("tmp_path_factory").mktemp("store") / "autotune.db"
    return request.getfixturevalue("postgresql").new_database()


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with Store.open(_fresh(request)) as opened:
        yield opened


@pytest.fixture(scope="module", params=BACKENDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Store]:
    """One store for all examples of the property tests."""
    with Store.open(_fresh(request)) as opened:
        yield opened


# ---- what goes in comes out

_times = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
_seconds = st.floats(min_value=0, max_value=1e6)
_counts = st.none() | st.integers(0, 2**31 - 1)
_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
_states = st.builds(
    GpuState,
    sm_clock_mhz=_counts,
    memory_clock_mhz=_counts,
    power_w=st.none() | _seconds,
    temperature_c=st.none() | st.integers(-50, 150),
    throttle_reasons=st.lists(_text, max_size=3).map(tuple),
)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    outcome = draw(st.sampled_from(list(Outcome)))
    return Measurement(
        outcome=outcome,
        reason=draw(_text),
        time_us=draw(_times if outcome is Outcome.OK else st.none()),
        samples_us=tuple(draw(st.lists(_times, max_size=30))),
        is_cut_short=draw(st.booleans()),
        error_ratio=draw(st.none() | st.floats(min_value=0)),
        error_over_cublas=draw(st.none() | st.floats(min_value=0)),
        registers=draw(_counts),
        spill_bytes=draw(_counts),
        smem_bytes=draw(_counts),
        compile_s=draw(_seconds),
        verify_s=draw(_seconds),
        measure_s=draw(_seconds),
        state=draw(_states),
    )


_points = st.dictionaries(
    st.text(min_size=1, max_size=8), st.integers(-(2**63), 2**64) | st.text(max_size=8), max_size=6
)


@given(measurement=measurements(), point=_points, origin=_text)
def test_a_trial_comes_back_as_it_went_in(
    shared: Store, measurement: Measurement, point: dict[str, int | str], origin: str
) -> None:
    study, key = study_of(shared), f"{next(_FRESH)}: {point}"
    before = datetime.now(UTC)
    trial_id = shared.add_trial(study, key, point, measurement, origin)
    record = shared.trials(study)[-1]
    assert (record.id, record.key, record.point, record.origin) == (trial_id, key, point, origin)
    assert list(record.point) == list(point)
    assert record.measurement == measurement
    assert before <= record.created_at <= datetime.now(UTC)
    assert key in shared.keys(study)


def test_studies_come_back_as_they_went_in(shared: Store) -> None:
    made: list[StudyRef] = []

    @given(gemm=st.builds(Gemm, *[st.integers(0, MAX_EXTENT)] * 3, st.booleans(), st.booleans()), name=_text)
    def comes_back(gemm: Gemm, name: str) -> None:
        environment = replace(H200, gpu_name=name, recorded_on="2026-11-21")
        study = shared.study(environment, SOURCE, COMPILER, gemm, CachePolicy.WARM, 7)
        assert study == StudyRef(study.id, environment, SOURCE, COMPILER, gemm, CachePolicy.WARM, 7)
        assert study == shared.study(environment, SOURCE, COMPILER, gemm, CachePolicy.WARM, 7)
        made.append(study)

    comes_back()
    listed = [summary.study for summary in shared.studies()]  # once: it takes long
    assert made and all(study in listed for study in made)


def test_a_reason_that_no_database_takes_does_not_cost_the_trial(store: Store) -> None:
    study = study_of(store)
    add(store, study, 0, failed(Outcome.COMPILE_FAILED, "bad \udcff log\0\0"))
    assert store.trials(study)[0].measurement.reason == "bad \\udcff log"


def test_an_error_that_is_no_number_is_stored_as_infinite(store: Store) -> None:
    study = study_of(store)
    add(store, study, 0, Measurement(Outcome.WRONG_RESULT, "NaN in C", error_ratio=math.nan))
    assert store.trials(study)[0].measurement.error_ratio == math.inf


@pytest.mark.parametrize("time_us", [None, math.nan, math.inf, 0.0, -1.0])
def test_an_ok_trial_without_a_real_time_is_refused(store: Store, time_us: float | None) -> None:
    study = study_of(store)
    with pytest.raises(StoreError, match="time"):
        add(store, study, 0, Measurement(Outcome.OK, time_us=time_us))
    with pytest.raises(StoreError, match="time"):
        add(store, study, 0, Measurement(Outcome.OK, time_us=1.0, samples_us=(1.0, time_us or math.nan)))
    assert store.trials(study) == []


def test_what_was_stored_is_there_after_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path / "autotune.db") as store:
        study = study_of(store)
        add(store, study, 0, ok(5.0))
        trials = store.trials(study)
    with Store.open(f"sqlite:///{tmp_path}/autotune.db") as store:
        assert study_of(store) == study
        assert store.trials(study) == trials
    assert [path.name for path in tmp_path.iterdir()] == ["autotune.db"]  # no log is left behind


# ---- trials


def test_a_search_takes_up_of_each_trial_what_was_stored(store: Store) -> None:
    study, other = study_of(store), study_of(store, Gemm(64, 64, 64))
    for number, measurement in enumerate((ok(3.0), failed(Outcome.FAULTED, "gone"), ok(2.0))):
        add(store, study, number, measurement)
    add(store, other, 0, ok(1.0))
    (taken,) = store.tried(study)
    for one, trial in zip(taken, store.trials(study), strict=True):
        found = trial.measurement
        assert (one.key, one.point, one.origin) == (trial.key, trial.point, trial.origin)
        assert (one.time_us, one.compile_s) == (found.time_us, found.compile_s)
        assert len(one.samples_us) == len(found.samples_us)
    assert [one.study for one in store.studies([other.gemm])] == [other]


def test_a_config_is_stored_once_per_study(store: Store) -> None:
    square, other = study_of(store), study_of(store, Gemm(35, 700, 2048))
    first = add(store, square, 0, ok(5.0))
    with pytest.raises(DuplicateTrial, match="4096x4096x4096:NN has a trial of tm="):
        add(store, square, 0, failed())
    assert add(store, other, 0, failed()) > first
    assert [t.measurement for t in store.trials(square)] == [ok(5.0)]
    assert [t.measurement for t in store.trials(other)] == [failed()]


def test_many_trials_are_stored_at_once_and_those_that_are_there_stay(store: Store) -> None:
    study = study_of(store)
    add(store, study, 0, ok(5.0))
    others = [config(number) for number in range(3)]
    trials = {c.key: (c.to_dict(), ok(time_us)) for c, time_us in zip(others, (1.0, 2.0, 3.0), strict=True)}
    store.add_trials(study, trials, "fill")
    assert store.times(study) == {others[0].key: 5.0, others[1].key: 2.0, others[2].key: 3.0}
    assert [trial.origin for trial in store.trials(study)][1:] == ["fill", "fill"]
    broken = {
        others[1].key: (others[1].to_dict(), ok(math.nan)),
        config(6).key: (config(6).to_dict(), ok(1.0)),
    }
    with pytest.raises(StoreError, match="has a time that is not finite and above 0"):
        store.add_trials(study, broken, "fill")
    assert len(store.trials(study)) == 3


def test_best_failures_times_and_keys(store: Store) -> None:
    study = study_of(store)
    for number, measurement in enumerate([ok(5.0), failed(), ok(3.0), ok(4.0), ok(3.0)]):
        add(store, study, number, measurement)
    add(store, study_of(store, Gemm(1, 2, 3)), 9, ok(0.5))
    assert [t.key for t in store.trials(study)] == [config(i).key for i in range(5)]
    assert [t.key for t in store.best(study)] == [config(2).key]
    assert [t.key for t in store.best(study, 3)] == [config(i).key for i in (2, 4, 3)]
    assert len(store.best(study, 100)) == 4
    assert [t.measurement for t in store.trials(study, is_failed=True)] == [failed()]
    assert store.times(study) == {config(i).key: t for i, t in ((0, 5.0), (2, 3.0), (3, 4.0), (4, 3.0))}
    assert store.keys(study) == {config(i).key for i in range(5)}


def test_an_empty_study_answers_with_nothing(store: Store) -> None:
    study = study_of(store)
    assert store.trials(study) == store.best(study) == store.trials(study, is_failed=True) == []
    assert store.keys(study) == set()
    assert store.times(study) == {}
    assert store.baseline(study) is None
    assert store.final(study) is None
    assert store.environments() == store.latest_studies(H200) == []


# ---- studies


def test_each_condition_makes_a_study_of_its_own(store: Store) -> None:
    usual = study_of(store)
    others = [
        store.study(replace(H200, driver_version="590"), SOURCE, COMPILER, SQUARE),
        store.study(H200, "6" * 64, COMPILER, SQUARE),
        store.study(H200, SOURCE, "nvrtc 13.5", SQUARE),
        store.study(H200, SOURCE, COMPILER, Gemm(4096, 4096, 4096, trans_b=True)),
        store.study(H200, SOURCE, COMPILER, SQUARE, CachePolicy.WARM),
        store.study(H200, SOURCE, COMPILER, SQUARE, CachePolicy.COLD, 2),
    ]
    assert len({study.id for study in [usual, *others]}) == 7
    assert study_of(store) == usual


def test_summaries_count_what_a_study_holds(store: Store) -> None:
    study, empty = study_of(store), study_of(store, Gemm(8, 8, 8))
    for number, measurement in enumerate([ok(5.0), failed(), ok(3.0), failed(), failed(Outcome.SPILLED)]):
        add(store, study, number, measurement)
    store.add_baseline(study, Baseline(4.0, (4.0, 4.5)))
    first, second = store.studies()
    assert first.study == study
    assert first.counts == {Outcome.OK: 2, Outcome.FAULTED: 2, Outcome.SPILLED: 1}
    assert (first.num_trials, store.cublas_us(study)) == (5, 4.0)
    assert first.updated_at == store.trials(study)[-1].created_at
    assert (second.study, second.counts) == (empty, {})
    assert (store.best(empty), store.cublas_us(empty)) == ([], None)
    assert datetime.now(UTC) - second.updated_at < timedelta(minutes=5)


def test_similar_studies_are_other_shapes_of_this_kernel_and_gpu(store: Store) -> None:
    study = study_of(store)
    far, near = study_of(store, Gemm(64, 64, 64)), study_of(store, Gemm(4097, 4096, 2048))
    transposed = study_of(store, Gemm(4096, 4096, 4096, trans_a=True))
    newer_driver = store.study(replace(H200, driver_version="590"), SOURCE, COMPILER, Gemm(8192, 8192, 8192))
    store.study(H200, "6" * 64, COMPILER, Gemm(1, 1, 1))
    store.study(replace(H200, gpu_name="NVIDIA A100"), SOURCE, COMPILER, Gemm(2, 2, 2))
    store.study(H200, SOURCE, COMPILER, Gemm(3, 3, 3), CachePolicy.WARM)
    store.study(replace(H200, driver_version="590"), SOURCE, COMPILER, SQUARE)  # the same shape
    assert store.similar_studies(study, 9) == [near, newer_driver, transposed, far]


def test_sibling_studies_are_this_problem_kernel_and_policy_on_gpus_of_this_kind(store: Store) -> None:
    study = study_of(store)
    external = store.study(replace(H200, gpu_uuid="GPU-2"), SOURCE, COMPILER, SQUARE)
    newer_driver = store.study(replace(H200, driver_version="590"), SOURCE, COMPILER, SQUARE)
    study_of(store, Gemm(64, 64, 64))
    store.study(replace(H200, gpu_uuid="GPU-2"), "6" * 64, COMPILER, SQUARE)
    store.study(replace(H200, gpu_uuid="GPU-2"), SOURCE, COMPILER, SQUARE, CachePolicy.WARM)
    for change in (
        {"gpu_name": "NVIDIA A100"},
        {"compute_capability": (10, 0)},
        {"recorded_on": "2026-11-21"},
    ):
        store.study(replace(H200, **change), SOURCE, COMPILER, SQUARE)
    assert store.sibling_studies(study) == [external, newer_driver]
    assert store.sibling_studies(newer_driver) == [study, external]


def test_an_export_takes_the_latest_kernel_and_one_study_per_problem(store: Store) -> None:
    small, updated = Gemm(8, 8, 8), replace(H200, driver_version="590")
    recorded = replace(H200, recorded_on="2026-11-21")
    old_kernel = store.study(H200, "4" * 64, COMPILER, Gemm(1, 1, 1))
    old_driver, failing = study_of(store), study_of(store, Gemm(7, 7, 7))
    new_driver = store.study(updated, SOURCE, COMPILER, SQUARE)
    eight = study_of(store, small)
    warm = store.study(H200, SOURCE, COMPILER, small, CachePolicy.WARM)
    replayed = store.study(recorded, "3" * 64, COMPILER, SQUARE)
    for study in (old_kernel, eight, old_driver, new_driver, warm, replayed):
        add(store, study, 0, ok(1.0))
    add(store, failing, 0, failed())
    assert store.latest_studies(H200) == [eight, new_driver]
    assert store.latest_studies(replace(H200, gpu_uuid="GPU-2")) == [eight, new_driver]
    assert store.latest_studies(H200, CachePolicy.WARM) == [warm]
    assert store.latest_studies(recorded) == [replayed]
    assert store.latest_studies(replace(H200, gpu_name="NVIDIA A100")) == []
    assert store.environments() == [recorded, H200, updated]


# ---- cuBLAS and the final


@given(time_us=st.none() | _times, samples=st.lists(_times, max_size=5))
def test_the_latest_baseline_counts(shared: Store, time_us: float | None, samples: list[float]) -> None:
    study = study_of(shared)
    shared.add_baseline(study, Baseline(1.0))
    shared.add_baseline(study, Baseline(time_us, tuple(samples)))
    assert shared.baseline(study) == Baseline(time_us, tuple(samples))


def _entries(*numbers: int) -> tuple[FinalEntry, ...]:
    return tuple(
        FinalEntry(config(n).key, config(n).to_dict(), rank, rank < 3, 4.0 + n, (4.0 + n, 4.5 + n))
        for rank, n in enumerate(numbers, start=1)
    )


def test_the_latest_final_counts(store: Store) -> None:
    study = study_of(store)
    store.set_final(study, _entries(1, 2, 3))
    store.set_final(study, _entries(2, 4, 1), Baseline(5.0, (5.0,)))
    final = store.final(study)
    assert final is not None
    assert final == Final(_entries(2, 4, 1), Baseline(5.0, (5.0,)), final.created_at)
    assert final.winner == _entries(2)[0]
    assert [entry.rank for entry in final.tied] == [1, 2]
    assert store.baseline(study) == Baseline(5.0, (5.0,))
    assert store.final(study_of(store, Gemm(1, 1, 1))) is None


def test_finals_of_many_are_those_of_each(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_FINALS_AT_ONCE", 2)
    studies = [study_of(store, Gemm(extent, 64, 64)) for extent in (8, 16, 24, 32, 40)]
    for number, study in enumerate(studies[1:], 1):
        add(store, study, number, ok(3.0))
        store.set_final(study, _entries(number), Baseline(5.0 + number))
    found = store.finals(dict.fromkeys(studies, ANY))
    assert found == {study.id: store.final(study) for study in studies[1:]}
    assert [store.ids(study, [config(2).key, config(3).key]) for study in studies[1:4]] == [
        [], [trial.id for trial in store.trials(studies[2])], [trial.id for trial in store.trials(studies[3])]
    ]  # fmt: skip


def test_who_was_condemned_since_a_final_is_not_its_winner(store: Store) -> None:
    """A later final condemns at once and is stored at its end, which a kill or a lost GPU may forestall."""
    study = study_of(store)
    for number in range(3):
        add(store, study, number, ok(3.0 + number))
    store.set_final(study, _entries(0, 1, 2), Baseline(4.0, (4.0,)))
    store.invalidate(study, config(0).key, Failure(Outcome.WRONG_RESULT, "off by 7"))
    final = store.final(study)
    assert final is not None
    assert [(entry.key, entry.is_tied) for entry in final.entries] == [
        (config(1).key, True),
        (config(2).key, False),
    ]
    for number in (1, 2):
        store.invalidate(study, config(number).key, Failure(Outcome.FAULTED, "illegal address"))
    assert store.final(study) is None


@pytest.mark.parametrize("ranks", [(), (0, 1), (1, 1), (2, 1), (1, 3)])
def test_ranks_out_of_order_are_refused(store: Store, ranks: tuple[int, ...]) -> None:
    study = study_of(store)
    entries = [replace(_entries(i)[0], rank=rank) for i, rank in enumerate(ranks)]
    with pytest.raises(StoreError, match="rank 1, 2"):
        store.set_final(study, entries, Baseline(1.0))
    assert store.final(study) is None
    assert store.baseline(study) is None


# ---- cuBLAS on shapes that nobody searched


def test_times_of_cublas_are_of_one_library_policy_and_kind_of_gpu(store: Store) -> None:
    wide, is_transposed = Gemm(1, 4096, 64), Gemm(4096, 1, 64, True, False)
    cold = CachePolicy.COLD
    store.add_cublas_times(H200, cold, {wide: 2.5, is_transposed: 3.5})
    store.add_cublas_times(H200, cold, {wide: 99.0, SQUARE: 2700.0})  # the first stays
    another = replace(H200, gpu_uuid="GPU-2")
    store.add_cublas_times(another, cold, {Gemm(5, 6, 7): 1.25})
    for environment in (replace(H200, cublas_version="12.0"), replace(H200, gpu_name="NVIDIA H100")):
        store.add_cublas_times(environment, cold, {SQUARE: 1.0})
    store.add_cublas_times(H200, CachePolicy.WARM, {SQUARE: 1.0})
    expected = {wide: 2.5, is_transposed: 3.5, SQUARE: 2700.0, Gemm(5, 6, 7): 1.25}
    assert store.cublas_times(H200, cold) == store.cublas_times(another, cold) == expected
    assert store.environments() == [] and store.studies() == []  # nobody searched
    assert store.cublas_times(H200, cold, has_bias=True) == {}
    store.add_cublas_times(H200, cold, {SQUARE: 3000.0}, has_bias=True)
    store.add_cublas_times(H200, cold, {SQUARE: 1.0}, has_bias=True)
    assert store.cublas_times(H200, cold, has_bias=True) == {SQUARE: 3000.0}
    batches = {replace(SQUARE, batch=2): 5.0, replace(SQUARE, batch=3): 7.0}
    store.add_cublas_times(H200, cold, batches)
    assert store.cublas_times(H200, cold, is_batched=True) == batches
    assert store.cublas_times(H200, cold) == expected


def test_a_single_launch_that_was_mostly_latency_is_no_time(store: Store) -> None:
    study = study_of(store)
    for number, (time_us, is_cut_short) in enumerate(((30.0, True), (30.0, False), (5000.0, True))):
        add(store, study, number, replace(ok(time_us), is_cut_short=is_cut_short))
    assert sorted(store.times(study).values()) == [30.0, 5000.0]


def test_origins_of_trials_are_known(store: Store) -> None:
    study = study_of(store)
    add(store, study, 1, ok(1.0), "fill")
    assert store.has_trial_of(study, "fill") and not store.has_trial_of(study, "seed")
