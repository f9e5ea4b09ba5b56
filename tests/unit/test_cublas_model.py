"""What cuBLAS is expected to take: learned, stored in a table, and what a pick makes of it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from fake_selector import model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import ENVIRONMENT, FIGURES, LIMITS, make_kernel, make_spec, make_table, rank, sign

from autotune.export import figures as export_figures
from autotune.export.figures import known_of_cublas, times_of_cublas
from autotune.export.package import render
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.distribution import drawn
from autotune.facts.fitted import MOST_DRAWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.config import Config
from autotune.perf_model import cublas_model
from autotune.recording.matrix import TimeMatrix
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.table import table as tables
from autotune.runtime.table.table import CublasFigures

SHAPE = Gemm(640, 384, 512)


def shapes(num: int, seed: int, layout: str = "NN") -> list[Gemm]:
    return list(islice(drawn(seed, LIMITS.fma_tflops, LIMITS.bandwidth_gbs, layouts=(layout,)), num))


def took_us(gemm: Gemm, noise: float = 0.0) -> float:
    """A library that is good at wide products and bad at deep ones."""
    bad = 1.5 + 0.1 * math.log2(gemm.k) - 0.05 * math.log2(gemm.m * gemm.n)
    drawn_noise = random.Random(str(gemm)).gauss(0, noise) if noise else 0.0
    return (2 + gemm.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)) * bad * math.exp(drawn_noise)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_times_of_shapes_left_out_are_off_by_what_is_told(noise: float) -> None:
    known, apart = shapes(400, 1), shapes(300, 2)
    model = cublas_model.learn({gemm: took_us(gemm, noise) for gemm in known}, LIMITS)
    off = [math.log(took_us(gemm, noise) / model.expected_us(gemm, LIMITS)) for gemm in apart]
    missed = float(np.sqrt(np.square(off).mean()))
    scales = cublas_model.deviation_scale(np.array([min(gemm.m, gemm.n) for gemm in apart]))
    assert float(np.sqrt(np.square(off / scales).mean())) == pytest.approx(model.deviation, rel=0.3)
    assert missed < 1.25 * noise + 0.06


@given(st.integers(0, 10**6), st.sets(st.integers(0, 29)))
def test_what_is_learned_without_some_shapes_knows_nothing_of_them(seed: int, apart: set[int]) -> None:
    known = {gemm: took_us(gemm, 0.2) for gemm in shapes(32, seed)}
    hidden = {gemm for at, gemm in enumerate(known) if at in apart}
    found = cublas_model.TimedCublas(known, LIMITS).model(hidden)
    plain = cublas_model.learn({gemm: us for gemm, us in known.items() if gemm not in hidden}, LIMITS)
    assert (found.missed.places == plain.missed.places).all()
    assert found.missed.weights == pytest.approx(plain.missed.weights, rel=1e-9, abs=1e-12)
    assert (found.level, found.deviation) == pytest.approx((plain.level, plain.deviation), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30))
def test_a_table_keeps_the_model(seed: int, num: int) -> None:
    known = {gemm: took_us(gemm) for gemm in shapes(num, seed)}
    model = cublas_model.learn(known, LIMITS)
    figures = export_figures.figures_of("13.1.0", known, model)
    table = make_table(cublas={"NN": figures})
    read = tables.parse(render(table)).cublas["NN"]
    assert read == figures
    for gemm in shapes(5, seed + 1):
        assert model_of(read).expected_us(gemm, LIMITS) == pytest.approx(
            model.expected_us(gemm, LIMITS), rel=1e-4
        )


def test_how_empty_tiles_are_counts_as_distance() -> None:
    """64 and 65 lie as far from each other as a tile's empty half says, 65 and 66 do not; the first three
    coordinates are logarithms, whatever the rest, and so is the last, of the products."""
    places = cublas_model.place([64, 65, 66, 128, 32, 1], [64] * 6, [512] * 6)
    assert places.shape == (6, 6) and not places[:, 5].any()
    assert cublas_model.place(65, 64, 512, products=8)[5] == 3
    assert places[:, 3] / cublas_model.TILE_APART == pytest.approx(
        [0, math.log2(128 / 65), math.log2(128 / 66), 0, 1, 1]
    )
    assert (places[:, 4] == 0).all() and places[0, :3].tolist() == [6, 6, 9]
    assert (cublas_model.place(65, 64, 512, 0.0)[3:] == 0).all()


def test_longer_sides_than_any_that_were_timed_have_the_factor_of_these() -> None:
    model = cublas_model.learn({gemm: took_us(gemm, 0.2) for gemm in shapes(60, 3)}, LIMITS)

    def factor(gemm: Gemm) -> float:
        return model.expected_us(gemm, LIMITS) / cublas_model.least_us(gemm, LIMITS)

    for longer in (Gemm(2**18, 256, 256), Gemm(2**17, 256, 256)):
        assert factor(longer) == pytest.approx(factor(replace(longer, m=MOST_DRAWN)), rel=1e-12)
        wide = replace(longer, m=256, n=longer.m)
        assert factor(wide) == pytest.approx(factor(replace(wide, n=MOST_DRAWN)), rel=1e-12)


def test_tiles_of_cublas_are_learned() -> None:
    """A library that computes whole tiles of 64 is foretold better by how empty these are, with as many
    shapes."""

    def tiled_us(gemm: Gemm) -> float:
        whole = Gemm(*(math.ceil(side / 64) * 64 for side in (gemm.m, gemm.n)), gemm.k)
        return 2.5 + whole.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)

    def missed_by(tile_apart: float) -> float:
        model = cublas_model.TimedCublas(times_us, LIMITS, tile_apart).model()
        off = [math.log(tiled_us(gemm) / model.expected_us(gemm, LIMITS)) for gemm in shapes(200, 4)]
        missed = float(np.sqrt(np.square(off).mean()))
        assert missed == pytest.approx(model.deviation, rel=0.4)
        return missed

    times_us = {gemm: tiled_us(gemm) for gemm in shapes(400, 3)}
    assert missed_by(cublas_model.TILE_APART) < 0.8 * missed_by(0.0)


def figures_of(factor: float, deviation: float = 0.1) -> CublasFigures:
    """Of a cuBLAS that takes so many times the limit's time everywhere."""
    return CublasFigures("13.1.0", "01000000" * 3, "00000000", math.log(factor), deviation, 3.0)


