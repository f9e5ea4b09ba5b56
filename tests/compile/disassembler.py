"""nvdisasm, for tests that hold what machine code says."""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import tempfile
from pathlib import Path

import pytest

from autotune.kernel import template

PACKAGED = "nvidia/cu13/bin/nvdisasm"  # nvidia-cuda-nvdisasm, in site-packages


def section_of(cubin: bytes) -> str:
    """What nvdisasm shows of the entry's code. Skips the test where it is not installed."""
    packaged = [Path(folder) / PACKAGED for folder in site.getsitepackages()]
    tool = shutil.which("nvdisasm") or next((str(path) for path in packaged if path.exists()), None)
    if tool is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return shown[shown.index(f".text.{template.ENTRY}:") :].split(".section", 1)[0]


def instructions_of(cubin: bytes) -> list[str]:
    """Of the entry, a line each, in the order of the text."""
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(\S.*?) ?;", section_of(cubin))
