"""A table of one tuned shape serves all others with kernels that were timed elsewhere, and says so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from unittest.mock import patch

import known_tiles
import numpy as np
import pytest
from exports import CARRIED
from hypothesis import given
from hypothesis import strategies as st
from table_cases import ENVIRONMENT, expected_us
from test_export import SQUARE, FakeCompiler, matrices

from autotune.export import portfolio
from autotune.export.exporter import export_table
from autotune.export.manifest import check_files
from autotune.export.package import packed
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.export.wishes import Wish, within
from autotune.facts import distribution
from autotune.facts.device import KNOWN, DeviceLimits, known_limits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel.compiler import Cubin
from autotune.kernel.config import Config
from autotune.kernel.launch import plan
from autotune.kernel.relatives import example, fitted, relatives
from autotune.kernel.resources import blocks_per_sm, launch_spec
from autotune.kernel.rules import broken_rules
from autotune.perf_model.fit import guess
from autotune.perf_model.launches import Shapes
from autotune.runtime.choose.chooser import Call, Chooser, in_splits
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import KernelRecord, Table, launchable, load
from autotune.target import Point

pytestmark = CARRIED
H200 = known_limits("h200")
TILE = known_tiles.LARGE[0]
FEW = (
    0.24  # of the SMs: the best kernel measured for 256^3 on an H200 runs 64 blocks on 132, carried ones half
)
UNTUNED = ("1x4096x4096", "16x11008x4096", "4096x16x4096", "64x64x100000", "256", "35x700x2048",
           "65536x64x64", "8192", "4097")  # fmt: skip
MAX_KERNELS = 128


@cache
def table_for(gpu: str, *, is_bare: bool = False) -> Table:
    """What an export makes of 4096^3 alone; `is_bare`: with no kernel for anything else."""
    most = 0 if is_bare else MAX_KERNELS
    with TemporaryDirectory() as folder:
        return load(export_for(gpu, Path(folder) / "t", max_kernels=most))


@cache
def chooser_for(gpu: str) -> Chooser:
    """Of that table."""
    return Chooser(table_for(gpu))


def export_for(gpu: str, folder: Path, *, max_kernels: int = MAX_KERNELS, max_megabytes: float = 5.0) -> Path:
    limits = known_limits(gpu)
    winner = replace(TILE, edges="exact")
    if not limits.has_async_copy:
        winner = Config(copy_a="register", copy_b="register", stages=2, edges="exact", min_blocks=1)
    time_us = 1.2 * SQUARE.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    shape = TunedShape(SQUARE, (TunedPoint(winner, time_us, True),), ((winner, time_us),))
    environment = replace(ENVIRONMENT, compute_capability=limits.compute_capability)
    found = TunedResults(environment, limits, template.source_hash(), "cold", 1, (shape,))
    compiler = FakeCompiler(arch=limits.arch)
    most = {"max_kernels": max_kernels, "max_megabytes": max_megabytes}
    with patch(
        "autotune.export.exporter.held_out", lambda *_: []
    ):  # most of the work, and not asked for here
        return export_table(found, folder, compiler, matrices=matrices(), **most)


def in_layout(text: str, layout: str) -> Gemm:
    return Gemm.parse(f"{text}:{layout}")


# Which kernel is picked


@pytest.mark.every(120)
@pytest.mark.parametrize("gpu", ["h200", "rtx-4090", "quadro-rtx-5000"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", UNTUNED)
def test_tiles_fit_the_shape_and_blocks_fill_the_gpu(gpu: str, layout: str, text: str) -> None:
    selector, gemm = chooser_for(gpu), in_layout(text, layout)
    call = Call.packed(gemm)
    pick = selector.pick(call)
    chosen = selector.kernels[pick.kernel_id]
    assert call.rejection(chosen, pick.split_k) is None
    grid = plan(in_splits(chosen, pick.split_k), gemm.m, gemm.n, gemm.k)
    assert grid.padded_m * grid.padded_n <= 4.2 * max(gemm.m, 8) * max(gemm.n, 8)
    num_blocks = grid.size[0] * grid.size[1]
    assert num_blocks >= FEW * known_limits(gpu).num_sms, (num_blocks, chosen.id)


@given(
    extents=st.tuples(*[st.integers(1, 20_000) | st.integers(1, 40)] * 3),
    layout=st.sampled_from(LAYOUTS),
    more=st.tuples(*[st.integers(0, 5)] * 3),
    addresses=st.tuples(*[st.sampled_from([0, 4, 8, 12])] * 3),
)
def test_every_pick_is_legal(
    extents: tuple[int, int, int], layout: str, more: tuple[int, int, int], addresses: tuple[int, int, int]
) -> None:
    gemm = Gemm(*extents, layout[0] == "T", layout[1] == "T")
    lds = (gemm.lda + more[0], gemm.ldb + more[1], gemm.ldc + more[2])
    selector, call = chooser_for("h200"), Call(gemm, lds, addresses)
    pick = selector.pick(call)
    chosen = selector.kernels[pick.kernel_id]
    assert call.rejection(chosen, pick.split_k) is None
    assert pick.split_k * chosen.spec.bk <= gemm.k or pick.split_k == 1


def test_the_answer_says_where_its_kernel_was_timed() -> None:
    gemm = Gemm(1, 4096, 4096)
    here, external = (chooser_for(gpu).pick(Call.packed(gemm)) for gpu in ("h200", "rtx-4090"))
    assert here.how == external.how == "modelled"
    assert "timed" not in here.reason
    assert external.reason.endswith("; it was timed on other GPUs only")
    assert (external.provider, external.cublas_us) == ("autotune", None)  # nothing is known of cuBLAS there
    bare = Chooser(table_for("h200", is_bare=True)).pick(Call.packed(gemm))
    assert "; it was never timed" in bare.reason


@pytest.mark.parametrize("layout", LAYOUTS)
def test_relatives_of_a_packed_kernel_keep_the_vectors_of_its_copies(layout: str) -> None:
    """Rows of a copy are whole vectors whatever the operand's; only what is not packed is read by ones."""
    packed = replace(TILE, pack_a=1, pack_b=0, vec_a=4, vec_b=4, vec_c=4)
    found = list(relatives(packed, layout, KNOWN["h200"]))
    assert {config.vec_b for config in found} >= {1}
    assert {(config.pack_a, config.pack_b, config.vec_a) for config in found} == {(1, 0, 4)}


