"""What an export puts into a folder, and that the folder stands alone. The compiler is a stand-in here;
tests/compile exports with NVRTC."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from exports import CARRIED
from table_cases import ENVIRONMENT, FakeDriver, expected_us, marked

from autotune import target_finder as targets
from autotune.export import exporter
from autotune.export.check import verify_table
from autotune.export.exporter import cut_to_chosen, export_table
from autotune.export.from_store import read_results
from autotune.export.package import runtime_files
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.device import KNOWN, DeviceLimits, known_limits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import DispatchError, TrialFailure, UsageError
from autotune.kernel import identity, same_code, template
from autotune.kernel.config import Config
from autotune.kernel.launch import PLAIN, Variant, named
from autotune.kernel.rules import broken_rules
from autotune.recording.matrix import TimeMatrix
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import Table, load
from autotune.store import FinalEntry, Store
from autotune.target import Baseline

pytestmark = CARRIED
PACKAGE = Path(__file__).resolve().parents[2] / "autotune"
SQUARE, DEEP, ODD = Gemm(4096, 4096, 4096), Gemm(128, 128, 32768), Gemm(1000, 1000, 1000, True)
EXACT = Config(edges="exact")
SPLIT = Config(reduction="last_block", split_k=16)
TRANSPOSED = Config(vec_a=4, bm=128, wm=64, wn=32, min_blocks=2)
TIED = replace(TRANSPOSED, vec_a=1)


@dataclass(frozen=True)
class FakeCubin:
    code: bytes
    registers: int = 128
    spill_bytes: int = 0

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.code).hexdigest()


@dataclass
class FakeCompiler:
    """Compiles everything at once; `spilled` and `failing` say what for."""

    arch: str = "sm_90"
    version: str = "nvrtc 13.4"
    failing: Any = lambda config: False
    spilled: Any = lambda config: False
    confused: Any = lambda config: config  # what is compiled in its place
    requested: list[tuple[Config, Variant]] = field(default_factory=list)

    def submit(self, config: Config, variant: Variant, /) -> Future[FakeCubin]:
        self.requested.append((config, variant))
        future: Future[FakeCubin] = Future()
        if self.failing(config):
            future.set_exception(TrialFailure(Outcome.COMPILE_FAILED, "no"))
        else:
            source_hash = same_code.kept_as(template.source_hash())
            name = identity.of(source_hash, self.confused(config), variant)
            text = marked(name, f"{config.key} {variant}")
            future.set_result(FakeCubin(text, spill_bytes=8 if self.spilled(config) else 0))
        return future


def results(**changes: Any) -> TunedResults:
    ranked = (
        TunedPoint(EXACT, 2650.0, True),
        TunedPoint(TIED, 2655.0, True),
        TunedPoint(SPLIT, 2900.0, False),
    )
    square_times = ((EXACT, 2651.0), (Config(), 2700.0), (SPLIT, 2950.0))
    shapes = (
        TunedShape(SQUARE, ranked, square_times, 2690.0),
        TunedShape(DEEP, (TunedPoint(SPLIT, 30.0, True),), ((SPLIT, 30.0), (EXACT, 900.0))),
        TunedShape(ODD, (TunedPoint(TRANSPOSED, 70.0, True),)),
    )
    found = TunedResults(ENVIRONMENT, known_limits("h200"), template.source_hash(), "cold", 1, shapes)
    return replace(found, **changes)


@cache
def matrices() -> list[TimeMatrix]:
    """What ships with autotune."""
    return targets.matrices()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "sgemm_dispatch"
    return export_table(results(), folder, FakeCompiler(), matrices=matrices(), max_kernels=32)


@pytest.fixture
def folder(tmp_path: Path, exported: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / exported.name))


def test_the_table_holds_a_winner_per_shape_and_a_default_per_layout(folder: Path) -> None:
    table = load(folder)
    kernels = {k.id: k for k in table.kernels}
    by_gemm = {e.gemm: e for e in table.entries}
    configs = [kernels[r.kernel].config for r in by_gemm[SQUARE].ranked]
    assert configs == [EXACT]  # one is enough: no other shape needs what is tied with it
    assert by_gemm[SQUARE].cublas_us == 2690.0
    assert set(table.defaults) == set(LAYOUTS)
    assert (table.environment, table.compiler) == (ENVIRONMENT, "nvrtc 13.4")
    assert load_cubins(folder, table)


def test_a_tie_is_broken_towards_a_kernel_that_another_shape_needs(tmp_path: Path) -> None:
    other, transposed = Gemm(2048, 2048, 2048), Gemm(2048, 2048, 2048, True)
    tied = (TunedPoint(EXACT, 2650.0, True, 1.0), TunedPoint(TIED, 2655.0, True, 1.2))
    alone = (TunedPoint(TIED, 300.0, True),)
    shapes = (TunedShape(SQUARE, tied), TunedShape(other, alone), TunedShape(transposed, tied))
    notes: list[str] = []
    found = results(shapes=shapes)
    table = load(export_table(found, tmp_path / "t", FakeCompiler(), note=notes.append))
    configs = {k.id: k.config for k in table.kernels}
    ranked = {e.gemm: [configs[r.kernel] for r in e.ranked] for e in table.entries}
    assert ranked == {SQUARE: [TIED], other: [TIED], transposed: [EXACT]}  # another layout, another kernel
    assert notes == [
        "Not the winner but a kernel that is tied with it is exported for "
        f"{SQUARE} (place 2; serves 2 shapes)"
    ]


def test_of_a_recording_the_announced_winner_is_exported() -> None:
    other, environment = Gemm(2048, 2048, 2048), replace(ENVIRONMENT, recorded_on="2026-11-21")
    tied = (TunedPoint(EXACT, 2650.0, True), TunedPoint(TIED, 2655.0, True))
    shapes = (TunedShape(SQUARE, tied), TunedShape(other, (TunedPoint(TIED, 300.0, True),)))
    found = cut_to_chosen(results(shapes=shapes, environment=environment))
    assert [[p.config for p in s.ranked] for s in found.shapes] == [[EXACT, TIED], [TIED]]


def test_a_single_shape_has_the_announced_winner(tmp_path: Path) -> None:
    """A tied kernel whose median is less took its place, and nothing told so."""
    shape = TunedShape(SQUARE, (TunedPoint(EXACT, 2650.0, True), TunedPoint(TIED, 2649.0, True)))
    notes: list[str] = []
    table = load(export_table(results(shapes=(shape,)), tmp_path / "t", FakeCompiler(), note=notes.append))
    (ranked,) = table.entries[0].ranked
    assert {k.id: k.config for k in table.kernels}[ranked.kernel] == EXACT and not notes


def test_rivals_that_the_table_holds_anyway_follow_the_chosen_one() -> None:
    other = Gemm(2048, 2048, 2048)
    tied = (TunedPoint(EXACT, 2650.0, True), TunedPoint(TIED, 2651.0, True), TunedPoint(SPLIT, 9e3, False))
    slow = (TunedPoint(TIED, 300.0, True), TunedPoint(EXACT, 310.0, True))
    fast = (TunedPoint(EXACT, 300.0, True), TunedPoint(TIED, 310.0, True))
    shapes = (TunedShape(SQUARE, tied), TunedShape(other, slow), TunedShape(DEEP, fast))
    ranked = {s.gemm: [p.config for p in s.ranked] for s in cut_to_chosen(results(shapes=shapes)).shapes}
    assert ranked == {SQUARE: [EXACT, TIED], other: [TIED, EXACT], DEEP: [EXACT, TIED]}


def test_batches_are_entries_with_kernels_of_their_own(tmp_path: Path) -> None:
    """One kernel serves all batches of a layout that it won, and another the single product; what is chosen
    and modelled for other shapes does not change."""
    point = (TunedPoint(EXACT, 9.0, True),)
    single = Gemm(512, 512, 512)
    batches = tuple(replace(single, batch=count) for count in (2, 8))
    shapes = tuple(TunedShape(gemm, point, cublas_us=11.0) for gemm in (single, *batches))
    found = results(shapes=(*results().shapes, *shapes))
    table = load(export_table(found, tmp_path / "t", FakeCompiler()))
    assert {entry.gemm for entry in table.entries} == {SQUARE, DEEP, ODD, single, *batches}
    names = {entry.gemm: entry.ranked[0].kernel for entry in table.entries}
    assert names[batches[0]] == names[batches[1]] != names[single]
    kernels = {kernel.id: kernel for kernel in table.kernels}
    many, one = kernels[names[batches[0]]], kernels[names[single]]
    assert many.variant.is_batched and many.config == one.config == EXACT and many.model is None
    assert not one.variant.is_batched and one.model is not None
    without = results(shapes=(*results().shapes, *shapes[:1]))
    others = load(export_table(without, tmp_path / "u", FakeCompiler()))
    assert others.kernels == tuple(kernel for kernel in table.kernels if kernel != many)
    assert (others.places, others.cublas, others.left_out) == (table.places, table.cublas, table.left_out)


def test_a_table_may_hold_batches_alone(tmp_path: Path) -> None:
    shape = TunedShape(Gemm(512, 512, 512, batch=8), (TunedPoint(EXACT, 9.0, True),))
    table = load(export_table(results(shapes=(shape,)), tmp_path / "t", FakeCompiler()))
    assert [entry.gemm for entry in table.entries] == [shape.gemm]


def test_every_kernel_is_legal_and_has_a_model(folder: Path) -> None:
    table = load(folder)
    for record in table.kernels:
        config = record.config
        gemm = Gemm(4096, 4096, 4096, record.layout[0] == "T", record.layout[1] == "T")
        assert not broken_rules(config, table.limits, gemm, kinds=("template", "device"))
        assert (record.model is None) == (not record.is_plain or record.variant.is_batched)
    timed = {k.config.split_k for k in table.kernels if k.model and k.model.num_samples == 2}
    assert 16 in timed  # SPLIT was timed on two shapes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "m, n, k", [(4097, 4097, 4097), (35, 700, 2048), (1, 4096, 4096), (4100, 4100, 4100)]
)
def test_shapes_that_were_not_tuned_are_served_by_the_portfolio(
    folder: Path, layout: str, m: int, n: int, k: int
) -> None:
    selector = Chooser(load(folder))
    call = Call.packed(Gemm(m, n, k, layout[0] == "T", layout[1] == "T"))
    pick = selector.pick(call)
    assert pick.how == "modelled"
    chosen = selector.kernels[pick.kernel_id]
    assert call.rejection(chosen, pick.split_k) is None
    legal = [x for x in selector.kernels.values() if call.rejection(x) is None]
    assert len(legal) > 1  # more than the default


def test_the_model_of_a_kernel_knows_only_times_of_blocks_that_walk_alike(tmp_path: Path) -> None:
    """The cubin is the same, but the model has no word for how blocks walk."""
    slow = replace(EXACT, group=16, raster="m")
    shape = TunedShape(SQUARE, (TunedPoint(EXACT, 2650.0, True),), ((EXACT, 2650.0), (slow, 9000.0)))
    table = load(export_table(results(shapes=(shape,)), tmp_path / "t", FakeCompiler()))
    (entry,) = table.entries
    (winner,) = (found for found in table.kernels if found.id == entry.ranked[0].kernel)
    assert EXACT.kernel == slow.kernel
    assert winner.model is not None and winner.model.num_samples == 1
    assert expected_us(winner, SQUARE, table.limits) == pytest.approx(2650.0, rel=0.05)


def test_kernels_that_differ_in_split_only_share_a_cubin(tmp_path: Path) -> None:
    compiler, others = FakeCompiler(), (replace(SPLIT, split_k=4), replace(SPLIT, split_k=8))
    gemms = (DEEP, replace(DEEP, k=2 * DEEP.k))
    shapes = tuple(TunedShape(g, (TunedPoint(c, 9.0, True),)) for g, c in zip(gemms, others, strict=True))
    table = load(export_table(results(shapes=shapes), tmp_path / "t", compiler))
    assert len(compiler.requested) == len(set(compiler.requested))
    required = [k for k in table.kernels if k.id in {e.ranked[0].kernel for e in table.entries}]
    assert {k.spec.split_k for k in required} == {4, 8} and len({k.sha256 for k in required}) == 1


def test_each_kernel_comes_with_each_epilogue_that_is_requested_for(
    tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that layers call have a bias in any case, but not those for batches."""
    monkeypatch.setattr("autotune.export.exporter.held_out", lambda *_: [])  # of shapes: another matter
    requested = named(["bias", "bias-gelu"])
    options: Any = {"matrices": matrices(), "max_kernels": 32}
    least = load(exported)
    table = load(export_table(results(), tmp_path / "t", FakeCompiler(), epilogues=requested, **options))
    plain = [kernel for kernel in least.kernels if kernel.is_plain]
    added = {kernel.id for kernel in least.kernels if not kernel.is_plain}
    assert least.epilogues == () and table.epilogues == requested
    linear = [one for one in plain if one.layout in ("NN", "NT") and not one.variant.is_batched]
    assert added == {f"{kernel.id}-bias_columns" for kernel in linear}
    assert [kernel for kernel in table.kernels if kernel.is_plain] == plain
    assert len(table.kernels) == 3 * len(plain)
    assert (table.entries, table.defaults, table.places) == (least.entries, least.defaults, least.places)
    cubins = len({kernel.sha256 for kernel in plain})
    assert len({kernel.sha256 for kernel in table.kernels}) == 3 * cubins
    assert len(load_cubins(tmp_path / "t", table)) == 3 * cubins
    chooser = Chooser(table)
    for kernel in plain:
        other = chooser.variant(kernel.id, requested[1])
        assert (other.id, other.model) == (f"{kernel.id}-bias_columns-gelu", None)
        assert other.spec.smem_bytes >= kernel.spec.smem_bytes