@pytest.mark.parametrize(
    "change",
    [
        {"places": "01000000" * 2}, {"places": "00000000" * 3}, {"places": "ffffffff" * 3},
        {"places": "0100000g" * 3}, {"weights": ""}, {"weights": "0000c07f"}, {"weights": "0000807f"},
        {"weights": "00000000" * 2}, {"weights": "ffff7f7f"}, {"level": 1e9}, {"deviation": -1.0},
        {"tile_apart": -1.0},
    ],
)  # fmt: skip
def test_damaged_figures_are_refused(change: dict[str, object]) -> None:
    text = render(make_table(cublas={"NN": figures_of(2.0)}))
    assert tables.parse(text).cublas
    tree = json.loads(text)
    tree["cublas"]["NN"] |= change
    with pytest.raises(DispatchError, match="damaged"):
        tables.parse(sign(tree))
    tree["cublas"] = {"XX": tree["cublas"]["NN"]}
    with pytest.raises(DispatchError, match="damaged"):
        tables.parse(sign(tree))


# ------------------------------------------------------------------------------------------------
# Picks


def picked(factor: float, loaded: Callable[[], str | None] | None = None, **changes: object) -> Pick:
    kernel = make_kernel("ours", make_spec(), replace(FIGURES, num_samples=9, relative_error=0.1))
    table = make_table(kernel, **{"cublas": {"NN": figures_of(factor)}} | changes)
    return Chooser(table, loaded).pick(Call.packed(SHAPE))


def margin(other_version: float = 0.0) -> float:
    """For `SHAPE`, where both errors are 0.1."""
    deviation = 0.1 * (min(SHAPE.m, SHAPE.n) / cublas_model.DEVIATION_SIDE) ** -cublas_model.DEVIATION_POWER
    return cublas_model.MARGIN * math.hypot(deviation, 0.1, other_version)


def test_cublas_serves_unless_a_kernel_is_surely_faster() -> None:
    without = picked(1.0, cublas={})
    assert (without.provider, without.cublas_us) == ("autotune", None)
    assert without.expected_us is not None
    unit_us = picked(1.0).cublas_us
    least = margin()
    for times, provider_name in ((0.5, "cublas"), (1.0, "cublas"), (math.exp(least) + 0.01, "autotune")):
        pick = picked(times * without.expected_us / unit_us)
        assert pick.provider == provider_name
        assert pick.cublas_us == pytest.approx(times * without.expected_us)
        assert (pick.kernel_id, pick.split_k) == (without.kernel_id, without.split_k)
        assert ("cuBLAS" in pick.reason) == (provider_name == "cublas")


def test_a_table_that_knows_no_cublas_does_not_ask_which_is_loaded() -> None:
    def fail() -> str:
        raise AssertionError("asked for nothing")

    assert picked(1.0, fail, cublas={}).provider == "autotune"


