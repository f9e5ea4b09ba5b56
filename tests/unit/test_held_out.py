"""Shapes left out: nothing that is told of them knows them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import ENVIRONMENT, LIMITS

from autotune.export import held_out as module
from autotune.export.held_out import Evaluation, figures_of, held_out, mean_ratio
from autotune.export.portfolio import TimedKernel, candidates
from autotune.export.tuned import TunedPoint, TunedShape
from autotune.facts.distribution import KINDS, drawn
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.resources import launch_spec
from autotune.perf_model.fit import Sample
from autotune.recording.matrix import CellRecord, MatrixRow, RowFacts, TimeMatrix

COLUMNS = list(islice(drawn(3, LIMITS.fma_tflops, LIMITS.bandwidth_gbs, is_mixed=True), 24))
CONFIGS = [replace(Config(), stages=stages, bk=bk) for stages in (2, 3, 4) for bk in (8, 16)]


def timed(factors: np.ndarray, deviation: float = 0.0) -> list[TimedKernel]:
    """(kernels, columns) of times the limit of the hardware."""
    made = []
    for config, row in zip(CONFIGS, factors, strict=True):
        samples = []
        for gemm, factor in zip(COLUMNS, row, strict=True):
            time_us = (2 + gemm.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)) * float(factor)
            samples.append(Sample(launch_spec(config, gemm, LIMITS), gemm, time_us, deviation))
        made.append(TimedKernel(config, tuple(samples)))
    return made


def some_factors(seed: int) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).uniform(0.1, 1.0, (len(CONFIGS), len(COLUMNS))))


def judged_at(known: list[TimedKernel], gemm: Gemm, cublas_us: dict[Gemm, float]) -> tuple[Evaluation, int]:
    """What is told of a shape, and the number of the kernel that is picked for it."""
    (found,) = [one for one in held_out(known, cublas_us, LIMITS, 3) if one.gemm == gemm]
    times = [s.time_us for kernel in known for s in kernel.samples if s.gemm == gemm]
    return found, times.index(found.picked_us)


@pytest.mark.stress
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, len(COLUMNS) - 1), st.floats(0.05, 20))
def test_no_time_of_a_shape_changes_what_is_picked_for_it(seed: int, at: int, cublas: float) -> None:
    """Neither those of kernels nor that of cuBLAS: a leak into choice, fit or margin would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_TIMES", 5)
        factors, gemm = some_factors(seed), COLUMNS[at]
        cublas_us = {
            column: 1.5 * (2 + column.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)) for column in COLUMNS
        }
        before, picked = judged_at(timed(factors), gemm, cublas_us)
        factors[:, at] = some_factors(seed + 1)[:, at]
        changed = timed(factors)
        after, picked_after = judged_at(changed, gemm, cublas_us | {gemm: cublas * cublas_us[gemm]})
        assert picked == picked_after
        assert before.is_by_cublas == after.is_by_cublas
        own = [s.time_us for kernel in changed for s in kernel.samples if s.gemm == gemm]
        assert after.best_us == min(own) <= after.chosen_us <= after.first_us <= after.picked_us
        assert after.served_us in (after.picked_us, after.cublas_us)


def test_what_only_searches_of_these_shapes_found_is_left_out() -> None:
    factors = np.full((len(CONFIGS), len(COLUMNS)), 1.5)
    factors[0] = 1.0
    known = timed(factors)
    for origins, is_chosen in (
        ((), True),
        (COLUMNS[:1], False),
        (COLUMNS, True),
    ):
        known[0] = replace(known[0], origins=frozenset(origins))
        found, _ = judged_at(known, COLUMNS[0], {})
        assert (found.chosen_us == found.best_us) == is_chosen