def test_kernels_that_may_serve_a_programs_calls_come_with_what_these_ask_for(tmp_path: Path) -> None:
    single, batch = Gemm(64, 64, 64, trans_a=True), Gemm(64, 64, 64, batch=4)
    gelu, relu, bias = named(["bias-gelu", "relu", "bias"])
    many = TunedShape(batch, (TunedPoint(Config(), 9.0, True),))
    found = results(shapes=(*results().shapes, many))
    table = load(
        export_table(found, tmp_path / "t", FakeCompiler(), called={single: (gelu,), batch: (relu,)})
    )
    held = {(k.layout, k.variant.is_batched, k.variant.epilogue) for k in table.kernels if not k.is_plain}
    of_layers = {("NN", False, bias), ("NT", False, bias)}
    assert held == of_layers | {("TN", False, gelu), ("NN", False, relu), ("NN", True, relu)}
    assert table.epilogues == ()
    chooser = Chooser(table)
    assert all(chooser.variant(k.id, gelu) for k in table.kernels if k.is_plain and k.layout == "TN")


def test_an_epilogue_that_fails_stops_the_export_and_one_that_spills_does_not(tmp_path: Path) -> None:
    class Failing(FakeCompiler):
        def submit(self, config: Config, variant: Variant, /) -> Future[FakeCubin]:
            is_failing = self.failing(config) and variant.epilogue != PLAIN
            return FakeCompiler(failing=lambda _: is_failing, spilled=self.spilled).submit(config, variant)

    requested = named(["bias"])
    spilled = load(
        export_table(results(), tmp_path / "s", Failing(spilled=lambda _: True), epilogues=requested)
    )
    assert len(spilled.kernels) == 2 * sum(kernel.is_plain for kernel in spilled.kernels)
    with pytest.raises(DispatchError, match=r"-bias_columns .*fails to compile"):
        export_table(
            results(), tmp_path / "f", Failing(failing=lambda config: config == EXACT), epilogues=requested
        )
    assert not (tmp_path / "f").exists()


