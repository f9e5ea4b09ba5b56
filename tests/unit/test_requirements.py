"""What messages and docs tell the user to install is what pyproject.toml states, and no extra of autotune."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from autotune import __version__
from autotune.files import wheel_libraries

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].values()
STATED = {*PROJECT["dependencies"], *(requirement for extra in EXTRAS for requirement in extra)}
CONSTANTS = {name: value for name, value in vars(wheel_libraries).items() if name.isupper()}
TEXTS = [
    *(path for folder in ("autotune", "benchmarks", "docs") for path in (REPOSITORY / folder).rglob("*.py")),
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "docs").rglob("*.md"),
]
_QUOTED = re.compile(r"pip install ['\"]([^'\"{]+)['\"]")
_BARE = re.compile(r"pip install ([^'\"\s`]+)")
_FROM_INDEX = re.compile(r"pip install ['\"]?autotune(-sgemm)?\[")
_OF_A_PATH = re.compile(r"[\w./*-]*[./][\w./*-]*\[([\w,-]+)\]")  # ours, or an exported folder
PATH_EXTRAS = {*PROJECT["optional-dependencies"], "dlpack"}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_message_names_what_pyproject_states(name: str) -> None:
    assert CONSTANTS[name] in STATED


def test_the_command_can_be_pasted_into_a_shell() -> None:
    assert wheel_libraries.pip_install(wheel_libraries.JINJA) == "pip install 'jinja2>=3.1'"


def test_what_a_text_installs_is_known_and_quoted() -> None:
    """On the package index `autotune` is somebody else's: its extras are not ours. zsh expands brackets."""
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        assert _FROM_INDEX.search(text) is None, path
        assert [bare for bare in _BARE.findall(text) if set("[]*<>?") & set(bare)] == [], path
        of_paths = {quoted: _OF_A_PATH.fullmatch(quoted) for quoted in _QUOTED.findall(text)}
        assert {quoted for quoted, match in of_paths.items() if match is None} <= STATED, path
        named = {extra for match in of_paths.values() if match for extra in match[1].split(",")}
        assert named <= PATH_EXTRAS, path


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == "autotune-sgemm"
    assert PROJECT["scripts"] == {"autotune": "autotune.cli.start:main"}


def test_the_image_holds_all_that_the_manual_uses() -> None:
    """Every extra that is not for working on autotune itself."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    used = set(PROJECT["optional-dependencies"]) - {"dev", "browser", "peers", "release"}
    assert re.findall(r"make setup EXTRAS=(\S+)", text) == ["-".join(sorted(used))]


def test_the_latest_changes_are_of_this_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = re.search(r"^## \[(\S+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert latest and latest[1] == __version__
