"""Processes that one of ours starts, for a GPU or for compiling, and how the two hear of each other.

They are forked from a process that has loaded what all need (preloaded.py). Each has a group of its own, so
that Ctrl-C in a terminal reaches the parent alone. A child whose parent is gone ends in order.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Protocol

from ..files import words
from ..files.errors import AutotuneError
from ..kernel import compiler

_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Signal:
    """Sent through the pipe: of a child whose forking process was lost, nothing else is known for certain."""

    number: int


class Telling(Protocol):
    """Who hears notes, and how it ended."""

    def tell(self, what: str, *values: Any) -> None: ...


class Parent:
    """In a child: the process that started it. What it sends is read by a thread, and where it is gone, this
    process ends as by SIGTERM."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._answers = pipe, SimpleQueue[Any]()
        self._one_sends = threading.Lock()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                answer = self._pipe.recv()
                if isinstance(answer, Signal):
                    os.kill(os.getpid(), answer.number)
                else:
                    self._answers.put(answer)
        self._answers.put([])
        os.kill(os.getpid(), signal.SIGTERM)

    def tell(self, what: str, *values: Any) -> None:
        with suppress(OSError), self._one_sends:  # it is gone: the thread ends this process
            self._pipe.send((what, *values))

    def ask(self, what: str, *values: Any) -> Any:
        self.tell(what, *values)
        return self._answers.get()


@contextmanager
def reporting(parent: Telling) -> Iterator[Callable[[str], None]]:
    """Tells how what is done within ends, and, by what is yielded, notes."""
    try:
        yield lambda text: parent.tell("note", text)
        parent.tell("done")
    except AutotuneError as error:
        parent.tell("error", error)


_KILLED_S = 30.0  # until a process that was killed is gone
_PAUSES_S = (0.05, 0.2, 1.0)  # before a process is started again


def _run(
    pipe: Connection, is_command: bool, num_cores: int, program: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    os.setpgid(0, 0)
    if is_command:
        words.use_command_line_words()
    compiler.use_cores(num_cores)
    program(Parent(pipe), *arguments)


class ChildHandle:
    """What runs elsewhere: in a process, or on a node of a cluster (ray_cluster.py)."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.is_gone = pipe, False  # `is_gone`: it has closed its end

    def hear(self) -> tuple[str, list[Any]] | None:
        """The next message; None once there are no more."""
        try:
            what, *values = self.pipe.recv()
        except (EOFError, OSError):
            self.is_gone = True
            return None
        return what, values

    def answer(self, value: Any) -> None:
        with suppress(OSError):
            self.pipe.send(value)

    def signal(self, number: int) -> None:
        """Have it raised there."""
        self.answer(Signal(number))

    def end(self, within_s: float) -> None:
        """Wait for its end, and kill it if it takes longer."""
        until_s = time.monotonic() + within_s
        while not self.is_gone and (left_s := until_s - time.monotonic()) > 0:
            if self.pipe.poll(left_s):
                self.hear()
        self.kill()
        self.is_gone = True
        self.pipe.close()

    @property
    def ending(self) -> str:
        """How it ended, for those who look for a reason."""
        raise NotImplementedError

    def kill(self) -> None:
        """At once, unless it is gone."""
        raise NotImplementedError


class ChildProcess(ChildHandle):
    """A process that was started here."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        super().__init__(pipe)
        self.process = process

    @classmethod
    def start(
        cls, program: Callable[..., None], *arguments: Any, num_sharing: int = 1, num_taken: int = 0
    ) -> ChildProcess:
        """Run `program(parent, *arguments)`, a function of a module, in a process: one of so many that share
        this machine's cores, less those that are taken."""
        _CONTEXT.set_forkserver_preload([f"{__package__}.preloaded"])
        ours, theirs = _CONTEXT.Pipe()
        num_cores = (compiler.usable_cores() - num_taken) // num_sharing
        given = (theirs, words.is_command_line(), num_cores, program, arguments)
        process = _CONTEXT.Process(target=_run, args=given)
        for pause_s in (*_PAUSES_S, None):
            try:
                process.start()
                break
            except (OSError, EOFError):  # what forks was lost a moment ago, which is not yet noticed
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        theirs.close()
        return cls(process, ours)

    @property
    def ending(self) -> str:
        return f"its process ended ({self.process.exitcode})"

    def kill(self) -> None:
        if not self.is_gone and self.process.pid:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(_KILLED_S)
