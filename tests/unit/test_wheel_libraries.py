"""Libraries of wheels that Python imports from elsewhere than its site-packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cuda import pathfinder

from autotune.files import wheel_libraries


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on `sys.path` with wheels of two versions of CUDA, of which pathfinder finds nothing."""

    def find(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", find)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    for version in (12, 13):
        folder = tmp_path / "nvidia" / f"cu{version}" / "lib"
        folder.mkdir(parents=True)
        command = ["gcc", "-shared", "-xc", "-", "-o", str(folder / f"libof_a_wheel.so.{version}")]
        subprocess.run(command, input="int of_a_wheel;", text=True, check=True)
    return tmp_path


def test_the_latest_that_loads_is_found(wheels: Path) -> None:
    newer, older = (wheels / f"nvidia/cu{v}/lib/libof_a_wheel.so.{v}" for v in (13, 12))
    newer.rename(newer.with_name("libsound.so.13"))
    newer.with_name("libof_a_wheel.so.13").write_text("damaged")
    assert wheel_libraries.load("sound") == str(newer.with_name("libsound.so.13"))
    assert wheel_libraries.load("of_a_wheel") == str(older)
    assert wheel_libraries.load("of_another") is None


def test_what_pathfinder_finds_counts() -> None:
    found = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    assert wheel_libraries.load("nvrtc") == found