def test_a_kernel_that_splits_k_serves_other_shapes_in_other_splits(tmp_path: Path) -> None:
    selector = Chooser(load(export_table(results(), tmp_path / "t", FakeCompiler())))
    few, many = (selector.pick(Call.packed(Gemm(64, 64, k))) for k in (1000, 30000))
    assert few.split_k < many.split_k


@pytest.mark.stress
def test_a_kernel_of_the_portfolio_that_fails_or_spills_is_left_out(
    tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.export.exporter.held_out", lambda *_: [])  # of shapes: another matter

    def is_small(config: Config) -> bool:
        return config != EXACT and config.bm * config.bn < 64 * 64

    def made(**changes: Any) -> Table:
        folder = tmp_path / "".join(changes) / "t"
        compiler = FakeCompiler(**changes)
        return load(export_table(results(), folder, compiler, matrices=matrices(), max_kernels=32))

    whole = load(exported)
    for name in ("failing", "spilled"):
        table = made(**{name: is_small})
        assert len(table.kernels) < len(whole.kernels)
        assert table.entries == whole.entries


def test_an_export_tells_how_far_the_compiler_is(tmp_path: Path) -> None:
    notes: list[tuple[int, int]] = []
    export_table(results(), tmp_path / "t", FakeCompiler(), on_compiled=lambda *far: notes.append(far))
    rounds = [total for number, total in notes if not number]  # plain kernels, and those with a bias
    assert notes == [(number, total) for total in rounds for number in range(total + 1)] and len(notes) > 5


def test_an_export_tells_what_it_does_before_it_takes_long_and_compiles_what_was_tuned_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.export.exporter.held_out", lambda *_: [])  # of shapes: another matter
    seen: list[str] = []

    class Watched(FakeCompiler):
        def submit(self, config: Config, variant: Variant, /) -> Future[Any]:
            seen.append(config.key)
            return super().submit(config, variant)

    real = exporter.portfolio

    def choose(*arguments: Any) -> list[Config]:
        seen.append("chosen")
        return real(*arguments)

    monkeypatch.setattr(exporter, "portfolio", choose)
    options: Any = {"matrices": matrices(), "max_kernels": 32}  # as `exported` has
    export_table(results(), tmp_path / "t", Watched(), on_step=seen.append, **options)
    steps = [one for one in seen if one.split()[0] in ("choosing", "judging", "compiling")]
    assert [step.split()[0] for step in steps] == ["choosing", "judging", "compiling", "compiling"]
    first, required = (
        seen.index("chosen"),
        {p.config.kernel.key for s in results().shapes for p in s.ranked[:1]},
    )
    assert required <= set(seen[:first]) and seen.index(steps[0]) < first
    assert len(set(seen[:first])) < len(set(seen)) / 2  # the others are compiled behind them


def test_a_winner_that_fails_stops_the_export(tmp_path: Path) -> None:
    with pytest.raises(DispatchError, match="fails to compile"):
        export_table(results(), tmp_path / "t", FakeCompiler(failing=lambda config: config.edges == "exact"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limits", KNOWN.values(), ids=KNOWN)
def test_every_known_gpu_has_its_defaults(tmp_path: Path, limits: DeviceLimits) -> None:
    config = Config(copy_a="register", copy_b="register", stages=2, vec_a=4, pad=4, min_blocks=1)
    shape = TunedShape(SQUARE, (TunedPoint(config, 1.0, True),))
    environment = replace(ENVIRONMENT, compute_capability=limits.compute_capability)
    found = results(limits=limits, environment=environment, shapes=(shape,))
    table = load(export_table(found, tmp_path / "t", FakeCompiler(arch=limits.arch)))
    assert len(table.defaults) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"shapes": ()}, "no tuned shape"), ({"source_hash": "0" * 64}, "kernel source"),
     ({"limits": known_limits("a100")}, "compiler is for sm_90")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DispatchError, match=message):
        export_table(results(**changes), tmp_path / "t", FakeCompiler())


