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
# No multiplication is fused with an addition: choices are those of Python on every processor.
OLDEST_GLIBC = 17  # 2.17: what the oldest pip that knows such tags asks for
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DECLARED = re.compile(
    r"(?:typedef )?enum \{[^}]*\}[^;]*;|typedef struct \{[^}]*\} autotune_\w+;|AUTOTUNE_API [^;{]*\([^;]*\);"
)


def declared() -> list[str]:
    """What the headers declare for callers in another language, each in a line."""
    texts = [_COMMENT.sub(" ", path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.h"))]
    return [" ".join(found.split()) for text in texts for found in _DECLARED.findall(text)]


# The library tells its declarations (runtime/native/core.py)
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
