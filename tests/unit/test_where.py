"""Conditions on parameters: what they say, what of a set obeys them, and that a search tries nothing else."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from fake_target import ENVIRONMENT, FakeTarget, product_space
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel.config import PARAMETER, Config
from autotune.kernel.feasible_set import FeasibleSet, feasible_set
from autotune.kernel.launch import plan
from autotune.kernel.resources import launch_spec, workspace_bytes
from autotune.kernel.where import ANY, VALUES, Condition, Where
from autotune.search import Options, study_of, tune
from autotune.search.propose import origins
from autotune.store import Store
from autotune.target import point_key

GEMM, OTHER = Gemm(64, 64, 64), Gemm(128, 64, 64)
SMALL = product_space(6, 6, 4, words=3)  # a, b, c, word
POINTS = [SMALL.point(number) for number in range(len(SMALL))]
MEANING = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


@st.composite
def conditions(draw, space: FeasibleSet = SMALL) -> Condition:
    name = draw(st.sampled_from(space.names))
    values = space.values[space.names.index(name)]
    is_word = isinstance(values[0], str)
    relation = draw(st.sampled_from(("=", "!=") if is_word else tuple(MEANING)))
    return Condition(name, relation, draw(st.sampled_from(values)))


def _obeying(found: list[Condition]) -> list[dict]:
    return [p for p in POINTS if all(MEANING[relation](p[name], value) for name, relation, value in found)]


# ---- what is said


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("pack_a=0,reduction!=two_pass", "pack_a=0,reduction!=two_pass"),
        (["pack_a=0", " bm >= 64 , bn<128"], "pack_a=0,bm>=64,bn<128"),
        ("pack_a==0,pack_a=0,", "pack_a=0"),
        ((), ""),
        ("", ""),
    ],
)
def test_conditions_are_read_as_they_are_written(texts, expected):
    where = Where.parse(texts)
    where.check(VALUES)
    assert str(where) == expected and Where.parse(expected) == where and bool(where) == bool(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pack_a", "'pack_a': write conditions as in pack_a=0"),
        ("=3", "'=3': write conditions"),
        ("bm=>64", "'bm=>64': write conditions"),
        ("bm=64 bn=64", "write conditions"),
        ("pak_a=0", "no parameter 'pak_a' (did you mean 'pack_a'?)"),
        ("warps=3", "no parameter 'warps' (known are tm, tn"),
        ("bm=100", "bm is never 100 (did you mean 96 or 112?)"),
        ("pack_a=2", "pack_a is never 2 (known are 0, 1)"),
        ("reduction=twopass", "reduction is never twopass (did you mean 'two_pass'?)"),
        ("bm=wide", "bm is never wide (known are 1, 2,"),
        ("reduction<two_pass", "words have no order; use = or !=, and one of none, two_pass"),
        ("copy_a>=1", "words have no order"),
        ("bm<=wide", "words have no order"),
    ],
)
def test_a_wrong_condition_is_refused_with_what_may_have_been_meant(text, message):
    with pytest.raises(UsageError) as rejected:
        Where.parse(["split_k<=8", text]).check(VALUES)
    assert message in str(rejected.value) and str(rejected.value).startswith("where")


def test_what_an_older_kernel_had_not_is_at_its_default():
    older = {name: value for name, value in Config().to_dict().items() if name != "bursts"}
    assert Where.parse("bursts=4").holds(older) and not Where.parse("bursts!=4").holds(older)
    assert not Where.parse("block_size_x=32").holds(older)


def test_a_kernel_obeys_in_the_least_splits_that_do():
    config = Config(reduction="two_pass", split_k=2)
    assert Where.parse("split_k>=5").in_least_splits(config) == replace(config, split_k=5)
    assert ANY.in_least_splits(config) == config
    assert Where.parse("split_k=1").in_least_splits(config) is None
    cluster = replace(config, reduction="cluster")
    assert Where.parse("split_k=4").in_least_splits(cluster) is None  # it is compiled for two


# ---- what is left of a set


@given(st.lists(conditions(), max_size=3))
def test_what_is_left_of_a_set_are_the_points_that_obey(found):
    wanted = _obeying(found)
    where = Where(tuple(found))
    assert [point for point in POINTS if where.holds(point)] == wanted
    if not wanted:
        with pytest.raises(UsageError, match="no config obeys"):
            SMALL.where(where, GEMM)
        return
    left = SMALL.where(where, GEMM)
    assert [left.point(number) for number in range(len(left))] == wanted
    assert [left.find(point) for point in wanted] == list(range(len(wanted)))
    assert all(left.find(point) is None for point in POINTS if point not in wanted)


def test_the_condition_that_leaves_nothing_is_named():
    space = _configs()
    with pytest.raises(UsageError, match=r"512x512x512:NN: no config obeys pack_a=1: pack_a is 0 in every"):
        space.where(Where.parse("bm>=64,pack_a=1"), Gemm(512, 512, 512))
    with pytest.raises(UsageError, match=r"obeys bm>64: bm is .*64 in every config that obeys bm<=64"):
        space.where(Where.parse("bm<=64,bm>64,bm>=64"), Gemm(512, 512, 512))
    with pytest.raises(UsageError, match="no parameter 'd'"):
        SMALL.where(Where.parse("d=1"), GEMM)  # another kernel's, as recorded
    empty = SMALL.where(Where.parse("word=w0"), GEMM).factors[0]
    none = FeasibleSet((replace(empty, codes=empty.codes[:0]),))
    assert len(none.where(Where.parse("a=1"), GEMM)) == 0  # the conditions are not to blame


@cache
def _configs() -> FeasibleSet:
    return feasible_set(known_limits("h200"), Gemm(512, 512, 512))


# ---- what a search does


def _tried(target: FakeTarget) -> list[dict]:
    return [point for _, point in target.submitted]


@pytest.mark.stress
@settings(max_examples=6)
@given(
    found=st.lists(conditions(), min_size=1, max_size=2).filter(lambda found: len(_obeying(found)) > 2),
    seconds=st.sampled_from([None, 120]),
    capacity=st.integers(1, 4),
)
def test_a_search_tries_nothing_that_does_not_obey(tmp_path_factory, found, seconds, capacity):
    """Whatever was known before: results of the shape, of another one, of another GPU of the kind."""
    where = Where(tuple(found))
    with Store.open(tmp_path_factory.mktemp("where") / "trials.db") as store:
        tune(FakeTarget(), store, [GEMM, OTHER], Options(trials=10))
        twin = FakeTarget()
        twin.environment = replace(ENVIRONMENT, gpu_uuid="GPU-2")
        tune(twin, store, [GEMM], Options(trials=12, seed=1))
        target = FakeTarget(capacity=capacity)
        limit = Options(trials=40) if seconds is None else Options(seconds=seconds)
        known = [t.point for t in store.trials(study_of(store, target, GEMM))]
        result = tune(target, store, [GEMM, OTHER], replace(limit, where=where))
        assert all(where.holds(point) for point in _tried(target))
        keys = [(gemm, point_key(point)) for gemm, point in target.submitted]
        assert len(keys) == len(set(keys))
        tried_again = {point_key(p) for g, p in target.submitted if g == GEMM} & set(map(point_key, known))
        assert not tried_again
        for shape in result.shapes:
            assert shape.best and shape.final and shape.verdict
            assert where.holds(shape.best.point) and where.holds(shape.verdict.point)
            assert all(where.holds(entry.point) for entry in shape.final.entries)
            assert shape.num_trials <= len(_obeying(found))


@pytest.mark.stress
def test_every_generator_of_proposals_obeys(store):
    """On the space of our kernel, with starting points of all kinds."""
    gemm, space, where = Gemm(512, 512, 512), _configs(), Where.parse("bm>=64,order!=zigzag,split_k<=4")
    starts = [Config.from_dict(space.point(number)) for number in range(0, len(space), len(space) // 300)]

    def time_us(point):
        return 50.0 + abs(point["bm"] - 64) / 16 + point["stages"] + 3.0 * (point["order"] != "zigzag")

    options = Options(starts=lambda gemm: starts)
    tune(FakeTarget(space, time_us=time_us), store, [Gemm(512, 512, 256)], replace(options, trials=40))
    target = FakeTarget(space, time_us=time_us)
    tune(target, store, [gemm], replace(options, seconds=260, where=where))
    trials = store.trials(study_of(store, target, gemm))
    assert all(where.holds(trial.point) for trial in trials)
    found = {trial.origin for trial in trials}
    assert {origins.SEED, origins.TRANSFER, origins.POLISH} <= found
    assert len(found & set(origins.MODELLED)) >= 5


def test_a_study_goes_on_under_other_conditions(store):
    """The best of all is a=b=c=4: w0, w1 and w2 differ by 1 us. What the last search chose is the study's."""
    w1, w2 = Where.parse("word=w1"), Where.parse("word=w2")
    options, study = Options(trials=60), study_of(store, FakeTarget(), GEMM)
    free = tune(FakeTarget(), store, [GEMM], Options(trials=len(SMALL)))
    assert free.shapes[0].best.point["word"] == "w0"
    target = FakeTarget()
    (one,) = tune(target, store, [GEMM], replace(options, where=w1)).shapes
    assert target.submitted == [] and target.num_compared  # nothing new, but another choice
    assert one.best.point == {"a": 4, "b": 4, "c": 4, "word": "w1"} == one.verdict.point
    assert one.num_trials == one.num_new + sum(t.point["word"] == "w1" for t in store.trials(study))
    assert store.final(study).winner.key == one.final.winner.key
    assert store.final(study, where=w2) is None or store.final(study, where=w2).winner.point["word"] == "w2"
    again = FakeTarget()
    tune(again, store, [GEMM], replace(options, where=w1))
    assert again.num_compared == 0  # it was chosen already
    tune(again, store, [GEMM], options)
    assert store.final(study).winner.point["word"] == "w0"
    assert store.final(study, where=w1).winner.point == one.verdict.point