def test_a_tuned_kernel_that_is_better_than_all_others_serves_its_neighbours() -> None:
    table = table_for("h200")
    selector, tuned = Chooser(table), table.entries[0].ranked[0].kernel
    assert selector.pick(Call.packed(SQUARE)).how == "exact"
    fast = replace(next(k for k in table.kernels if k.id == tuned), missed="")
    assert fast.model is not None
    fast = replace(fast, model=replace(fast.model, step_us=0.8 * fast.model.step_us))
    better = replace(table, kernels=tuple(fast if k.id == tuned else k for k in table.kernels))
    for text in ("4096x4096x4000", "5120x4096x4096", "3328x5120x4000"):
        assert Chooser(better).pick(Call.packed(Gemm.parse(text))).kernel_id == tuned


def test_defaults_remain_whatever_else_compiles() -> None:
    whole, bare = table_for("h200"), table_for("h200", is_bare=True)
    assert whole.defaults == bare.defaults and len(bare.kernels) < len(whole.kernels)
    for table in (whole, bare):
        selector = Chooser(table)
        for layout, name in table.defaults.items():
            ld = 2**29  # only a kernel with wide leading dimensions takes this
            gemm = in_layout("35x700x2048", layout)
            assert selector.pick(Call(gemm, (ld, ld, ld))).kernel_id == name


# Which kernels there are


@pytest.mark.stress
@pytest.mark.parametrize(("gpu", "layout"), [(gpu, LAYOUTS[i % 4]) for i, gpu in enumerate(KNOWN)])
def test_what_other_gpus_timed_is_legal_here_and_serves_any_alignment(gpu: str, layout: str) -> None:
    limits = KNOWN[gpu]
    found = portfolio.candidates(layout, (), matrices(), limits)
    assert len(found) >= 100
    for candidate in found:
        assert not broken_rules(candidate.config, limits, example(layout), kinds=("template", "device"))
        assert candidate.samples and all(sample.gemm.layout == layout for sample in candidate.samples)
    chosen = portfolio.portfolio(layout, found, limits, 32)
    assert len(chosen) == len(set(chosen)) == 32
    kept = [candidate for candidate in found if candidate.config in chosen]
    _, prediction = portfolio.TimedCandidates.of(layout, kept, limits).learned()
    for text in (*UNTUNED, "101x333x77"):
        assert np.isfinite(prediction.least_us(Shapes.of(in_layout(text, layout)))).any()


