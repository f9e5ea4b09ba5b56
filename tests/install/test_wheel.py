"""The wheel, in a fresh environment: nothing of the checkout is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from .conftest import INSTALLED, REPOSITORY, call

pytestmark = [*INSTALLED, pytest.mark.stress]


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


PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def test_the_wheel_is_for_every_python_and_the_glibc_that_the_core_needs(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    tag = re.fullmatch(r"autotune_sgemm-.+-py3-none-manylinux_2_(\d+)_\w+\.whl", distributions["wheel"].name)
    assert tag
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        library = wheel.extract("autotune/core/libautotune_core.so", tmp_path)
    listed = call("readelf", "--version-info", library, cwd=tmp_path)
    assert max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", listed)) <= int(tag[1])


def test_supported_versions_are_told() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    message = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert tuple(message) == PYTHONS and project["requires-python"] == f">={PYTHONS[0]}"


# For the one that runs this it is installed
OTHERS = {PYTHONS[0], PYTHONS[-1]} - {"{}.{}".format(*sys.version_info)}


@pytest.mark.parametrize("version", sorted(OTHERS))
def test_all_that_it_needs_is_there_as_wheels(
    distributions: dict[str, Path], version: str, tmp_path: Path
) -> None:
    """For this Python, with the glibc that this machine's core needs."""
    (latest, machine), *_ = re.findall(r"manylinux_2_(\d+)_(\w+)\.whl", distributions["wheel"].name)
    tags = ["2010", "2014", *(f"_2_{minor}" for minor in range(5, int(latest) + 1))]
    platforms = [f"manylinux{tag}_{machine}" for tag in tags]
    abis = (f"cp{version.replace('.', '')}", "abi3", "none")
    options = [*(f"--platform={name}" for name in platforms), *(f"--abi={abi}" for abi in abis)]
    options += ["--only-binary=:all:", f"--python-version={version}", "--implementation=cp", "--target=x"]
    wanted = f"{distributions['wheel']}[cublas,postgresql,report,view]"
    pip = (sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check")
    call(*pip, *options, wanted, cwd=tmp_path)


@pytest.mark.parametrize("version", PYTHONS[1:])
def test_it_runs_with_later_pythons(distributions: dict[str, Path], version: str, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}") or ""
    if not python or subprocess.run([python, "-c", "import ensurepip"], check=False).returncode:
        pytest.skip(f"Python {version} is not installed")
    call(python, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    binaries = tmp_path / "venv/bin"
    call(binaries / "python", "-m", "pip", "install", "--quiet", distributions["wheel"], cwd=tmp_path)
    call(binaries / "autotune", "search", "--gpu", "auto", "--shape", "1024", "--trials", "12", cwd=tmp_path)
    call(binaries / "autotune", "export-table", "--max-kernels", "0", cwd=tmp_path)
    code = "import sgemm_dispatch; print(sgemm_dispatch.pick(9, 9, 9).how)"
    assert call(binaries / "python", "-c", code, cwd=tmp_path).strip() in ("modelled", "nearest", "default")
