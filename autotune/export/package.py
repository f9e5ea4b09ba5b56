"""Writes an exported folder: the table, the cubins, and a Python package that needs no autotune.

The folder is complete or does not exist (`exchange.py`), and lists its own files (`manifest.py`). A table of
another GPU model that stays keeps its files byte for byte, whatever schema it is of; it is first read and
checked as a whole, so that nothing damaged is copied.
"""

from __future__ import annotations

import ast
import json
import keyword
import os
import re
import sys
import tempfile
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from ..facts.accuracy_class import STRICT
from ..files.errors import AutotuneError, DispatchError, UsageError
from ..files.folder_files import BLANK, MAX_CUBIN_BYTES, MAX_TABLE_BYTES, read_file, with_checksum
from ..files.output_file import DISK_FULL, disk_full
from ..files.words import counted, few, option
from ..runtime.native.core import FOLDER, LIBRARY, library
from ..runtime.table.gpu_models import GZIP, MODELS_FOLDER, GpuModel, load_models
from ..runtime.table.table import (
    CUBIN_FILE,
    FORMAT,
    KERNEL_LISTS,
    SCHEMA_VERSION,
    TABLE_FILE,
    Table,
    launchable,
)
from . import exchange, manifest
from .c_source import FOLDER as C_FOLDER
from .c_source import c_files, sums
from .exchange import Note
from .manifest import GpuModelFiles, check_files

PRIVATE_PACKAGE = "_autotune"
_TEXTS = Path(__file__).with_name("texts")  # of files that say the same in every folder, but for names
_MOST_NAME = 60  # characters of a model's folder
_AGAIN = "export it again"
_PACKED = 1024  # cubins that are remembered: an export asks first for their sizes, then for what it writes
_LEVEL = 6  # of zlib: 9 takes nine times as long and packs 2 % more
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
            models = with_table(folder, table, code, note, adds=adds)
            files = _contents(models, folder.name, with_c=with_c)
            exchange.replace(folder, lambda new: _fill(new, files), note)
    except OSError as error:
        raise _unwritable(folder, error) from error
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
        if adds and holds_any(folder):
            check_files(folder)
    except OSError as error:
        raise DispatchError(f"{folder} cannot be read ({error}); {_changed()}") from error
    return folder


def need_writable(folder: Path) -> None:
    """Raises DispatchError where no folder can be made beside this one, or where its parents are to be."""
    folder = folder.absolute()
    nearest = next(parent for parent in folder.parents if os.path.lexists(parent))
    try:  # of a name that the next export removes
        Path(tempfile.mkdtemp(dir=nearest, prefix=f".{folder.name}-")).rmdir()
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> AutotuneError:
    if error.errno in DISK_FULL:
        return disk_full(folder, error)
    return DispatchError(f"{folder} cannot be written ({error}); {_changed()}")


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


