"""The wheel, in a fresh environment: nothing of the checkout is needed."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from .conftest import INSTALLED, REPOSITORY, call

pytestmark = INSTALLED


def shipped(folder: str) -> set[str]:
    """Files that git knows under a folder of the checkout, relative to it."""
    listed = call("git", "ls-files", folder, cwd=REPOSITORY).split()
    return {Path(name).relative_to(folder).as_posix() for name in listed}


def test_kernels_and_studies_lie_inside_the_package(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = set(wheel.namelist())
    for folder in ("kernels", "studies"):
        wanted = {name for name in shipped(folder) if not name.startswith(("databases/", "results/"))}
        assert wanted
        assert {f"autotune/{folder}/{name}" for name in wanted} <= names
    assert not any(f"studies/{folder}" in name for name in names for folder in ("databases", "results"))
    assert {f"autotune/{name}" for name in shipped("autotune")} <= names
    foreign = {name.split("/")[0] for name in names if not name.startswith("autotune")}
    assert not foreign


def test_the_distribution_is_ours_and_so_is_its_command(distributions: dict[str, Path]) -> None:
    """The package index knows somebody else's `autotune`; the command keeps its name."""
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        metadata, scripts = (
            next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(file))
            for file in (".dist-info/METADATA", ".dist-info/entry_points.txt")
        )
    assert "\nName: autotune-sgemm\n" in metadata
    assert scripts.split("\n", 1) == ["[console_scripts]", "autotune = autotune.cli.start:main\n"]


def test_the_source_distribution_can_run_its_tests(distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"tests/{name}" for name in shipped("tests")} <= names
    assert {"Makefile", "README.md", "LICENSE", "pyproject.toml"} <= names
    assert {"Dockerfile", ".dockerignore", "docker/without_engine.py"} <= names


def test_the_command_runs_from_anywhere(installed: Path, tmp_path: Path) -> None:
    assert call(installed / "autotune", "--version", cwd=tmp_path).startswith("autotune ")
    text = call(installed / "autotune", "doctor", cwd=tmp_path)
    assert str(REPOSITORY) not in text
    assert str(installed.parent) in text  # kernels were found inside the environment


def test_a_kernel_compiles(installed: Path, tmp_path: Path) -> None:
    code = (
        "from autotune.kernel.compiler import Compiler; from autotune.kernel.launch import Variant;"
        "from autotune.kernel.config import Config; from pathlib import Path;"
        "print(Compiler('sm_90', cache_dir=Path('cache')).compile(Config(), Variant()).registers)"
    )
    assert int(call(installed / "python", "-c", code, cwd=tmp_path)) > 0


def test_types_are_shipped(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        assert "autotune/py.typed" in wheel.namelist()
