"""Writes an exported folder: the table, the cubins, and a Python package that needs no autotune.

The folder is complete or does not exist (`exchange.py`), and lists its own files (`manifest.py`).
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from ..files.errors import DispatchError, UsageError
from ..files.output_file import DISK_FULL, disk_full
from ..files.words import counted, few, option
from ..runtime.native.core import FOLDER, LIBRARY, library
from ..runtime.table.gpu_models import GpuModel
from ..runtime.table.table import Table
from . import exchange, manifest, model_folders
from .c_source import FOLDER as C_FOLDER
from .c_source import c_files
from .exchange import Note
from .manifest import check_files
from .model_folders import names_of

PRIVATE_PACKAGE = "_autotune"
_TEXTS = Path(__file__).with_name("texts")  # of files that say the same in every folder, but for names
_NEEDED = ("autotune", "numpy", "cuda")  # a table of such a name would hide what it, or autotune, imports


def write_folder(
    table: Table,
    code: Mapping[str, bytes],
    folder: Path,
    note: Note = lambda _: None,
    *,
    with_c: bool = False,
    adds: bool = False,
) -> Path:
    """Write a table with the code of its cubins (by SHA-256) as an importable folder, which is returned.

    `adds`: keep the folder's tables for other GPU models, whose files do not change; without it they are
    removed. `with_c`: with sources for programs in C, of all models; they are rewritten if an extended folder
    had them.

    Replaces an existing folder: at every moment the old or the new one is at its place. `note` is told
    of tables that are replaced or go, of files that turned up in the old folder meanwhile, and where these
    are kept. Raises what `prepare` does, EnvironmentProblem where the disk is full, and DispatchError where
    the folder cannot be written, or what it holds cannot be read or is damaged and is to stay.
    """
    folder = prepare(folder, note)  # what is to stay is checked under the lock
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exchange.alone(folder):
            with_c = with_c or (adds and (folder / C_FOLDER).is_dir())
            models = model_folders.with_table(folder, table, code, note, adds=adds)
            files = _contents(models, folder.name, with_c=with_c)
            exchange.replace(folder, lambda new: _fill(new, files), note)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise disk_full(folder, error) from error
        raise DispatchError(f"{folder} cannot be written ({error}); {_changed()}") from error
    return folder


def prepare(folder: Path, note: Note = lambda _: None, *, adds: bool = False) -> Path:
    """Make sure that a table may be written or added here, before any work is done for it; returns the full
    path.

    Restores or removes the remains of killed exports. Raises UsageError if Python cannot import a folder of
    this name, DispatchError if it holds anything that an export did not write, or if a table that is to stay
    is damaged.
    """
    folder = folder.absolute()
    _check_name(folder)
    try:
        exchange.recover(folder, note)
        _check_replaceable(folder)
        if adds and model_folders.holds_any(folder):
            check_files(folder)
    except OSError as error:
        raise DispatchError(f"{folder} cannot be read ({error}); {_changed()}") from error
    return folder


def _check_name(folder: Path) -> None:
    if fault := _fault_of(folder.name):
        words = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", folder.name)).strip("_")
        example = f"sgemm_{words}" if _fault_of(words) else words
        raise UsageError(f"{folder.name!r} {fault}; {_changed()}, such as {example.rstrip('_')}")


def _changed() -> str:
    return f"pass another {option('folder')}"


def _fault_of(name: str) -> str:
    """Why applications could not import a folder of this name, or ""."""
    is_as_written = unicodedata.normalize("NFKC", name) == name  # Python looks for the name in this form
    if not (name.isidentifier() and is_as_written) or keyword.iskeyword(name):
        return "is no name that Python can import"
    if name in sys.stdlib_module_names or name in _NEEDED:
        return "is the name of a module that Python would no longer find, or find instead"
    return ""


def _check_replaceable(folder: Path) -> None:
    """Raises DispatchError if replacing the folder would lose anything."""
    if folder.is_symlink():
        raise DispatchError(f"{folder} is a symbolic link; name the folder that it leads to")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DispatchError(f"{folder} is there and is no exported table; {_changed()} or remove it")
    found = manifest.take_inventory(folder)
    if found.foreign:
        is_table = bool(found.intact or found.corrupted or found.edited)
        what = "holds more than an exported table" if is_table else "is there and is no exported table"
        raise DispatchError(f"{folder} {what}: {few(found.foreign)}; move that elsewhere or {_changed()}")
    if found.edited:
        raise DispatchError(
            f"{folder} was edited after it was exported: {few(found.edited)}; move that "
            f"elsewhere or {_changed()}"
        )


def _contents(models: Sequence[model_folders.ModelContent], name: str, *, with_c: bool) -> dict[str, bytes]:
    """Every file of the folder by its name relative to it."""
    tables = [model.table for model in models]
    latest = max(tables, key=lambda table: table.created_at)
    said = {"name": name, "gpus": _quoted(names_of(tables)), "made_by": _quoted(latest.made_by)}
    said["created_at"] = _quoted(latest.created_at)
    note = f'"""Copied from {said["made_by"]}: what an exported table needs at run time."""\n'
    files = {
        **model_folders.files_of(models),
        "__init__.py": _text("__init__.py.in", **said, tables="\n".join(map(_table_text, tables))).encode(),
        "__main__.py": _text("__main__.py.in", name=name).encode(),
        "py.typed": b"",
        PROJECT_FILE: project_text(tables, name).encode(),
        f"{PRIVATE_PACKAGE}/__init__.py": note.encode(),
        **{f"{PRIVATE_PACKAGE}/{module}": content for module, content in runtime_files().items()},
        **(c_files([(model.table, model.code) for model in models]) if with_c else {}),
    }
    return {manifest.MANIFEST_FILE: manifest.render(files), **files}  # first: a kill leaves what it lists


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _text(template: str, **values: str) -> str:
    return (_TEXTS / template).read_text(encoding="utf-8").format(**values, private=PRIVATE_PACKAGE)


def _table_text(table: Table) -> str:
    origin = (
        f"RECORDED: its times come from a recording of {table.recorded_on}, not from a GPU of the exporter."
        if table.is_recorded
        else f"Timed with {table.policy} caches, driver {table.environment.driver_version}."
    )
    made = (
        f"{GpuModel.of_table(table)}: {counted(len(table.entries), 'tuned shape')}, exported "
        f"{table.created_at}; kernel source {table.source_hash[:12]}, compiled by {table.compiler}."
    )
    return f"{_quoted(made)}\n{_quoted(origin)}"


def _quoted(text: str) -> str:
    """A text as it may stand in a docstring. Databases, recordings and tables that others made say what they
    like: none of it is to run when the folder is imported."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"')


PROJECT_FILE = "pyproject.toml"  # by which pip installs the folder; hatchling makes the wheel elsewhere
_DATE = re.compile(r"(\d{4})-0?(\d+)-0?(\d+)T0?(\d+):0?(\d+)")


def project_text(tables: Sequence[Table], name: str) -> str:
    """The content of `pyproject.toml`. Its version is the minute of the newest table: a newer export is
    newer."""
    latest = max(tables, key=lambda table: table.created_at)
    made = _DATE.match(latest.created_at)
    version = ".".join(made.groups()) if made else "0"
    project = re.sub("[^A-Za-z0-9]+", "-", name).strip("-") or "sgemm-table"
    description = json.dumps(f"FP32 matrix products tuned for {names_of(tables)} by {latest.made_by}")
    return _text(f"{PROJECT_FILE}.in", name=name, project=project, version=version, description=description)


# What an export copies: `runtime/`, whatever its modules import, and the core
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
    if library() is not None:
        built = FOLDER / LIBRARY
        files[built.relative_to(_ROOT).as_posix()] = built.read_bytes()
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