def test_times_of_another_gpu_are_carried_over_by_its_speed() -> None:
    """An RTX 4090 has the FMAs of an H200 and a quarter of its bandwidth."""
    gemm_large, gemm_thin = Gemm.parse("4096"), Gemm.parse("65536x8x64")
    least = {}
    for gpu in ("h200", "rtx-4090"):
        limits = known_limits(gpu)
        found = portfolio.candidates("NN", (), matrices(), limits)
        _, prediction = portfolio.TimedCandidates.of("NN", found, limits).learned()
        least[gpu] = [prediction.least_us(Shapes.of(gemm)).min() for gemm in (gemm_large, gemm_thin)]
    large, thin = (there / here for here, there in zip(least["h200"], least["rtx-4090"], strict=True))
    assert 0.6 < large < 1.3
    assert thin > 1.4


def test_of_two_times_of_a_shape_that_of_this_gpu_counts() -> None:
    (row, cells) = next((r, c) for r, c in matrices()[0].by_row().items() if len(c) > 10)
    (gemm, split_k), _ = next(iter(cells.items()))
    config = replace(row.config, split_k=split_k)
    shape = TunedShape(gemm, (TunedPoint(config, 77.0, True),))
    found = portfolio.candidates(gemm.layout, (shape,), matrices(), H200)
    here = fitted(row.config, gemm.layout, H200)
    assert here is not None
    (mine,) = (c for c in found if c.config == here.in_any_splits)
    assert [sample.time_us for sample in mine.samples if sample.gemm == gemm] == [77.0]
    assert len(mine.samples) > 5


def test_many_candidates_are_compared_by_their_launches_and_by_how_well_these_are_known() -> None:
    found = portfolio.candidates("TT", (), matrices(), H200)
    shapes = Shapes.of(in_layout("3152x768x768", "TT"))
    known = portfolio.TimedCandidates.of("TT", found, H200)
    figures, few = known.learned()
    _, many = known.learned(are_many=True)
    one, other = few.expected(shapes), many.expected(shapes)
    assert (one.kernel == other.kernel).all() and (one.split_k == other.split_k).all()
    errors = np.array([one.relative_error for one in figures])
    doubted_us = one.time_us * (1 + portfolio._DOUBT * errors[one.kernel])
    assert other.time_us == pytest.approx(doubted_us) and np.isfinite(doubted_us).any()


def test_greedy_choice_takes_specialists_and_stops_where_nothing_is_gained() -> None:
    even, odd, both = ([0.0, 0.7] * 5, [0.7, 0.0] * 5, [0.2] * 10)
    regret = np.array([even, odd, both])
    same = np.full(10, 0.1)
    assert portfolio.choose(regret, same, 1) == [2]
    assert set(portfolio.choose(np.array([even, odd]), same, 5)) == {0, 1}
    assert portfolio.choose(np.array([[0.0] * 10, odd]), same, 5) == [0]
    assert portfolio.choose(regret, np.array([0.12, 0.08] * 5), 1) == [2]
    assert portfolio.choose(regret, np.array([0.18, 0.02] * 5), 1) == [0]


def test_shapes_that_a_program_calls_for_have_half_of_the_weight() -> None:
    found = portfolio.TimedCandidates.of("NN", portfolio.candidates("NN", (), matrices(), H200), H200)
    known = next(gemm for gemm in matrices()[0].columns if gemm.layout == "NN")
    new = Gemm(123, 4567, 89)
    plain, even = portfolio.regrets(found, {})
    assert np.ptp(even) == 0 and even.sum() == pytest.approx(1)
    other_layout = {Gemm(9, 9, 9, trans_b=True): 5}
    assert (portfolio.regrets(found, other_layout)[1] == even).all()
    regret, weights = portfolio.regrets(found, {known: 30, new: 10, **other_layout})
    assert regret.shape[1] == plain.shape[1] + 1
    base = weights.min(where=weights > 0, initial=1)
    added = sorted(np.round(weights / weights.sum(), 9))[-2:]
    assert added == pytest.approx([0.125, 0.375 + base], abs=1e-6)
    assert weights.sum() == pytest.approx(1)


