"""Help, version, exit codes: what every command has in common."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from autotune import __version__
from autotune.files import errors

from .runner import REPOSITORY, run

COMMANDS = (
    "search",
    "export-table",
    "space",
    "trials",
    "report",
    "view",
    "explain",
    "bench",
    "verify",
    "record",
    "doctor",
)


def test_help_names_every_command() -> None:
    started = time.perf_counter()
    text = run("--help", is_new=True).stdout
    print(
        f"\nautotune --help took {time.perf_counter() - started:.2f} s"
    )  # a budget of 0.3 s, told not asserted
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", text, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert "Usage:" in run(command, "--help").stdout


@pytest.mark.every(3)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "trials"])
def test_every_command_speaks_json(command: str) -> None:
    assert "--json" in run(command, "--help", is_new=True).stdout


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("code", "arguments"),
    [(0, ("--help",)), (0, ("--version",)), (0, ("space", "--gpu", "h200", "--shape", "4097x5x64:TN")),
     (2, ("space", "--debug", "--shape", "x")), (2, ("space", "--colour")), (2, ("trials",)),
     (5, ("trials", "best", "--db", "none.db")), (6, ("verify", "no_table"))],
)  # fmt: skip
def test_a_forked_command_says_what_a_new_one_says(
    code: int, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    new, forked = (run(*arguments, code=code, cwd=tmp_path, is_new=is_new) for is_new in (True, False))
    assert forked.stdout == new.stdout
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]
    assert forked.stderr == new.stderr


def test_version() -> None:
    assert run("--version").stdout == f"autotune {__version__}\n"


def test_unknown_command_and_flag_exit_with_2() -> None:
    assert "frobnicate" in run("frobnicate", code=errors.UsageError.exit_code).stderr
    assert "--colour" in run("space", "--colour", code=errors.UsageError.exit_code).stderr


def test_errors_have_no_traceback_unless_requested() -> None:
    line = run("space", "--shape", "x", "--gpu", "h200", code=2).stderr
    assert "Traceback" not in line
    for arguments in (("--debug", "space"), ("space", "--debug")):
        found = run(*arguments, "--shape", "x", "--gpu", "h200", code=2).stderr
        assert found.startswith("Traceback") and found.endswith(f"\n{line}")


def test_the_documented_exit_codes_are_those_of_the_errors() -> None:
    text = " ".join(run("--help").stdout.split())
    codes = {int(code) for code in re.findall(r"(\d) [a-z]", text.partition("Exit codes:")[2])}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert codes == {0} | {k.exit_code for k in kinds if issubclass(k, errors.AutotuneError)} - {1}


def test_the_version_stands_in_the_changelog() -> None:
    assert f"## [{__version__}]" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
