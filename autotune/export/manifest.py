"""Which files of a folder an export wrote, so that nothing else is ever replaced or deleted.

An export lists its files with their SHA-256 in `manifest.json`. Whatever a folder holds beside these, and
beside what Python compiled of them, belongs to the user. So does a listed source file with changed content:
somebody edited it. Other listed files with changed content are damaged, and may be replaced. `check_files`
also checks schema, checksum and launch specs of each model's table, and the SHA-256 of every cubin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..files import strict
from ..files.errors import DispatchError
from ..files.words import few
from ..runtime.table.gpu_models import load_cubins, load_models
from ..runtime.table.table import TABLE_FILE, Table

MANIFEST_FILE = "manifest.json"
FORMAT = "autotune export"
VERSION = 1
_MAX_BYTES = 1 << 24  # of a manifest: a hundred bytes per file
_CACHE = "__pycache__"
_COMPILED = re.compile(r"(?P<module>[^.]+)\.[\w-]+(\.opt-\w+)?\.pyc(\.\d+)?")  # at the end: half written
_SOURCES = (".py", ".c", ".cpp", ".h", ".S", ".txt", ".in", ".toml")  # what people edit


@dataclass(frozen=True)
class Manifest:
    """All that `manifest.json` holds. `files` are SHA-256 sums by name, relative to the folder."""

    format: str
    version: int
    files: dict[str, str]


@dataclass(frozen=True)
class Inventory:
    """The content of a folder, by names relative to it; `missing` files are listed but do not exist."""

    intact: tuple[str, ...]  # listed, or compiled by Python of what is listed
    corrupted: tuple[str, ...]  # listed data with another content
    edited: tuple[str, ...]  # listed sources with another content
    foreign: tuple[str, ...]  # neither written by an export nor compiled of it
    folders: tuple[str, ...]  # that an export or Python made, the innermost first
    missing: tuple[str, ...]


def render(files: Mapping[str, bytes]) -> bytes:
    """The content of `manifest.json` for a folder with these files."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    manifest = {"format": FORMAT, "version": VERSION, "files": sums}
    return (json.dumps(manifest, indent=1) + "\n").encode()


def read(folder: Path) -> dict[str, str] | None:
    """SHA-256 sums of an export's files by name, or None where there is no manifest. Raises DispatchError."""
    path = folder / MANIFEST_FILE
    if not os.path.lexists(path):
        return None
    try:
        text = _read_regular(path, _MAX_BYTES).decode("utf-8")
        data = strict.parse(text)
        strict.check_version(data.get("version") if type(data) is dict else None, VERSION)
        found: Manifest = strict.read(Manifest, data, "manifest")
    except strict.NewerVersion as error:
        raise DispatchError(f"{path} is of {error}; use the autotune that wrote it") from error
    except (OSError, ValueError) as error:  # strict.Mismatch and what UTF-8 refuses are ValueErrors
        raise DispatchError(
            f"{path} is damaged ({error}), and nothing else tells which files an export wrote; "
            "move the folder away and export again"
        ) from error
    if (found.format, found.version) != (FORMAT, VERSION):
        raise DispatchError(
            f"{path} is a {found.format!r} of version {found.version}, this code reads {FORMAT!r} of "
            f"version {VERSION}; use the autotune that wrote it"
        )
    return found.files


def _read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file, never of a device or pipe. Raises OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(f"it is larger than {most_bytes} bytes")
    return content


def take_inventory(folder: Path, *, is_partial: bool = False) -> Inventory:
    """Classify the content of a folder. Follows no link.

    `is_partial`: an export was killed while it wrote the folder, so a file of any content is its own.
    Raises DispatchError if the manifest cannot be read, OSError if the folder cannot.
    """
    while True:
        before = folder.stat()
        try:
            found = _sort_out(folder, _known(folder, is_partial=is_partial))
        except OSError:
            if os.path.samestat(before, folder.stat()):
                raise
            continue
        if os.path.samestat(before, folder.stat()):  # no other export has replaced it
            return found


