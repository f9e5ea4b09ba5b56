"""Disks that are full or may not be written, memory that runs out: a clear end, and nothing lost."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exports import EXPORTS
from sandbox import ROOT, autotune, small_disk
from typer.testing import CliRunner

from autotune import gpu
from autotune import target_finder as targets
from autotune.cli import console
from autotune.cli.app import app
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.gpu.driver import GpuInfo

from .runner import run

pytestmark = pytest.mark.stress


def search(recording: Path, db: str | Path, trials: int, *more: str) -> str:
    return autotune(
        "search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", db, "--trials", trials,
        "--sampler", "random", "--json", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def searched(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("searched") / "trials.db"
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", path, "--trials", "9", "--quiet")
    return path


@pytest.fixture
def db(searched: Path, tmp_path: Path) -> Path:
    """A database on a disk with room."""
    return Path(shutil.copy(searched, tmp_path))


def count(db: str) -> str:
    """Prints how many trials there are, and of how many configs."""
    sql = "SELECT count(*), count(DISTINCT config_id) FROM trial"
    code = f"import sqlite3; print(*sqlite3.connect('{db}').execute('{sql}').fetchone())"
    return shlex.join([sys.executable, "-c", code])


def test_a_search_on_a_full_disk_stops_and_goes_on_once_there_is_room(recording: Path) -> None:
    one = search(recording, "trials.db", 48)
    fill = "dd if=/dev/zero of=fill bs=4k 2>/dev/null"
    script = f"""
        {autotune("trials", "best", "--db", "trials.db")} 2>/dev/null
        {search(recording, "trials.db", 3)} > /dev/null && {fill}; truncate -s -96k fill
        {one}; echo exit $?
        rm fill; {count("trials.db")}
        {one} > facts.json; echo exit $?
        {count("trials.db")}; grep num_new facts.json
    """
    done = small_disk("size=8m", "sh", "-c", script)
    assert "free some space on the disk and run the same command again: it resumes" in done.stderr
    first, kept, second, final, last = done.stdout.splitlines()
    assert (first, second) == (f"exit {EnvironmentProblem.exit_code}", "exit 0")
    num_kept, num_different = map(int, kept.split())
    assert 3 <= num_kept == num_different < 48
    assert final == "48 48" and last.split() == ['"num_new":', f"{48 - num_kept},"]


def test_a_disk_full_to_the_last_byte_is_told_from_a_broken_one(recording: Path) -> None:
    script = f"""
        {search(recording, "trials.db", 3)} > /dev/null; dd if=/dev/zero of=fill bs=1k 2>/dev/null
        {autotune("trials", "best", "--db", "trials.db")}; echo exit $?
        rm fill; {count("trials.db")}
    """
    done = small_disk("size=2m", "sh", "-c", script)
    assert done.stdout.splitlines() == [f"exit {EnvironmentProblem.exit_code}", "3 3"]
    assert "free some space on the disk" in done.stderr


@EXPORTS
def test_an_export_that_does_not_fit_leaves_the_old_table_whole(db: Path) -> None:
    export = autotune("export-table", "--max-kernels", "0", "--db", db, "--out", "table")
    script = f"""
        {export} > /dev/null && cp -r table before
        dd if=/dev/zero of=fill bs=64k 2>/dev/null; truncate -s -256k fill
        {export}; echo exit $?
        diff -r table before && echo same; ls -A
    """
    done = small_disk("size=32m", "sh", "-c", script)
    assert done.stdout.split("\n")[:2] == ["exit 3", "same"]
    assert done.stdout.split()[3:] == ["before", "fill", "table"]  # nothing half made is left
    assert "table cannot be written: the disk is full ([Errno 28] No space left on device)" in done.stderr


def test_a_report_that_does_not_fit_leaves_the_old_one_whole(db: Path) -> None:
    write = (
        autotune("report", "--db", db, "--out", "out"),
        autotune("trials", "t4", "--db", db, "--out", "out"),
    )
    script = f"""
        echo old > out; dd if=/dev/zero of=fill bs=1k 2>/dev/null
        {write[0]}; echo $?
        {write[1]}; echo $?
        cat out; ls -A
    """
    done = small_disk("size=1m", "sh", "-c", script)
    assert done.stdout.split() == ["3", "3", "old", "fill", "out"]
    assert done.stderr.count("out cannot be written: the disk is full (No space left on device); free") == 2


def test_a_device_stays_one_and_a_link_is_written_through(db: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    for command in (("report",), ("trials", "t4")):
        run(*command, "--db", db, "--out", "/dev/full", code=EnvironmentProblem.exit_code)
        assert Path("/dev/full").is_char_device()
        run(*command, "--db", db, "--out", tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and (tmp_path / "target").stat().st_size > 1000
        (tmp_path / "target").unlink()


@EXPORTS
def test_a_place_that_may_not_be_written_is_told(recording: Path, db: Path) -> None:
    script = f"""
        {search(recording, "trials.db", 3)} > /dev/null; mount -o remount,ro .
        {search(recording, "trials.db", 9)}; echo $?
        {search(recording, "new.db", 9)}; echo $?
        {autotune("export-table", "--max-kernels", "0", "--db", db, "--out", "table")}; echo $?
    """
    done = small_disk("size=4m", "sh", "-c", script)
    assert done.stdout.split() == ["5", "5", "6"]
    *databases, table = [line for line in done.stderr.splitlines() if line.startswith("autotune: ")]
    assert len(databases) == 2
    assert all("its folder exists and may be written" in line for line in databases)
    assert "Read-only file system" in table


def test_what_a_gpu_has_to_say_of_its_cache_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/compile/test_compiler_faults.py has the full disk."""
    monkeypatch.setattr(targets, "GpuTarget", lambda selector, *, note, **_: note(f"{selector}: no cache"))
    targets.open_gpu("0", CachePolicy.COLD, note=console.note)
    assert capsys.readouterr().err == "0: no cache\n"


