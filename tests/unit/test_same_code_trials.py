"""Trials of an earlier compiler or kernel whose machine code is the same keep their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from fake_target import ENVIRONMENT, FakeTarget
from store_cases import H200, ok

from autotune.facts.device import Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.kernel.config import PARAMETER
from autotune.search import Options, SearchResult, study_of, tune
from autotune.search.progress import ShapeStarted
from autotune.search.same_code_trials import TakenOver, take_over
from autotune.search.stale import compared, stale_shapes
from autotune.store import FinalEntry, Store
from autotune.target import Baseline, point_key

GEMM = Gemm(64, 64, 64)
THEN = replace(ENVIRONMENT, nvrtc_version="13.3")
NOW = replace(ENVIRONMENT, nvrtc_version="13.4", cublas_version="13.9")


class Compiled(FakeTarget):
    """Kernels have the code that `code` names; those it names None are stored without."""

    def __init__(
        self, environment: Environment, code: Callable[[dict], str | None] = point_key, **options
    ) -> None:
        super().__init__(**options)
        self.environment, self._code = environment, code
        self.compiled: list[str] = []

    def measure(self, gemm, point):
        found = super().measure(gemm, point)
        has_code = found.outcome not in (Outcome.ILLEGAL, Outcome.COMPILE_FAILED)
        return replace(found, code_hash=self._code(point) if has_code else None)

    def code_hash(self, gemm, point):
        self.compiled.append(point_key(point))
        found: Future = Future()
        found.set_result(self._code(point))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "trials.db") as opened:
        yield opened


def other_where(**changed: int) -> Callable[[dict], str]:
    """The code of a later compiler, which is another where a parameter has this value."""
    return lambda point: f"{point_key(point)}{'!' * all(point[n] == v for n, v in changed.items())}"


def searched(store: Store, target: FakeTarget, num: int, **options) -> tuple[SearchResult, ShapeStarted]:
    events: list = []
    result = tune(target, store, [GEMM], Options(trials=num, **options), events.append)
    return result, next(event for event in events if isinstance(event, ShapeStarted))


def test_equal_code_keeps_its_times_and_other_code_is_measured_again(store: Store) -> None:
    searched(store, Compiled(THEN), 60)
    before = {trial.key: trial for trial in store.trials(study_of(store, Compiled(THEN), GEMM))}
    now = Compiled(NOW, other_where(a=4))
    others = {key for key, trial in before.items() if trial.point["a"] == 4}
    result, started = searched(store, now, 60)
    assert started.taken_over == TakenOver("nvrtc 13.3", 60 - len(others), len(others))
    assert f"{60 - len(others)} trials keep their results of nvrtc 13.3" in started.taken_over.description
    assert f"{len(others)} compile to other code" in started.taken_over.description
    after = {trial.key: trial for trial in store.trials(result.shapes[0].study)}
    assert len(after) == 60 and len(now.submitted) == len(others)
    for key in before.keys() - others:
        assert replace(after[key], id=0) == replace(before[key], id=0)
    again, started = searched(store, Compiled(NOW, other_where(a=4)), 60)
    assert (again.num_new, started.num_known) == (0, 60)
    assert started.taken_over is None or not started.taken_over.num_same


def test_the_kernel_source_may_be_another_and_several_compilers_count(store: Store) -> None:
    older = Compiled(replace(THEN, nvrtc_version="13.1"), other_where(b=2))
    older.source_hash = "older"
    searched(store, older, 30)
    searched(store, Compiled(THEN, other_where(b=4)), 30)
    result, started = searched(store, Compiled(NOW), 1)
    assert started.taken_over is not None
    assert started.taken_over.since == "nvrtc 13.3, nvrtc 13.1 and source older"
    assert (
        result.shapes[0].num_trials == started.taken_over.num_same == len(store.keys(result.shapes[0].study))
    )


def test_a_kernel_is_compiled_once_for_all_earlier_compilers(store: Store) -> None:
    for version in ("13.1", "13.3"):
        searched(store, Compiled(replace(THEN, nvrtc_version=version)), 20)
    now = Compiled(NOW, lambda point: "other")
    taken = take_over(now, store, study_of(store, now, GEMM), now.space(GEMM))
    assert taken == TakenOver("nvrtc 13.3, nvrtc 13.1", 0, 20) and len(now.compiled) == 20


@pytest.mark.parametrize(
    "change",
    [{"driver_version": "2"}, {"gpu_uuid": "other"}, {"gpu_name": "other"}, {"cuda_version": "13.9"}],
)
def test_times_of_another_driver_or_gpu_are_not_taken_over(store: Store, change: dict[str, str]) -> None:
    searched(store, Compiled(THEN), 10)
    target = Compiled(replace(NOW, **change))
    assert searched(store, target, 10)[1].taken_over is None
    assert not target.compiled


def test_failures_are_taken_over_but_not_what_says_nothing_of_the_code(store: Store) -> None:
    """A GPU's want of memory, what did not compile, and what was stored before code was compared."""
    ends = {1: Outcome.FAULTED, 2: Outcome.OUT_OF_MEMORY, 4: Outcome.COMPILE_FAILED}
    then = Compiled(
        THEN, lambda point: None if point["b"] == 32 else "same",
        outcome=lambda point: ends.get(point["a"], Outcome.OK),
    )  # fmt: skip
    searched(store, then, 200)
    study = study_of(store, then, GEMM)
    now = Compiled(NOW, lambda point: "same")
    taken = take_over(now, store, study_of(store, now, GEMM), now.space(GEMM))
    kept = store.trials(study_of(store, now, GEMM))
    assert {trial.measurement.outcome for trial in kept} == {Outcome.OK, Outcome.FAULTED}
    assert all(trial.measurement.code_hash == "same" for trial in kept)
    unknown = [t for t in store.trials(study) if t.measurement.is_ok and t.measurement.code_hash is None]
    assert taken == TakenOver("nvrtc 13.3", len(kept), 0, len(unknown), 0)
    assert unknown and len(kept) > len(unknown)
    num_ok = sum(trial.measurement.is_ok for trial in kept)
    assert set(now.compiled[num_ok:]) == {t.key for t in kept if not t.measurement.is_ok}, "failures last"


