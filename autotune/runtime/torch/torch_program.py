"""Runs an unmodified program of torch with its products routed to a table, and the processes that it starts.

Routing begins when torch starts CUDA. Until then nothing is opened: a program may fork processes that use
CUDA. For Python processes that it starts otherwise, PYTHONPATH names a folder whose module Python runs at
their start (startup/sitecustomize.py). Each process that uses CUDA tells at its end what came of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path

from ...files.errors import DispatchError
from .torch_router import ProgramGain
from .torch_routing import TorchRouting

_USAGE = """python -m TABLE [--compare] train.py ARGUMENTS
       python -m TABLE [--compare] -m MODULE ARGUMENTS"""
_HELP = """Runs a program of torch with its FP32 products routed to the table TABLE, where that is expected
to be faster, and reports on stderr what came of it. --compare: measures what this process gains. Python
processes that the program starts are routed, too, and report for themselves; not those of `python -E`, `-I`
or `-S`, or that are started without the program's PYTHONPATH."""
_WHICH_TABLE = (
    "say which program is to run: python -m TABLE train.py ARGUMENTS, or python -m TABLE -m MODULE "
    "ARGUMENTS; --compare before it measures what it gains"
)
_STARTUP = Path(__file__).parent / "startup"
MakeRouting = Callable[[], TorchRouting]


def main(make_routing: MakeRouting, arguments: list[str]) -> int:
    """Run the program that the arguments of this process name, as Python would, and report on stderr how its
    products were served, and with `--compare` what it gained (torch_router.py). Returns 0 for `--help`, and 2
    if no program is named, or it or torch is missing, or nothing can be measured; else raises what it
    ends with."""
    program = arguments[1:]
    if program[:1] in (["--help"], ["-h"]):
        argparse.ArgumentParser(usage=_USAGE, description=_HELP).print_help()
        return 0
    is_compared = program[:1] == ["--compare"]
    program = program[is_compared:]
    is_module = program[:1] == ["-m"]
    program = program[is_module:]
    routing = _LateRouting(make_routing, is_compared=is_compared)
    try:
        _check(program, is_module)
        _import_torch()
        routing.begin()
    except DispatchError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.argv = program
    try:
        with _children_too():
            run_program(program[0], is_module)
    finally:
        routing.end()
    return 0


def route_process(make_routing: MakeRouting) -> None:
    """Route this process, which a routed program started, and report on stderr at its end. Raises
    DispatchError if that cannot be."""
    _LateRouting(make_routing, is_child=True).enter()


class _LateRouting:
    """A routing that begins when torch starts CUDA, in this process or in one that is forked before."""

    def __init__(
        self, make_routing: MakeRouting, *, is_child: bool = False, is_compared: bool = False
    ) -> None:
        self._make, self._is_compared = make_routing, is_compared
        self._first = 0 if is_child else os.getpid()
        self._gain: ProgramGain | None = None
        self._at_end: Finalize | None = None
        self._why_not = "this process did not use CUDA"

    def begin(self) -> None:
        """Raises DispatchError for what must be known at once: that nothing can be compared."""
        cuda = getattr(sys.modules["torch"], "cuda", None)
        if cuda is None or self._is_compared:
            self.enter()
        else:
            cuda._lazy_call(self._enter_in_torch)

    def _enter_in_torch(self) -> None:
        """Called by torch, for which a fault here would be its own."""
        try:
            self.enter()
        except Exception as error:
            self._why_not = str(error)
            self._tell_why_not()

    def enter(self) -> None:
        """Raises DispatchError."""
        routing = self._make()
        if self._is_compared and routing.no_router:
            raise DispatchError(f"--compare needs the router in C++: {routing.no_router}")
        routing.__enter__()
        # at the end of whatever process this is: those of multiprocessing call nothing else then
        self._at_end = Finalize(None, self._leave, (routing,), exitpriority=0)
        self._gain = routing.measure_gain() if self._is_compared else None

    def end(self) -> None:
        if self._at_end is None:
            self._tell_why_not()
        else:
            self._at_end()  # once, and only in the process that entered

    def _leave(self, routing: TorchRouting) -> None:
        routing.__exit__()
        self._tell(routing.report())
        if self._gain is not None:
            self._tell(self._gain.describe(routing.saved_us / max(routing.call_counts().total(), 1)))

    def _tell_why_not(self) -> None:
        self._tell(f"products are not routed: {self._why_not}")

    def _tell(self, text: str) -> None:
        who = "" if os.getpid() == self._first else f"process {os.getpid()}: "
        sys.stderr.write(f"{who}{text}\n")


@contextlib.contextmanager
def _children_too() -> Iterator[None]:
    """Python processes that are started within it are routed."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_STARTUP), before)))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _check(program: list[str], is_module: bool) -> None:
    if not program:
        raise DispatchError(_WHICH_TABLE)
    if program[0].startswith("-"):
        raise DispatchError(f"{program[0]} is no option here; {_WHICH_TABLE}")
    if not is_module and not Path(program[0]).exists():
        raise DispatchError(f"no program at {program[0]}; {_WHICH_TABLE}")


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
