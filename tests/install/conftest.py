"""Builds the distribution as a release would and installs it in an environment of its own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


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
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "installed"
    folder.mkdir(exist_ok=True)
    return folder


def once(folder: Path, name: str, make: Callable[[], object]) -> None:
    """Have one worker of a run make something, and the others wait for it."""
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / f"{name}.done"
        if not done.exists():
            make()
            done.touch()


@pytest.fixture(scope="session")
def distributions(shared: Path) -> dict[str, Path]:
    """A source distribution of this checkout, and the wheel built from that (not from the checkout)."""
    out = shared / "dist"
    once(shared, "dist", lambda: call(sys.executable, "-m", "build", "--outdir", out, REPOSITORY, cwd=shared))
    return {"sdist": next(out.glob("*.tar.gz")), "wheel": next(out.glob("*.whl"))}


@pytest.fixture(scope="session")
def installed(distributions: dict[str, Path], shared: Path) -> Path:
    """The `bin` folder of a fresh environment with only the wheel and what it depends on."""
    environment = shared / "venv"
    binaries = environment / "bin"

    def make() -> None:
        call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=shared)  # ours does as well
        pip = (sys.executable, "-m", "pip", "--python", binaries / "python", "--quiet")
        call(*pip, "install", "--disable-pip-version-check", distributions["wheel"], cwd=shared)

    once(shared, "venv", make)
    return binaries
