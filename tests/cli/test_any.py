"""`autotune search --any` and its export, with the shapes and counts of a file, on a GPU that is
simulated."""

from __future__ import annotations

import json
import signal
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_here import run_here

from autotune import target_finder as targets
from autotune import tuning
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import UsageError
from autotune.perf_model.cublas_model import NUM_BATCHES, NUM_TIMED
from autotune.recording.replay import ReplayTarget
from autotune.search.progress import ShapeStarted
from autotune.store import Store
from autotune.target import Baseline, CellTime, Rounds, point_key

from .conftest import FLAT, SQUARE

UNKNOWN = Gemm(640, 512, 512)  # that the file counts, and nobody drew
SUITE = "".join(
    f"[[shape]]\nm = {g.m}\nn = {g.n}\nk = {g.k}\ncount = {count}\n"
    for g, count in ((SQUARE, 10**9), (FLAT, 10**8), (UNKNOWN, 1))
)
OWN_US = 12.5  # the least of the recording


class FillingGpu(ReplayTarget):
    """A recording that times kernels across shapes, too; `FLAT` is served best by what is not searched there.
    A second goes by for each kernel."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, capacity=3)
        self.gpu = SimpleNamespace(index=0, name=self.limits.name, compute_capability=(9, 0))
        self.num_filled = 0
        self.fast: set[str] = set()  # kernels on FLAT

    def submit(self, gemm, point, cutoff_us):
        if gemm in self.gemms:
            return super().submit(gemm, point, cutoff_us)
        return _done(Measurement(Outcome.OK, time_us=9.0, samples_us=(9.0,), registers=64, spill_bytes=0))

    def compare(self, gemm, points, rounds):
        known = [OWN_US / 2 if point_key(point) in self.fast else 14.0 for point in points]
        return Rounds(tuple((time_us,) * rounds for time_us in known), Baseline(13.0, (13.0,) * rounds))

    def joules(self, gemm, points):
        return tuple(None for _ in points)

    def fill(self, cells):
        if cells[0].point is None:
            return _done(tuple(CellTime((13.0,)) for _ in cells))
        self.num_filled += 1
        self.fast |= {point_key(cell.point) for cell in cells if cell.gemm == FLAT}
        return _done(tuple(CellTime((OWN_US / 2 if cell.gemm == FLAT else 30.0,)) for cell in cells))

    def now(self) -> float:
        return super().now() + self.num_filled


def _done(result) -> Future:
    future: Future = Future()
    future.set_result(result)
    return future


@pytest.fixture
def shipped(recording: Path, monkeypatch: pytest.MonkeyPatch) -> FillingGpu:
    """Beside the matrices that ship."""
    opened = FillingGpu(recording)
    monkeypatch.setattr(targets, "open_target", lambda *_, **__: opened)
    return opened


@pytest.fixture
def target(shipped: FillingGpu, monkeypatch: pytest.MonkeyPatch) -> FillingGpu:
    """Where no matrix ships."""
    monkeypatch.setattr(targets, "matrices", lambda: [])
    return shipped


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "calls.toml"
    path.write_text(SUITE)
    return path


def test_shapes_of_a_file_are_searched_and_filled_until_nothing_is_gained(
    target: FillingGpu, suite: Path, tmp_path: Path
) -> None:
    command = ("search", "--gpu", "0", "--suite", suite, "--any", "2", "--db", tmp_path / "any.db")
    facts = json.loads(run_here(*command, "--json").stdout)
    assert {shape["shape"] for shape in facts["shapes"]} == {str(SQUARE), str(FLAT)}
    assert facts["stopped"] in ("patience", "exhausted")
    filled = facts["filled"]
    assert (
        filled["is_complete"] and filled["num_left"] == 0 and filled["num_cells"] > filled["num_kernels"] > 3
    )
    assert filled["improved"] == [str(FLAT)]
    flat = next(shape for shape in facts["shapes"] if shape["shape"] == str(FLAT))
    assert flat["num_trials"] <= 48 + 1  # of what was found on another shape, only what was the best
    again = run_here(*command)
    assert "0 kernels, 0 new times" in again.stdout
    assert "0 shapes are now served best by a kernel that was found on another" in again.stdout
    assert "nothing is left to time; a larger --any finds more" in again.stdout
    assert f"export-table --db {tmp_path / 'any.db'} --suite {suite}" in again.stdout


def test_a_shape_that_another_kernel_serves_better_has_its_final_again(
    target: FillingGpu, tmp_path: Path
) -> None:
    calls = {SQUARE: 1, FLAT: 1}
    found = tuning.tune(gpu="0", num_drawn=2, calls=calls, db=str(tmp_path / "a.db"))
    (flat,) = (shape for shape in found.shapes if shape.gemm == FLAT)
    assert flat.final is not None and flat.best is not None
    assert flat.best.origin == "fill" and flat.best.key in {entry.key for entry in flat.final.entries}


def test_what_is_left_when_the_time_is_over_is_told(target: FillingGpu, suite: Path, tmp_path: Path) -> None:
    command = ("search", "--gpu", "0", "--suite", suite, "--any", "2", "--db", tmp_path / "any.db")
    done = run_here(*command, "--seconds", "8")
    assert "left: run the same command again to resume" in done.stdout
    assert "timing kernels on all shapes of their layout" in done.stderr
    assert target.num_filled <= 0.35 * 8 + 2  # that are under way while those before are stored


@pytest.mark.stress
@pytest.mark.every(3)
@pytest.mark.parametrize("at", ["cuBLAS", "fill", "fill again"])
def test_ctrl_c_ends_every_stage_with_what_was_found(
    shipped: FillingGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str
) -> None:
    """What is under way is timed and stored, and the same call goes on."""
    own, interrupted, num_cells = shipped.fill, False, 0
    calls, db = {SQUARE: 1, FLAT: 1}, str(tmp_path / "a.db")
    events: list[object] = []  # of the search, which comes between both fills

    def fill(cells):
        nonlocal interrupted, num_cells
        is_cublas = cells[0].point is None
        stage = "cuBLAS" if is_cublas else "fill again" if events else "fill"
        if not interrupted and stage == at:
            interrupted = True
            signal.raise_signal(signal.SIGINT)
        num_cells += 0 if is_cublas else len(cells)
        return own(cells)

    monkeypatch.setattr(shipped, "fill", fill)
    run = partial(tuning.tune, gpu="0", num_drawn=2, calls=calls, trials=20, db=db)
    options = {"seconds": 1000.0} if at == "cuBLAS" else {}  # cuBLAS is timed where there are seconds
    found = run(**options, on_event=events.append)
    assert interrupted and (found.search.reason, found.search.signal) == ("interrupted", signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with Store.open(db) as store:
        stored = [t for study in store.studies() for t in store.trials(study.study) if t.origin == "fill"]
    assert len(stored) == num_cells
    later = run()
    assert later.search.reason != "interrupted"


def test_interrupted_before_a_shape_begins_it_says_so_and_suggests_no_export(
    shipped: FillingGpu, suite: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = shipped.fill

    def fill(cells):
        signal.raise_signal(signal.SIGINT)
        return own(cells)

    monkeypatch.setattr(shipped, "fill", fill)
    command = ("search", "--gpu", "0", "--suite", suite, "--any", "2", "--db", tmp_path / "any.db")
    done = run_here(*command, "--seconds", "100", exit_code=128 + signal.SIGINT)
    assert "interrupted; run the same command again to resume; no shape was begun\n" in done.stdout
    assert "Next:" not in done.stdout


@pytest.mark.usefixtures("shipped")
def test_kernels_are_timed_before_and_after_a_search_and_both_are_told(suite: Path, tmp_path: Path) -> None:
    command = ("search", "--gpu", "0", "--suite", suite, "--any", "2", "--db", tmp_path / "any.db")
    lines = run_here(*command, "--trials", "20").stderr.splitlines()
    notes = [at for at, line in enumerate(lines) if line == "timing kernels on all shapes of their layout"]
    started = [at for at, line in enumerate(lines) if " configs, " in line]
    assert len(notes) == 2
    assert notes[0] < min(started) <= max(started) < notes[1]


def test_what_ships_is_timed_before_a_search_which_goes_on_from_there(
    shipped: FillingGpu, tmp_path: Path
) -> None:
    requested: list[int] = []

    def tell(event: object) -> None:
        if isinstance(event, ShapeStarted):
            requested.append(event.num_known)

    calls = {SQUARE: 1, FLAT: 1}
    db = str(tmp_path / "a.db")
    found = tuning.tune(gpu="0", num_drawn=2, calls=calls, trials=20, db=db, on_event=tell)
    assert len(requested) == 2 and min(requested) > 20  # kernels of the matrices, in some splits each
    (flat,) = (shape for shape in found.shapes if shape.gemm == FLAT)
    assert flat.best is not None and flat.best.origin == "fill" and flat.best.key in shipped.fast
    assert found.filled is not None and found.filled.num_kernels > 20


def test_a_file_without_counts_gives_its_shapes_and_weighs_nothing(
    target: FillingGpu, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text("".join(f"[[shape]]\nm = {g.m}\nn = {g.n}\nk = {g.k}\n" for g in (SQUARE, FLAT)))
    command = ("search", "--gpu", "0", "--suite", plain, "--any", "9", "--db", tmp_path / "any.db")
    done = run_here(*command)
    assert "--suite" not in done.stdout.splitlines()[-1]


def test_batches_are_not_drawn_and_what_is_no_shape_is_refused(target: FillingGpu, tmp_path: Path) -> None:
    batch, empty = replace(SQUARE, batch=4), Gemm(0, 5, 5)
    db = str(tmp_path / "a.db")
    found = tuning.tune(gpu="0", num_drawn=5, calls={batch: 10**6, FLAT: 1}, trials=5, db=db)
    assert [shape.gemm for shape in found.shapes] == [FLAT]
    for calls, message in (({batch: 1}, "all calls are of batches"), ({empty: 1}, "C is empty")):
        with pytest.raises(UsageError, match=message):
            tuning.tune(gpu="0", num_drawn=5, calls=calls, db=db)
    with pytest.raises(UsageError, match="C is empty"):
        tuning.export_table(tmp_path / "out", calls={empty: 1}, db=db)


def test_the_export_is_told_of_all_calls_and_restricted_to_none(
    target: FillingGpu, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "any.db"
    run_here("search", "--gpu", "0", "--suite", suite, "--any", "1", "--trials", "9", "--db", db)
    requested = {}

    def export_table(results, *_: object, **named: object) -> None:
        requested.update(named, gemms={shape.gemm for shape in results.shapes})
        raise UsageError("as far as this")

    monkeypatch.setattr(tuning.exporter, "export_table", export_table)
    run_here("export-table", "--db", db, "--suite", suite, "--out", tmp_path / "out", exit_code=1)
    assert requested["calls"] == {SQUARE: 10**9, FLAT: 10**8, UNKNOWN: 1}
    assert len(requested["gemms"]) == 1


def test_kernels_that_were_found_elsewhere_count_as_no_trials(target: FillingGpu, tmp_path: Path) -> None:
    db = str(tmp_path / "a.db")
    first = tuning.tune([SQUARE, FLAT], gpu="0", num_drawn=1, calls={FLAT: 1}, trials=20, db=db)
    more = tuning.tune([SQUARE, FLAT], gpu="0", trials=30, db=db)
    with Store.open_existing(db) as store:
        (study,) = (shape.study for shape in first.shapes if shape.gemm == FLAT)
        fills = [trial for trial in store.trials(study) if trial.origin == "fill"]
    assert len(fills) > 10 and more.search.num_new >= 15  # a fill that was the best counts


@pytest.mark.every(2)
@pytest.mark.parametrize("num_drawn", [0, 2])
def test_any_search_by_seconds_times_cublas_on_drawn_shapes(
    target: FillingGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_drawn: int
) -> None:
    """For a table that leaves to it what it wins: within a share of the seconds, and once per database; as it
    adds a bias as well, where programs have that, on the shapes of the search first."""
    requested: list[int] = []
    batches: list[int] = []
    adding: list[Gemm] = []
    whole = target.fill

    def watched(cells):
        if cells[0].has_bias:
            adding.extend(cell.gemm for cell in cells)
            target.num_filled += 1
        elif cells[0].point is None:
            (batches if cells[0].gemm.is_batched else requested).append(len(cells))
            target.num_filled += 1  # a second goes by
        return whole(cells)

    monkeypatch.setattr(target, "fill", watched)
    started_s, calls = target.now(), {SQUARE: 1} if num_drawn else {}
    search = partial(
        tuning.tune, [SQUARE], gpu="0", num_drawn=num_drawn, calls=calls, db=str(tmp_path / "a.db")
    )
    search(trials=9)
    assert not requested + batches + adding  # these were counted, and nothing beside them
    search(seconds=100.0)
    assert sum(requested) == 100 * len(requested) == 500 and target.now() - started_s <= 100 + 2
    assert sum(batches) == 100 * len(batches) == 500
    assert len(adding) == 500 and adding[0] == SQUARE and {gemm.layout for gemm in adding} == {"NN", "NT"}
    search()
    num_adding = len(adding)
    assert sum(requested) == NUM_TIMED and NUM_TIMED // 2 < num_adding == len(set(adding)) < NUM_TIMED
    search(seconds=100.0)
    assert sum(requested) == NUM_TIMED and len(adding) == num_adding
    with Store.open_existing(str(tmp_path / "a.db")) as store:
        known = store.cublas_times(target.environment, target.policy)
        of_batches = store.cublas_times(target.environment, target.policy, is_batched=True)
    assert len(known) == NUM_TIMED and set(known.values()) == {13.0}
    assert len(of_batches) == NUM_BATCHES == sum(batches) and all(gemm.is_batched for gemm in of_batches)
