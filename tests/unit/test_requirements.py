"""What messages and docs tell the user to install is what pyproject.toml states, and no extra of autotune."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from autotune import requirements

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].values()
STATED = {*PROJECT["dependencies"], *(requirement for extra in EXTRAS for requirement in extra)}
CONSTANTS = {name: value for name, value in vars(requirements).items() if name.isupper()}
TEXTS = [
    *(path for folder in ("autotune", "benchmarks", "docs") for path in (REPOSITORY / folder).rglob("*.py")),
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "docs").rglob("*.md"),
]
_QUOTED = re.compile(r"pip install ['\"]([^'\"{]+)['\"]")
_OUR_EXTRA = re.compile(r"pip install \S*\bautotune(-sgemm)?\[")


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_message_names_what_pyproject_states(name: str) -> None:
    assert CONSTANTS[name] in STATED


def test_the_command_can_be_pasted_into_a_shell() -> None:
    assert requirements.pip_install(requirements.JINJA) == "pip install 'jinja2>=3.1'"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_nobody_is_sent_to_another_package(path: Path) -> None:
    """On the package index `autotune` is somebody else's: its extras are not ours."""
    text = path.read_text(encoding="utf-8")
    assert _OUR_EXTRA.search(text) is None
    assert set(_QUOTED.findall(text)) <= STATED


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == "autotune-sgemm"
    assert PROJECT["scripts"] == {"autotune": "autotune.cli.start:main"}
