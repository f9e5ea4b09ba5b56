"""A search for a class of accuracy: its space, its seeds, its studies, and what others see of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fake_target import FakeTarget

import autotune
from autotune import tuning
from autotune.facts.accuracy_class import FP32, FP32_RANGE, STRICT
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.files.errors import UsageError
from autotune.kernel import resources, template, templates
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set, tensor_set
from autotune.kernel.launch import plan
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.rules import broken_rules
from autotune.kernel.scaled_config import ON_TENSOR_CORES, HalvesConfig, ScaledConfig
from autotune.kernel.tensor_config import BF16X6, SCHEMES, TensorConfig
from autotune.kernel.where import Where
from autotune.search import Options
from autotune.search import tune as search
from autotune.shipped.starting_points import on_tensor_cores
from autotune.store import Store
from autotune.target import point_key

H100 = KNOWN["h100"]
SQUARE = Gemm(4096, 4096, 4096)


def _all_points(space):
    return [space.point(number) for number in range(len(space))]


KERNELS = (  # their classes, configs, GPUs, and points that there are at least
    (FP32, TensorConfig, "h100", 500),
    (FP32, MmaConfig, "a100", 500),
    (FP32, MmaConfig, "rtx-3090", 400),
    (FP32_RANGE, ScaledConfig, "h100", 100),
    (FP32_RANGE, HalvesConfig, "quadro-rtx-5000", 30),
    (FP32_RANGE, HalvesConfig, "a100", 30),
)
OF_ALL = pytest.mark.parametrize(("accuracy", "its", "gpu", "least"), KERNELS)


@pytest.mark.every(5)
@OF_ALL
@pytest.mark.parametrize("shape", ["4096", "4097", "4096x4098x4100:TT", "512x600x2048b8:NT"])
def test_the_space_holds_exactly_what_the_rules_allow(shape, accuracy, its, gpu, least):
    gemm, limits = Gemm.parse(shape), KNOWN[gpu]
    space = tensor_set(limits, gemm, its)
    points = _all_points(space)
    assert len({point_key(point) for point in points}) == len(points) == space.num_points > least
    assert space.on_tensor_cores is its
    assert templates.searched_for(accuracy, limits) is its
    kinds = ("template", "device", "shape", "worth")

    def is_legal(point):
        return not broken_rules(templates.read(point), limits, gemm, kinds)

    assert all(map(is_legal, points[::7]))
    rng = np.random.default_rng(0)
    for _ in range(300):
        drawn = {name: one.values[rng.integers(len(one.values))] for name, one in its.parameters.items()}
        assert (space.find(drawn) is not None) == is_legal(drawn), drawn


@pytest.mark.parametrize("its", ON_TENSOR_CORES)
def test_each_rule_of_the_text_has_its_sentence_here(its):
    asserted = re.findall(r'"rule ([a-z-]+)"', template.source(its.main_file))
    ids = {rule.id for rule in its.rules}
    own = {one for one in asserted if one.startswith(("tensor-", "mma-", "scaled-", "halves-"))}
    assert own <= ids | {"tensor-width", "scaled-width", "scaled-promote"}
    assert len(ids) == len(its.rules)


@pytest.mark.parametrize(("kind", "accuracy"), [("rtx-2080-ti", FP32), ("quadro-rtx-5000", FP32)])
def test_other_gpus_have_no_such_kernel_and_say_why(kind, accuracy):
    limits = KNOWN[kind]
    assert not len(tensor_set(limits, SQUARE, templates.searched_for(accuracy, limits)))
    with pytest.raises(
        UsageError, match=f"runs no kernel of accuracy {accuracy} but strict ones: tensor cores"
    ):
        templates.need_search_space(accuracy, limits)
    templates.need_search_space(STRICT, limits)


@pytest.mark.parametrize("kind", ["a100", "rtx-3090", "rtx-4090", "b200", "rtx-5090"])
def test_gpus_without_warpgroups_search_the_kernel_without_them(kind):
    limits = KNOWN[kind]
    templates.need_search_space(FP32, limits)
    assert templates.searched_for(FP32, limits) is MmaConfig
    with pytest.raises(UsageError, match="no kernel that reads an A of bf16"):
        templates.need_search_space(FP32, limits, "bf16")
    source = templates.source_of(FP32, limits=limits)
    assert source != templates.source_of(FP32) and templates.is_current(source)
    assert templates.accuracy_of(source) == FP32
    assert templates.tflops(FP32, limits) >= limits.fma_tflops
    kinds = ("template", "device", "shape", "worth")
    for shape in ("4096", "4097:NT", "512x512x4096", "100x4099x300"):
        gemm = Gemm.parse(shape)
        starts = on_tensor_cores(gemm, FP32, limits)
        assert starts
        assert all(
            not broken_rules(config, limits, gemm, kinds) for config in starts if config.bm < 2 * gemm.m
        )


@pytest.mark.parametrize("kind", ["quadro-rtx-5000", "rtx-2080-ti", "a100", "rtx-4090"])
def test_gpus_without_warpgroups_search_scaled_operands_without_them(kind):
    limits = KNOWN[kind]
    templates.need_search_space(FP32_RANGE, limits)
    assert templates.searched_for(FP32_RANGE, limits) is HalvesConfig
    with pytest.raises(UsageError, match="no kernel that reads an A of bf16"):
        templates.need_search_space(FP32_RANGE, limits, "bf16")
    source = templates.source_of(FP32_RANGE, limits=limits)
    assert source != templates.source_of(FP32_RANGE) and templates.is_current(source)
    assert templates.accuracy_of(source) == FP32_RANGE
    assert templates.tflops(FP32_RANGE, limits) > limits.fma_tflops
    for shape in ("4096", "4097:NT", "512x512x4096"):
        gemm = Gemm.parse(shape)
        space = tensor_set(limits, gemm, HalvesConfig)
        starts = on_tensor_cores(gemm, FP32_RANGE, limits)
        assert starts and all(space.find(config.to_dict()) is not None for config in starts)


def test_parameters_tell_the_template():
    for one in (HalvesConfig(), HalvesConfig(bm=64, depth=32)):
        assert templates.read(one.to_dict()) == one == templates.parse(one.key)
    assert templates.read({"wm": 32, "depth": 32}) == HalvesConfig(wm=32, depth=32)
    for config in (MmaConfig(), MmaConfig(scheme="bf16x6", bk=32)):
        assert templates.read(config.to_dict()) == config == templates.parse(config.key)
    assert templates.read({"wm": 32, "promote_k": 32}) == MmaConfig(wm=32, promote_k=32)
    assert templates.read({"scheme": "bf16x6"}) == TensorConfig(scheme="bf16x6")
    assert templates.read({"bm": 64, "wm": 32}) == Config(bm=64, wm=32)


def test_few_results_are_no_evidence():
    assert not len(tensor_set(H100, Gemm(32, 32, 4096)))


def test_points_name_their_template():
    config = TensorConfig(bn=64, loaders=1)
    assert templates.read(config.to_dict()) == config == templates.parse(config.key)
    assert point_key(config.to_dict()) == config.key
    assert templates.read(Config().to_dict()) == Config() == templates.parse(Config().key)
    assert config.accuracy == FP32
    with pytest.raises(UsageError, match="unknown parameter 'ahead'"):
        Config.from_dict(config.to_dict())
    with pytest.raises(UsageError, match="expected columns of C per block"):
        templates.read(config.to_dict() | {"bn": 96})


def test_studies_of_a_class_are_apart():
    source = templates.source_of(FP32)
    assert templates.accuracy_of(source) == FP32
    assert templates.source_of(STRICT) == template.source_hash()
    assert templates.accuracy_of(template.source_hash()) == STRICT
    assert templates.accuracy_of("kernel_tuner:gemm:fast") == STRICT
    assert templates.is_current(source)
    assert templates.is_current(template.source_hash())
    assert not templates.is_current("0" * 64 + ":fp32")


def test_the_starts_are_legal_and_the_fastest_comes_first():
    kinds = ("template", "device", "shape", "worth")
    for shape in ("4096", "4097", "4096x4096x4096:TT", "512x512x4096", "100x4099x300"):
        gemm = Gemm.parse(shape)
        starts = [c for c in on_tensor_cores(gemm) if not (c.flush_k and gemm.k < 2 * c.flush_k)]
        assert all(not broken_rules(config, H100, gemm, kinds) for config in starts)
    assert on_tensor_cores(SQUARE)[0] == TensorConfig(flush_k=0)
    assert on_tensor_cores(Gemm(4097, 4097, 4097))[0] == TensorConfig(flush_k=0, pack_a=1, pack_b=1, vec_c=1)
    split = on_tensor_cores(Gemm(512, 512, 4096))[0]
    assert (split.reduction, split.split_k) == ("two_pass", 8)


@pytest.mark.parametrize("shape", ["4097", "512x513x4096:NT", "600x70x3000b5"])
def test_workspaces_are_as_launches_take_them(shape):
    gemm = Gemm.parse(shape)
    for changes in ({}, {"pack_a": 1}, {"pack_b": 1, "bn": 64}, {"reduction": "two_pass", "split_k": 6}):
        for config in (TensorConfig(**changes), MmaConfig(**changes)):
            spec = resources.launch_spec(config, gemm, H100)
            grid = plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
            assert resources.workspace_bytes(config, gemm, H100) == grid.workspace_bytes


def _target(space, source, **options):
    target = FakeTarget(space, time_us=_us, **options)
    target.source_hash, target.environment = source, replace(target.environment, gpu_name="NVIDIA H200")
    return target


def _us(point) -> float:
    numbers = [value for value in point.values() if isinstance(value, int)]
    return 100.0 + sum(numbers) % 37 + 1e-3 * len(str(point))


def _is_refused(point) -> Outcome:
    return Outcome.INACCURATE if point["promote_k"] == 64 else Outcome.OK


def test_a_search_for_a_class_leaves_strict_studies_alone(tmp_path):
    strict = _target(feasible_set(H100, SQUARE), template.source_hash())
    wider = _target(tensor_set(H100, SQUARE), templates.source_of(FP32), outcome=_is_refused)
    with Store.open(tmp_path / "both.db") as store:
        search(strict, store, [SQUARE], Options(trials=12))
        alone = [point_key(point) for _, point in strict.submitted]
        search(wider, store, [SQUARE], Options(trials=30, starts=on_tensor_cores))
        environment = strict.environment
        for accuracy, kind in ((STRICT, Config), (FP32, TensorConfig)):
            (study,) = store.latest_studies(environment, CachePolicy.COLD, accuracy=accuracy)
            assert templates.accuracy_of(study.source_hash) == accuracy
            assert all(isinstance(templates.read(t.point), kind) for t in store.trials(study))
        winner = templates.read(store.final(study).winner.point)
        assert isinstance(winner, TensorConfig) and winner.promote_k != 64
        first = [templates.read(point) for _, point in wider.submitted[:3]]
        assert first[0] in on_tensor_cores(SQUARE)
        again = _target(feasible_set(H100, SQUARE), template.source_hash())
        search(again, store, [SQUARE], Options(trials=14))
        keys = [point_key(point) for _, point in again.submitted]
        assert len(keys) == 2 and not set(keys) & set(alone)
    with Store.open(tmp_path / "one.db") as store:
        other = _target(feasible_set(H100, SQUARE), template.source_hash())
        search(other, store, [SQUARE], Options(trials=12))
        assert [point_key(point) for _, point in other.submitted] == alone  # the same trials for a seed


def test_a_quadro_rtx_searches_scaled_operands(tmp_path):
    limits = KNOWN["quadro-rtx-5000"]
    source = templates.source_of(FP32_RANGE, limits=limits)
    target = _target(tensor_set(limits, SQUARE, HalvesConfig), source)
    target.limits = limits
    starts = partial(on_tensor_cores, accuracy=FP32_RANGE, limits=limits)
    with Store.open(tmp_path / "a.db") as store:
        search(target, store, [SQUARE], Options(trials=20, starts=starts))
        (study,) = store.latest_studies(target.environment, CachePolicy.COLD, accuracy=FP32_RANGE)
        assert study.source_hash == source
        assert all(isinstance(templates.read(t.point), HalvesConfig) for t in store.trials(study))
        assert templates.read(store.final(study).winner.point).depth in (16, 32)


def test_a_way_of_summing_that_broke_the_promise_is_not_tried_again(tmp_path):
    """On a shape where cuBLAS splits k, 91 of 92 ways of summing parts of TF32 broke it; an H200 tried 2,467
    of their configs among 3,029."""
    deep = Gemm(512, 512, 4096)

    def outcome(point):
        is_short = point["scheme"] == BF16X6 or (point["promote_k"], point["flush_k"]) == (16, 256)
        return Outcome.OK if is_short and point["split_k"] == 4 else Outcome.INACCURATE

    target = _target(tensor_set(H100, deep), templates.source_of(FP32), outcome=outcome)
    with Store.open(tmp_path / "a.db") as store:
        search(target, store, [deep], Options(trials=240, starts=on_tensor_cores))
        (summary,) = store.studies()
        stored = store.trials(summary.study)  # none is left out as damaged
        assert {templates.parse(trial.key).scheme for trial in stored} == set(SCHEMES)
    ways = Counter(tuple(point[name] for name in TensorConfig.summed) for _, point in target.submitted)
    kept = [way for way in ways if way[4] == 4 and (way[5] == BF16X6 or way[:2] == (16, 256))]
    assert sum(map(ways.pop, kept)) > 20 > 2 == max(ways.values())


def test_a_shape_on_which_all_ways_break_the_promise_is_soon_given_up(tmp_path):
    """As 3152x768x768:NT on an H200, of which a search tried 1,008 configs in vain."""
    deep = Gemm(512, 512, 4096)
    space = tensor_set(H100, deep).where(Where.parse("promote_k=16,flush_k=0,bn=64"), deep)
    target = _target(space, templates.source_of(FP32), outcome=lambda _: Outcome.INACCURATE)
    with Store.open(tmp_path / "a.db") as store:
        search(target, store, [deep], Options(trials=400))
    assert len(target.submitted) < 40 < space.num_points


def test_conditions_are_on_the_parameters_of_the_template():
    space = tensor_set(H100, SQUARE)
    some = space.where(Where.parse("bn=64,promote_k>=32"), SQUARE)
    assert {(p["bn"], p["promote_k"]) for p in _all_points(some)} == {(64, 32), (64, 64), (64, 128)}
    with pytest.raises(UsageError, match="no parameter 'slice_k'"):
        space.where(Where.parse("slice_k=1"), SQUARE)
    limited = Where.parse("", 0).on(SQUARE, H100)
    assert space.where(limited, SQUARE).num_points == space.num_points
    deep = Gemm(512, 512, 4096)
    none = Where.parse("", 0).on(deep, H100)
    assert {p["split_k"] for p in _all_points(tensor_set(H100, deep).where(none, deep))} == {1}
    assert limited.holds(TensorConfig().to_dict())
    assert not Where.parse("bm=64").holds(TensorConfig().to_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accuracy": "fp32-range"}, "the recording holds kernels of accuracy strict"),
        ({"accuracy": "tf32"}, "say 'strict', 'fp32' or 'fp32-range'"),
        ({"accuracy": "fp32", "order": "chain"}, "only strict kernels have that"),
        ({"accuracy": "fp32", "num_drawn": 3}, "only strict kernels have that"),
        ({"accuracy": "fp32"}, "the recording holds kernels of accuracy strict"),
    ],
)
def test_what_a_class_does_not_go_with_is_refused(tmp_path, options, words):
    recording = autotune.target_finder.recordings()[0]
    with pytest.raises(UsageError, match=words):
        autotune.tune(4096, gpu=f"replay:{recording}", db=tmp_path / "x.db", **options)
    assert not (tmp_path / "x.db").exists()


def test_a_program_s_shapes_with_several_types_of_a_are_searched_for_one():
    plain, short = Gemm(64, 64, 64), Gemm(64, 64, 64, a_type="bf16")
    other, notes = Gemm(8, 8, 8, a_type="fp16"), []
    both = (plain, short, other)
    of = tuning._of_one_type
    in_fp32 = replace(other, a_type="fp32")
    assert of(both, "fp32", STRICT, notes.append) == {plain: plain, short: plain, other: in_fp32}
    assert of(both, "bf16", FP32, notes.append) == {short: short}
    assert of(both, "fp32", FP32, notes.append) == {plain: plain}
    assert of((plain,), "bf16", FP32, notes.append) == {plain: short}
    assert of((short,), "fp32", FP32, notes.append) == {short: short}
    assert [note.partition(" with")[0] for note in notes] == ["left out: 2 shapes"] * 2
    for asked, a_type, accuracy in (((short,), "fp32", STRICT), ((plain,), "fp16", FP32_RANGE)):
        with pytest.raises(UsageError, match="kernels read FP32, to which a call converts A"):
            of(asked, a_type, accuracy, notes.append)
    with pytest.raises(UsageError, match="no shape has an A of fp16: name bf16 or fp32"):
        of((plain, short), "fp16", FP32, notes.append)
