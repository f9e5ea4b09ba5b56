"""Files, modules and names that comments and docstrings name are there."""

from __future__ import annotations

import builtins
import functools
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("autotune", "benchmarks", "docs/tools", "examples", "kernels", "tests")
SUFFIXES = ("py", "cuh", "cu", "cpp", "hpp", "c", "js")
# Programs of users and of tests, and a field of a record.
NO_FILES = {"train.py", "program.py", "side.py", "cublas.cpp", "batch.c"}
NAMED = re.compile(rf"(?<![\w/.*{{}}<-])((?:[\w-]+/)*)([a-z_]\w*\.(?:{'|'.join(SUFFIXES)}))\b(?![(/])")
DOTTED = re.compile(r"(?<![\w.])autotune((?:\.[a-z_]+){2})\b")
# What reads as a name: `parameter`, MOST_BYTES, Raises UsageError
NAMES = re.compile(r"`([A-Za-z_]\w*)`|\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b|Raises ((?:[A-Z]\w+, )*[A-Z]\w+)")
# Of CUDA, ELF, Linux, Python, NumPy, Optuna, Alembic and their users; how names begin.
OF_OTHERS = {
    "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "CU_STREAM_LEGACY",
    "CU_STREAM_PER_THREAD", "EIATTR_REGCOUNT", "METH_FASTCALL", "PR_SET_PDEATHSIG", "SHT_NOBITS",
    "StatisticsError", "Xgemm", "alembic_version", "cuLaunchKernel", "kernelParams", "matmul_kernel", "most_",
    "nohup", "num_", "optimize", "remove_session", "sgemm_2", "sgemm_identity", "taskset",
}  # fmt: skip
PROSE = {  # comments, and texts of several lines
    ".py": re.compile(r'"""(.*?)"""|(?:^|  )(# [^\n]*)', re.DOTALL | re.MULTILINE),
    ".js": re.compile(r"(?:^|\s)(//[^\n]*)|/\*(.*?)\*/", re.DOTALL),
}


@functools.cache
def prose() -> dict[Path, str]:
    """By file."""
    found = {}
    for path in (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*")):
        if path.suffix[1:] in SUFFIXES and not {"vendored", "data"} & set(path.parts):
            parts = PROSE.get(path.suffix, PROSE[".js"]).findall(path.read_text(encoding="utf-8"))
            found[path] = "\n".join(map("".join, parts))
    return found


def test_files_that_are_named_are_there() -> None:
    """From the repository, the package, or a folder that the file is in; a bare name anywhere."""
    names = {path.name for path in prose()} | NO_FILES

    def is_there(path: Path, folder: str, name: str) -> bool:
        roots = (REPOSITORY, REPOSITORY / "autotune", *path.parents)
        return any((root / folder / name).exists() for root in roots) if folder else name in names

    stale = [
        f"{path.relative_to(REPOSITORY)}: {folder}{name}"
        for path, text in prose().items()
        for folder, name in NAMED.findall(text)
        if not is_there(path, folder, name)
    ]
    assert not stale, "\n".join(stale)


def test_modules_that_are_named_are_there() -> None:
    """A module of a room; or what a module of the package, or a room at once, has."""
    stale = []
    for path, text in prose().items():
        for dotted in DOTTED.findall(text) if "browser" not in path.parts else ():
            room, name = dotted[1:].split(".")
            folder = REPOSITORY / "autotune" / room
            homes = (folder.with_suffix(".py"), folder / "__init__.py")
            has_it = any(home.exists() and name in home.read_text(encoding="utf-8") for home in homes)
            if not has_it and not (folder / name).exists() and not (folder / f"{name}.py").exists():
                stale.append(f"{path.relative_to(REPOSITORY)}: autotune{dotted}")
    assert not stale, "\n".join(stale)


def test_names_that_are_named_are_there() -> None:
    """Of the package, in its code or the kernels': a name that was changed is changed where it is told of."""
    code = OF_OTHERS | set(dir(builtins))
    for path in prose():
        if "tests" not in path.relative_to(REPOSITORY).parts:
            text = path.read_text(encoding="utf-8")
            code |= set(re.findall(r"\w+", PROSE.get(path.suffix, PROSE[".js"]).sub("", text)))
    stale = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path, text in prose().items()
        if path.relative_to(REPOSITORY).parts[0] == "autotune" and path.suffix == ".py"
        for found in NAMES.findall(text)
        for name in "".join(found).split(", ")
        if name not in code
    ]
    assert not stale, "\n".join(stale)
