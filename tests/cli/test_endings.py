"""How commands end: exit codes as the manual has them, signals, readers and terminals that go away."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from exports import EXPORTS
from kills import default_signals
from sandbox import autotune, small_disk

from autotune.files.errors import AutotuneError
from autotune.store import Store

from .runner import REPOSITORY, run

RECORDED = REPOSITORY / "studies" / "recorded" / "h200.json.gz"
LONG = ("search", "--gpu", f"replay:{RECORDED}", "--shape", "4096")


def started(
    *arguments: str | Path, before: Sequence[str] = (), options: Sequence[str] = (), **more: object
) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [*before, sys.executable, *options, "-m", "autotune", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        restore_signals=True,
        preexec_fn=default_signals,
        **more,  # type: ignore[call-overload]
    )


# ------------------------------------------------------------------------------------ exit codes

BAD_NAME = "n" * 5000
WRONG = {
    "search": [
        ("--shape", "x"),
        ("--shape", "0"),
        ("--shape", "9" * 5000),
        ("--gpu", "auto", "--shape", "5000", "--seconds", "5"),
        ("--gpu", "auto", "--shape", "4096", "--any", "2", "--seconds", "5"),
        ("--gpu", "replay:none.gz", "--shape", "4096"),
        ("--gpu", "replay:/dev/zero"),
        ("--gpu", f"replay:{BAD_NAME}"),
        ("--suite", "/dev/zero"),
        (*LONG[1:], "--seconds", "inf"),
        (*LONG[1:], "--seconds", "nan"),
        (*LONG[1:], "--seconds", "0"),
        (*LONG[1:], "--trials", "-1"),
        (*LONG[1:], "--trials", "1.5"),
        (*LONG[1:], "--seed", "-1"),
        (*LONG[1:], "--sampler", "none"),
        (*LONG[1:], "--max-error", "nan"),
        (*LONG[1:], "--max-error", "-1"),
        (*LONG[1:], "--colour"),
    ],
    "space": [("--shape", "0"), ("--shape", "0x1x1", "--gpu", "h200"), ("--gpu", BAD_NAME)],
    "ladder": [("--shape", "0"), ("--rounds", "1")],
    "bench": [("--rounds", "99999999999")],
    "record": [(), ("--out", "x.gz", "--seconds", "nan"), ("--out", "x.gz", "--seconds", "inf")],
    "trials": [("t4", "--recording", "/dev/zero", "--out", "x.json"), ("history", "--limit", "0"), ("none",)],
    "verify": [("a", "b")],
    "export-table": [("--cache",)],
    "report": [("--out",)],
    "view": [("--port", "70000"), ("--shape", "0")],
    "doctor": [("--json=maybe",)],
}


@pytest.mark.every(3)
@pytest.mark.parametrize(("command", "arguments"), [(c, a) for c, several in WRONG.items() for a in several])
def test_wrong_usage_is_one_line_and_2(command: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    is_new = arguments == WRONG[command][0]
    done = run(command, *arguments, code=2, cwd=tmp_path, is_new=is_new, CUDA_VISIBLE_DEVICES="")
    notes = ("No GPU", "A recorded", "Every")
    messages = [line for line in done.stderr.splitlines() if not line.startswith(notes)]
    assert done.stdout == "" and len(messages) == 1 and messages[0].startswith("autotune: "), done.stderr
    assert not list(tmp_path.iterdir()), "what was refused left a file"


@pytest.mark.every(4)
@pytest.mark.parametrize("name", [BAD_NAME, b"a\xff.db", "/dev/null", "none/a.db", ".", "fifo", "voodoo://x"])
@pytest.mark.parametrize(
    "command", [LONG, ("trials", "best"), ("report",), ("view",), ("doctor",), ("bench",)]
)
def test_a_name_of_no_database_is_5(name: str | bytes, command: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    name = os.fsdecode(name)
    code = 5
    if command == ("doctor",):  # tells all that it finds
        code = 3 if name in (BAD_NAME, "voodoo://x", ".", "/dev/null", "fifo") or "\udcff" in name else 0
    done = run(*command, "--db", name, code=code, cwd=tmp_path, is_new=name == "none/a.db")
    assert "internal error" not in done.stderr + done.stdout


def test_shapes_without_a_trial_are_told_and_are_wrong_usage_if_there_is_no_other(capsys) -> None:
    """A recording enumerates all of its spaces at once; on a GPU seconds may be too few for a suite."""
    from autotune.cli.search import _need_winners
    from autotune.facts.gemm import Gemm
    from autotune.files.errors import EnvironmentProblem, UsageError
    from autotune.search import SearchResult, ShapeResult, StopReason
    from autotune.search.progress import Ledger

    def ended(*shapes: ShapeResult) -> SearchResult:
        return SearchResult(shapes, (Gemm(1, 2, 3),), StopReason.SECONDS, 0, 0, 1.0, Ledger())

    def shape(m: int, best: str | None, num_trials: int) -> ShapeResult:
        return ShapeResult(Gemm(m, 2, 3), None, best, None, None, None, None, 1.0, num_trials, 1, 1)  # type: ignore[arg-type]

    untried, failed, fine = shape(4, None, 0), shape(5, None, 9), shape(6, "a trial", 9)
    for nothing in (ended(), ended(untried)):
        with pytest.raises(UsageError, match=r"before a trial of .*1x2x3:NN; run .* more --seconds"):
            _need_winners(nothing)
    with pytest.raises(EnvironmentProblem, match="no candidate for 5x2x3:NN ran"):
        _need_winners(ended(fine, failed))
    _need_winners(ended(fine, untried))
    assert "before a trial of 4x2x3:NN, 1x2x3:NN; run" in capsys.readouterr().err


@pytest.mark.stress
@EXPORTS
def test_a_full_disk_is_3_whatever_is_written(recording: Path, tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    run("search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", db, "--trials", "9", "--quiet")
    for command in (
        autotune("report", "--db", db, "--out", "report.html"),
        autotune("export-table", "--max-kernels", "0", "--db", db, "--out", "table"),
        autotune("search", "--gpu", f"replay:{recording}", "--shape", "512", "--db", "b.db"),
    ):
        done = small_disk("size=12k", "sh", "-c", f"{command}; echo exit $?")
        assert done.stdout.splitlines()[-1] == "exit 3", f"{command}\n{done.stdout}{done.stderr}"
        assert "full" in done.stderr or "No space" in done.stderr


def test_the_manual_has_every_exit_code() -> None:
    text = (REPOSITORY / "docs/manual/commands.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    signals = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)}
    raised = {error.exit_code for error in _with_all_below(AutotuneError)}
    assert codes == {0} | raised | signals


def _with_all_below(error: type[AutotuneError]) -> list[type[AutotuneError]]:
    return [error, *(each for below in error.__subclasses__() for each in _with_all_below(below))]


# --------------------------------------------------------------------------------------- signals


@pytest.mark.every(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_search_in_order(number: signal.Signals, tmp_path: Path) -> None:
    process = started(*LONG, "--db", tmp_path / "a.db", "--json")
    assert process.stderr is not None
    process.stderr.readline()  # the shape is ready: signals are handled from before that
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert json.loads(out)["stopped"] == "interrupted"
    assert _num_stored(tmp_path / "a.db") == json.loads(out)["num_trials"]


@pytest.mark.stress
def test_a_search_under_nohup_outlives_its_terminal(recording: Path, tmp_path: Path) -> None:
    process = started(
        "search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--json", before=("nohup",)
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "configs" in line:
            break
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and json.loads(out)["stopped"] != "interrupted"


@pytest.mark.stress
def test_a_search_whose_terminal_closes_ends_in_order(tmp_path: Path) -> None:
    """What it writes then goes nowhere, and raises errors of input and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        default_signals()
        os.environ["PYTHONPATH"] = str(REPOSITORY)
        os.execv(sys.executable, [sys.executable, "-m", "autotune", *LONG, "--db", str(tmp_path / "a.db")])
    _read_until(terminal, b"configs")
    os.close(terminal)  # the kernel sends SIGHUP
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert _num_stored(tmp_path / "a.db") >= 0  # whole, and readable