def test_a_final_that_left_out_what_obeys_does_not_hide_a_faster_trial(store):
    """An early final has an entry that obeys; later ones, of faster points, have none."""
    where = Where.parse("word=w2")
    space = SMALL.where(Where.parse("a<=2"), GEMM)
    tune(FakeTarget(space.where(where, GEMM)), store, [GEMM], Options(trials=5))
    study = study_of(store, FakeTarget(), GEMM)
    assert store.final(study, where=where) is not None
    tune(FakeTarget(), store, [GEMM], Options(trials=len(SMALL)))
    best = store.best(study, where=where)[0]
    assert best.point == {"a": 4, "b": 4, "c": 4, "word": "w2"}
    final = store.final(study, where=where)
    assert final is None or final.winner.key == best.key


def test_what_others_store_meanwhile_stays_out_of_it(store):
    """Another search of the study, without conditions, finds faster points."""
    where, target = Where.parse("word=w2"), FakeTarget()
    faster = iter([p for p in POINTS if p["word"] == "w0"][:40])
    study = study_of(store, target, GEMM)

    def on_event(event):
        for point in itertools.islice(faster, 2):
            store.add_trial(study, point_key(point), point, target.measure(GEMM, point), "random")

    result = tune(target, store, [GEMM], Options(trials=25, where=where), on_event)
    assert all(point["word"] == "w2" for point in _tried(target))
    assert result.shapes[0].verdict.point["word"] == "w2" and result.shapes[0].num_trials == 25


