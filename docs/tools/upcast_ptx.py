"""Writes autotune/core/upcast.c: the PTX of kernels/upcast.cu, as text of C.

python docs/tools/upcast_ptx.py
"""

from __future__ import annotations

import re
from pathlib import Path

from cuda.bindings import nvrtc

from autotune.files import wheel_libraries
from autotune.kernel.template import kernel_dir

TARGET = Path(__file__).resolve().parents[2] / "autotune" / "core" / "upcast.c"
ARCH = "compute_75"  # the oldest that compilers of the CUDA 13 series know
# Of the text, which has nothing that is younger: drivers from CUDA 11.0 on read it
PTX_VERSION = "7.0"
HEAD = """/* The PTX of kernels/upcast.cu: written by docs/tools/upcast_ptx.py. */

#include "upcast.h"

const char *autotune_upcast_code(void) {
    return
"""


def _checked(result: tuple[object, ...]) -> object:
    status, *values = result
    if int(status) != 0:  # type: ignore[call-overload]
        raise SystemExit(f"NVRTC failed with status {status}")
    return values[0] if values else None


def ptx() -> str:
    """Of the kernel, without comments."""
    wheel_libraries.load("nvrtc")
    source = (kernel_dir() / "upcast.cu").read_bytes()
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"upcast.cu", 0, [], []))
    options = [f"--gpu-architecture={ARCH}".encode(), b"-std=c++17", b"--no-cache"]
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    size = int(str(_checked(nvrtc.nvrtcGetPTXSize(program))))
    text = b" " * size
    _checked(nvrtc.nvrtcGetPTX(program, text))
    lines = [re.sub(r"//.*", "", line).rstrip() for line in text.rstrip(b"\0 ").decode().splitlines()]
    body = "\n".join(line for line in lines if line.strip()) + "\n"
    return re.sub(r"\.version [\d.]+", f".version {PTX_VERSION}", body)


def as_c() -> str:
    lines = ptx().replace("\t", " ").splitlines()
    return HEAD + "\n".join(f'        "{line}\\n"' for line in lines) + ";\n}\n"


if __name__ == "__main__":
    TARGET.write_text(as_c(), encoding="utf-8")
