"""`autotune export-table`, `verify` and `bench`, over a database with recorded trials."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from exports import EXPORTS

from autotune.cli import export_table
from autotune.export.package import write_folder
from autotune.facts.gemm import LAYOUTS
from autotune.kernel import template
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.gpu_models import GpuModel, load_cubins, load_models
from autotune.runtime.table.table import load
from autotune.store import Store

from .conftest import CUBLAS_US, ENVIRONMENT, RECORDED_ON, SQUARE, measured, points
from .runner import run

pytestmark = EXPORTS
EXPORT = ("export-table", "--max-kernels", "8")
BARE = ("export-table", "--max-kernels", "0")  # a third of the time: no kernel is chosen for other shapes


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trials of one problem; the second is the faster."""
    path = tmp_path_factory.mktemp("db") / "trials.db"
    with Store.open(path) as store:
        study = store.study(ENVIRONMENT, template.source_hash(), "nvrtc 13.4", SQUARE)
        for number in (19, 20):
            config = points(SQUARE)[number]
            store.add_trial(study, config.key, config.to_dict(), measured(number), "seed")
    return path


@pytest.fixture(scope="module")
def exported(db: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("application") / "my_gemm"
    return folder, json.loads(run(*EXPORT, "--db", db, "--out", folder, "--json").stdout)


@pytest.fixture(scope="module")
def again(exported: tuple[Path, dict[str, object]], db: Path) -> str:
    """What the same export says to a person, to the same place."""
    return run(*EXPORT, "--db", db, "--out", exported[0]).stdout


@pytest.mark.parametrize(
    ("each_s", "max_kernels", "is_told"), [(0.5, 252, True), (0.5, 0, False), (0.01, 252, False)]
)
def test_a_long_compile_tells_early_what_would_shorten_it(
    each_s: float,
    max_kernels: int,
    is_told: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(export_table.time, "monotonic", lambda: now_s[0])
    progress = export_table.console.Progress(is_quiet=True)
    message = export_table.ExportPrinter(progress, max_kernels, is_quiet=True).compiled
    for done in range(257):
        message(done, 257)
        now_s[0] += each_s
        if done == 1:
            early = capsys.readouterr().err
    text = (
        "257 kernels have to be compiled, up to 252 of them for shapes that were not tuned; "
        "--max-kernels 0 leaves these out\n"
    )
    assert (early, capsys.readouterr().err) == (text if is_told else "", "")


def test_a_compile_tells_its_rate_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, parts = [0.0], []
    monkeypatch.setattr(export_table.time, "monotonic", lambda: now_s[0])
    progress = SimpleNamespace(update=lambda *message: parts.append(message), close=lambda: None)
    printer = export_table.ExportPrinter(progress, 0, is_quiet=False)
    for done, now_s[0] in ((0, 100.0), (1, 100.001), (5, 102.5), (20, 110.0)):
        printer.compiled(done, 20)
    assert parts == [
        ("compiled 1 of 20 kernels",),  # how long a cache took says nothing of the others
        ("compiled 5 of 20 kernels", "2.0/s", "8 s left"),
        ("compiled 20 of 20 kernels", "2.0/s"),
    ]


@pytest.mark.stress
def test_an_export_under_conditions_holds_what_obeys(db: Path, tmp_path: Path) -> None:
    slower, faster = points(SQUARE)[19:21]
    assert (slower.frag_buffers, faster.frag_buffers) == (2, 1)
    folder = tmp_path / "my_gemm"
    where = ("--where", "frag_buffers=2", "--where", "pack_a=0,reduction!=two_pass")
    run("export-table", "--max-kernels", "6", "--db", db, "--out", folder, *where)
    ((_, table),) = load_models(folder)
    assert [entry.ranked[0].time_us for entry in table.entries] == [measured(19).time_us]
    kernels = [k for k in table.kernels if not k.variant.is_wide]  # those serve what no other may
    assert len(kernels) > 4
    assert all(k.config.frag_buffers == 2 and k.config.reduction != "two_pass" for k in kernels)
    message = run(*BARE, "--db", db, "--out", folder, "--where", "bk=8,stages>=5", code=6).stderr
    assert "no results that obey bk=8,stages>=5 for any shape" in message
    assert "autotune search --where 'bk=8,stages>=5'" in message
    assert "did you mean 'stages'" in run(*BARE, "--db", db, "--where", "stage=4", code=2).stderr


@pytest.mark.stress
def test_an_export_within_a_workspace(tmp_path: Path) -> None:
    """The faster of two kernels splits k in a second pass: 1 MiB of partial sums on this shape."""
    path, folder = tmp_path / "trials.db", tmp_path / "my_gemm"
    plain, split = points(SQUARE)[20], replace(points(SQUARE)[20], reduction="two_pass", split_k=2)
    with Store.open(path) as store:
        study = store.study(ENVIRONMENT, template.source_hash(), "nvrtc 13.4", SQUARE)
        for config, number in ((plain, 19), (split, 20)):
            store.add_trial(study, config.key, config.to_dict(), measured(number), "seed")
    export = ("export-table", "--max-kernels", "4", "--db", path, "--out", folder, "--json")
    every = json.loads(run(*BARE, *export[3:]).stdout)
    assert every["shapes"][0]["workspace_bytes"] == 2 << 20 and every["max_workspace_mib"] is None
    message = json.loads(run(*export, "--max-workspace", "1.5").stdout)
    assert message["shapes"][0]["workspace_bytes"] == 0 and message["max_workspace_mib"] == 1.5
    ((_, table),) = load_models(folder)
    assert table.max_workspace == 3 << 19
    assert all(kernel.spec.max_workspace == 3 << 19 for kernel in table.kernels)
    runtime = Dispatcher(folder)
    for m, n, k in ((512, 512, 512), (4096, 4096, 4096), (64, 64, 65536), (100, 100, 100), (1, 4096, 4096)):
        assert runtime.pick(m, n, k).workspace_bytes <= 3 << 19
    needs = ("--where", "reduction=two_pass", "--max-workspace", "1.5")
    message = run(*export[:-1], *needs, code=6).stderr
    assert (
        "no results that obey reduction=two_pass and a workspace of at most 1.5 MiB for any shape" in message
    )
    assert "autotune search --where reduction=two_pass --max-workspace 1.5" in message


def test_export_says_what_it_wrote_and_that_it_is_recorded(exported: tuple[Path, dict[str, object]]) -> None:
    folder, facts = exported
    assert facts["folder"] == str(folder)
    assert (facts["is_recorded"], facts["recorded_on"]) == (True, RECORDED_ON)
    assert [shape["shape"] for shape in facts["shapes"]] == [str(SQUARE)]
    table = load(folder)
    assert facts["num_cubins"] == len(load_cubins(folder, table)) <= len(table.kernels)
    assert facts["num_kernels"] == sum(kernel.is_plain for kernel in table.kernels)
    assert facts["cubin_bytes"] == (folder / "cubins.gz").stat().st_size


def test_an_export_holds_sources_in_c_where_these_are_requested_for(db: Path, tmp_path: Path) -> None:
    run(*BARE, "--db", db, "--out", tmp_path / "t", "--format", "c")
    sources = {path.name for path in (tmp_path / "t" / "c").iterdir()}
    assert sources >= {"autotune_sgemm.h", "exported_table.c", "cubins.S", "CMakeLists.txt", "example.c"}
    (tmp_path / "t" / "c" / "example.c").write_text("edited", encoding="utf-8")
    rejected = run(*EXPORT, "--db", db, "--out", tmp_path / "t", code=6)
    assert "was edited after it was exported: c/example.c" in rejected.stderr
    run(*EXPORT, "--db", db, "--out", tmp_path / "u", "--format", "fortran", code=2)


@pytest.mark.stress
def test_an_export_holds_the_epilogues_that_are_requested_for(
    exported: tuple[Path, dict[str, object]], db: Path, tmp_path: Path
) -> None:
    """Each kernel once more with each; as sources in C, too."""
    out = tmp_path / "t"
    few = (*BARE, "--db", db, "--out", out)
    added = ("--epilogue", "bias", "--epilogue", "bias-gelu-tanh")
    facts = json.loads(run(*few, *added, "--format", "c", "--json").stdout)
    assert facts["epilogues"] == ["bias", "bias-gelu-tanh"] and exported[1]["epilogues"] == []
    table = load(out)
    assert len(table.kernels) == 3 * facts["num_kernels"] and facts["num_cubins"] == len(table.kernels)
    assert facts["num_general"] < facts["num_kernels"] == len(table.defaults) + len(table.entries)
    assert "-bias_columns-gelu_tanh" in (out / "c" / "exported_table.c").read_text(encoding="utf-8")
    message = run(*few, *added).stdout
    assert "each also with bias, bias-gelu-tanh" in message
    rejected = run(*few, "--epilogue", "swish", code=2)
    assert "no epilogue is named 'swish'; pass some of bias, relu" in rejected.stderr
    assert load(out).epilogues == table.epilogues
    assert f"{len(table.kernels)} kernels in" in run("verify", out, "--gpu", "none").stdout


@pytest.mark.stress
def test_a_kind_of_gpu_is_added_and_replaced(
    exported: tuple[Path, dict[str, object]], db: Path, tmp_path: Path
) -> None:
    """To a folder that holds the table for another kind, with which all commands go on."""
    folder, made = tmp_path / "t", load(exported[0])
    other = replace(made, environment=replace(made.environment, gpu_name="NVIDIA Another"))
    write_folder(other, load_cubins(exported[0], made), folder)
    first = json.loads(run(*BARE, "--db", db, "--out", folder, "--add", "--json").stdout)
    assert (first["gpu"], first["other_gpus"]) == (ENVIRONMENT.gpu_name, ["NVIDIA Another"])
    (path, _), (own, table) = load_models(folder)
    assert path == folder and own.parent == folder / "kinds" and table.entries[0].gemm == SQUARE
    assert first["num_cubins"] == len(load_cubins(own, table))
    done = run(*BARE, "--db", db, "--out", folder, "--add")
    assert f"held a table for {GpuModel.of_table(table)}: it is replaced" in done.stderr
    assert "also holds the tables for NVIDIA Another" in done.stdout
    facts = json.loads(run("verify", folder, "--gpu", "none", "--json").stdout)
    assert facts["gpus"] == ["NVIDIA Another", ENVIRONMENT.gpu_name] and not facts["unlisted"]
    alone = run(*BARE, "--db", db, "--out", folder)
    assert "the table for NVIDIA Another (sm_90), which is gone: --add keeps it" in alone.stderr
    assert run("verify", folder, "--quick", "--gpu", "none", code=2).stderr


def test_the_folder_is_imported_without_autotune(exported: tuple[Path, dict[str, object]]) -> None:
    folder, facts = exported
    program = (
        "import sys, my_gemm; print(my_gemm.pick(512, 512, 512).kernel_id);"
        "print(sorted({'autotune', 'optuna', 'sqlalchemy', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True, text=True, cwd=folder.parent, env={"PYTHONPATH": ""}, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [facts["shapes"][0]["kernel"], "[]"]


def test_exporting_again_replaces_the_table(again: str) -> None:
    assert f"recorded on {ENVIRONMENT.gpu_name}, {RECORDED_ON}" in again


def test_a_folder_of_something_else_is_left_alone(db: Path, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work", encoding="utf-8")
    assert "thesis.tex" in run(*EXPORT, "--db", db, "--out", folder, code=6).stderr
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_a_table_with_a_file_of_the_user_in_it_is_left_alone(
    exported: tuple[Path, dict[str, object]], db: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "my_gemm"
    subprocess.run(["cp", "-r", str(exported[0]), str(copy)], check=True)
    (copy / "mine.txt").touch()
    before = sorted(copy.rglob("*"))
    done = run(*EXPORT, "--db", db, "--out", copy, code=6)
    assert "holds more than an exported table: mine.txt; move that elsewhere" in done.stderr
    assert sorted(copy.rglob("*")) == before


def test_a_name_that_cannot_be_imported_is_wrong_usage(db: Path, tmp_path: Path) -> None:
    done = run(*EXPORT, "--db", db, "--out", tmp_path / "my-gemm", code=2)
    assert "pass another --out, such as my_gemm" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_shape_that_was_not_tuned_is_named(db: Path, tmp_path: Path) -> None:
    done = run(*EXPORT, "--db", db, "--out", tmp_path / "x", "--shape", "77", code=6)
    assert "77x77x77:NN" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_database_without_results(tmp_path: Path) -> None:
    Store.open(tmp_path / "empty.db").close()
    done = run("export-table", "--db", tmp_path / "empty.db", "--out", tmp_path / "x", code=6)
    assert "autotune search" in done.stderr


def test_verify_refuses_what_is_no_table_or_damaged(
    exported: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    folder, _ = exported
    assert "table.json" in run("verify", tmp_path, code=6).stderr
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    cubins = copy / "cubins.gz"
    cubins.write_bytes(cubins.read_bytes()[:-1] + b"?")
    assert "damaged" in run("verify", copy, code=6).stderr


def test_verify_needs_a_gpu_and_takes_no_recording(exported: tuple[Path, dict[str, object]]) -> None:
    folder, _ = exported
    without = run("verify", folder, "--json", code=3, CUDA_VISIBLE_DEVICES="")
    assert "GPU" in without.stderr and "--gpu none" in without.stderr
    assert json.loads(without.stdout)["not_checked"]
    assert run("verify", folder, "--gpu", "none", "--json").stdout == without.stdout
    assert "recording" in run("verify", folder, "--gpu", "replay:x.gz", code=2).stderr


def test_bench_on_a_recording(db: Path, recording: Path) -> None:
    done = run("bench", "--db", db, "--gpu", f"replay:{recording}", "--rounds", "9", "--json")
    facts = json.loads(done.stdout)
    assert (facts["is_recorded"], facts["recorded_on"]) == (True, RECORDED_ON)
    (shape,) = facts["shapes"]
    best = points(SQUARE)[20]
    assert shape["config"] == best.to_dict()
    assert len(shape["samples_us"]) == len(shape["cublas_samples_us"]) == 9
    low, high = shape["speedup_interval"]
    assert low <= shape["speedup"] <= high
    assert shape["speedup"] == pytest.approx(CUBLAS_US / 12.5, rel=0.01)
    text = run("bench", "--db", db, "--gpu", f"replay:{recording}").stdout
    assert f"recorded on {ENVIRONMENT.gpu_name}, {RECORDED_ON}" in text


def test_bench_names_what_was_not_tuned(db: Path, recording: Path) -> None:
    done = run("bench", "--db", db, "--gpu", f"replay:{recording}", "--shape", "16x512x4096", code=2)
    assert "16x512x4096:NN" in done.stderr


def test_record_needs_a_gpu(tmp_path: Path) -> None:
    run("record", "--out", tmp_path / "x.gz", "--shape", "64", code=3, CUDA_VISIBLE_DEVICES="")
    assert list(tmp_path.iterdir()) == []


def test_export_tells_how_shapes_are_served_that_were_left_out(
    exported: tuple[Path, dict[str, object]], again: str, db: Path, tmp_path: Path
) -> None:
    folder, facts = exported
    assert facts["left_out"] == json.loads((folder / "table.json").read_text())["left_out"]
    groups = {one["group"]: one for one in facts["left_out"]}
    assert groups["all"]["num_shapes"] == sum(groups[layout]["num_shapes"] for layout in LAYOUTS) > 100
    (line,) = [line for line in again.splitlines() if line.startswith("all ")]
    assert f"{groups['all']['portfolio']:.3f}" in line and f"{groups['all']['cublas']['served']:.3f}x" in line
    bare = run(*BARE, "--db", db, "--out", tmp_path / "bare").stdout
    assert "search --any" in bare and "all " not in [line[:4] for line in bare.splitlines()]