def test_conditions_on_what_is_not_there_end_the_search(store):
    with pytest.raises(UsageError, match="no parameter 'pack_a'"):
        tune(FakeTarget(), store, [GEMM], Options(trials=3, where=Where.parse("pack_a=0")))
    with pytest.raises(UsageError, match="a is never 64"):
        tune(FakeTarget(), store, [GEMM], Options(trials=3, where=Where.parse("a=64")))


def test_every_parameter_has_values_to_name():
    assert {name: tuple(p.values) for name, p in PARAMETER.items()} == VALUES


# ---- the workspace of a launch

SQUARE, FLAT = Gemm(2048, 2048, 2048), Gemm(96, 160, 65536, False, True)
LIMITED = [(SQUARE, 8), (FLAT, 0.5), (Gemm(300, 200, 4096, batch=4, shares_a=True), 3), (SQUARE, 0)]


@cache
def _limited(number: int) -> tuple[FeasibleSet, FeasibleSet, Where]:
    (gemm, most), limits = LIMITED[number], known_limits("h200")
    where = Where.parse("stages<=3,bursts=1,order=row_snake", most).on(gemm, limits)
    every = feasible_set(limits, gemm).where(Where(where.conditions), gemm)
    return every, every.where(where, gemm), where


@given(st.data())
def test_the_workspace_is_that_of_the_launch(data):
    number = data.draw(st.integers(0, len(LIMITED) - 1))
    every, gemm, limits = _limited(number)[0], LIMITED[number][0], known_limits("h200")
    config = Config.from_dict(every.point(data.draw(st.integers(0, len(every) - 1))))
    grid = plan(launch_spec(config, gemm, limits), gemm.m, gemm.n, gemm.k, gemm.strides)
    assert workspace_bytes(config, gemm, limits) == grid.workspace_bytes