def test_too_few_shapes_and_times_of_other_gpus_tell_nothing() -> None:
    factors = some_factors(1)
    assert held_out(timed(factors), {}, LIMITS, 3)
    assert not held_out(timed(factors), {}, LIMITS, 0)
    assert not held_out(timed(factors, deviation=0.1), {}, LIMITS, 3)
    few = [replace(kernel, samples=kernel.samples[:9]) for kernel in timed(factors)]
    assert not held_out(few, {}, LIMITS, 3)
    assert figures_of([]) == ()


def test_figures_are_means_over_kinds_and_layouts() -> None:
    wide, narrow = Gemm(4096, 4096, 4096), Gemm(1, 4096, 4096, trans_b=True)
    evaluated = [
        Evaluation(wide, 8.0, 10.0, 12.5, 10.0, 11.0, 12.5),
        Evaluation(wide, 10.0, 10.0, 10.0, 10.0, 8.0, 8.0),
        Evaluation(narrow, 2.0, math.inf, math.inf, math.inf, None, math.inf),
    ]
    found = {one.group: one for one in figures_of(evaluated)}
    assert list(found) == [KINDS[0], KINDS[3], "NN", "NT", "all"]
    rest = found[KINDS[3]]
    assert (rest.num_shapes, found["all"].num_shapes) == (2, 3)
    assert rest.portfolio == pytest.approx(math.sqrt(0.8))
    assert rest.pick == pytest.approx(math.sqrt(0.8)) and rest.first == 1
    assert rest.cublas is not None and rest.cublas.kernels == pytest.approx(math.sqrt(0.88 * 0.8))
    assert (rest.cublas.kernels_slower, rest.cublas.served_slower, rest.cublas.by_cublas) == (1, 0.5, 0.5)
    assert rest.cublas.served == pytest.approx(math.sqrt(0.88))
    unserved = found[KINDS[0]]
    assert (unserved.portfolio, unserved.pick, unserved.cublas) == (0, 0, None)
    assert mean_ratio([(1.0, 2.0), (1.0, math.inf)]) == 0


def test_a_kernel_comes_from_the_searches_that_it_led_or_a_relative_did() -> None:
    one, other, third = COLUMNS[:3]
    leader = Config(edges="exact", bm=128, wm=64)
    relative, seed = replace(leader, edges="predicated"), Config()
    lone = replace(Config(), bk=8)
    all_times = {leader: 10.0, relative: 10.5, seed: 11.0, lone: 30.0}
    shapes = [
        TunedShape(one, (TunedPoint(leader, 10.0, True),), tuple(all_times.items()), own={leader, seed}),
        TunedShape(other, (), tuple((all_times | {leader: 20.0}).items()), own={leader, seed, lone}),
        TunedShape(third, (), tuple(all_times.items())),
    ]
    found = {kernel.config: kernel.origins for kernel in candidates("NN", shapes, (), LIMITS)}
    assert found[leader.in_any_splits] == found[relative.in_any_splits] == {one}  # elsewhere it did not lead
    assert found[seed.in_any_splits] == {one, other}
    assert found[lone.in_any_splits] == {other}  # it led nowhere: where it was tried


@pytest.mark.parametrize(
    ("own", "shipped", "origins"),
    [(set(), "", set()), (set(), "64x64x64", {Gemm(64, 64, 64)}), ({Config()}, "", set()),
     ({Config()}, "64x64x64", {COLUMNS[0], Gemm(64, 64, 64)})],
)  # fmt: skip
def test_what_ships_is_known_without_our_searches(own: set[Config], shipped: str, origins: set[Gemm]) -> None:
    """What ships and was timed here only comes from where it was found before it shipped."""
    row = MatrixRow("NN", Config().in_any_splits)
    matrix = TimeMatrix(LIMITS, ENVIRONMENT, {}, known={row: RowFacts(shipped, 64, 0)})
    matrix.cells[row, COLUMNS[1], 1] = CellRecord(5.0)
    shape = TunedShape(COLUMNS[0], (), ((Config(), 10.0),), own=own)
    (kernel,) = candidates("NN", [shape], [matrix], LIMITS)
    assert (kernel.origins, len(kernel.samples)) == (origins, 2)
