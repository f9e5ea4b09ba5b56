"""The sampler over feasible sets: never twice, always inside, all of a small set, the same for a seed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import optuna
import pytest
from fake_target import bowl_us, product_space
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune
from autotune.files.errors import UsageError
from autotune.kernel.feasible_set import Factor, FeasibleSet
from autotune.search.propose.bayesian import Model
from autotune.search.propose.candidates import Candidates, _distances, _feature_table
from autotune.search.propose.optuna_sampler import FeasibleSampler, distributions, suggested
from autotune.search.propose.origins import MODELLED
from autotune.search.propose.proposer import Proposal, Proposer, SpaceExhausted
from autotune.search.propose.samplers import SAMPLERS, make_proposer, missing_package, sampler_name
from autotune.search.propose.surrogate import (
    Lengths,
    Surrogate,
    _inverse,
    expected_improvement,
    fit_lengths,
)
from autotune.search_policy import SearchPolicy

SPACE = product_space(6, 6, 4, words=3)
HERE = [name for name in SAMPLERS if not missing_package(name)]
QUICK = [name for name in HERE if name != "gp"]  # which takes a tenth of a second to ask


@st.composite
def spaces(draw) -> FeasibleSet:
    """Products of one to three factors, each any non-empty part of a small grid, rows in any order."""
    factors = []
    for index in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        grid = list(itertools.product(*map(range, sizes)))
        rows = draw(st.lists(st.sampled_from(grid), min_size=1, unique=True))
        names = tuple(f"p{index}{i}" for i in range(len(sizes)))
        values = tuple(
            tuple(f"w{v}" for v in range(n)) if draw(st.booleans()) else tuple(3 * v + 1 for v in range(n))
            for n in sizes
        )
        factors.append(Factor(names, values, np.array(rows, dtype=np.uint8)))
    return FeasibleSet(tuple(factors))


def _ask_all(proposer: Proposer, num: int, *, open_at_once: int = 1, time_us=lambda number: 1.0 + number):
    requested, waiting = [], []
    for _ in range(num):
        requested.append(proposer.ask().number)
        waiting.append(requested[-1])
        if len(waiting) == open_at_once:
            number = waiting.pop(0)
            proposer.tell(number, time_us(number))
    return requested


@settings(max_examples=20)
@given(spaces(), st.integers(0, 3), st.integers(1, 4), st.data())
def test_steps_from_a_point_are_new_and_requested_for_once(space, seed, size, data):
    proposer, num = make_proposer(space, seed=seed), min(len(space), 20)
    requested = _ask_all(proposer, num)
    at = data.draw(st.sampled_from(requested))
    while steps := [proposal.number for proposal in proposer.steps_from(at, size, "polish")]:
        assert len(steps) <= size and not set(steps) & set(requested)
        requested += steps
        for number in steps:
            proposer.tell(number, 1.0 + number)
    if (
        len(requested) > num or num == 20
    ):  # the model knows enough: then every step of one parameter was asked
        assert set(Candidates(space).neighbours(np.array([at])).tolist()) <= set(requested)


@settings(max_examples=20)
@given(spaces(), st.integers(0, 3), st.floats(0.0, 0.5), st.integers(1, 4))
def test_best_kernels_are_the_best_of_their_blocks_and_close_to_the_best_of_all(space, seed, within, most):
    proposer, rng = make_proposer(space, seed=seed), np.random.default_rng(seed)
    assert proposer.region_bests(within, most) == []
    times: dict[int, float] = {}
    for _ in range(min(len(space), 20)):
        number = proposer.ask().number
        times[number] = float(rng.uniform(1, 2))
        proposer.tell(number, times[number])
    blocks = dict(zip(times, Candidates(space).regions_of(np.array([*times])).tolist(), strict=True))
    best = sorted({min((n for n in times if blocks[n] == b), key=times.__getitem__) for b in blocks.values()},
                  key=times.__getitem__)  # fmt: skip
    limit = (1 + within) * times[best[0]]
    assert proposer.region_bests(within, most) == [n for n in best if times[n] <= limit][:most]


@settings(max_examples=20)
@given(spaces(), st.sampled_from(QUICK), st.integers(0, 3), st.integers(1, 5))
def test_small_sets_are_requested_whole_and_each_point_once(space, sampler, seed, open_at_once):
    proposer = make_proposer(space, sampler, seed)
    num = min(len(space), 45)
    requested = _ask_all(proposer, num, open_at_once=open_at_once)
    assert len(set(requested)) == num
    assert all(0 <= number < len(space) for number in requested)
    if num == len(space):
        with pytest.raises(SpaceExhausted):
            proposer.ask()


@settings(max_examples=5)
@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from(QUICK))
def test_the_same_seed_asks_the_same_points(seed, open_at_once, sampler):
    runs = [_ask_all(make_proposer(SPACE, sampler, seed), 50, open_at_once=open_at_once) for _ in range(2)]
    assert runs[0] == runs[1]


def test_another_seed_asks_others():
    assert _ask_all(make_proposer(SPACE, seed=1), 20) != _ask_all(make_proposer(SPACE, seed=2), 20)


@pytest.mark.parametrize("sampler", QUICK)
def test_failures_are_no_trouble(sampler):
    proposer = make_proposer(SPACE, sampler)
    for turn in range(60):
        number = proposer.ask().number
        proposer.tell(number, None if turn < 35 or turn % 3 else bowl_us(SPACE.point(number)))


@pytest.mark.parametrize("time_us", [lambda n: 5.0, lambda n: 1e-3, lambda n: 10.0 ** (n % 9)])
def test_flat_and_wild_times_are_no_trouble(time_us):
    assert len(set(_ask_all(make_proposer(SPACE), 60, time_us=time_us))) == 60


def test_earlier_trials_are_never_requested_again():
    known = [(number, None if number % 3 else 100.0 + number) for number in range(0, len(SPACE), 2)]
    proposer = make_proposer(SPACE)
    proposer.load(known)
    rest = _ask_all(proposer, len(SPACE) - len(known))
    assert sorted(rest) == [n for n in range(len(SPACE)) if n % 2]


def test_earlier_trials_teach():
    """Told of a valley, a fresh sampler proposes from it."""
    rng = np.random.default_rng(0)
    known = rng.choice(len(SPACE), 60, replace=False).tolist()
    proposer = make_proposer(SPACE)
    proposer.load([(n, bowl_us(SPACE.point(n))) for n in known])
    proposals = [proposer.ask() for _ in range(3)]
    assert {p.origin for p in proposals} <= set(MODELLED)
    unseen = sorted(bowl_us(SPACE.point(n)) for n in range(len(SPACE)) if n not in known)
    assert bowl_us(SPACE.point(proposals[0].number)) <= unseen[8]


def test_offers_come_first_and_once():
    proposer = make_proposer(SPACE)
    assert [proposer.offer(n, "seed") for n in (7, 3, 7)] == [True, True, False]
    assert [proposer.ask() for _ in range(2)] == [Proposal(7, "seed"), Proposal(3, "seed")]
    assert not proposer.offer(7, "transfer")
    assert proposer.ask().origin == "random"


def test_the_model_finds_the_optimum_of_a_bowl_far_before_chance_does():
    space = product_space(8, 8, 8, words=5)
    optimum = min(bowl_us(space.point(n)) for n in range(len(space)))
    for seed in range(3):
        times = [bowl_us(space.point(n)) for n in _ask_all(
            make_proposer(space, seed=seed), 80, time_us=lambda n: bowl_us(space.point(n))
        )]  # fmt: skip
        assert min(times) == optimum  # of 1,280 points


def test_more_is_planned_at_once_the_more_is_known(monkeypatch):
    plans = []
    propose = Model.propose
    monkeypatch.setattr(Model, "propose", lambda *args: plans.append(propose(*args)) or plans[-1])
    _ask_all(make_proposer(SPACE), 140)
    sizes = [len(plan) for plan in plans]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (3, 11)
    assert sum(sizes) >= 140 - 15


@pytest.mark.parametrize("most", [1, 5, 40])
def test_the_model_is_given_the_best_and_a_random_part_of_the_others(monkeypatch, most):
    """At most as many results as the policy says. Those found best are always among them."""
    conditioned, own = [], Surrogate.condition

    def condition(x, z, pending, lengths):
        conditioned.append((x, z))
        return own(x, z, pending, lengths)

    monkeypatch.setattr(Surrogate, "condition", condition)
    proposer = make_proposer(SPACE, policy=SearchPolicy(num_fitted=most, most_planned=1))
    proposer.load((number, 1.0 + number) for number in range(100))
    for _ in range(8):
        proposer.tell(proposer.ask().number, 200.0)
    best = Candidates(SPACE).features(np.arange(max(1, most // 10)))
    assert len(conditioned) == 8
    for x, z in conditioned:
        assert len(x) == len(z) == most
        assert (x[: len(best)] == best).all() and z[0] == z.min()
    assert most == 1 or any((x != conditioned[0][0]).any() for x, _ in conditioned)


def test_it_is_a_sampler_for_optimize_too():
    sampler = FeasibleSampler(SPACE, seed=0)
    study = optuna.create_study(sampler=sampler)
    tried = []

    def objective(trial):
        tried.append(SPACE.find(suggested(SPACE, trial)))
        return bowl_us(SPACE.point(tried[-1]))

    study.optimize(objective, n_trials=40)
    assert None not in tried and len(set(tried)) == 40
    assert study.best_params == SPACE.point(min(tried, key=lambda number: bowl_us(SPACE.point(number))))


@pytest.mark.parametrize("own_storage", [True, False])
def test_what_names_some_parameters_is_completed_to_a_feasible_point(own_storage, tmp_path):
    space = autotune.space(4096, "rtx-4090")
    storage = autotune.OptunaStorage(tmp_path / "a.db") if own_storage else None
    study = optuna.create_study(storage=storage, sampler=FeasibleSampler(space))
    parts = [{}, {"bm": 128}, {"stages": 3, "split_k": 2}, {"bm": 64, "nosuch": 1}, {"pack_a": 1}]
    for part in parts:
        study.enqueue_trial(part)
    study.optimize(lambda trial: 1.0 + suggested(space, trial)["bm"], n_trials=len(parts))
    for part, trial in zip(parts, study.trials, strict=True):
        assert space.find(trial.params) is not None
        assert trial.params.items() >= {item for item in part.items() if item[0] in space.names}
        assert not (part and own_storage) or trial.user_attrs["origin"] == "enqueued", "it was claimed"
    assert len({str(trial.params) for trial in study.trials}) == len(parts)
    study.enqueue_trial({"bm": None})
    with pytest.raises(ValueError, match="'None' not in"):
        suggested(space, study.ask())
    assert len(study.sampler._proposer._results) == len(parts), "all are learnt"


def test_a_parameter_of_another_space_is_refused():
    study = optuna.create_study(sampler=FeasibleSampler(SPACE))
    with pytest.raises(ValueError, match="no parameter"):
        study.ask().suggest_int("unknown", 0, 3)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_what_is_no_time_is_told_and_counts_as_slow(value):
    study = optuna.create_study(sampler=FeasibleSampler(SPACE))
    study.optimize(lambda trial: bowl_us(suggested(SPACE, trial)), n_trials=3)
    with pytest.raises(UsageError, match="is no time: tell a finite one above 0"):
        study.tell(study.ask(), value)
    study.optimize(lambda trial: bowl_us(suggested(SPACE, trial)), n_trials=40)
    assert len(study.trials) == 44 and study.trials[3].value == value
    assert all(0 < time_us < math.inf for time_us in study.sampler._proposer._results.values() if time_us)


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "minimize"]])
def test_a_study_that_minimises_no_single_time_is_refused(directions):
    study = optuna.create_study(directions=directions, sampler=FeasibleSampler(SPACE))
    with pytest.raises(UsageError, match="create its study with direction='minimize'"):
        study.ask()


def test_a_trial_that_is_read_before_its_parameters_are_there_is_learnt():
    storage = optuna.storages.InMemoryStorage()
    sampler = FeasibleSampler(SPACE, seed=0)
    study = optuna.create_study(storage=storage, sampler=sampler)
    other = storage.create_new_trial(study._study_id)
    study.tell(study.ask(), 5.0)  # it has read the other trial
    point = next(SPACE.point(n) for n in range(len(SPACE)) if n not in sampler._proposer._seen)
    for name, distribution in distributions(SPACE).items():
        storage.set_trial_param(other, name, distribution.to_internal_repr(point[name]), distribution)
    study.tell(study.ask(), 6.0)
    assert SPACE.find(point) in sampler._proposer._open
    storage.set_trial_state_values(other, optuna.trial.TrialState.COMPLETE, [1.0])
    study.ask()
    assert sampler._proposer._results[SPACE.find(point)] == 1.0


@pytest.mark.parametrize("name", ["tpe", "cmaes", "gp"])
def test_samplers_of_optuna_learn(name):
    """They come closer than chance to the best of a smooth bowl; and any sampler may be given as such."""
    if name not in HERE:
        pytest.skip("its packages are not installed")
    optuna_proposer = make_proposer(SPACE, name, seed=1)
    tried = _ask_all(optuna_proposer, 50, time_us=lambda n: bowl_us(SPACE.point(n)))
    times = sorted(bowl_us(SPACE.point(n)) for n in range(len(SPACE)))
    assert min(bowl_us(SPACE.point(n)) for n in tried) <= times[len(times) // 40]


def test_a_sampler_of_optuna_is_not_changed():
    sampler = optuna.samplers.RandomSampler(seed=5)
    runs = [_ask_all(make_proposer(SPACE, sampler), 20) for _ in range(2)]
    assert runs[0] == runs[1] and sampler_name(sampler) == "RandomSampler"


def test_an_unknown_sampler_is_refused():
    with pytest.raises(UsageError, match="known are autotune, random"):
        make_proposer(SPACE, "annealing")
    with pytest.raises(UsageError, match=r"TPESampler is a class; pass TPESampler\(\)"):
        make_proposer(SPACE, optuna.samplers.TPESampler)


def test_powers_of_two_are_found_among_other_sizes():
    """As in kernels whose blocks must be whole warps: sizes between are a hundred times slower."""
    values = (tuple(range(16, 272, 16)), (1, 2, 3, 4), (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 8))
    rows = np.array(list(itertools.product(*(range(len(v)) for v in values))), dtype=np.uint8)
    space = FeasibleSet((Factor(("width", "depth", "x", "y"), values, rows),))

    def time_us(number):
        width, depth, x, y = space.point(number).values()
        is_slow = any(v & (v - 1) for v in (width, depth, x, y))
        return (100 if is_slow else 1) + abs(np.log2(width * x / 256)) + abs(np.log2(depth * y / 8)) + x / y

    optimum = min(map(time_us, range(len(space))))
    reached = [optimum / min(map(time_us, _ask_all(make_proposer(space, seed=seed), 60, time_us=time_us)))
        for seed in range(6)]  # fmt: skip
    assert np.mean(reached) > 0.95


# ---- candidates


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((5,), []),
        ((0, 4, 8), [0, 0.5, 1]),  # ranks where there is no ratio
        ((1, 2, 4, 16), [0, 0.25, 0.5, 1]),
        ((0.5, 1.0, 4.0), [0, 1 / 3, 1]),
        ((1, 2, 10**30), [0, 0.5, 1]),
        ((32, 48, 64), [0, np.log2(1.5), 1, 0.5, 0, 1, 1, 0, 1]),
    ],
)
def test_sizes_count_by_ratio_and_by_powers_of_two(values, expected):
    assert _feature_table(values).T.ravel() == pytest.approx(expected)


@given(spaces(), st.data())
def test_numbers_codes_and_points_agree(space, data):
    candidates = Candidates(space)
    numbers = np.array(data.draw(st.lists(st.integers(0, len(space) - 1), min_size=1, max_size=5)))
    codes = candidates.codes(numbers)
    assert [tuple(row) for row in codes] == [tuple(space.codes(n)) for n in numbers]
    assert candidates.find(codes).tolist() == numbers.tolist()
    assert [space.find(space.point(n)) for n in numbers] == numbers.tolist()
    assert candidates.features(numbers).shape == (len(numbers), candidates.num_features)


@given(spaces(), st.data())
def test_neighbours_differ_in_one_parameter_and_none_is_missed(space, data):
    number = data.draw(st.integers(0, len(space) - 1))
    candidates = Candidates(space)
    everyone = candidates.codes(np.arange(len(space)))
    expected = np.flatnonzero((everyone != everyone[number]).sum(axis=1) == 1)
    assert candidates.neighbours(np.array([number])).tolist() == expected.tolist()


@given(spaces(), st.integers(0, 100))
def test_mixtures_and_draws_are_feasible(space, seed):
    rng = np.random.default_rng(seed)
    candidates = Candidates(space)
    for found in (candidates.mixtures(rng, np.array([0]), 20), candidates.random(rng, 20)):
        assert all(0 <= number < len(space) for number in found)
    assert not len(candidates.mixtures(rng, np.array([], dtype=int), 20))


@given(spaces(), st.data())
def test_the_nearest_point_to_a_point_is_itself(space, data):
    number = data.draw(st.integers(0, len(space) - 1))
    assert Candidates(space).nearest(space.point(number)) == number


def test_nearest_gives_way_on_later_parameters():
    nearest = SPACE.point(Candidates(SPACE).nearest({"a": 2, "b": 2, "c": 2, "word": "unheard"}))
    assert (nearest["a"], nearest["b"]) == (2, 2)
    assert nearest["c"] in (1, 4)  # 2 would make the sum of codes odd
    assert SPACE.point(Candidates(SPACE).nearest({"a": 10**9}))["a"] == 32


WISH = st.fixed_dictionaries(
    {}, optional={"a": st.integers(0, 9), "b": st.sampled_from([1, 3, 9]), "word": st.sampled_from("xyz?")}
)


@given(wish=WISH, is_sorted=st.booleans(), data=st.data())
def test_nearest_narrows_one_parameter_after_another(wish, is_sorted, data):
    values = ((1, 2, 4, 8), ("x", "y", "z"), (1, 2, 3, 5))
    row = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3))
    codes = data.draw(st.lists(row, min_size=1, max_size=30, unique=True))
    codes = sorted(codes) if is_sorted else codes
    factor = Factor(("a", "word", "b"), values, np.array(codes, dtype=np.uint8))
    expected = range(len(codes))
    for j, name in enumerate(factor.names):
        if name in wish:
            off = _distances(values[j], wish[name])
            least = min(off[codes[row][j]] for row in expected)
            expected = [row for row in expected if off[codes[row][j]] == least]
    assert Candidates(FeasibleSet((factor,))).nearest(wish) == expected[0]


# ---- the process


def test_the_gradient_is_that_of_the_loss():
    from autotune.search.propose.surrogate import _loss

    rng = np.random.default_rng(0)
    x, z = rng.random((12, 3)), rng.standard_normal(12)
    log = np.array([0.1, -0.4, 0.7, -4.0])
    _, gradient = _loss(x, z, Lengths(log))
    for i, step in enumerate(np.eye(4) * 1e-5):
        slope = (_loss(x, z, Lengths(log + step))[0] - _loss(x, z, Lengths(log - step))[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_the_process_meets_what_was_measured_and_finds_what_matters():
    rng = np.random.default_rng(1)
    x = rng.random((40, 2))
    z = np.sin(5 * x[:, 0])
    lengths = fit_lengths(x, z - z.mean(), Lengths.prior(2), steps=60)
    surrogate = Surrogate.condition(x, z, x[:0], lengths)
    assert surrogate.mean(surrogate.covariance(x)) == pytest.approx(z, abs=0.1)
    assert lengths.weights[0] > 10 * lengths.weights[1]  # the second feature does nothing


def test_a_batch_spreads():
    x = np.array([[0.0], [1.0]])
    surrogate = Surrogate.condition(x, np.array([0.0, 0.0]), x[:0], Lengths(np.array([-2.0, -6.0])))
    points = np.array([[0.5], [0.5001], [0.3], [0.7]])
    predictions = surrogate.predictions(points, 4)
    chosen = predictions.places[surrogate.best_batch(predictions, 3)].tolist()
    assert {0, 1} - set(chosen), "two points at one place"


def test_points_under_way_are_not_requested_for_by_neighbours():
    x = np.array([[0.0], [1.0]])
    z, pending = np.array([0.5, -0.5]), np.array([[0.9]])
    lengths = Lengths(np.array([-1.0, -6.0]))
    points = np.array([[0.901], [0.6]])
    surrogate = Surrogate.condition(x, z, pending, lengths)
    predictions = surrogate.predictions(points, 4)
    assert predictions.places[surrogate.best_batch(predictions, 1)].tolist() == [1]


def _measured(seed: int, num: int, num_pending: int) -> tuple[Surrogate, Surrogate, np.ndarray]:
    """A process given some points and others under way; one given all of these, the latter at the mean of the
    former; and the features of a few hundred more points."""
    rng = np.random.default_rng(seed)
    x, points = rng.random((num + num_pending, 4)).round(1), rng.random((300, 4)).round(1)
    z, lengths = rng.normal(size=num), Lengths(np.append(rng.normal(0, 0.7, size=4), rng.uniform(-9, 0)))
    before = Surrogate.condition(x[:num], z, x[:0], lengths)
    believed = before.mean(before.covariance(x[num:]))
    whole = Surrogate.condition(x, np.append(z, believed), x[:0], lengths)
    return Surrogate.condition(x[:num], z, x[num:], lengths), whole, points


@given(seed=st.integers(0, 1 << 32), num=st.integers(1, 90), num_pending=st.integers(0, 40))
@settings(max_examples=30)
def test_points_under_way_are_as_if_they_had_been_measured_at_the_mean(seed, num, num_pending):
    added, whole, points = _measured(seed, num, num_pending)
    one, other = (s.predictions(points, len(points)) for s in (added, whole))
    one, other = (found.at(np.argsort(found.places)) for found in (one, other))
    assert np.allclose(one.mean, other.mean, atol=2e-2)  # in single precision
    variances = [(found.explained**2).sum(axis=1) for found in (one, other)]
    assert np.allclose(*variances, atol=1e-4)
    assert np.isclose(added.scale, whole.scale)


@given(seed=st.integers(0, 1 << 32), num=st.integers(1, 90), most=st.integers(1, 150))
@settings(max_examples=30)
def test_what_bounds_leave_out_improves_less_than_what_is_kept(seed, num, most):
    surrogate, _, points = _measured(seed, num, 5)
    whole, found = surrogate.predictions(points, len(points)), surrogate.predictions(points, most)
    assert len(set(found.places.tolist())) == len(found.gain) == most
    assert np.allclose(found.gain, whole.gain[:most], rtol=1e-3, atol=1e-3)  # roots of what rounding leaves


@given(seed=st.integers(0, 1 << 32), num=st.integers(1, 150))
@settings(max_examples=20)
def test_a_triangular_matrix_is_inverted_by_halves(seed, num):
    lower = np.tril(np.random.default_rng(seed).normal(size=(num, num))) / num + np.eye(num)
    assert np.allclose(_inverse(lower) @ lower, np.eye(num))


def test_expected_improvement_is_the_integral():
    mean, deviation, best = np.array([0.3, -0.2, 2.0]), np.array([0.5, 0.1, 0.3]), 0.1
    draws = mean + deviation * np.random.default_rng(0).standard_normal((200_000, 3))
    expected = np.maximum(best - draws, 0).mean(axis=0)
    assert expected_improvement(best, mean, deviation) == pytest.approx(expected, abs=2e-3)
