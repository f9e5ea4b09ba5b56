"""The kernels of a table: out of the tied sets, few, thrifty, and the same in every run."""

from __future__ import annotations

import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from autotune.export.cover import MAX_LOSS, Option, choose

OPTIONS = st.builds(
    Option,
    st.sampled_from("abcdefg").map(lambda name: (name,)),
    st.floats(100.0, 101.0),
    st.none() | st.floats(1.0, 2.0),
)
TIED = st.dictionaries(st.integers(0, 9), st.lists(OPTIONS, max_size=5), max_size=8)


@given(TIED, st.integers(0, 99))
def test_the_choice_is_of_the_tied_and_no_order_changes_it(tied, seed):
    chosen = choose(tied)
    assert set(chosen) == {shape for shape, options in tied.items() if options}
    for shape, option in chosen.items():
        assert option in tied[shape]
        assert option.time_us <= min(o.time_us for o in tied[shape]) * (1 + MAX_LOSS)
    generator = random.Random(seed)
    shuffled = {s: generator.sample(tied[s], len(tied[s])) for s in generator.sample(list(tied), len(tied))}
    assert choose(shuffled) == chosen


@given(TIED)
def test_kernels_are_no_more_than_shapes_and_near_the_fewest(tied):
    chosen = choose(tied)
    used = {option.kernel for option in chosen.values()}
    assert len(used) <= len(chosen)
    near = {
        s: {o.kernel for o in tied[s] if o.time_us <= min(x.time_us for x in tied[s]) * (1 + MAX_LOSS)}
        for s in chosen
    }
    names = set().union(*near.values()) if near else set()
    fewest = next(
        n
        for n in range(len(names) + 1)
        if any(all(k & set(c) for k in near.values()) for c in itertools.combinations(names, n))
    )
    assert len(used) <= fewest * (1 + math.log(max(len(chosen), 1)))


def test_a_kernel_of_another_shape_wins_a_tie_before_a_faster_or_thriftier_one():
    tied = {
        "one": [Option(("a",), 100.0, 1.0), Option(("b",), 100.2, 2.0)],
        "two": [Option(("b",), 50.0, 1.0)],
    }
    assert {shape: o.kernel for shape, o in choose(tied).items()} == {"one": ("b",), "two": ("b",)}


def test_a_tie_that_only_noise_makes_costs_no_time():
    tied = {"one": [Option(("a",), 100.0), Option(("b",), 102.0)], "two": [Option(("b",), 50.0)]}
    assert choose(tied)["one"].kernel == ("a",)


def test_among_equals_less_energy_wins_then_time():
    options = [Option(("a",), 100.0, 1.10), Option(("b",), 100.2, 1.00), Option(("c",), 100.1, 1.01)]
    assert choose({"one": options})["one"].kernel == ("c",)  # of two that differ by 1 %, the faster
    unknown = [Option(("a",), 100.0, 1.10), Option(("b",), 100.2, None)]
    assert choose({"one": unknown})["one"].kernel == ("a",)
    assert choose({"one": [Option(("b",), 100.0), Option(("a",), 100.0)]})["one"].kernel == ("a",)


def test_the_winner_comes_before_what_is_tied_with_it_unless_that_serves_more_or_needs_less():
    """The search announces the winner by pairs of times; by medians another may look faster."""
    options = [Option(("w",), 101.0, is_winner=True), Option(("a",), 100.0), Option(("b",), 100.1)]
    assert choose({"one": options})["one"].kernel == ("w",)
    assert choose({"one": options, "two": [Option(("b",), 9.0)]})["one"].kernel == ("b",)
    joules = [Option(("w",), 100.0, 1.01, is_winner=True), Option(("a",), 99.9, 1.0)]
    assert choose({"one": joules})["one"].kernel == ("w",)  # as thrifty as can be told
    joules = [Option(("w",), 100.0, 1.20, is_winner=True), Option(("a",), 99.9, 1.0)]
    assert choose({"one": joules})["one"].kernel == ("a",)
