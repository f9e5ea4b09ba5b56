"""Who searched what: a row for each run of a search, from its beginning."""

from __future__ import annotations

import getpass
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..facts.device import names_for
from .connect import shown

_PACKAGES = ("optuna", "numpy", "sqlalchemy", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cublas")
_URL = re.compile(r"[\w+.-]+://.*", re.DOTALL)
_OURS = re.compile(r"(.*/)?(autotune|autotune/__main__\.py)", re.DOTALL)


def command() -> str:
    """What this process was started with: a command of autotune as a shell takes it, without passwords of
    databases; of other programs only the name, as nobody knows what their arguments hold."""
    program, *arguments = sys.argv or [""]
    if not _OURS.fullmatch(program):
        return Path(program).name or "python"
    return shlex.join(["autotune", *(_URL.sub(lambda url: shown(url[0]), one) for one in arguments)])


def host() -> str:
    return socket.gethostname()


def login() -> str:
    """The name of the user, "" where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def versions(gpu_name: str = "", packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Of autotune, of Python, and of the packages that are here; and what a GPU is accepted as, if it is."""
    found = {"autotune": __version__, "python": sys.version.split()[0]}
    if (other := names_for(gpu_name)[-1]) != gpu_name:
        found[f"{gpu_name} accepted as"] = other
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