@given(st.data())
def test_a_limit_on_the_workspace_leaves_the_points_that_obey(data):
    every, left, where = _limited(data.draw(st.integers(0, len(LIMITED) - 1)))
    point = every.point(data.draw(st.integers(0, len(every) - 1)))
    number = left.find(point)
    assert (number is not None) == where.holds(point)
    if number is not None:
        assert left.point(number) == point and left.are_points(np.array([number]))[0]
    drawn = data.draw(st.integers(0, len(left) - 1))
    assert left.are_points(np.array([drawn]))[0] == where.holds(left.point(drawn))


def test_limited_sets_are_counted_and_searched_to_the_end(store):
    gemm, limits = SQUARE, known_limits("h200")
    narrow = "bm=64,bn=64,tm=8,tn=8,bk=16,stages=3,raster=n,group=1,order=row_snake,bursts=1,copy_a=async"
    where = Where.parse(narrow + ",copy_b=async,flush_k=0,frag_buffers=1,min_blocks<=2", 40).on(gemm, limits)
    every = feasible_set(limits, gemm).where(Where(where.conditions), gemm)
    wanted = [p for p in map(every.point, range(len(every))) if where.holds(p)]
    left = every.where(where, gemm)
    assert left.pairs is not None and len(wanted) == left.num_points < len(left)

    def time_us(point):
        return 50.0 + point["split_k"] + point["wm"] / 64 + 5 * point["pack_a"]

    target = FakeTarget(every, time_us=time_us)
    result = tune(target, store, [gemm], Options(trials=10**6, where=Where.parse((), 40)))
    assert result.reason == "exhausted"
    keys = [point_key(point) for point in _tried(target)]
    assert sorted(keys) == sorted(map(point_key, wanted))


@pytest.mark.stress
def test_every_generator_obeys_the_workspace(store):
    gemm, limits, where = Gemm(512, 512, 4096), known_limits("h200"), Where.parse("split_k<=16", 2)
    space = feasible_set(limits, gemm)
    starts = [Config.from_dict(space.point(number)) for number in range(0, len(space), len(space) // 300)]
    target = FakeTarget(space, time_us=lambda p: 50 + 20 / p["split_k"] + p["bm"] / 64 + p["stages"])
    tune(target, store, [gemm], Options(seconds=200, where=where, starts=lambda gemm: starts))
    trials = store.trials(study_of(store, target, gemm))
    assert all(where.on(gemm, limits).holds(trial.point) for trial in trials)
    found = {trial.origin for trial in trials}
    assert {origins.SEED, origins.POLISH} <= found
    assert len(found & set(origins.MODELLED)) >= 5
    assert any(trial.point["split_k"] > 1 for trial in trials)


def test_workspaces_that_cannot_be_limited(store):
    with pytest.raises(UsageError, match="no config obeys max_workspace 1"):
        _limited(0)[0].where(Where.parse("reduction=two_pass", 1).on(SQUARE, known_limits("h200")), SQUARE)
    for most in (-1, float("nan"), 1e9):
        with pytest.raises(UsageError, match="max_workspace is"):
            Where.parse((), most)
    with pytest.raises(UsageError, match="recorded with another kernel"):
        tune(FakeTarget(), store, [GEMM], Options(trials=3, where=Where.parse((), 1)))
