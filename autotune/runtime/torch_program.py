"""Runs an unmodified program of torch with its products routed to a table. Copied into exported tables."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import DispatchError
from .torch_gain import ProgramGain
from .torch_routing import TorchRouting

_USAGE = (
    "say which program is to run: python -m TABLE train.py ARGUMENTS, or python -m TABLE -m MODULE "
    "ARGUMENTS; --compare before it measures what it gains"
)


def main(make_routing: Callable[[], TorchRouting], arguments: list[str]) -> int:
    """Run the program that the arguments of this process name, as Python would, and report on stderr how its
    products were served, and with `--compare` what it gained (torch_gain.py). Returns 2 if no program is
    named, torch is missing, or nothing can be measured; else raises what the program ends with."""
    program = arguments[1:]
    is_compared = program[:1] == ["--compare"]
    program = program[is_compared:]
    is_module = program[:1] == ["-m"]
    program = program[is_module:]
    try:
        if not program:
            raise DispatchError(_USAGE)
        _import_torch()
        routing = make_routing()
        if is_compared and routing.no_router:
            raise DispatchError(f"--compare needs the router in C++: {routing.no_router}")
    except DispatchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.argv = program
    gain: ProgramGain | None = None
    try:
        with routing:
            gain = routing.measure_gain() if is_compared else None
            run_program(program[0], is_module)
    finally:
        sys.stderr.write(f"{routing.report()}\n")
        if gain is not None:
            per_call_us = routing.saved_us / max(routing.tally().total(), 1)
            sys.stderr.write(f"{gain.told(per_call_us)}\n")
    return 0


def _import_torch() -> None:
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise DispatchError(
            f"torch cannot be imported ({error}); install it, or run this where it is"
        ) from error


def run_program(name: str, is_module: bool) -> None:
    """Run a program as Python would: a path, or a module by its name. Raises what it ends with."""
    if is_module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(name).resolve().parent))
        runpy.run_path(name, run_name="__main__")
