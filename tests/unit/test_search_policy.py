"""The search's constants as one record: what it may hold, where it is read from, where it is kept."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
from fake_target import FakeTarget, product_space
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.search import Options, StopReason, study_of, tune
from autotune.search_policy import EFFORTS, SearchPolicy, read_effort

GEMM = Gemm(64, 64, 64)
NAMES = [field.name for field in fields(SearchPolicy)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_it_is_small_enough_to_be_read_at_a_probe() -> None:
    assert len(NAMES) <= 15


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_of_its_kind_and_finite(name: str) -> None:
    for value in ("3", None, math.nan, math.inf, -1, -0.5):
        with pytest.raises(UsageError, match=f"search policy: {name} is "):
            replace(SearchPolicy(), **{name: value})


def test_what_follows_stays_in_its_bounds() -> None:
    assert SearchPolicy(duel_error=0.2).final_error == 1.0
    with pytest.raises(UsageError, match=r"duel_error is 0\.21, and more than 0\.2"):
        SearchPolicy(duel_error=0.21)
    least = SearchPolicy(num_loans=0, num_parents=1, num_drawn=1, num_finalists=1)
    assert (least.num_lenders, least.num_leaders, least.num_founders) == (0, 1, 3)


def test_a_file_goes_on_from_an_effort(tmp_path: Path) -> None:
    file = written(tmp_path / "p.toml", "num_startup = 30\n")
    quick = read_effort("quick").policy
    assert SearchPolicy.read(file, quick) == replace(quick, num_startup=30)
    assert read_effort("standard").policy == SearchPolicy()
    with pytest.raises(UsageError, match="effort is 'hard'; say 'quick', 'standard' or 'thorough'"):
        read_effort("hard")


@pytest.mark.stress
def test_more_effort_ends_later_and_evaluates_more(store) -> None:
    """On a flat landscape, where no trial is a gain after the first."""
    spent = []
    for size, effort in zip((64, 65, 66), EFFORTS.values(), strict=True):
        target = FakeTarget(product_space(8, 8, 8, words=2), time_us=lambda point: 100.0)
        options = Options(
            policy=replace(effort.policy, num_seeds=0), patience=effort.patience, sampler="random"
        )
        result = tune(target, store, [Gemm(size, 64, 64)], options)
        assert result.reason is StopReason.PATIENCE
        spent.append(result.num_new)
    assert spent == sorted(spent) and spent[0] < spent[1] / 2 and spent[2] > 1.8 * spent[1]


def test_a_file_names_what_differs(tmp_path: Path) -> None:
    file = written(tmp_path / "p.toml", "num_startup = 30\nnum_seeds = 0\nclose = 0\n")
    assert SearchPolicy.read(file) == SearchPolicy(num_startup=30, num_seeds=0, close=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_startups = 3", "unknown key 'num_startups' .did you mean 'num_startup'"),
        ("num_startup = 0", "num_startup is 0, and not more than 0; by default it is 15"),
        ("num_startup = 1.5", "num_startup is 1.5, and no whole number"),
        ("growth = 1.2", "unknown key 'growth'"),
        ("num_startup", "is not a search policy"),
        ("[num]\nstartup = 3", "unknown key 'num'"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_name_and_the_next_step(
    tmp_path: Path, text: str, message: str
) -> None:
    file = written(tmp_path / "p.toml", text)
    with pytest.raises(UsageError, match=message) as rejected:
        SearchPolicy.read(file)
    assert str(file) in str(rejected.value) and "write one line" in str(rejected.value)


@given(st.sampled_from(NAMES), st.integers(1, 9))
def test_what_differs_survives_a_file(tmp_path_factory, name: str, value: int) -> None:
    kind = type(getattr(SearchPolicy(), name))
    other = kind(value) / 50 if name == "duel_error" else kind(value)
    file = written(tmp_path_factory.mktemp("policy") / "p.toml", f"{name} = {str(other).lower()}\n")
    assert SearchPolicy.read(file) == replace(SearchPolicy(), **{name: other})


def test_a_study_keeps_what_each_search_of_it_was_told(store) -> None:
    target, other = FakeTarget(), SearchPolicy(num_startup=30)
    for trials, policy in ((10, SearchPolicy()), (12, SearchPolicy()), (14, other)):
        tune(target, store, [GEMM], Options(trials=trials, policy=policy, seed=3))
    shown = store.searches(study_of(store, target, GEMM))
    assert [one.policy for one in shown] == [SearchPolicy().to_dict(), other.to_dict()]
    assert {(one.sampler, one.seed) for one in shown} == {("autotune", 3)}


def test_it_decides(store) -> None:
    """Thirty points at random first, where it says so, and none that another shape lends."""
    target = FakeTarget()
    tune(target, store, [GEMM], Options(trials=20))
    policy = SearchPolicy(num_startup=30, num_loans=0, lend_every=1000)
    tune(target, store, [Gemm(128, 64, 64)], Options(trials=40, policy=policy))
    origins = [trial.origin for trial in store.trials(study_of(store, target, Gemm(128, 64, 64)))]
    assert set(origins[:30]) == {"random"} and "random" not in origins[30:]
