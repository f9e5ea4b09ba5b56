"""The pick is legal, exact where tuned, and always there; the time model finds what made its samples."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import combinations

import pytest
from fake_selector import ALIKE
from hypothesis import given
from hypothesis import strategies as st
from table_cases import FIGURES, LIMITS, depth, depths, expected_us, make_kernel, make_spec, make_table, rank

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.launch import MAX_GRID_X, LaunchSpec, Variant, plan
from autotune.perf_model.fit import Sample, fit, fma_step_us, guess, learn
from autotune.perf_model.model_figures import ModelFigures, excess_depth
from autotune.perf_model.sum_depths import allowed_depths
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.table.table import Table

VECTORS = st.sampled_from((1, 2, 4))
SPLITS = st.sampled_from([("none", 1), ("two_pass", 2), ("last_block", 8), ("cluster", 4)])
EXTENTS = st.one_of(
    st.integers(1, 300), st.integers(1, 80).map(lambda x: 64 * x), st.integers(1, 2**31 - 256)
)


@st.composite
def specs(draw: st.DrawFn) -> LaunchSpec:
    reduction, split_k = draw(SPLITS)
    return make_spec(
        draw(st.sampled_from(("NN", "NT", "TN", "TT"))),
        bm=draw(st.sampled_from((1, 32, 64, 128))),
        bn=draw(st.sampled_from((4, 32, 64, 256))),
        vec_a=draw(VECTORS), vec_b=draw(VECTORS), vec_c=draw(VECTORS),
        is_exact=draw(st.booleans()), reduction=reduction, split_k=split_k,
    )  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> Call:
    gemm = Gemm(draw(EXTENTS), draw(EXTENTS), draw(EXTENTS), draw(st.booleans()), draw(st.booleans()))
    lds = tuple(x + draw(st.sampled_from((0, 0, 1, 2, 4, 2**29))) for x in Call.packed(gemm).lds)
    addresses = tuple(4 * draw(st.sampled_from((0, 0, 1, 2, 3))) for _ in range(3))
    return Call(gemm, lds, addresses)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Table, Call]:
    call = draw(calls())
    is_modelled = draw(st.booleans())
    kernels = [
        make_kernel(f"k{i}", spec, FIGURES if is_modelled else None)
        for i, spec in enumerate(draw(st.lists(specs(), max_size=5)))
    ]
    same = [k.id for k in kernels if k.layout == call.gemm.layout]
    near = replace(call.gemm, m=draw(st.integers(1, 500)))
    gemms = {call.gemm, near} if draw(st.booleans()) else {near}
    entries = tuple(rank(g, *same) for g in sorted(gemms) if same)
    table = make_table(*kernels, entries=entries)
    if not is_modelled:
        table = replace(table, kernels=tuple(replace(k, model=None) for k in table.kernels))
    return table, call


@given(cases())
def test_the_pick_is_legal_and_says_how_it_was_found(case: tuple[Table, Call]) -> None:
    table, call = case
    selector = Chooser(table)
    if call.rejection(selector.kernels[table.defaults[call.gemm.layout]]) is not None:
        m, n, k = call.gemm.m, call.gemm.n, call.gemm.k
        assert plan(make_spec(), m, n, k).tiles > MAX_GRID_X  # nothing else stops it
        return
    pick = selector.pick(call)
    assert call.rejection(selector.kernels[pick.kernel_id], pick.split_k) is None
    assert pick.reason and repr(pick.reason) in repr(pick)
    copied = pickle.loads(pickle.dumps(pick))
    assert copied == pick and copied.reason == pick.reason
    tuned = {e.gemm: [r.kernel for r in e.ranked] for e in table.entries}.get(call.gemm, [])
    legal = [name for name in tuned if call.rejection(selector.kernels[name]) is None]
    if legal and call.is_as_tuned:
        assert (pick.how, pick.kernel_id, pick.entry) == ("exact", legal[0], call.gemm)
    else:
        assert pick.how != "exact"
    if pick.how == "modelled":
        default = selector.kernels[table.defaults[call.gemm.layout]]
        default_us = expected_us(default, call.gemm, table.limits)
        assert pick.expected_us is not None
        chosen = replace(selector.kernels[pick.kernel_id].config, split_k=pick.split_k)
        mine, of_default = (depth(config, call.gemm) for config in (chosen, default.config))
        assert pick.expected_us <= default_us or mine < of_default  # slower only to be more accurate
    if pick.how == "default":
        assert pick.kernel_id == table.defaults[call.gemm.layout]


@given(cases(), st.integers(1, 6))
def test_what_is_ranked_is_legal_distinct_and_begins_with_the_pick(
    case: tuple[Table, Call], num: int
) -> None:
    table, call = case
    selector = Chooser(table)
    if call.rejection(selector.kernels[table.defaults[call.gemm.layout]]) is not None:
        return
    ranked, pick = selector.ranked(call, num), selector.pick(call)
    # of kernels only: on a tuned shape the pick says what cuBLAS took, too
    assert ranked[0] == replace(pick, provider=ranked[0].provider, cublas_us=None)
    assert {one.provider for one in ranked} == {"autotune"}
    assert 1 <= len(ranked) <= num
    for one, other in combinations(ranked, 2):
        fewer, more = sorted((one.split_k, other.split_k))
        assert one.kernel_id != other.kernel_id or more >= ALIKE * fewer
    assert len(ranked) == 1 or {pick.how for pick in ranked} == {"modelled"}
    allowed = allowed_depths(call.gemm, table.limits.num_sms)
    launched = [replace(selector.kernels[p.kernel_id].config, split_k=p.split_k) for p in ranked]
    excess = [excess_depth(depths(config, call.gemm), allowed) for config in launched]
    near = [e for e in table.entries if e.gemm.layout == call.gemm.layout]
    for pick, next_level in zip(ranked[1:], excess[1:], strict=True):
        assert call.rejection(selector.kernels[pick.kernel_id], pick.split_k) is None
        assert near or next_level <= excess[0] * (1 + 1e-9)  # near ones may allow more


def test_on_a_tuned_shape_its_kernel_alone_is_ranked_and_cublas_is_told_by_the_pick() -> None:
    gemm = Gemm(64, 64, 64)
    selector = Chooser(make_table(entries=(rank(gemm, "default-nn"),)))
    (only,), pick = selector.ranked(Call.packed(gemm), 4), selector.pick(Call.packed(gemm))
    assert (only.kernel_id, only.how, only.cublas_us) == (pick.kernel_id, "exact", None)
    assert pick.cublas_us is not None


def test_nothing_less_accurate_is_ranked_behind_the_pick() -> None:
    """Whatever is fast: only times are compared when a call is settled."""
    shallow = make_kernel("shallow", make_spec(reduction="two_pass", split_k=16))
    deep = [
        make_kernel(f"deep{i}", make_spec(group=2 << i), replace(FIGURES, step_us=1e-3)) for i in range(3)
    ]
    selector = Chooser(make_table(shallow, *deep))
    call = Call.packed(Gemm(64, 64, 1 << 20))
    assert selector.pick(call).kernel_id == "shallow"
    assert {pick.kernel_id for pick in selector.ranked(call, 8)} == {"shallow"}


def test_without_models_the_nearest_tuned_shape_serves() -> None:
    near, far = make_kernel("near", make_spec(), None), make_kernel("far", make_spec(), None)
    table = make_table(near, far, entries=(rank(Gemm(1000, 1000, 1000), "near"), rank(Gemm(8, 8, 8), "far")))
    table = replace(table, kernels=tuple(replace(k, model=None) for k in table.kernels))
    pick = Chooser(table).pick(Call.packed(Gemm(900, 900, 900)))
    assert (pick.kernel_id, pick.how, pick.entry) == ("near", "nearest", Gemm(1000, 1000, 1000))


def test_the_model_serves_what_is_laid_out_otherwise_than_was_tuned() -> None:
    wide = make_kernel("wide", make_spec(vec_a=4))
    any_ = make_kernel("any", make_spec())
    table = make_table(wide, any_, entries=(rank(Gemm(64, 64, 64), "wide", "any"),))
    call = Call(Gemm(64, 64, 64), (64, 64, 64), (4, 0, 0))
    pick = Chooser(table).pick(call)
    assert (pick.kernel_id, pick.how) == ("any", "modelled")
    assert "64x64x64:NN was tuned, but packed and aligned" in pick.reason


def test_no_split_stays_without_work_and_no_workspace_is_boundless() -> None:
    split = make_kernel("split", make_spec(reduction="two_pass", split_k=8), replace(FIGURES, fixed_us=0.0))
    selector = Chooser(make_table(split))
    assert selector.pick(Call.packed(Gemm(64, 64, 16))).kernel_id == "default-nn"
    assert selector.pick(Call.packed(Gemm(64, 64, 4096))).kernel_id == "split"
    assert selector.pick(Call.packed(Gemm(30000, 30000, 4096))).kernel_id == "default-nn"


def test_what_no_grid_holds_is_refused() -> None:
    tiny = make_spec(bm=1, bn=4)
    table = make_table()
    small = [replace(k, spec=replace(tiny, variant=k.spec.variant)) for k in table.kernels]
    with pytest.raises(DispatchError, match="more tiles than a grid holds"):
        Chooser(replace(table, kernels=tuple(small))).pick(Call.packed(Gemm(2**30, 2**30, 1)))


def test_a_last_round_costs_less_than_a_full_one_but_not_nothing() -> None:
    kernel = make_kernel("k", make_spec())
    times = []
    for tiles in (4 * 132, 4 * 132 + 1, 8 * 132):  # four blocks fit an SM at a time
        times.append(expected_us(kernel, Gemm(64 * tiles, 64, 4096), LIMITS))
    full, overhead, double = times
    assert full < overhead < double


@given(
    st.floats(1.5, 5), st.floats(0.05, 0.5), st.floats(1.1, 2.0),
    st.lists(st.builds(Gemm, *[st.integers(500, 5000)] * 3), min_size=10, max_size=20, unique=True),
)  # fmt: skip
def test_the_fit_predicts_what_the_model_made(
    fixed: float, round_us: float, step_overhead: float, gemms: list[Gemm]
) -> None:
    spec = make_spec(smem_bytes=0)  # nothing is read ahead
    truth = replace(
        guess(spec, LIMITS),
        fixed_us=fixed,
        round_us=round_us,
        step_us=step_overhead * fma_step_us(spec, LIMITS),
    )
    kernel = make_kernel("k", spec, truth)
    samples = [Sample(spec, g, expected_us(kernel, g, LIMITS)) for g in gemms]
    (found,) = fit([samples], [kernel.blocks_per_sm], LIMITS)
    assert found.num_samples == len(samples)
    assert found.relative_error < 0.03
    for sample in samples:
        again = expected_us(replace(kernel, model=found), sample.gemm, LIMITS)
        assert again == pytest.approx(sample.time_us, rel=0.15)


def test_one_outlier_does_not_move_the_fit() -> None:
    spec = make_spec()
    kernel = make_kernel("k", spec, replace(guess(spec, LIMITS), step_us=1.5 * fma_step_us(spec, LIMITS)))
    gemms = [Gemm(s, s, s) for s in range(600, 4200, 300)]
    samples = [Sample(spec, g, expected_us(kernel, g, LIMITS)) for g in gemms]
    samples[5] = replace(samples[5], time_us=10 * samples[5].time_us)
    found = replace(kernel, model=fit([samples], [kernel.blocks_per_sm], LIMITS)[0])
    assert expected_us(found, gemms[8], LIMITS) == pytest.approx(samples[8].time_us, rel=0.05)


def test_times_that_others_beat_by_far_hardly_move_a_fit() -> None:
    """A kernel is told by shapes that it may be chosen for: half of the times of one kernel are wrong, all of
    shapes where another is ten times as fast."""
    spec = make_spec()
    truth = replace(guess(spec, LIMITS), step_us=1.5 * fma_step_us(spec, LIMITS))
    kernel = make_kernel("k", spec, truth)
    gemms = [Gemm(s, s, s) for s in range(600, 4200, 300)]
    samples = [Sample(spec, g, expected_us(kernel, g, LIMITS)) for g in gemms]
    beaten = [replace(s, time_us=1.3 * s.time_us) if at % 2 else s for at, s in enumerate(samples)]
    faster = [Sample(spec, s.gemm, s.time_us / 10) for s in beaten[1::2]]
    figures, _, _ = learn([beaten, faster], [kernel.blocks_per_sm] * 2, LIMITS)
    alone, _, _ = learn([beaten], [kernel.blocks_per_sm], LIMITS)

    def missed_by(model: ModelFigures) -> float:
        found = replace(kernel, model=model)
        return abs(math.log(expected_us(found, gemms[8], LIMITS) / samples[8].time_us))

    assert missed_by(figures[0]) < 0.6 * missed_by(alone[0])


@given(specs(), st.lists(st.tuples(EXTENTS, EXTENTS, EXTENTS, st.floats(0.1, 1e6)), min_size=1, max_size=6))
def test_no_sample_makes_an_impossible_figure(
    spec: LaunchSpec, rows: list[tuple[int, int, int, float]]
) -> None:
    trans_a, trans_b = spec.variant.trans_a, spec.variant.trans_b
    samples = [Sample(spec, Gemm(m, n, k, trans_a, trans_b), t) for m, n, k, t in rows]
    (found,) = fit([samples], [4], LIMITS)
    assert found.fixed_us >= 1.5 and found.round_us >= 0
    assert found.step_us >= fma_step_us(spec, LIMITS)
    assert 0 < found.memory_efficiency <= 1


def test_memory_bound_samples_tell_of_memory() -> None:
    spec, gemm = make_spec(bn=64, bk=32), Gemm(65536, 64, 64)  # no row is cut into pieces that are short
    least = gemm.num_bytes / (LIMITS.bandwidth_gbs * 1e3)
    (found,) = fit([[Sample(spec, gemm, least / 0.9)]], [4], LIMITS)
    assert found.memory_efficiency == pytest.approx(0.9)


def test_a_call_counts_packed_rows_of_at_least_one() -> None:
    assert Call.packed(Gemm(3, 4, 0)).lds == (1, 4, 4)
    assert Call.packed(Gemm(3, 4, 5, True, True)).lds == (3, 5, 4)
    assert not Call(Gemm(3, 4, 5), (6, 4, 4)).is_packed
    assert Variant(True, False) == make_kernel("k", make_spec("TN")).spec.variant
