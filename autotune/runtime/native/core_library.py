"""The library of the core in C: its functions, structs and numbers as its headers declare them.

It is built when autotune is installed (core/build.py) and holds the text of these declarations: nothing of
them is written again here. Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...files.errors import DispatchError
from .kept_modules import library_path

FOLDER = Path(__file__).parents[2] / "core"  # links are left in it: kept_modules.py knows it by this name
LIBRARY = "libautotune_core.so"
VERSION = 18  # AUTOTUNE_TABLE_VERSION of core/table.h
_MOST = 1 << 12  # declarations
_STRUCT = re.compile(r"typedef struct \{ (.*) \} autotune_(\w+);")
_NUMBERS = re.compile(r"(?:typedef )?enum \{ (.*) \}.*")
_FUNCTION = re.compile(r"AUTOTUNE_API (.*?)(autotune_\w+)\((.*)\);")
_CALL = re.compile(r"([^(]*)\(\*(\w+)\)\((.*)\)")  # a field that is one
_FIELDS = re.compile(r"((?:const )?\w+) (.*)")
_FIELD = re.compile(r"(\*?)(\w+)(?:\[(\w+)\])?")
_TYPE = re.compile(r"(?:const )?(unsigned char|\w+)")
_PLAIN: dict[str, Any] = {
    "int": ctypes.c_int, "unsigned": ctypes.c_uint, "unsigned char": ctypes.c_ubyte,
    "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "intptr_t": ctypes.c_ssize_t,
    "float": ctypes.c_float, "double": ctypes.c_double, "void": None,
    "autotune_status": ctypes.c_int, "autotune_activation": ctypes.c_int,
    "autotune_accuracy": ctypes.c_int,
}  # fmt: skip


class Struct(ctypes.Structure):
    @classmethod
    def like(cls, source: Any, **others: Any) -> Any:
        """With the fields that `source` has under the same names, and these."""
        names = [name for name, *_ in cls._fields_ if name not in others and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **others)


class Declarations:
    """What headers declare: `numbers` of enums and types of `structs`, by their names without the prefix, and
    of `functions` what they return and take."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.numbers, self.structs = SimpleNamespace(), SimpleNamespace()
        self.functions: dict[str, tuple[Any, list[Any]]] = {}
        self._bodies: dict[str, str] = {}
        declared = list(texts)
        for text in declared:
            if found := _STRUCT.fullmatch(text):
                self._bodies[found[2]] = found[1]
            elif found := _NUMBERS.fullmatch(text):
                self._add_numbers(found[1])
        for name in self._bodies:
            self._struct(name)
        for text in declared:
            if found := _FUNCTION.fullmatch(text):
                self.functions[found[2]] = self._type(found[1]), self._types(found[3])

    def _add_numbers(self, body: str) -> None:
        value = -1
        for one in body.rstrip(", ").split(","):
            name, _, message = one.strip().partition(" = ")
            number, _, shift = message.partition(" << ")
            value = int(number) << int(shift or 0) if message else value + 1
            setattr(self.numbers, name.removeprefix("AUTOTUNE_"), value)

    def _struct(self, name: str) -> Any:
        if not hasattr(self.structs, name):
            fields = [field for text in self._bodies[name].split(";") for field in self._fields(text.strip())]
            setattr(self.structs, name, type(f"autotune_{name}", (Struct,), {"_fields_": fields}))
        return getattr(self.structs, name)

    def _fields(self, text: str) -> Iterable[tuple[str, Any]]:
        """Of a declaration of one or several."""
        if found := _CALL.fullmatch(text):
            yield found[2], ctypes.CFUNCTYPE(self._type(found[1]), *self._types(found[3]))
        elif found := _FIELDS.fullmatch(text):
            for one in _FIELD.finditer(found[2]):
                kind = self._type(f"{found[1]} {one[1]}")
                size = one[3] and (int(one[3]) if one[3].isdigit() else self._number(one[3]))
                yield one[2], kind * size if size else kind

    def _number(self, name: str) -> int:
        return int(getattr(self.numbers, name.removeprefix("AUTOTUNE_")))

    def _types(self, parameters: str) -> list[Any]:
        named = parameters.split(", ")
        return [self._type(one) for one in named if one not in ("void", "...")]

    def _type(self, text: str) -> Any:
        """Of a declaration that begins so."""
        if "*" in text or "[" in text:
            return ctypes.c_char_p if text.startswith("const char *") else ctypes.c_void_p
        found = _TYPE.match(text)
        assert found is not None, text
        return _PLAIN[found[1]] if found[1] in _PLAIN else self._struct(found[1].removeprefix("autotune_"))


class CoreLibrary:
    """Functions by their names, beside `structs` and `numbers` of its declarations."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        texts = (ctypes.c_char_p * _MOST).in_dll(library, "autotune_declared")
        declared = Declarations(text.decode() for text in takewhile(bool, texts))
        self.structs: Any = declared.structs
        self.numbers: Any = declared.numbers
        for name, (returned, taken) in declared.functions.items():
            if function := getattr(library, name, None):  # an export as C has more
                function.restype, function.argtypes = returned, taken
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the core has no {name}")


@cache
def library() -> CoreLibrary | None:
    """The library of this folder; None if it was not built, or for another machine, or from other sources."""
    try:
        found = CoreLibrary(library_path(FOLDER / LIBRARY))
    except (OSError, ValueError):  # the last: it does not tell its declarations
        return None
    return found if found.numbers.TABLE_VERSION == VERSION else None


def loaded() -> CoreLibrary:
    """The same. Raises DispatchError where there is none."""
    found = library()
    if found is None:
        raise DispatchError(
            f"products need the core in C, and {FOLDER / LIBRARY} is missing, or was built for another "
            "machine or from other sources: install autotune again where there is a C compiler, which "
            "`pip install ziglang` brings, and export the table again"
        )
    return found
