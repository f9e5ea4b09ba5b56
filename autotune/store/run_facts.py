"""Who searched what: a row for each run of a search, from its beginning."""

from __future__ import annotations

import getpass
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from importlib import metadata

from .. import __version__

_PACKAGES = ("optuna", "numpy", "sqlalchemy", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cublas")
_PASSWORD = re.compile(r"(://[^:/@\s]*):[^@\s]*@")


def command() -> str:
    """What this process was started with, as a shell takes it; without passwords of databases."""
    name = "autotune" if sys.argv[0].endswith(("/autotune", "__main__.py")) else sys.argv[0]
    return _PASSWORD.sub(r"\1:***@", shlex.join([name or "python", *sys.argv[1:]]))


def host() -> str:
    return socket.gethostname()


def login() -> str:
    """The name of the user, "" where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Of autotune, of Python, and of the packages that are here."""
    found = {"autotune": __version__, "python": sys.version.split()[0]}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