def test_a_recording_of_another_text_of_the_kernel_is_exported_and_told(tmp_path: Path) -> None:
    """It stands in for a GPU whatever has become of the kernel since; its times are marked as recorded."""
    recorded = replace(ENVIRONMENT, recorded_on="2026-11-20")
    found, notes = results(source_hash="0" * 64, environment=recorded), []
    table = load(export_table(found, tmp_path / "t", FakeCompiler(), note=notes.append))
    assert table.is_recorded and table.source_hash == same_code.kept_as(template.source_hash())
    assert any("recorded with kernel source 000000000000" in text for text in notes)


# The folder


def test_an_export_is_replaced_by_the_next(folder: Path) -> None:
    stale = folder / "cubins" / f"{hashlib.sha256(b'stale').hexdigest()}.cubin"
    stale.parent.mkdir()
    stale.write_bytes(b"stale")
    listed = json.loads((folder / "manifest.json").read_text())
    listed["files"][str(stale.relative_to(folder))] = stale.stem
    (folder / "manifest.json").write_text(json.dumps(listed))
    export_table(results(), folder, FakeCompiler())
    assert not stale.exists()
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis_tex").touch()
    with pytest.raises(DispatchError, match="no exported table"):
        export_table(results(), precious, FakeCompiler())
    assert (precious / "thesis_tex").exists()
    with pytest.raises(DispatchError, match="no exported table"):
        export_table(results(), precious / "thesis_tex", FakeCompiler())


