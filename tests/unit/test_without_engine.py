"""What docker/without_engine.py hands to the build: pip's settings of this machine, and what they name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "without_engine.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_the_environment_wins_over_files(script: ModuleType) -> None:
    listed = ":env:.timeout='180'\nglobal.timeout='15'\nglobal.cert='/a'\ninstall.no-compile='true'\n"
    settings = script.pip_settings(listed)
    assert {name: dict(settings[name]) for name in settings.sections()} == {
        "global": {"timeout": "180", "cert": "/a"},
        "install": {"no-compile": "true"},
    }


def test_no_settings_are_no_settings(script: ModuleType) -> None:
    assert script.pip_settings("").sections() == []


def test_files_and_folders_that_settings_name_are_found(script: ModuleType, tmp_path: Path) -> None:
    wheels, index, certificate = (tmp_path / name for name in ("wheels", "index/simple", "ca.pem"))
    wheels.mkdir()
    index.mkdir(parents=True)
    certificate.touch()
    listed = (
        f"global.find-links='{wheels} {tmp_path}/absent'\n"
        f"global.extra-index-url='file://{index}\\nhttps://index.example/simple'\n"
        f"global.cert='{certificate}'\n"
    )
    found = script.local_paths(script.pip_settings(listed))
    assert found == sorted([wheels, index.parent, certificate])


def test_several_values_survive_the_file(script: ModuleType, tmp_path: Path) -> None:
    settings = script.pip_settings("global.extra-index-url='https://a.example/\\nhttps://b.example/'\n")
    with (tmp_path / "pip.conf").open("w", encoding="utf-8") as out:
        settings.write(out)
    read = type(settings)(interpolation=None)
    read.read(tmp_path / "pip.conf", encoding="utf-8")
    assert read["global"]["extra-index-url"].split() == ["https://a.example/", "https://b.example/"]


def test_a_failing_command_is_named(script: ModuleType) -> None:
    with pytest.raises(script.Failed, match="false exits 1"):
        script.call("false")
