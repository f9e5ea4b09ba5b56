"""Configs are read as they are written; parameters, rules, the kernel's macros and columns agree."""

from __future__ import annotations

import random
import re
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from space_cases import EVERY_KIND, find_config

from autotune.cli.requests import SourceRequest, TimeRequest
from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import UsageError
from autotune.kernel import launch, resources, template
from autotune.kernel.config import PACKED_ORDERS, PARAMETER, PARAMETERS, Config, Parameter
from autotune.kernel.excess import excess
from autotune.kernel.launch import Variant
from autotune.kernel.rules import RULE, RULES, Rule, RuleKind, broken_rules

CONFIGS = st.builds(Config, **{name: st.sampled_from(p.values) for name, p in PARAMETER.items()})
SIZES = st.one_of(st.integers(1, 300), st.integers(1, 64).map(lambda x: 64 * x), st.integers(1, 10**6))
SINGLES = st.builds(Gemm, SIZES, SIZES, SIZES, st.booleans(), st.booleans())
BATCHES = st.builds(
    lambda single, batch, shared: replace(
        single, batch=batch, **({f"shares_{shared}": True} if shared else {})
    ),
    *(SINGLES, st.integers(2, 10**4), st.sampled_from(["a", "b", ""])),
)
GEMMS = st.one_of(SINGLES, BATCHES)
LIMITS = st.sampled_from(list(KNOWN.values()))
SEEDS = st.integers(0, 2**32)
H200, SQUARE = KNOWN["h200"], Gemm(4096, 4096, 4096)


# ------------------------------------------------------------------------------------- config


@given(CONFIGS)
def test_a_config_is_read_as_it_is_written(config: Config) -> None:
    assert Config.parse(config.key) == config
    assert Config.parse(f" {config.key.replace(',', ' , ').replace('=', ' = ')},\n") == config
    assert Config.from_dict(config.to_dict()) == config
    assert list(Config.parse(config.key).to_dict()) == [f.name for f in fields(Config)]


@given(CONFIGS, CONFIGS)
def test_configs_have_one_key_each(one: Config, other: Config) -> None:
    assert (one.key == other.key) == (one == other)


@given(CONFIGS, st.sampled_from(list(PARAMETER)))
def test_what_is_missing_keeps_its_default(config: Config, name: str) -> None:
    value = getattr(config, name)
    assert Config.parse(f"{name}={value}") == Config(**{name: value})


@pytest.mark.parametrize("value", [65, 64.0, True, None, "64", [64], -64, np.float64(64)])
def test_only_values_of_a_parameter_are_taken(value: Any) -> None:
    """64.0 equals 64, but its key would be another: the same kernel would be tried twice."""
    with pytest.raises(UsageError, match=r"bm = .*expected rows of C"):
        Config.from_dict({"bm": value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm", "name=value"), ("=64", "name=value"), ("bm=64;bn=64", "bm = '64;bn=64'"), ("BM=64", "unknown"),
        ("bm=6 4", "bm = '6 4'"), ("bm=64,bm=32", "once"), ("bm=", "bm = ''"), ("bm==64", "bm = '=64'"),
        ("bm=٦٤", "bm ="), ("bm=" + "9" * 5000, "bm ="), ("copy_a=1", "copy_a ="), ("copy_a=Async", "async"),
    ],
)  # fmt: skip
def test_what_is_no_config_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Config.parse(text)


@given(CONFIGS, CONFIGS)
def test_configs_share_a_cubin_where_only_the_launch_differs(one: Config, other: Config) -> None:
    launch = {name: getattr(other, name) for name in template.LAUNCHED}
    for pair in ((one, other), (one, replace(one, split_k=other.split_k)), (one, replace(one, **launch))):
        macros = [template.macros(config, Variant()) for config in pair]
        assert (pair[0].kernel == pair[1].kernel) == (macros[0] == macros[1])


# ------------------------------------------------------------------------- names and the kernel


def test_parameters_are_fields_are_macros() -> None:
    assert set(PARAMETER) == {f.name for f in fields(Config)}
    assert len(PARAMETER) == len(PARAMETERS)
    macros = template.macros(Config(), Variant())
    launched, others = {"SPLIT_K", "RASTER", "GROUP"}, {"CLUSTER", "TRANS_A", "TRANS_B", "WIDE"}
    assert set(macros) == {n.upper() for n in PARAMETER} - launched | others
    for macro in macros:
        assert re.search(rf"\b{macro}\b", template.source()), f"the kernel does not use {macro}"


