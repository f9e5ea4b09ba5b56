"""Reads the files of an exported folder: regular ones, of a size that such a file can have; and those that
are needed later as they were when the folder was imported.

A folder from elsewhere may hold anything. Opening or reading a FIFO would block, and a device has no end:
neither is read.

Modules that launch are imported, and cubins read, at the first product. If another folder is in its place by
then, they may be of another version. So sources that are not imported yet are read at the start, and the
core's library and the cubins are opened: removed files exist as long as they are open.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from .errors import DispatchError
from .strict import Mismatch

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


MAX_TABLE_BYTES = 64 << 20  # 400 kernels take 0.6 MB
MAX_CUBIN_BYTES = 16 << 20  # a kernel takes 10 to 200 KB
_INIT = "__init__"
_LIBRARY = "so"
_opened: dict[str, tuple[KeptModules, int]] = {}  # libraries by path, with a descriptor each


def read_file(path: Path | str, max_bytes: int, advice: str) -> bytes:
    """The content of a file. Raises DispatchError, which ends with `advice`, if it cannot be read, is not a
    regular file, or holds more than `max_bytes`; FileNotFoundError if it does not exist."""
    descriptor, _ = _opened_file(path, advice)
    try:
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise _invalid(path, error, advice) from error
    if len(content) > max_bytes:
        raise DispatchError(f"{path} is larger than {max_bytes >> 20} MiB; {advice}")
    return content


class KeptFile:
    """A file that stays open as long as this is referred to: it can be read when another took its place.

    Threads and forked processes may share it, as reading moves no position. A program that closes all
    descriptors, as a daemon does, has it opened again where it still is the same. Raises as `read_file`, but
    has no bound: `size` is in bytes.
    """

    def __init__(self, path: str, advice: str) -> None:
        self._path, self._advice = path, advice
        descriptor, self.size = _opened_file(path, advice)
        self._identity = identity_of(descriptor)
        self._keep(descriptor)

    def read(self, start: int, num_bytes: int) -> bytes:
        """This part of it; less, if the file has become shorter. Raises DispatchError."""
        try:
            if identity_of(self._descriptor) != self._identity:
                self._reopen()
            content = os.pread(self._descriptor, num_bytes, start)
            while len(content) < num_bytes and (
                part := os.pread(self._descriptor, num_bytes - len(content), start + len(content))
            ):
                content += part
            return content
        except OSError as error:
            raise _invalid(self._path, error, self._advice) from error

    def _keep(self, descriptor: int) -> None:
        self._descriptor = descriptor
        at_end = weakref.finalize(self, _close, descriptor, self._identity)
        at_end.atexit = False  # what runs at the exit may still read, and the system closes it

    def _reopen(self) -> None:
        descriptor, _ = _opened_file(self._path, self._advice)
        if identity_of(descriptor) != self._identity:
            os.close(descriptor)
            raise OSError("it was replaced after this program had closed it")
        self._keep(descriptor)


def _opened_file(path: Path | str, advice: str) -> tuple[int, int]:
    """A descriptor of a regular file, and its size in bytes."""
    try:
        # without O_NONBLOCK, opening a FIFO waits for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _invalid(path, error, advice) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise DispatchError(f"{path} is no regular file; {advice}")
    return descriptor, found.st_size


def _invalid(path: Path | str, error: Exception, advice: str) -> DispatchError:
    if isinstance(error, NotADirectoryError):
        file = next((one for one in Path(path).parents if one.is_file()), path)
        what = f"{file} is a file, not a folder; unpack an archive first"
        return DispatchError(f"{path} cannot be read: {what}")
    if isinstance(error, PermissionError):
        advice = "let this user read it"
    return DispatchError(f"{path} cannot be read ({error}); {advice}")


def identity_of(file: Path | str | int) -> tuple[int, int] | None:
    """Of a file or folder, or of what a descriptor leads to; None where there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 (a descriptor, too)
    except (OSError, ValueError):  # ValueError: a null byte
        return None
    return found.st_dev, found.st_ino


def _close(descriptor: int, identity: tuple[int, int] | None) -> None:
    if identity_of(descriptor) == identity:  # a program may have closed it, and opened another
        os.close(descriptor)


BLANK = "0" * 64  # stands in the text while its checksum is computed


def with_checksum(text: str) -> str:
    """A text that holds BLANK, with its SHA-256 instead."""
    return text.replace(BLANK, _digest(text), 1)


def is_hex(text: str) -> bool:
    """Whether all of it is pairs of digits of hexadecimal numbers, in small letters. Converting it there and
    back takes a third of the time of a regular expression."""
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def is_sha256(text: str) -> bool:
    """Whether it can be one, as it is written here."""
    return len(text) == len(BLANK) and is_hex(text)


def verify(text: str, checksum: Any) -> None:
    """Raises Mismatch where this is not the checksum of a text that it stands in."""
    if type(checksum) is not str or not is_sha256(checksum):
        raise Mismatch("it has no checksum")
    content, stated = text.encode(), checksum.encode()
    begin = content.find(stated)
    found, view = hashlib.sha256(), memoryview(content)  # parts, as another copy takes longer than the sum
    for part in (view[:begin], BLANK.encode(), view[begin + len(stated) :]):
        found.update(part)
    if begin < 0 or found.hexdigest() != checksum:
        raise Mismatch("its checksum does not match its content")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class KeptModules:
    """Finds modules of a package in memory, once its folder was replaced; called by Python's import."""

    def __init__(self, package: str, folder: Path) -> None:
        self.kept_package, self._folder = package, folder
        self._identity = identity_of(folder)
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
        return identity_of(self._folder) != self._identity

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
