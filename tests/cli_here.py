"""Runs the command line in the process of a test, where parts of it may be simulated."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from autotune.cli.app import app


def run_here(*arguments: str | Path, exit_code: int = 0) -> Result:
    """`autotune ARGUMENTS`; fails unless it exits with this code."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == exit_code, done.output
    return done