def test_only_kernels_for_batches_know_of_batches() -> None:
    single, batched = (template.macros(Config(), Variant(is_batched=flag)) for flag in (False, True))
    assert batched == {**single, "BATCHED": 1}
    assert "BATCHED" not in single


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda p: p.name)
def test_a_parameter_lists_its_values_once(parameter: Parameter) -> None:
    assert len(set(parameter.values)) == len(parameter.values) <= 256, "codes are bytes"
    assert len({type(value) for value in parameter.values}) == 1
    assert parameter.values[0] != 0 or parameter.name in ("pad", "flush_k", "pack_a", "pack_b")
    if isinstance(parameter.values[0], int):
        assert list(parameter.values) == sorted(parameter.values)
    assert getattr(Config(), parameter.name) in parameter.values


def test_rules_have_one_id_each_and_say_what_they_need() -> None:
    assert len(RULE) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
        assert set(rule.needs) <= set(PARAMETER)
        assert rule.kind in EVERY_KIND
        assert (rule.kind == "worth") == rule.id.startswith("worth-")
        assert rule.sentence


def test_template_rules_are_the_kernels_static_asserts() -> None:
    """Three more stand there: the architecture that these ask for is known to the compiler too."""
    asserted = re.findall(r'"rule ([a-z-]+)"', template.source())
    expected = [r.id for r in RULES if r.kind == "template"]
    assert sorted(asserted) == sorted([*expected, "async-device", "cluster-device", "packed-device"])


