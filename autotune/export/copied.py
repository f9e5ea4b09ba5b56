"""The part of autotune that an exported folder copies: `runtime/`, whatever its modules import, and the
core."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..runtime.native import core

_ROOT = Path(__file__).resolve().parents[1]
_RUNTIME = "runtime"


@cache
def runtime_files() -> dict[str, bytes]:
    """The content of each file that serves a call, by its name relative to the package `autotune`: modules
    and their data, what other processes start with, what is compiled where they run, and the core's library
    where it was built."""
    waiting = sorted((_ROOT / _RUNTIME).rglob("*.py"))
    sources = (_ROOT / _RUNTIME).rglob("*.cpp")
    files = {path.relative_to(_ROOT).as_posix(): path.read_bytes() for path in sources}
    while waiting:
        path = waiting.pop()
        name = path.relative_to(_ROOT).as_posix()
        if name not in files:
            files[name] = path.read_bytes()
            data = path.with_suffix(".json")
            if data.is_file():
                files[data.relative_to(_ROOT).as_posix()] = data.read_bytes()
            waiting.extend(_imported(path, ast.parse(files[name])))
    if core.library() is not None:
        library = core.FOLDER / core.LIBRARY
        files[library.relative_to(_ROOT).as_posix()] = library.read_bytes()
    return dict(sorted(files.items()))


def _imported(path: Path, tree: ast.Module) -> Iterator[Path]:
    """The files of this package that a module's relative imports load, `__init__.py` of their folders too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*filter(None, (node.module or "").split(".")))
            for found in (base, *(base / alias.name for alias in node.names)):
                if found.with_suffix(".py").is_file():
                    yield found.with_suffix(".py")
                if found != _ROOT and (found / "__init__.py").is_file():
                    yield found / "__init__.py"
    if path.parent != _ROOT:
        yield path.parent / "__init__.py"
