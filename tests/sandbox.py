"""A small disk, or one that may not be written, in a mount namespace of its own (Linux, no root needed)."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_ENTER = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc")
_SCRIPT = 'mount -t tmpfs -o "$0" tmpfs . && cd "$PWD" && exec "$@"'


@cache
def _why_not() -> str:
    try:
        done = _run("size=4k", ("true",), {})
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def small_disk(
    options: str, *command: str | Path, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that is a tmpfs with these mount options (`size=64k`, `ro`), empty but for
    what the shell commands `before` put there. Skips the test where the system forbids such mounts."""
    if reason := _why_not():
        pytest.skip(f"no file system can be mounted here: {reason}")
    return _run(options, command, environment, before)


def autotune(*arguments: str | Path) -> str:
    """The command line as one word for a shell."""
    return shlex.join([sys.executable, "-W", "error", "-m", "autotune", *map(str, arguments)])


def _run(
    options: str, command: tuple[str | Path, ...], environment: dict[str, str], before: str = ""
) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    script = _SCRIPT.replace("exec", f"{{ {before or ':'}; }} && exec")
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [*_ENTER, script, options, *map(str, command)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
