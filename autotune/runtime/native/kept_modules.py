"""Imports the remaining modules of an exported folder as they were when the folder was imported.

The modules that launch are imported at the first product. If another folder is in its place by then, its
modules may be of another version. So the sources not yet imported are read at the start, and the core's
library is opened: removed files exist as long as they are open. None of this is used while the folder stays.
Copied into exported tables: standard library only.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_INIT = "__init__"
_LIBRARY = "so"
_opened: dict[str, tuple[KeptModules, int]] = {}  # libraries by path, with a descriptor each


class KeptModules:
    """Finds modules of a package in memory, once its folder was replaced; called by Python's import."""

    def __init__(self, package: str, folder: Path) -> None:
        self.kept_package, self._folder = package, folder
        self._identity = _identity(folder)
        self._sources: dict[str, tuple[str, bytes]] = {}
        self.libraries: list[str] = []
        self._read(package, str(folder))

    def _read(self, package: str, folder: str) -> None:
        with os.scandir(folder) as entries:  # pathlib takes two to four times as long
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                name = package if stem == _INIT else f"{package}.{stem}"
                if entry.is_dir(follow_symlinks=False):
                    self._read(name, entry.path)
                elif suffix == _LIBRARY:
                    self.libraries.append(entry.path)
                elif suffix == "py" and name not in sys.modules:
                    with io.open_code(entry.path) as file:
                        self._sources[name] = entry.path, file.read()

    @property
    def is_replaced(self) -> bool:
        return _identity(self._folder) != self._identity

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Part of Python's protocol: None leaves a module to others."""
        if not name.startswith(self.kept_package) or name not in self._sources or not self.is_replaced:
            return None
        from importlib.util import spec_from_file_location

        place = Path(self._sources[name][0])
        inside = [str(place.parent)] if place.stem == _INIT else None
        loader: Any = self
        return spec_from_file_location(name, place, loader=loader, submodule_search_locations=inside)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Part of Python's protocol: with None Python makes the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Part of Python's protocol."""
        place, source = self._sources[module.__name__]
        code: CodeType = compile(source, place, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def keep(package: str, folder: Path) -> None:
    """Keep the modules of a package in a folder that are not imported yet. A folder that cannot be read, as
    in an archive, is ignored.

    Where a package is reloaded, its modules stay, and so does what was kept with them. Where it was imported
    anew, all modules are, this one too: what another keeps is of those before.
    """
    others = [finder for finder in sys.meta_path if getattr(finder, "kept_package", None) == package]
    if any(isinstance(finder, KeptModules) for finder in others):
        return
    with suppress(OSError):
        kept = KeptModules(package, folder)
        for finder in others:
            sys.meta_path.remove(finder)
        for path in kept.libraries:
            _opened[path] = kept, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        sys.meta_path.insert(0, kept)


def library_path(path: Path) -> str:
    """The path of a library of this folder: the file itself, or the copy kept of it."""
    kept, descriptor = _opened.get(str(path), (None, -1))
    return f"/proc/self/fd/{descriptor}" if kept is not None and kept.is_replaced else str(path)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
