"""What a terminal shows and offers: colours, examples, completion."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from autotune.cli.app import app
from autotune.facts.device import KNOWN
from autotune.search import SAMPLERS

from .runner import REPOSITORY, run

PATHS = {"PYTHONPATH": str(REPOSITORY)}
ESCAPE = "\x1b["
ROOT = get_command(app)
COMMANDS = [(name,) for name in ROOT.commands if name != "trials"] + [  # type: ignore[attr-defined]
    ("trials", name)
    for name in ROOT.commands["trials"].commands  # type: ignore[attr-defined]
]


@pytest.mark.every(4)
@pytest.mark.parametrize("command", [(), ("trials",), *COMMANDS], ids=" ".join)
def test_help_is_requested_for_in_two_ways_and_gives_examples(command: tuple[str, ...]) -> None:
    text = run(*command, "--help", COLUMNS="80").stdout
    assert run(*command, "-h", COLUMNS="80").stdout == text
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(r"^    autotune (.*)$", text.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        assert example.startswith(" ".join(command))
        _parse(example.partition(" > ")[0].split())  # the redirect is the shell's


def _parse(words: list[str]) -> None:
    """Examples name commands and options that there are."""
    command = ROOT
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    command.make_context("autotune", words)


def _on_a_terminal(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """Everything that a command writes to a terminal."""
    ours, theirs = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=cwd,
        env=known | PATHS | {"TERM": "xterm"} | environment,
    )  # fmt: skip
    os.close(theirs)
    found = b""
    while True:
        try:
            read = os.read(ours, 4096)
        except OSError:  # the terminal closes with the process
            break
        if not read:
            break
        found += read
    os.close(ours)
    process.wait(timeout=120)
    return found.decode()


@pytest.mark.stress
def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    space = ("space", "--gpu", "h200", "--shape", "8")
    assert ESCAPE in _on_a_terminal(*space, cwd=tmp_path)
    assert ESCAPE not in _on_a_terminal(*space, cwd=tmp_path, NO_COLOR="1")
    assert ESCAPE not in _on_a_terminal(*space, cwd=tmp_path, TERM="dumb")


@pytest.mark.stress
def test_a_pipe_gets_what_a_terminal_shows_without_its_colours(tmp_path: Path) -> None:
    wide = _on_a_terminal("space", "--gpu", "h200", "--shape", "8", cwd=tmp_path, COLUMNS="400")
    shown = wide.replace("\r\n", "\n")
    piped = run("space", "--gpu", "h200", "--shape", "8", cwd=tmp_path).stdout
    assert re.sub(r"\x1b\[[0-9]*m", "", shown) == piped and ESCAPE not in piped


def _completed(words: str, shell: str = "bash") -> set[str]:
    """What a shell is offered behind these words."""
    variables = {
        "_AUTOTUNE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": f"autotune {words}",
        "COMP_CWORD": str(len(f"autotune {words} ".split(" ")) - 2),
    }
    code = "import sys; sys.argv[0] = 'autotune'; from autotune.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables,
    )  # fmt: skip
    return set(done.stdout.split())


def test_a_shell_completes_commands_options_and_values() -> None:
    assert {"search", "space"} <= _completed("s")
    assert "--max-error" in _completed("search --max")
    assert _completed("search --sampler ") == set(SAMPLERS)
    assert _completed("search --cache ") == {"cold", "warm"}
    assert _completed("space --gpu rtx") == {name for name in KNOWN if name.startswith("rtx")}
    assert _completed("trials b") == {"best"}


@pytest.mark.every(3)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_installed(shell: str, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "_AUTOTUNE_COMPLETE" in run_as_installed("--show-completion", shell, **environment).upper()
    run_as_installed("--install-completion", shell, **environment)
    assert any("AUTOTUNE" in file.read_text().upper() for file in tmp_path.rglob("*") if file.is_file())


def run_as_installed(*arguments: str, **environment: str) -> str:
    """As the script `autotune` runs: completion goes by its name."""
    code = "import sys; sys.argv[0] = 'autotune'; from autotune.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
