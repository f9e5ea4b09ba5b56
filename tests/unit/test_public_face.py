"""What `import autotune` offers: each name typed and documented, its examples run, on a recorded space."""

from __future__ import annotations

import doctest
import inspect
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from exports import EXPORTS
from table_cases import make_table

import autotune
from autotune import tuning
from autotune.cli import bench
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, EnvironmentProblem, StoreError, UsageError
from autotune.search import InterruptHandler, Options
from autotune.search.progress import ShapeStarted, TrialDone
from autotune.store import Store
from autotune.target_finder import default_recording

NAMES = {
    "Config", "Dispatcher", "Gemm", "OptunaStorage", "Result", "SearchPolicy", "__version__", "export_table",
    "reference", "space", "tune",
}  # fmt: skip
SHAPE = "512x512x16384"


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> autotune.Result:
    events: list[object] = []
    db = tmp_path_factory.mktemp("face") / "a.db"
    found = autotune.tune(
        SHAPE, gpu=f"replay:{default_recording()}", trials=30, db=str(db), seed=3, on_event=events.append
    )
    assert isinstance(events[0], ShapeStarted)
    assert sum(isinstance(event, TrialDone) for event in events) == 30
    return found


def test_the_face_is_these_names_and_no_others():
    assert set(autotune.__all__) == set(dir(autotune)) == NAMES
    for name in NAMES - {"__version__"}:
        value = getattr(autotune, name)
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            assert all(p.annotation is not p.empty for p in inspect.signature(value).parameters.values())
    with pytest.raises(AttributeError, match="no attribute 'tuned'"):
        _ = autotune.tuned


def test_a_result_tells_the_best_and_every_trial(result):
    gemm = autotune.Gemm.parse(SHAPE)
    best, trials = result.best[gemm], result.trials[gemm]
    assert best is not None and best.time_us >= result.optimum_us[gemm]
    assert len(trials) == 30 == result.shapes[0].num_trials
    assert best.point in [dict(trial.point) for trial in trials]
    assert result.environment.is_recorded


@pytest.fixture
def few_kernels(monkeypatch):
    """A result exports as many kernels as an export does if not told, which takes minutes; here only those
    that were tuned, and defaults."""
    monkeypatch.setattr(tuning, "export_table", partial(tuning.export_table, max_kernels=0))


def test_what_is_known_of_a_shape_is_found_by_any_of_its_names(result):
    gemm = autotune.Gemm.parse(SHAPE)
    for name in (SHAPE, (512, 512, 16384), gemm, f"{SHAPE}:nn"):
        assert result.best[name] is result.best[gemm] or result.best[name] == result.best[gemm]
        assert len(result.trials[name]) == 30
        assert name in result.best and result.best.get(name) is result.best[gemm]
    for name in (4096, "x", None, [1, 2]):
        assert name not in result.trials and result.best.get(name) is None and result.best.get(name, 1) == 1
    with pytest.raises(KeyError, match="4096x4096x4096:NN was not searched; known are 512x512x16384:NN"):
        _ = result.best[4096]
    with pytest.raises(UsageError, match=r"shape 1\.5: write 4096"):
        _ = result.best[1.5]


def test_a_limit_of_errors_that_no_kernel_keeps_is_named(result, tmp_path):
    with pytest.raises(DispatchError, match=r"no kernel that ran within max_error 0\.0001; run"):
        autotune.export_table(tmp_path / "out", db=result.db, max_error=1e-4)
    with Store.open_existing(result.db) as store:
        (environment,) = store.environments()
        target = SimpleNamespace(environment=environment, policy="cold", max_error=1e-4)
        with pytest.raises(UsageError, match=r"any shape \(.*, within --max-error 0\.0001\); run"):
            bench.winners(store, target, [])
        with pytest.raises(UsageError, match=r"64x64x64:NN \(recorded on NVIDIA H200, [0-9-]*\); run"):
            bench.winners(store, target, [Gemm(64, 64, 64)])


def test_what_the_functions_return_is_shown_in_a_few_words(result):
    best, table, space = result.best[SHAPE], make_table(), autotune.space(4096, "h200")
    assert repr(result) == f"Result(NVIDIA H200; {SHAPE}:NN: {best.description})"
    num = len(table.kernels)
    assert repr(table) == f"Table(NVIDIA H200: 0 tuned shapes, {num} kernels, exported {table.created_at})"
    assert repr(space) == f"FeasibleSet({space.num_points:,} points of 28 parameters)"
    for one in (result, table, best, result.search, result.shapes[0]):
        assert len(repr(one)) < 1500, type(one)


@EXPORTS
def test_a_result_is_exported_and_loaded(few_kernels, result, tmp_path):
    table = result.export(tmp_path / "folder")
    assert [entry.gemm for entry in table.entries] == [autotune.Gemm.parse(SHAPE)]
    pick = autotune.Dispatcher(tmp_path / "folder").pick(512, 512, 16384)
    assert pick.how == "exact"


@pytest.mark.parametrize("insists", [False, True])
def test_seconds_on_a_recording_are_used_up_only_if_told_so(monkeypatch, tmp_path, insists):
    requested = []

    def refuse(target, store, gemms, options, *_):
        requested.append(options)
        raise UsageError("seen")

    monkeypatch.setattr(tuning, "search", refuse)
    with pytest.raises(UsageError, match="seen"):
        autotune.tune(
            SHAPE, gpu=f"replay:{default_recording()}", seconds=60, insists=insists, db=tmp_path / "a.db"
        )
    assert requested[0].insists is insists