def _contents(models: Sequence[ModelContent], name: str, *, with_c: bool) -> dict[str, bytes]:
    """Every file of the folder by its name relative to it."""
    tables = [model.table for model in models]
    latest = max(tables, key=lambda table: table.created_at)
    said = {"name": name, "gpus": _quoted(names_of(tables)), "made_by": _quoted(latest.made_by)}
    said["created_at"] = _quoted(latest.created_at)
    note = f'"""Copied from {said["made_by"]}: what an exported table needs at run time."""\n'
    files = {
        **files_of(models),
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


# ------------------------- the files of each GPU model, and what happens to them when a table is exported


@dataclass(frozen=True)
class ModelContent:
    """One model's table, its cubins by SHA-256, and its files by their names in the model's folder."""

    table: Table
    code: Mapping[str, bytes]
    files: Mapping[str, bytes]

    @property
    def gpu(self) -> GpuModel:
        return GpuModel.of_table(self.table)


def with_table(
    folder: Path, table: Table, code: Mapping[str, bytes], note: Note, *, adds: bool
) -> list[ModelContent]:
    """The future content of the folder: this table, with `adds` beside its present tables of other models.
    Raises DispatchError if one of those is damaged."""
    new = _written(table, code)
    if not holds_any(folder):
        return [new]
    if not adds:
        _tell_of_others(folder, new.gpu, note)
        return [new]
    models = [_as_it_is(model) for model in check_files(folder).models]
    if any(model.gpu == new.gpu for model in models):
        note(f"{folder} held a table for {new.gpu}: it is replaced")
        return [new if model.gpu == new.gpu else model for model in models]
    return [*models, new]


def holds_any(folder: Path) -> bool:
    """Whether the folder holds anything that could be kept or lost."""
    return folder.is_dir() and any(folder.iterdir())


def files_of(models: Sequence[ModelContent]) -> dict[str, bytes]:
    """All of them, by names relative to the exported folder."""
    files = dict(models[0].files)
    taken: list[str] = []
    for model in models[1:]:
        taken.append(_name_of(model.gpu, taken))
        files |= {f"{MODELS_FOLDER}/{taken[-1]}/{name}": content for name, content in model.files.items()}
    return files


def _name_of(gpu: GpuModel, taken: Sequence[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", str(gpu).lower()).strip("_")[-_MOST_NAME:]
    names = [words, *(f"{words}_{number}" for number in range(2, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def _written(table: Table, code: Mapping[str, bytes]) -> ModelContent:
    """A table with the sizes of its cubins. Kernels may share one, which is written once."""
    cubins = {name: packed(code[name]) for name in sums(table)}
    kernels = tuple(
        replace(kernel, code_bytes=len(code[kernel.sha256]), packed_bytes=len(cubins[kernel.sha256]))
        for kernel in table.kernels
    )
    table = replace(table, kernels=kernels)
    files = {TABLE_FILE: render(table).encode(), CUBIN_FILE: b"".join(cubins.values())}
    return ModelContent(table, code, files)


def _as_it_is(model: GpuModelFiles) -> ModelContent:
    most = {TABLE_FILE: MAX_TABLE_BYTES, CUBIN_FILE: MAX_CUBIN_BYTES * len(model.code)}
    files = {name: read_file(model.folder / name, num_bytes, _AGAIN) for name, num_bytes in most.items()}
    return ModelContent(model.table, model.code, files)


def _tell_of_others(folder: Path, new: GpuModel, note: Note) -> None:
    """A user who exports for one GPU model may not want to remove the others."""
    try:
        others = [model for _, table in load_models(folder) if (model := GpuModel.of_table(table)) != new]
    except DispatchError:
        return  # what is damaged is replaced
    if others:
        held = " and ".join(map(str, others))
        note(f"{folder} held the table for {held}, which is gone: {option('adds')} keeps it")


def names_of(tables: Sequence[Table]) -> str:
    """Names of the GPUs that tables are for."""
    return ", ".join(table.environment.gpu_name for table in tables)


@lru_cache(_PACKED)
def packed(code: bytes) -> bytes:
    """A cubin as it is in a file: the same for the same code."""
    packer = zlib.compressobj(_LEVEL, wbits=GZIP)
    return packer.compress(code) + packer.flush()


def render(table: Table) -> str:
    """The text of `table.json`, with a checksum over all of it.

    Raises DispatchError for a kernel whose spec or identity is not that of its config: it could not be read
    back.
    """
    for kernel in table.kernels:
        source = table.source_hash if kernel.accuracy == STRICT else table.tensor_source_hash
        if kernel != launchable(kernel, table.limits, source, table.max_workspace, table.order):
            raise DispatchError(
                f"kernel {kernel.id!r} is compiled or launched otherwise than its config says; {_AGAIN}"
            )
    head = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "checksum": BLANK}
    body = asdict(table)
    for record in body["kernels"]:
        del record["spec"], record["source_hash"]
    pairs = list(zip(body["kernels"], table.kernels, strict=True))
    for name, one in KERNEL_LISTS.items():
        body[name] = [record for record, kernel in pairs if isinstance(kernel.config, one)]
    text = json.dumps(head | body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return with_checksum(text)