def test_kernels_for_batches_are_those_that_serve_batches() -> None:
    """Of another seed; most of them have deep sums or odd rows."""
    found = portfolio.candidates("TN", (), matrices(), H200)
    chosen = portfolio.portfolio("TN", found, H200, 24)
    batched = portfolio.for_batches("TN", found, set(chosen), H200)
    assert len(batched) == 12 and set(batched) < set(chosen)
    known = portfolio.TimedCandidates.of("TN", [one for one in found if one.config in chosen], H200)
    costs = portfolio.Costs(known)
    rows = [at for at, config in enumerate(costs.configs) if config in batched]
    roofline = H200.fma_tflops, H200.bandwidth_gbs
    drawn = distribution.drawn(99, *roofline, layouts=("TN",), is_mixed=True, more=distribution.products)
    losses = [cost[rows].min() / cost.min() for cost in map(costs.on_batch, islice(drawn, 40))]
    assert geometric_mean(losses) < 1.1


@pytest.mark.stress
def test_the_shape_that_was_served_worst_is_served_well_once_it_is_called_for() -> None:
    found = portfolio.candidates("NN", (), matrices(), H200)
    costs = portfolio.Costs(portfolio.TimedCandidates.of("NN", found, H200))
    at = {candidate.config: i for i, candidate in enumerate(found)}

    def losses(chosen: list[Config]) -> dict[Gemm, float]:
        rows = [at[config] for config in chosen]
        return {gemm: cost[rows].min() / cost.min() for gemm in costs.timed for cost in [costs.on(gemm)]}

    before = losses(portfolio.portfolio("NN", found, H200, 8))
    worst = max(before, key=before.__getitem__)
    chosen = portfolio.portfolio("NN", found, H200, 8, {worst: 1})
    assert before[worst] > 1.2 > 1.03 > losses(chosen)[worst]
    assert portfolio.portfolio("NN", found, H200, 8, {worst: 10**15}) == chosen  # counts are compared


def test_calls_reach_the_choice_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, requested = {Gemm(7, 9999, 333, trans_a=True): 12}, []

    def chosen(layout: str, found: object, limits: DeviceLimits, most: int, given: dict[Gemm, int]) -> list:
        requested.append((layout, most, given))
        return []

    monkeypatch.setattr("autotune.export.exporter.portfolio", chosen)
    winner = replace(TILE, edges="exact")
    shape = TunedShape(SQUARE, (TunedPoint(winner, 2700.0, True),))
    found = TunedResults(ENVIRONMENT, H200, template.source_hash(), "cold", 1, (shape,))
    export_table(found, tmp_path / "t", FakeCompiler(arch=H200.arch), max_kernels=40, calls=calls)
    assert requested == [(layout, 10, calls) for layout in LAYOUTS]


