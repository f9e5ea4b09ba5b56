"""Builds the core's library beside its sources: when autotune is installed, or this file is run.

Any C compiler will do: `CC`, else cc, gcc or clang, else the one of the package `ziglang`. Without one
nothing is built, and no table serves (runtime/native/core.py). Standard library only: this runs before
anything is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "libautotune_core.so"
OLDEST_GLIBC = 17  # 2.17: what the oldest pip that knows such tags asks for
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DECLARED = re.compile(
    r"(?:typedef )?enum \{[^}]*\}[^;]*;|typedef struct \{[^}]*\} autotune_\w+;|AUTOTUNE_API [^;{]*\([^;]*\);"
)
_ENUM = re.compile(r"(?:typedef )?enum \{ (.*?),? \}.*")
_STRUCT = re.compile(r"typedef struct \{ (.*); \} autotune_(\w+);")
_FUNCTION = re.compile(r"AUTOTUNE_API (.*?)(autotune_\w+)\((.*)\);")
_CALL = re.compile(r"([^(]*)\(\*(\w+)\)\((.*)\)")  # a field that is one
_FIELDS = re.compile(r"((?:const )?(?:unsigned char|\w+)) (.*)")
_FIELD = re.compile(r"(\*?)(\w+)(?:\[(\w+)\])?")
_PLAIN = {"unsigned": "c_uint", "unsigned char": "c_ubyte", "intptr_t": "c_ssize_t", "void": "None"}
_CTYPES = ("int", "int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "float", "double")
_PLAIN |= {name: f"c_{name.removesuffix('_t') if name[-3].isdigit() else name}" for name in _CTYPES}


def declared() -> list[str]:
    """What the headers declare for callers in another language, a line each, what others need first:
    `number NAME VALUE`, `struct NAME FIELD:TYPE ...`, `function NAME TYPE TYPE ...` (the result's first).

    Types are those of Python's ctypes or structs; `c_int64*3`: an array, `c_int(c_void_p,c_int)`: a function
    that is called. Names of numbers and structs are without the prefix."""
    texts = [_COMMENT.sub(" ", path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.h"))]
    lines = [" ".join(found.split()) for text in texts for found in _DECLARED.findall(text)]
    numbers = _numbers(lines)
    bodies = {found[2]: found[1] for found in filter(None, map(_STRUCT.fullmatch, lines))}
    structs: dict[str, str] = {}

    def kind(text: str) -> str:
        """Of a declaration that begins so. What is held as a whole is declared before."""
        if "*" in text or "[" in text:
            return "c_char_p" if text.startswith("const char *") else "c_void_p"
        name = re.sub("^const ", "", text)
        name = "unsigned char" if name.startswith("unsigned char") else name.split()[0]
        held = name.removeprefix("autotune_")
        if held in bodies:
            struct(held)
            return held
        return _PLAIN.get(name, "c_int")  # of an enum

    def kinds(parameters: str) -> list[str]:
        return [kind(one) for one in parameters.split(", ") if one not in ("void", "...")]

    def struct(name: str) -> None:
        if name in structs:
            return
        fields = []
        for text in bodies[name].split("; "):
            if found := _CALL.fullmatch(text):
                fields.append(f"{found[2]}:{kind(found[1])}({','.join(kinds(found[3]))})")
            elif found := _FIELDS.fullmatch(text):
                for star, field, size in _FIELD.findall(found[2]):
                    most = f"*{numbers.get(size.removeprefix('AUTOTUNE_'), size)}" if size else ""
                    fields.append(f"{field}:{kind(f'{found[1]} {star}')}{most}")
        structs[name] = " ".join(fields)

    for name in bodies:
        struct(name)
    functions = filter(None, map(_FUNCTION.fullmatch, lines))
    return [
        *(f"number {name} {value}" for name, value in numbers.items()),
        *(f"struct {name} {fields}" for name, fields in structs.items()),
        *(f"function {one[2]} {' '.join([kind(one[1]), *kinds(one[3])])}" for one in functions),
    ]


def _numbers(lines: list[str]) -> dict[str, int]:
    """Of enums."""
    found: dict[str, int] = {}
    for enum in filter(None, map(_ENUM.fullmatch, lines)):
        value = -1
        for one in enum[1].split(","):
            name, _, given = one.strip().partition(" = ")
            number, _, shift = given.partition(" << ")
            value = int(number) << int(shift or 0) if given else value + 1
            found[name.removeprefix("AUTOTUNE_")] = value
    return found


# The library tells its declarations (runtime/native/core.py). No multiplication is fused with an addition:
# choices are those of Python on every processor.
_DECLARATIONS = ",".join(f'"{line}"' for line in declared())
FLAGS = (
    "-std=c11", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread",
    f"-DAUTOTUNE_DECLARED={_DECLARATIONS}",
)  # fmt: skip


class NotBuilt(Exception):
    """There is no compiler, or it fails."""


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.c"))


def is_current() -> bool:
    """Whether the library is there, and younger than its sources."""
    if not LIBRARY.exists():
        return False
    built = LIBRARY.stat().st_mtime
    return all(path.stat().st_mtime <= built for path in (*sources(), *FOLDER.glob("*.h"), Path(__file__)))


def build() -> Path:
    """Compile the library; returns its path. Processes may do so at once. Raises NotBuilt."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".build-") as folder:
        made = Path(folder) / LIBRARY.name
        command = [*compiler(), *FLAGS, *map(str, sources()), "-o", str(made), "-lm", "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotBuilt(f"{shlex.join(command)} failed:\n{done.stderr}")
        with made.open("rb") as file:
            os.fsync(file)  # or a power cut may leave half a library
        made.replace(LIBRARY)
    return LIBRARY


def wheel_tag(library: Path = LIBRARY) -> str:
    """The tag of a wheel that holds this library: for any Python 3, since ctypes loads it, and every glibc
    that has the versions of symbols that the linker asked for. Without such versions: for this platform."""
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    versions = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", library.read_bytes())]
    if versions:
        platform = platform.replace("linux", f"manylinux_2_{max(OLDEST_GLIBC, *versions)}", 1)
    return f"py3-none-{platform}"


def compiler() -> list[str]:
    """The command of a C compiler. Raises NotBuilt."""
    if message := os.environ.get("CC"):
        return shlex.split(message)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NotBuilt("no C compiler (what CC says, cc, gcc or clang); `pip install ziglang` brings one")


if __name__ == "__main__":
    try:
        build()
    except NotBuilt as fault:
        sys.exit(f"the core was not built: {fault}")
