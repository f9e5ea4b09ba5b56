"""Who a process is: a name from which others on the same machine see whether it still lives (Linux), and what
a run of a search tells of itself."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..facts.device import names_for
from .connect import shown

_PROC = Path("/proc")
_PACKAGES = ("optuna", "numpy", "sqlalchemy", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cublas")
_URL = re.compile(r"[\w+.-]+://.*", re.DOTALL)
_OURS = re.compile(r"(.*/)?(autotune|autotune/__main__\.py)", re.DOTALL)


def my_name() -> str:
    """`HOST/PLACE/PID@START/RANDOM`: unique, even if process ids are reused."""
    return "/".join((_place(), f"{os.getpid()}@{_started(os.getpid())}", secrets.token_hex(4)))


def is_gone(name: str) -> bool:
    """Whether it has certainly ended: it ran where this one runs, and no longer exists."""
    place, _, rest = name.rpartition("/")[0].rpartition("/")
    number, at, started = rest.partition("@")
    if place != _place() or not at or not started or not number.isascii() or not number.isdecimal():
        return False
    return _started(int(number)) != started


def _place() -> str:
    """This boot of this machine, as far as process ids reach: a container has its own."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()}/{boot}-{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return f"{socket.gethostname()}/-"


def _started(number: int) -> str:
    """When a process started, in clock ticks since boot; empty if it is gone, or if this is unknown."""
    try:
        line = (_PROC / str(number) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = line.rpartition(")")[2].split()  # after the command's name: state, parent, ...
    return "" if fields[0] in "ZX" else fields[19]


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