@pytest.fixture(scope="module")
def all_in_order(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Wish], dict[str, Cubin]]:
    """The wishes of an export and their cubins, as `within` gets them."""
    given: list[tuple[list[Wish], dict[str, Cubin]]] = []

    def cached_pick(wishes: list[Wish], cubins: dict[str, Cubin], max_bytes: float) -> list[Wish]:
        given.append((wishes, cubins))
        return within(wishes, cubins, max_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.export.exporter.within", cached_pick)
        export_for("h200", tmp_path_factory.mktemp("whole") / "t")
    return given[0]


@pytest.mark.stress
@given(share=st.floats(0, 1.2))
def test_files_of_kernels_for_other_shapes_take_no_more_than_is_allowed(
    all_in_order: tuple[list[Wish], dict[str, Cubin]], share: float
) -> None:
    wishes, cubins = all_in_order
    size = {cubin.sha256: len(packed(cubin.code)) for cubin in cubins.values()}
    needed = {cubins[wish.id].sha256 for wish in wishes if wish.is_required}

    def general_bytes(kept: list[Wish]) -> int:
        return sum(size[sha256] for sha256 in {cubins[wish.id].sha256 for wish in kept} - needed)

    most = share * general_bytes(wishes)
    kept = within(wishes, cubins, most)
    assert general_bytes(kept) <= most
    assert [w for w in kept if w.is_required] == [w for w in wishes if w.is_required]
    if share >= 1:
        assert kept == wishes
    for layout in LAYOUTS:  # the first ones, as they were chosen
        requested = [wish for wish in wishes if wish.layout == layout and not wish.is_required]
        had = [wish for wish in requested if wish in kept]
        assert had == requested[: len(had)]
    if share < 1:
        left = general_bytes(wishes) - general_bytes(kept)
        assert left > 0 and most - general_bytes(kept) < max(size.values()) * len(LAYOUTS)


@pytest.mark.stress
def test_an_export_holds_to_its_megabytes(tmp_path: Path) -> None:
    none = export_for("h200", tmp_path / "none", max_megabytes=0)
    few = export_for("h200", tmp_path / "few", max_megabytes=0.01)
    ids = [{kernel.id for kernel in load(folder).kernels} for folder in (none, few)]
    tuned = [name for name in ids[0] if not name.endswith("-bias_columns")]
    assert len(tuned) == 1 + len(LAYOUTS) and ids[0] < ids[1]  # what was tuned, and the defaults
    sizes = [(folder / "cubins.gz").stat().st_size for folder in (none, few)]
    assert sizes[0] < sizes[1] <= sizes[0] + 2 * 10_000  # with a bias, and without
    assert load_cubins(few, load(few)) and not check_files(few).unexpected


# What they are taken to cost: cold times of a first tuning on an H200, in us

MEASURED: tuple[tuple[str, float, Point], ...] = (
    ("256", 4.15, known_tiles.MEDIUM[2].to_dict()),
    ("65536x64x64", 15.6, known_tiles.FEW_COLUMNS[2].to_dict()),
    ("1x4096x4096", 17.6, known_tiles.FEW_ROWS[0].to_dict()),
    ("64x64x100000", 29.3, {**known_tiles.DEEP_K[1].to_dict(), "reduction": "two_pass", "split_k": 64}),
    ("1024", 45.7, known_tiles.MEDIUM[0].to_dict()),
    ("16x11008x4096", 46.9, {**known_tiles.FEW_ROWS[1].to_dict(), "reduction": "two_pass", "split_k": 6}),
    ("2048", 325.0, TILE.to_dict()),
    ("4096", 2561.0, TILE.to_dict()),
)


def guessed_us(text: str, point: Point) -> float:
    gemm, config = Gemm.parse(text), Config.from_dict(point)
    spec = launch_spec(config, gemm, H200)
    resident = int(blocks_per_sm(config, H200, gemm, 128))
    record = KernelRecord("k", config, spec.variant, "", 1, 1, 128, resident, guess(spec, H200), "")
    time_us = expected_us(launchable(record, H200, ""), gemm, H200)
    assert time_us is not None
    return time_us


@pytest.mark.parametrize(("text", "time_us", "point"), MEASURED, ids=[case[0] for case in MEASURED])
def test_guesses_are_near_what_was_measured(text: str, time_us: float, point: Point) -> None:
    assert 1 / 1.4 < guessed_us(text, point) / time_us < 1.4


def test_guesses_order_shapes_as_measured() -> None:
    """Those that differ by an eighth: a figure of thumb tells no finer."""
    guesses = [(time_us, guessed_us(text, point)) for text, time_us, point in MEASURED]
    for (one_us, one), (other_us, other) in combinations(guesses, 2):
        assert one < other or other_us < 1.13 * one_us


def test_no_tile_of_another_family_is_guessed_far_below_the_best_measured_one() -> None:
    selector = chooser_for("h200")
    for text, time_us, _ in MEASURED[:-1]:
        expected = selector.pick(Call.packed(Gemm.parse(text))).expected_us
        assert expected is not None and expected > time_us / 1.4


def test_narrow_vectors_and_thin_tiles_are_guessed_slower_per_fma() -> None:
    wide = launch_spec(replace(TILE, vec_a=1, vec_b=4), SQUARE, H200)
    narrow, thin = replace(wide, vec_b=1), replace(wide, bm=16, bn=16)
    per_fma = [guess(s, H200).step_us / (s.bm * s.bn * s.bk) for s in (wide, narrow, thin)]
    assert per_fma == sorted(per_fma) and len(set(per_fma)) == 3
