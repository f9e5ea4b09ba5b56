"""The tests of a run in the background of a script, which inherits ignored signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def test_signals_that_were_ignored_are_met_by_tests() -> None:
    """Three tests sent SIGINT to themselves, and nothing came."""
    seen = "import conftest, signal as s; print([s.getsignal(n) for n in (s.SIGINT, s.SIGHUP, s.SIGTERM)])"
    done = subprocess.run(
        [sys.executable, "-c", seen],
        cwd=TESTS, capture_output=True, text=True, check=True, preexec_fn=_ignore,
    )  # fmt: skip
    assert "default_int_handler" in done.stdout and "SIG_IGN" not in done.stdout