def test_a_place_that_cannot_be_taken_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    compiler = FakeCompiler()
    for name in ("taken", "not-importable"):
        with pytest.raises(DispatchError if name == "taken" else UsageError):
            export_table(results(), tmp_path / name, compiler)
    for place in (Path("/proc/table"), tmp_path / "taken" / "table", tmp_path / "taken" / "new" / "table"):
        with pytest.raises(DispatchError, match=r"cannot be written .* pass another folder"):
            export_table(results(), place, compiler)
    assert not compiler.requested and [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert load(export_table(results(), tmp_path / "t", FakeCompiler()))


def test_two_exports_are_equal(tmp_path: Path) -> None:
    one, two = (load(export_table(results(), tmp_path / x, FakeCompiler())) for x in "ab")
    assert replace(one, created_at="") == replace(two, created_at="")


def test_a_recording_says_so(tmp_path: Path) -> None:
    recorded = results(environment=replace(ENVIRONMENT, recorded_on="2026-11-21"))
    folder = export_table(recorded, tmp_path / "t", FakeCompiler())
    table = load(folder)
    assert table.is_recorded and table.recorded_on == "2026-11-21"
    assert "RECORDED" in (folder / "__init__.py").read_text()


def test_nothing_that_a_database_says_of_a_gpu_runs_with_the_folder(tmp_path: Path, exported: Path) -> None:
    """Others may have made it: it stands in a docstring, whatever it is."""
    evil = '580\\"""\nraise SystemExit("ran")\n"""\0 \u2028\\'
    found = results(environment=replace(ENVIRONMENT, driver_version=evil, cublas_version=evil))
    folder = export_table(found, tmp_path / "sgemm_dispatch", FakeCompiler())
    written, usual = (ast.parse((path / "__init__.py").read_text()) for path in (folder, exported))
    assert "raise SystemExit" in (ast.get_docstring(written) or "")
    assert [ast.dump(node) for node in written.body[1:]] == [ast.dump(node) for node in usual.body[1:]]
    assert load(folder).environment.driver_version == evil


def test_the_private_copy_is_the_source(folder: Path) -> None:
    files = [path for path in (folder / "_autotune").rglob("*") if path.is_file()]
    copies = {path.relative_to(folder / "_autotune").as_posix() for path in files if path.suffix != ".pyc"}
    assert copies == {*runtime_files(), "__init__.py"}
    for name in runtime_files():
        assert (folder / "_autotune" / name).read_bytes() == (PACKAGE / name).read_bytes()


_ALONE = """
import sys
sys.path.insert(0, FOLDER)
BLOCKED = {"autotune", "optuna", "sqlalchemy", "alembic", "typer", "rich", "jinja2"}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocked())
import json, NAME as module
picks = [module.pick(*shape) for shape in [(4096, 4096, 4096), (4097, 4097, 4097), (7, 7, 7, True, True)]]
assert not [name for name in sys.modules if name.partition(".")[0] == "autotune"]
assert all(hasattr(module, name) for name in module.__all__) and not module.take_update()
print(json.dumps([[pick.kernel_id, pick.how, pick.reason] for pick in picks]))
"""


@pytest.mark.parametrize("name", ["sgemm_dispatch", "any_other_name"])
def test_the_folder_imports_alone_under_any_name(folder: Path, name: str) -> None:
    folder = folder.rename(folder.with_name(name))
    code = _ALONE.replace("NAME", name).replace("FOLDER", repr(str(folder.parent)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=folder.parent, env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [how for _, how, _ in json.loads(done.stdout)] == ["exact", "modelled", "modelled"]


def test_a_folder_in_an_archive_says_that_it_is_to_be_unpacked(folder: Path) -> None:
    archive = shutil.make_archive(str(folder.parent / "tables"), "zip", folder.parent, folder.name)
    program = "import sys; sys.path.insert(0, sys.argv[1]); import sgemm_dispatch"
    command = [sys.executable, "-P", "-c", program, archive]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{archive} is a file, not a folder; unpack an archive first" in done.stderr.splitlines()[-1]


def test_two_folders_and_autotune_itself_share_a_process(folder: Path) -> None:
    """typing keeps one annotation for all that are equal: classes of the copies must not take another's."""
    shutil.copytree(folder, folder.with_name("other_table"))
    program = (
        "import sys; from pathlib import Path; from autotune.runtime.table.table import load; "
        "sys.path.insert(0, sys.argv[1]); load(Path(sys.argv[1], sys.argv[2])); "
        "import sgemm_dispatch as t, other_table as o; assert t.pick(9, 9, 9).how == o.pick(9, 9, 9).how"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.parent), folder.name],
        capture_output=True, text=True, timeout=120, cwd=folder.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


_PICKLING = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import sgemm_dispatch
sys.stdout.buffer.write(pickle.dumps([sgemm_dispatch.sgemm, sgemm_dispatch._dispatcher]))
"""
_UNPICKLING = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
sgemm, dispatcher = pickle.load(sys.stdin.buffer)
assert sgemm.__self__ is dispatcher is sys.modules["sgemm_dispatch"]._dispatcher
print(dispatcher.pick(4097, 4097, 4097).how)
"""


def test_what_is_pickled_is_the_table_of_another_process_wherever_that_has_it(folder: Path) -> None:
    def run(code: str, **options: Any) -> bytes:
        command = [sys.executable, "-c", code, str(folder.parent)]
        return subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True, **options).stdout

    pickled = run(_PICKLING)
    folder = shutil.move(folder, folder.parent / "elsewhere" / folder.name)
    assert run(_UNPICKLING, input=pickled) == b"modelled\n"


def test_an_exported_table_checks_out(tmp_path: Path) -> None:
    small = Gemm(128, 128, 1024)
    shape = TunedShape(small, (TunedPoint(EXACT, 5.1, True),))
    folder = export_table(results(shapes=(shape,)), tmp_path / "t", FakeCompiler())
    report = [*verify_table(folder, driver=FakeDriver(load(folder)))]
    assert all(check.is_ok for check in report)


# From the database


def test_results_come_from_the_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        study = store.study(ENVIRONMENT, template.source_hash(), "nvrtc 13.4", SQUARE)
        for config, time_us in ((EXACT, 2650.0), (Config(), 2700.0)):
            store.add_trial(study, config.key, config.to_dict(), _ok(time_us), "random")
        store.add_trial(study, TIED.key, TIED.to_dict(), _ok(2655.0), "fill")
        other = store.study(ENVIRONMENT, template.source_hash(), "nvrtc 13.4", DEEP)
        store.add_trial(other, SPLIT.key, SPLIT.to_dict(), _ok(30.0), "random")
        final = (FinalEntry(Config().key, Config().to_dict(), 1, True, 2640.0, (2640.0,)),
                 FinalEntry(EXACT.key, EXACT.to_dict(), 2, True, 2641.0, (2641.0,)))  # fmt: skip
        store.set_final(study, final, Baseline(2690.0, (2690.0,)))
        limits = known_limits("h200")
        found = read_results(store, ENVIRONMENT, limits)
        assert [s.gemm for s in found.shapes] == [DEEP, SQUARE]
        deep, square = found.shapes
        assert [(p.config, p.time_us) for p in square.ranked] == [(Config(), 2640.0), (EXACT, 2641.0)]
        assert dict(square.times) == {EXACT: 2650.0, Config(): 2700.0, TIED: 2655.0}
        assert set(square.own) == {EXACT, Config(), TIED}
        own = read_results(store, ENVIRONMENT, limits, foreign_origins=["fill", "reuse"]).shapes[1].own
        assert set(own) == {EXACT, Config()}
        assert square.cublas_us == 2690.0 and deep.cublas_us is None
        assert deep.ranked == (TunedPoint(SPLIT, 30.0, True),)
        assert [s.gemm for s in read_results(store, ENVIRONMENT, limits, gemms=[DEEP]).shapes] == [DEEP]
        with pytest.raises(DispatchError, match="1000x1000x1000:TN"):
            read_results(store, ENVIRONMENT, limits, gemms=[DEEP, ODD])
        assert load(export_table(found, tmp_path / "t", FakeCompiler()))


def test_of_very_many_shapes_some_lend_their_times_and_all_are_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.export.tuned.MOST_MODELLED", 2)
    with Store.open(tmp_path / "a.db") as store:
        for m in range(1, 6):
            study = store.study(ENVIRONMENT, template.source_hash(), "nvrtc 13.4", Gemm(64 * m, 64, 64))
            store.add_trial(study, EXACT.key, EXACT.to_dict(), _ok(2.0), "random")
        found = read_results(store, ENVIRONMENT, known_limits("h200"))
    assert [bool(shape.times) for shape in found.shapes] == [True, False, False, True, False]
    assert all(shape.ranked for shape in found.shapes)


def test_results_of_other_kernels_cannot_be_exported(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        study = store.study(ENVIRONMENT, "f" * 64, "", SQUARE)
        store.add_trial(study, "MWG=64", {"MWG": 64}, _ok(100.0), "random")
        with pytest.raises(DispatchError, match="not of autotune's kernel"):
            read_results(store, ENVIRONMENT, known_limits("h200"))


def test_an_empty_store_says_to_search(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store, pytest.raises(DispatchError, match=r"autotune\.tune"):
        read_results(store, ENVIRONMENT, known_limits("h200"))


def _ok(time_us: float) -> Measurement:
    return Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,))
