"""Builds the distribution as a release would and installs it in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# What is installed takes 20 s to make: each process would make its own.
INSTALLED = [pytest.mark.install, pytest.mark.timeout(900), pytest.mark.xdist_group("installed")]


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command, away from this checkout and from PYTHONPATH; returns its standard output. What pip
    installs is compiled when it is imported: most of it never is."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PIP_NO_COMPILE"] = "1"
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environment, timeout=900
    )
    assert done.returncode == 0, (
        f"{command} exits {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A source distribution of this checkout, and the wheel built from that (not from the checkout)."""
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", out, REPOSITORY, cwd=out)
    return {"sdist": next(out.glob("*.tar.gz")), "wheel": next(out.glob("*.whl"))}


@pytest.fixture(scope="session")
def installed(distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with only the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    environment, binaries = folder / "venv", folder / "venv" / "bin"
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)  # ours does as well
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python", "--quiet")
    call(*pip, "install", "--disable-pip-version-check", distributions["wheel"], cwd=folder)
    return binaries