def test_a_shape_that_no_memory_holds_is_refused_before_anything_is_tuned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """tests/gpu and tests/emulated have memory that is there, but taken."""
    small = GpuInfo(0, "NVIDIA Small", "GPU-0", (9, 0), 4 * 2**30)
    monkeypatch.setattr(gpu, "find_gpu", lambda selector: small, raising=False)
    monkeypatch.setattr(targets, "GpuTarget", lambda selector, **_: "opened")
    fits, too_large = Gemm(16384, 16384, 16384), Gemm(32768, 32768, 1)
    assert targets.open_target("0", CachePolicy.COLD, [fits], note=print) == "opened"
    rejection = r"take 4\.0 GiB, and NVIDIA Small has 4\.0 GiB .*a smaller one"
    with pytest.raises(UsageError, match=rejection):
        targets.open_target("0", CachePolicy.COLD, [fits, too_large], note=print)
    for command, *more in (("record", "--out", str(tmp_path / "a.gz"), "--shape", str(fits)), ("ladder",)):
        done = CliRunner().invoke(app, [command, "--gpu", "0", *more, "--shape", str(too_large)])
        assert isinstance(done.exception, UsageError)
        assert re.search(rejection, str(done.exception))
    assert not any(tmp_path.iterdir())


def test_a_result_that_cannot_be_printed_is_no_internal_error(db: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "trials", "best", "--db", db], stdout=full,
            stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == EnvironmentProblem.exit_code
    assert "the disk is full ([Errno 28] No space left on device); free some and run" in done.stderr


STARVED = """
import resource, sys
import numpy as np
from autotune.cli import app
from autotune.cli import search
from autotune.search.progress import TrialDone
class Starved(search.EventPrinter):
    def __call__(self, event):
        super().__call__(event)
        if isinstance(event, TrialDone) and event.num_done == 5:
            GREED
search.EventPrinter = Starved
app.main()
"""
MEMORY = """resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
            self.hungry = np.ones(1 << 22)"""
FILES = """import os
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            self.hungry = [os.dup(2) for _ in range(64)]"""


@pytest.mark.parametrize(
    ("greed", "words"),
    [
        (MEMORY, "autotune: out of memory (Unable to allocate 32.0 MiB"),
        (FILES, "autotune: too many files are open ([Errno 24] Too many open files); allow more (ulimit -n)"),
    ],
    ids=["memory", "files"],
)
def test_a_search_that_runs_out_ends_clearly_and_is_resumed(
    recording: Path, tmp_path: Path, greed: str, words: str
) -> None:
    db = tmp_path / "trials.db"
    arguments = [
        "search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", str(db), "--trials", "9",
        "--json",
    ]  # fmt: skip
    command = [sys.executable, "-c", STARVED.replace("GREED", greed), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == EnvironmentProblem.exit_code, done.stderr
    assert words in done.stderr
    assert "run the same command again" in done.stderr
    facts = json.loads(run(*arguments).stdout)
    assert (facts["num_new"], facts["num_trials"]) == (4, 9)