def _num_stored(db: Path) -> int:
    with Store.open(db) as store:
        return sum(study.num_trials for study in store.studies())


def _read_until(terminal: int, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        assert select.select([terminal], [], [], 60)[0], found
        found += os.read(terminal, 4096)
    return found


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of three trials, to be copied."""
    db = tmp_path_factory.mktemp("searched") / "autotune.db"
    run(*LONG, "--trials", "3", "--db", db, "--quiet")
    return db


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("space", "--gpu", "h200"),
        ("trials", "best"),
        ("doctor",),
        ("report",),
        (*LONG, "--trials", "9"),
    ],
    ids=lambda command: command[0],
)
def test_ctrl_c_leaves_no_traceback_at_any_moment(
    command: tuple[str, ...], searched: Path, tmp_path: Path
) -> None:
    """From when autotune begins; what Python does before is not ours."""
    shutil.copy(searched, tmp_path)
    for delay_s in (0.0, 0.03, 0.1, 0.25, 0.7):
        process = started(*command, options=("-X", "importtime"), cwd=tmp_path)
        assert process.stderr is not None
        for line in process.stderr:
            if line.rstrip().endswith("autotune.cli.start"):
                break
        process.stderr.readline()  # something else was imported: autotune has begun
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        messages = [line for line in err.splitlines() if not line.startswith("import time:")]
        # While Python ends, signals do again what they do without it: nothing is told then, either.
        assert process.returncode in (0, 130) or (process.returncode, messages) == (-signal.SIGINT, [])
        assert not re.search("Traceback|KeyboardInterrupt|internal error", err), (delay_s, messages)


# ------------------------------------------------------------------------- readers that go away


@pytest.mark.stress
@pytest.mark.every(4)
@pytest.mark.parametrize(
    "command",
    [("space", "--gpu", "h200"), ("--help",), ("trials", "history"), ("trials", "history", "--json")],
)
def test_a_reader_that_has_enough_is_no_error(
    command: tuple[str, ...], searched: Path, tmp_path: Path
) -> None:
    shutil.copy(searched, tmp_path)
    with started(*command, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str, searched: Path, tmp_path: Path) -> None:
    shutil.copy(searched, tmp_path)
    command = [sys.executable, "-m", "autotune", "trials", "best", "--db"]
    for db, code in ((searched.name, 0), ("none.db", 5)):
        shell = ["sh", "-c", f'"$@" {closed}', "sh", *command, db]
        done = subprocess.run(shell, capture_output=True, cwd=tmp_path, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert ("4096x" in done.stdout) == (code == 0 and ">&-" not in closed.split())
        assert bool(done.stderr) == (code == 5 and "2>&-" not in closed)


@pytest.mark.parametrize(
    "command", ["search --gpu auto --shape 4096", "export-table --db", "requests add --shape 64"]
)
def test_a_current_folder_that_was_removed_is_said_to_be_gone(
    command: str, searched: Path, tmp_path: Path
) -> None:
    its = [*command.split(), *([str(searched)] if command.endswith("--db") else [])]
    shell = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", "autotune", *its]
    done = subprocess.run(shell, capture_output=True, cwd=tmp_path, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "the current folder was removed" in done.stderr and "go to one that is there" in done.stderr