def test_a_search_goes_on_where_it_ended(result):
    more = autotune.tune(SHAPE, gpu=f"replay:{default_recording()}", trials=36, db=result.db)
    assert more.search.num_new == 6 and more.shapes[0].num_trials == 36


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (512, ["512x512x512:NN"]),
        ((3, 4, 5), ["3x4x5:NN"]),
        ("3x4x5:TN", ["3x4x5:TN"]),
        ([512, (3, 4, 5), "512"], ["512x512x512:NN", "3x4x5:NN"]),
        (autotune.Gemm(1, 2, 3), ["1x2x3:NN"]),
        ((), []),
    ],
)
def test_shapes_are_written_in_several_ways(given, expected):
    assert list(map(str, tuning.read_shapes(given))) == expected


@pytest.mark.parametrize("given", [3.5, [(1, 2)], [None], "a", 0, (0, 1, 1)])
def test_what_is_no_shape_is_refused(given):
    with pytest.raises((UsageError, TypeError)):
        autotune.tune(given, gpu="replay:x")


def test_a_space_of_a_known_gpu_needs_no_gpu():
    configs = autotune.space(512, "rtx-4090")
    assert len(configs) > 10**6
    assert autotune.Config.from_dict(configs.point(0))


def test_a_missing_database_is_refused_and_none_is_made(tmp_path):
    with pytest.raises(StoreError, match="no database"):
        autotune.export_table(tmp_path / "out", db=str(tmp_path / "none.db"))
    assert not list(tmp_path.iterdir())


def test_what_a_person_should_know_is_logged(caplog, monkeypatch):
    monkeypatch.setattr("autotune.target_finder.why_no_gpu", lambda: "there is none")
    with caplog.at_level(logging.WARNING, logger="autotune"):
        assert len(autotune.space(64)) and KNOWN
    assert "No GPU can be used here" in caplog.text


@EXPORTS
def test_the_examples_run(few_kernels, tmp_path, monkeypatch):
    """As written, but for the seconds, and for a recording where there is no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autotune.target_finder.why_no_gpu", lambda: "there is none")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for function in (tuning.tune, tuning.space):
        for test in doctest.DocTestFinder().find(function, globs={}):
            test.examples = [
                doctest.Example(
                    e.source.replace("seconds=60", "trials=20").replace("/tmp/", f"{tmp_path}/"), ""
                )
                for e in test.examples
            ]
            printed: list[str] = []
            runner.run(test, out=printed.append)
            assert not [text for text in printed if "Exception raised" in text], printed
            assert test.examples


def test_importing_costs_nothing_until_something_is_requested_for():
    code = (
        "import autotune, sys; assert 'numpy' not in sys.modules; autotune.Gemm; print(autotune.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == autotune.__version__


def test_a_result_tells_how_its_trials_were_timed(tmp_path):
    """A recording has one of its own, whatever is asked for: by another, no export would find its trials."""
    gpu = f"replay:{default_recording()}"
    found = autotune.tune(SHAPE, gpu=gpu, trials=1, db=str(tmp_path / "a.db"), cache="warm")
    assert found.cache == "cold" and {shape.study.policy for shape in found.shapes} == {"cold"}


@pytest.mark.parametrize(("granted", "left"), [(10.0, 5.5), (2.0, tuning._LEAST_S)])
def test_a_search_whose_seconds_cublas_took_still_has_some(monkeypatch, granted, left):
    """Else it would be told that it was granted 0, which nobody did."""
    clock = [100.0]
    target = SimpleNamespace(now=lambda: clock[0], limits=KNOWN["h200"], fill=None)
    monkeypatch.setattr(tuning, "CellTarget", SimpleNamespace)
    monkeypatch.setattr(tuning, "time_cublas", lambda *_, **__: clock.__setitem__(0, clock[0] + 1.5))
    found = tuning._after_cublas(target, None, (), Options(seconds=granted), InterruptHandler())
    assert found.seconds == left


def test_a_result_is_a_data_frame_and_a_table_of_a_notebook(tmp_path: Path) -> None:
    result = autotune.tune(4096, gpu="auto", trials=5, db=tmp_path / "a.db", note=lambda message: None)
    shown = result._repr_html_()
    assert "<td>4096x4096x4096:NN</td>" in shown and shown.count("<tr>") == 2
    rows = [trial.flat() for trial in result.trials[Gemm(4096, 4096, 4096)]]
    assert len(rows) == 5 and {"time_us", "outcome", "config.bm", "sm_clock_mhz"} <= rows[0].keys()
    pandas = pytest.importorskip("pandas")
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame) and list(frame["id"]) == [row["id"] for row in rows]
    assert set(frame["shape"]) == {"4096x4096x4096:NN"}


def test_a_result_draws_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("agg")
    result = autotune.tune([1024, 4096], trials=5, db=tmp_path / "a.db", note=lambda message: None)
    axes = result.plot()
    assert [axis.get_title() for axis in axes] == ["1024x1024x1024:NN", "4096x4096x4096:NN"]
    for axis, trials in zip(axes, result.trials.values(), strict=True):
        times = [trial.measurement.time_us for trial in trials if trial.measurement.time_us]
        dots, best, cublas = axis.get_lines()
        assert list(dots.get_ydata()) == times and best.get_ydata()[-1] == min(times)
        assert cublas.get_label() == "cuBLAS"
    axes[0].figure.savefig(tmp_path / "trials.png")


@pytest.mark.every(2)
@pytest.mark.parametrize(("package", "ask"), [("pandas", "to_frame"), ("matplotlib", "plot")])
def test_without_a_package_the_way_to_get_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, ask: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = autotune.tune(4096, gpu="auto", trials=1, db=tmp_path / "a.db", note=lambda message: None)
    with pytest.raises(EnvironmentProblem, match=f"pip install {package}"):
        getattr(result, ask)()
