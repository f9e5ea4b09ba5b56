"""Names of processes from which another process on the same machine sees whether they still live (Linux)."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

_PROC = Path("/proc")


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