def _known(folder: Path, *, is_partial: bool) -> dict[str, str | None]:
    """SHA-256 sums by name of what an export wrote; None stands for any content."""
    known: dict[str, str | None] = {MANIFEST_FILE: None}
    try:
        files = read(folder)
        known = {} if files is None else {**known, **files}
    except DispatchError:
        if not is_partial:
            raise
    return dict.fromkeys(known) if is_partial else known


def _sort_out(folder: Path, known: Mapping[str, str | None]) -> Inventory:
    homes = {parent for name in known for parent in PurePosixPath(name).parents}
    found: dict[str, list[str]] = {
        kind: [] for kind in ("intact", "corrupted", "edited", "foreign", "folders")
    }

    def visit(inside: PurePosixPath) -> None:
        with os.scandir(folder / inside) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = inside / entry.name
                is_home = name in homes or (entry.name == _CACHE and inside in homes)
                if is_home and entry.is_dir(follow_symlinks=False):
                    visit(name)
                    found["folders"].append(str(name))
                else:
                    found[_kind(entry, name, known)].append(str(name))

    visit(PurePosixPath())
    there = {*found["intact"], *found["corrupted"], *found["edited"]}
    missing = tuple(name for name in known if name not in there)
    return Inventory(**{kind: tuple(names) for kind, names in found.items()}, missing=missing)


def _kind(entry: os.DirEntry[str], name: PurePosixPath, known: Mapping[str, str | None]) -> str:
    if not entry.is_file(follow_symlinks=False):
        return "foreign"
    if str(name) not in known:
        return "intact" if _is_compiled(name, known) else "foreign"
    expected = known[str(name)]
    if expected is None or expected == _sha256(Path(entry.path)):
        return "intact"
    return "edited" if name.suffix in _SOURCES else "corrupted"


def _is_compiled(name: PurePosixPath, known: Mapping[str, str | None]) -> bool:
    """Whether Python wrote this file when it imported a listed module."""
    match = _COMPILED.fullmatch(name.name)
    if match is None or name.parent.name != _CACHE:
        return False
    return str(name.parent.parent / f"{match['module']}.py") in known


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(folder: Path, found: Inventory) -> None:
    """Delete what an export wrote, and the folder if nothing else is left in it.

    The files that identify the folder go last: if this is killed, the rest can still be identified.
    """
    marks = (TABLE_FILE, MANIFEST_FILE)
    owned = {*found.intact, *found.corrupted}
    for name in sorted(owned.difference(marks)):
        (folder / name).unlink()
    for name in found.folders:
        _remove_if_empty(folder / name)
    for name in marks:
        if name in owned:
            (folder / name).unlink()
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


class GpuModelFiles(NamedTuple):
    """The table of one GPU model, where it lies, and the code of its cubins by their SHA-256."""

    folder: Path
    table: Table
    code: dict[str, bytes]


@dataclass(frozen=True)
class Files:
    """What a folder holds, the first model's first. `unexpected` are files that no export wrote."""

    models: tuple[GpuModelFiles, ...]
    num_files: int  # that an export wrote
    unexpected: tuple[str, ...]


def check_files(folder: Path) -> Files:
    """Read a folder and compare it with its own manifest. Raises DispatchError, naming what is wrong."""
    models = tuple(
        GpuModelFiles(path, table, load_cubins(path, table)) for path, table in load_models(folder)
    )
    try:
        is_listed = read(folder) is not None
        found = take_inventory(folder)
    except OSError as error:
        raise DispatchError(f"{folder} cannot be read ({error}); check its permissions") from error
    if not is_listed:
        raise DispatchError(
            f"{folder} lacks its {MANIFEST_FILE}, by which its files are checked; restore it from "
            "where the folder was copied, or move the folder away and export again"
        )
    changed = (*found.corrupted, *found.edited)
    if changed or found.missing:
        kinds = {"changed": changed, "missing": found.missing}
        faults = [f"{what}: {few(names)}" for what, names in kinds.items() if names]
        raise DispatchError(
            f"{folder} is not as it was exported ({'; '.join(faults)}); move it away and export again"
        )
    return Files(models, len(found.intact) + len(changed), found.foreign)