class _Watched:
    """A config that remembers what was asked of it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.requested: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.requested.add(name)
        return getattr(self._config, name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_reads_what_it_needs_and_nothing_else(rule: Rule) -> None:
    """Enumeration applies a rule once its `needs` are there: one too few fails, one too many is slow."""
    requested: set[str] = set()
    for trans_a in (False, True):
        for trans_b in (False, True):
            watched = _Watched(Config())
            rule.holds(watched, H200, Gemm(512, 512, 512, trans_a, trans_b))
            requested |= watched.requested
    assert requested == set(rule.needs)


# ----------------------------------------------------------------------- scalars and columns


def _columns(configs: list[Config]) -> SimpleNamespace:
    return SimpleNamespace(**{name: np.array([getattr(c, name) for c in configs]) for name in PARAMETER})


def _agree(rules: list[Rule], configs: list[Config], limits: DeviceLimits, gemm: Gemm) -> None:
    columns = _columns(configs)
    for rule in rules:
        combined = np.broadcast_to(rule.holds(columns, limits, gemm), len(configs))
        assert combined.dtype == bool, rule.id
        assert list(combined) == [bool(rule.holds(c, limits, gemm)) for c in configs], rule.id


@given(st.lists(CONFIGS, min_size=1, max_size=8), LIMITS, GEMMS)
def test_template_rules_read_columns_as_they_read_configs(
    configs: list[Config], limits: DeviceLimits, gemm: Gemm
) -> None:
    """On any config at all, whatever else is broken."""
    _agree([r for r in RULES if r.kind == "template"], configs, limits, gemm)


@settings(max_examples=40)
@given(SEEDS, LIMITS, GEMMS)
def test_all_rules_read_columns_as_they_read_configs(seed: int, limits: DeviceLimits, gemm: Gemm) -> None:
    """On configs whose template rules hold: the others presume that."""
    rng = random.Random(seed)
    configs = [c for _ in range(8) if (c := find_config(rng, limits, gemm, ("template",)))]
    _agree(list(RULES), configs, limits, gemm)
    columns = _columns(configs)
    for derive in (resources.threads, resources.threads_per_slice, resources.register_estimate,
                   lambda c: resources.smem_bytes(c, gemm), lambda c: resources.register_cap(c, limits),
                   lambda c: resources.blocks_per_sm(c, limits, gemm, resources.register_estimate(c)),
                   lambda c: resources.packed_bytes(c, gemm), lambda c: resources.tiles(c, gemm),
                   lambda c: resources.tiles_m(c, gemm), lambda c: resources.tiles_n(c, gemm)):  # fmt: skip
        assert list(derive(columns)) == [derive(c) for c in configs]


@given(CONFIGS, LIMITS, st.one_of(GEMMS, st.builds(Gemm, *[st.integers(2000, 20000)] * 3)))
@example(Config(bm=96, reduction="two_pass", split_k=16), H200, Gemm(4096, 4096, 4096))
def test_rules_on_workspaces_allow_what_launches_do(config: Config, limits: DeviceLimits, gemm: Gemm) -> None:
    """Both count whole tiles."""
    assume(resources.threads(config) > 0 and (config.reduction != "none") == (config.split_k > 1))
    assume(RULE["chunks"].holds(config, limits, gemm))  # no other kernel is compiled
    spec = resources.launch_spec(config, gemm, limits)
    planned = launch.plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
    holds = [bool(RULE[name].holds(config, limits, gemm)) for name in ("pack-workspace", "workspace")]
    assert holds == [size <= launch.WORKSPACE_LIMIT for size in (planned.pack_bytes, planned.sum_bytes)]
    assert all(holds) or launch.too_large(planned)


# ------------------------------------------------------------------------------ broken rules


@given(CONFIGS, LIMITS, GEMMS, st.sets(st.sampled_from(EVERY_KIND)))
def test_any_config_is_judged(config: Config, limits: DeviceLimits, gemm: Gemm, kinds: set[RuleKind]) -> None:
    """Of the kinds asked for; where a template rule is broken, no rule that presumes a kernel is asked."""
    everything = broken_rules(config, limits, gemm, EVERY_KIND)
    assert broken_rules(config, limits, gemm, tuple(kinds)) == tuple(r for r in everything if r.kind in kinds)
    assert [r.id for r in everything] == [r.id for r in RULES if r in everything]
    if any(rule.kind == "template" for rule in everything):
        assert {rule.kind for rule in everything} == {"template"}


@given(CONFIGS, LIMITS, GEMMS, st.sampled_from(RULES))
def test_what_a_rule_compares_is_told_in_figures(
    config: Config, limits: DeviceLimits, gemm: Gemm, rule: Rule
) -> None:
    assume(rule.kind == "template" or resources.threads(config) > 0)  # the others presume a kernel
    figures = excess(rule, config, limits, gemm)
    assert any(character.isdigit() for character in figures) or "=" in figures
    if rule.kind == "device" and not rule.id.endswith("-device"):
        assert "at most " in figures


@settings(max_examples=30)
@given(SEEDS, LIMITS, GEMMS)
def test_configs_of_a_space_break_nothing(seed: int, limits: DeviceLimits, gemm: Gemm) -> None:
    config = find_config(random.Random(seed), limits, gemm, EVERY_KIND)
    assert config is not None, "a space without a config"
    assert broken_rules(config, limits, gemm, EVERY_KIND) == ()
    if not limits.has_async_copy:
        assert config.copy_a == config.copy_b == "register"
    if not limits.has_clusters:
        assert config.reduction != "cluster"
    if not limits.has_packed_fma:
        assert config.order not in PACKED_ORDERS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_default_config_fails_at_most_for_want_of_hardware(layout: str) -> None:
    """Its vectors of B and C are whole on any shape that divides by four; four of its blocks share an SM."""
    for limits in KNOWN.values():
        broken = broken_rules(Config(vec_b=1), limits, Gemm.parse(f"4096:{layout}"))
        assert {rule.kind for rule in broken} <= {"device"}
        assert broken == () or limits is not H200


def test_configs_of_examples_can_run() -> None:
    examples = f"{TimeRequest.__doc__}\n{SourceRequest.__doc__}"
    for line in re.findall(r"^        (?:time|source) (.*)$", examples, re.MULTILINE):
        named = dict(re.findall(r"--(gpu|shape) (\S+)", line))
        gemm = Gemm.parse(named.get("shape", "4096"))
        for text in re.findall(r"(?<!\S)bm=\S+", line):
            config = Config.parse(text)
            assert not broken_rules(config, KNOWN[named.get("gpu", "h200")], gemm), line