@pytest.mark.parametrize("loaded", [None, "13.1.0", "12.9.1"])
def test_another_version_than_the_one_that_was_timed_is_less_sure(loaded: str | None) -> None:
    """It takes more for a kernel to serve, and the reason says why."""
    unit = picked(1.0)
    assert unit.cublas_us is not None and unit.expected_us is not None
    plain, wide = margin(), margin(cublas_model.OTHER_VERSION)
    is_other = loaded == "12.9.1"
    for least, is_kernel in ((plain - 0.01, False), ((plain + wide) / 2, not is_other), (wide + 0.01, True)):
        pick = picked(math.exp(least) * unit.expected_us / unit.cublas_us, lambda: loaded)
        assert (pick.provider == "autotune") == is_kernel
        assert ("cuBLAS 13.1.0 was timed, and 12.9.1 is loaded" in pick.reason) == (
            is_other and not is_kernel
        )


def test_other_layouts_know_nothing() -> None:
    table = make_table(cublas={"NN": figures_of(1e-3)})
    pick = Chooser(table).pick(Call.packed(replace(SHAPE, trans_b=True)))
    assert (pick.provider, pick.cublas_us) == ("autotune", None)


def test_where_the_shape_was_tuned_the_same_rounds_decide() -> None:
    entry = rank(SHAPE, "ours")
    for cublas_us, provider_name in ((12.0, "autotune"), (9.9, "cublas"), (None, "autotune")):
        pick = picked(1e-3, entries=(replace(entry, cublas_us=cublas_us),))
        assert (pick.how, pick.provider, pick.cublas_us) == ("exact", provider_name, cublas_us)


def test_a_call_that_is_laid_out_otherwise_is_modelled() -> None:
    kernel = make_kernel("ours", make_spec(vec_a=1, vec_b=1, vec_c=1))
    selector = Chooser(make_table(kernel, entries=(rank(SHAPE, "ours"),)))
    packed = Call.packed(SHAPE)
    assert selector.pick(packed).how == "exact"
    assert selector.pick(packed._replace(addresses=(256, 32, 16))).how == "exact"
    m, n, k = packed.lds
    for other in (packed._replace(lds=(m, n, k + 4)), packed._replace(addresses=(0, 4, 0))):
        pick = selector.pick(other)
        assert pick.how == "modelled" and "packed and aligned" in pick.reason


def test_the_first_of_the_ranked_are_kernels() -> None:
    kernels = [make_kernel(f"k{bm}", make_spec(bm=bm), replace(FIGURES, num_samples=9)) for bm in (32, 64)]
    selector = Chooser(make_table(*kernels, cublas={"NN": figures_of(1e-3)}))
    assert selector.pick(Call.packed(SHAPE)).provider == "cublas"
    ranked = selector.ranked(Call.packed(SHAPE), 4)
    assert {pick.provider for pick in ranked} == {"autotune"}
    assert not any("cuBLAS" in pick.reason for pick in ranked)
    assert ranked[0].kernel_id == selector.pick(Call.packed(SHAPE)).kernel_id


# ------------------------------------------------------------------------------------------------
# What an export knows


def results_of(**changes: object) -> TunedResults:
    shape = TunedShape(SHAPE, (TunedPoint(Config(), 10.0, True),), (), 12.0)
    known = TunedResults(ENVIRONMENT, LIMITS, "5" * 64, "cold", 1, (shape,))
    return replace(known, **changes)


def matrix_of(gpu: str, policy: str, times_us: dict[Gemm, float]) -> TimeMatrix:
    environment = replace(ENVIRONMENT, cublas_version="12.0")
    return TimeMatrix(replace(LIMITS, name=gpu), environment, {"policy": policy}, dict(times_us))


def test_own_times_go_before_those_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_figures, "LEAST_TIMES", 20)
    own = dict.fromkeys(shapes(20, 3), 1.0) | dict.fromkeys(shapes(10, 3, "NT"), 1.0)
    shipped = {gemm: 1.0 for layout in LAYOUTS for gemm in shapes(25, 4, layout)}
    matrices = [matrix_of("another GPU", "cold", shipped), matrix_of(LIMITS.name, "cold", shipped)]
    found = known_of_cublas(times_of_cublas(results_of(cublas_us=own), matrices), LIMITS)
    versions = {layout: figures.version for layout, figures in found.items()}
    assert versions == {"NN": ENVIRONMENT.cublas_version, "NT": "12.0", "TN": "12.0", "TT": "12.0"}
    assert len(found["NN"].weights) == 8 * 21  # those of tuned shapes, too
    assert times_of_cublas(results_of(), [matrix_of(LIMITS.name, "warm", shipped), matrices[0]]) == {}