def test_a_limit_in_seconds_ends_it_and_the_fastest_come_first(store: Store) -> None:
    then = Compiled(THEN)
    searched(store, then, 40)
    now = Compiled(NOW)
    num_left = iter(range(5))
    study = study_of(store, now, GEMM)
    taken = take_over(now, store, study, now.space(GEMM), is_over=lambda: next(num_left, None) is None)
    assert taken == TakenOver("nvrtc 13.3", 5, 0, 0, 35)
    fastest = [trial.key for trial in store.best(study_of(store, then, GEMM), 5)]
    assert now.compiled == fastest and store.keys(study) == set(fastest)
    assert "35 were not compiled for want of time" in taken.description
    result, started = searched(store, Compiled(NOW), 5, same_code_share=0.0)
    assert started.taken_over is None and result.num_new == 0


# ---- stale


class Finalists(Compiled):
    """Of our kernel's configs, so that finals of them can be stale."""

    def space(self, gemm, order=None):
        return self

    def find_all(self, points):
        return [0 for _ in points]


POINTS = [{name: one.values[at % len(one.values)] for name, one in PARAMETER.items()} for at in (0, 1)]
MEASURED = replace(H200, nvrtc_version="13.3", cublas_version="13.1")


UPGRADE, SAME = "compiler nvrtc 13.3 is now nvrtc 13.4", "with the same machine code"


def with_final(store: Store) -> None:
    then = Finalists(MEASURED)
    study, entries = study_of(store, then, GEMM), []
    for rank, point in enumerate(POINTS, 1):
        measured = replace(ok(float(rank)), code_hash=f"code {rank}")
        store.add_trial(study, point_key(point), point, measured, "seed")
        entries.append(FinalEntry(point_key(point), point, rank, rank == 1, float(rank), (float(rank),)))
    store.set_final(study, entries, Baseline(2.0, (2.0,)), ("drift",))


@pytest.mark.parametrize(
    ("change", "code", "left", "text"),
    [
        ({}, ("code 1", "code 2"), [], f"{UPGRADE} {SAME}; 2 finalists: the final stays"),
        ({}, ("code 1", "new"), ["compiler"], f"{UPGRADE}; 2 finalists"),
        ({"cublas_version": "13.9"}, ("code 1", "code 2"), ["cuBLAS"],
         f"{UPGRADE} {SAME}, cuBLAS 13.1 is now 13.9; 2 finalists"),
        ({"driver_version": "590.1"}, ("code 1", "code 2"), ["driver", "compiler"],
         f"driver 580.1 is now 590.1, {UPGRADE}; 2 finalists"),
    ],
)  # fmt: skip
def test_finalists_of_equal_code_are_not_stale(
    store: Store, change: dict[str, str], code: tuple[str, str], left: list[str], text: str
) -> None:
    with_final(store)
    now = Finalists(replace(MEASURED, nvrtc_version="13.4", **change), lambda p: code[POINTS.index(dict(p))])
    one = compared(store, now, stale_shapes(store, now)[GEMM])
    assert [name for name, _, _ in one.changes] == left
    assert one.description == text
    study = study_of(store, now, GEMM)
    same = 0 if "driver" in left else sum(hash_.startswith("code") for hash_ in code)
    assert len(store.trials(study)) == same
    assert (GEMM in stale_shapes(store, now)) == bool(left)
    final = store.final(study)
    assert (final is None) == bool(left)
    if final is not None:
        assert (final.winner.time_us, final.marks, final.baseline) == (1.0, ("drift",), Baseline(2.0, (2.0,)))
