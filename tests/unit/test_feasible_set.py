"""The feasible set holds exactly the configs that obey the rules, each under one number."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from space_cases import EVERY_KIND, find_config

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel import feasible_set as space
from autotune.kernel.config import PARAMETER, PARAMETERS, Config, Parameter
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.resources import workspace_bytes
from autotune.kernel.rules import LEGAL, RULES, broken_rules, rules_of
from autotune.kernel.summation_order import SummationOrder
from autotune.kernel.where import Where

# Small or quick to enumerate; between them every layout, a short m, n and k, odd and even extents.
CASES = [
    ("quadro-rtx-5000", "4096:TN"),
    ("rtx-2080-ti", "3x5x7"),
    ("rtx-2080-ti", "1x4096x4096:TT"),
    ("rtx-3090", "16x11008x4096:TN"),
    ("a100", "100000x32x256:NT"),
    ("h200", "33x7x1002"),
]
SHAPES = [
    "4096", "1002x1002x1002:TT", "35x700x2048", "64x64x100000", "1x4096x4096", "4096x1x4096:NT", "4097:TN",
    "3x5x7", "1x1x1", "16384x16384x64:TT", "2000000000x1x1", "5x5x0",
]  # fmt: skip


@cache
def _case(number: int) -> tuple[space.FeasibleSet, space.DeviceLimits, Gemm]:
    device, shape = CASES[number]
    limits, gemm = KNOWN[device], Gemm.parse(shape)
    return feasible_set(limits, gemm), limits, gemm


@given(st.data())
def test_a_point_obeys_all_rules_and_has_one_number(data: st.DataObject) -> None:
    found, limits, gemm = _case(data.draw(st.integers(0, len(CASES) - 1)))
    index = data.draw(st.integers(0, len(found) - 1))
    point = found.point(index)
    config = Config.from_dict(point)
    assert broken_rules(config, limits, gemm, EVERY_KIND) == ()
    assert config.to_dict() == point
    assert found.index(found.rows(index)) == index
    assert found.find(point) == index == found.find(config.to_dict())
    assert [v[c] for v, c in zip(found.values, found.codes(index), strict=True)] == list(point.values())


@given(st.data())
def test_what_is_not_in_the_set_is_not_found(data: st.DataObject) -> None:
    found, limits, gemm = _case(data.draw(st.integers(0, len(CASES) - 1)))
    point = found.point(data.draw(st.integers(0, len(found) - 1)))
    name = data.draw(st.sampled_from(list(PARAMETER)))
    other = point | {name: data.draw(st.sampled_from(PARAMETER[name].values))}
    is_member = broken_rules(Config.from_dict(other), limits, gemm, EVERY_KIND) == ()
    assert (found.find(other) is not None) == is_member
    assert found.find({n: v for n, v in point.items() if n != name}) is None
    assert found.find(point | {name: "no such value"}) is None


@pytest.mark.every(3)
@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(case) for case in CASES])
def test_a_set_names_every_parameter_and_holds_no_row_twice(number: int) -> None:
    found, limits, _ = _case(number)
    assert sorted(found.names) == sorted(PARAMETER)
    assert len(found) == np.prod([len(f) for f in found.factors], dtype=object) > 0
    for factor in found.factors:
        assert len(np.unique(factor.codes, axis=0)) == len(factor)
        assert factor.order is None  # in ascending order: the same set always has the same numbers
        assert np.array_equal(factor.rows_of(factor.codes), np.arange(len(factor)))
    if not limits.has_async_copy:
        core = found.factors[0]
        copies = [core.codes[:, core.names.index(name)] for name in ("copy_a", "copy_b")]
        assert not np.any(copies), "cp.async on a device that lacks it"


def test_no_rule_binds_parameters_of_two_factors() -> None:
    """Else the product of the factors would hold points that break it: of one rule, they are paired. What is
    different where splits are chunks is so within orders alone, whose first factor has the reduction, too."""
    found, limits, gemm = _case(1)
    launch, within = found.factors[-1], feasible_set(limits, gemm, order=SummationOrder(256))
    for rule in RULES:
        assert sum(bool(set(rule.needs) & set(f.names)) for f in within.factors) == 1, rule.id
        needs = set(rule.needs) - (set() if set(rule.needs) <= set(launch.names) else {"reduction"})
        num = sum(bool(needs & set(f.names)) for f in found.factors)
        assert num == (2 if rule.id == "workspace" else 1), rule.id


# ------------------------------------------------------------------------------ brute force


def _cut_down(monkeypatch: pytest.MonkeyPatch, config: Config, rng: random.Random) -> None:
    """Leaves of each parameter the value of this config, and of ten one more."""
    more = set(rng.sample(list(PARAMETER), 10))
    table = []
    for p in PARAMETERS:
        kept = {getattr(config, p.name)} | ({rng.choice(p.values)} if p.name in more else set())
        table.append(Parameter(p.name, tuple(v for v in p.values if v in kept), p.description))
    monkeypatch.setattr(space, "PARAMETERS", tuple(table))
    monkeypatch.setattr(space, "PARAMETER", {p.name: p for p in table})


@pytest.mark.parametrize("is_wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(case) for case in CASES])
def test_a_cut_down_space_is_what_brute_force_finds(
    monkeypatch: pytest.MonkeyPatch, number: int, is_wide: bool
) -> None:
    device, shape = CASES[number]
    limits, gemm = KNOWN[device], Gemm.parse(shape)
    kinds = LEGAL if is_wide else EVERY_KIND
    rng = random.Random(f"{number} {is_wide}")
    tried = (find_config(rng, limits, gemm, kinds) for _ in range(9))
    config = next(one for one in tried if one is not None and one.reduction != "chunks")
    _cut_down(monkeypatch, config, rng)
    monkeypatch.setattr(space, "_JOIN_ROWS", rng.choice([1, 7, 64]))  # listed in pieces, and in odd ones
    found = feasible_set(limits, gemm, is_wide=is_wide)
    expected = {c.key for c in _all() if not broken_rules(c, limits, gemm, kinds) and c.reduction != "chunks"}
    assert config.key in expected
    _is_made_of(found, expected)


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(3))
def test_a_cut_down_space_of_an_order_is_what_brute_force_finds(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    limits, gemm, order = KNOWN["h200"], Gemm(200, 333, 4000, trans_b=True), SummationOrder(512)
    within = feasible_set(limits, gemm, order=order).where(Where.parse("reduction=chunks"), gemm)
    rng = random.Random(seed)
    _cut_down(monkeypatch, Config.from_dict(within.point(rng.randrange(len(within)))), rng)
    own = rules_of(order)
    expected = {c.key for c in _all() if all(rule.holds(c, limits, gemm) for rule in own)}
    _is_made_of(feasible_set(limits, gemm, order=order), expected)
    assert any("reduction=chunks" in key for key in expected)


def _all() -> list[Config]:
    """Configs of a cut-down space, legal or not."""
    values = itertools.product(*(p.values for p in space.PARAMETERS))
    return [Config(**dict(zip(space.PARAMETER, one, strict=True))) for one in values]


def _is_made_of(found: space.FeasibleSet, expected: set[str]) -> None:
    numbers = np.arange(len(found))[found.are_points(np.arange(len(found)))].tolist()
    assert {Config.from_dict(found.point(number)).key for number in numbers} == expected
    assert len(numbers) == found.num_points == len(expected)


@pytest.mark.parametrize("max_workspace_mib", [None, 500.0])
def test_sums_that_fit_in_some_tiles_only_are_left_out_with_others(
    monkeypatch: pytest.MonkeyPatch, max_workspace_mib: float | None
) -> None:
    """4090x4090 in 16 splits fits 1 GiB in tiles of 64, and not in those of 96; with conditions as well."""
    limits, gemm = KNOWN["h200"], Gemm(4090, 4090, 4096)
    config = Config(
        bm=64, bn=64, wm=32, wn=32, tm=8, tn=4, bk=8, unroll_k=8, vec_a=1, vec_b=2, vec_c=2,
        edges="predicated", min_blocks=1, bursts=1, stages=2,
    )  # fmt: skip
    more = {
        "bm": (64, 96),
        "bn": (64, 96),
        "reduction": ("none", "two_pass", "last_wave"),
        "split_k": (1, 8, 16),
    }
    table = [
        Parameter(p.name, more.get(p.name, (getattr(config, p.name),)), p.description) for p in PARAMETERS
    ]
    monkeypatch.setattr(space, "PARAMETERS", tuple(table))
    monkeypatch.setattr(space, "PARAMETER", {p.name: p for p in table})
    every = [
        replace(config, **dict(zip(more, values, strict=True)))
        for values in itertools.product(*more.values())
    ]
    legal = [c for c in every if not broken_rules(c, limits, gemm)]
    found = feasible_set(limits, gemm, is_wide=True)
    _is_made_of(found, {c.key for c in legal})
    most = (max_workspace_mib or 2000) * 2**20
    left = {c.key for c in legal if c.split_k >= 8 and workspace_bytes(c, gemm, limits) <= most}
    assert 0 < len(left) < len(legal) < len(every)
    where = Where.parse("split_k>=8", max_workspace_mib).on(gemm, limits)
    _is_made_of(found.where(where, gemm), left)


def test_a_space_too_large_to_enumerate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "MAX_ROWS", 5000)
    with pytest.raises(UsageError, match=r"more than 5,000 combinations .* leave out --all"):
        feasible_set(KNOWN["h200"], Gemm(64, 64, 64), is_wide=True)


@given(st.lists(st.integers(0, 255), max_size=30), st.sampled_from(["uint8", "uint32"]))
def test_bits_are_told_word_by_word(words: list[int], kind: str) -> None:
    expected = [bit for word in words for bit in range(8) if word >> bit & 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "_JOIN_ROWS", 7)
        assert space._set_bits(np.array(words, dtype=kind)).tolist() == expected


# ---------------------------------------------------------------------------- reachability


@pytest.mark.every(3)
@pytest.mark.parametrize("device", KNOWN)
def test_no_space_of_a_known_gpu_is_empty(device: str) -> None:
    rng = random.Random(device)
    for shape in SHAPES:
        assert find_config(rng, KNOWN[device], Gemm.parse(shape), EVERY_KIND) is not None, shape


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda p: p.name)
def test_every_value_is_legal_somewhere(parameter: Parameter) -> None:
    """A value that no device and shape can use is a mistake in a rule, or clutter."""
    rng = random.Random(parameter.name)
    for value in parameter.values:
        pins = {parameter.name: value}
        assert any(
            find_config(rng, KNOWN[device], Gemm.parse(shape), LEGAL, pins)
            for shape in SHAPES
            for device in ("b200", "quadro-rtx-5000")
        ), value
