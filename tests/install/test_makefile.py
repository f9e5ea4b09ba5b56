"""`make setup` in a checkout that was installed before the distribution had its present name."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import REPOSITORY, call

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]

NAME = "autotune-sgemm"
OLD_NAME = "autotune"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what git knows of this checkout."""
    copy = tmp_path / "checkout"
    for name in call("git", "ls-files", cwd=REPOSITORY).splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, copy / name)
    return copy


def set_up(checkout: Path) -> set[str]:
    """Run `make setup`; names of the distributions that own the command afterwards."""
    call("make", "setup", cwd=checkout)
    python = checkout / ".venv" / "bin" / "python"
    code = (
        "import json; from importlib.metadata import entry_points;"
        "found = entry_points(group='console_scripts', name='autotune');"
        "print(json.dumps([one.dist.name for one in found]))"
    )
    return set(json.loads(call(python, "-c", code, cwd=checkout.parent)))


def test_one_distribution_owns_the_command(checkout: Path) -> None:
    project = checkout / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert text.count(f'name = "{NAME}"') == 1
    project.write_text(text.replace(f'name = "{NAME}"', f'name = "{OLD_NAME}"'), encoding="utf-8")
    assert set_up(checkout) == {OLD_NAME}
    project.write_text(text, encoding="utf-8")
    assert set_up(checkout) == {NAME}
    assert (checkout / ".venv" / "bin" / "autotune").is_file()
    done = subprocess.run(["make", "--question", "setup"], cwd=checkout, check=False)
    assert done.returncode == 0  # there is nothing left to do
