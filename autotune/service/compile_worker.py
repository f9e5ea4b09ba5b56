"""`autotune worker --compile N`: compiles kernels for GPU workers elsewhere, N at a time, without a GPU; and
how the compilers of these ask for them, by way of the database."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from typing import Self

from ..facts.measurement import Outcome
from ..files.errors import AutotuneError, TrialFailure
from ..kernel.compiler import CompileJob, Compiler
from ..search import InterruptHandler
from ..store import Build, Builds, Member, Store
from .child_process import Parent, reporting

ARCH = "sm_90"  # any will do: each job names its own
IDLE_S = 0.2  # between two looks, where there is nothing to do
MOST_IDLE_S = 2.0  # after a while


def serve_compiles(parent: Parent, num: int, db: str) -> None:
    """The process that compiles."""
    with (
        reporting(parent) as note,
        InterruptHandler() as interrupt_handler,
        Store.open(db) as store,
        ExitStack() as stack,
    ):
        store.tell_when_away(note)
        compiler = stack.enter_context(closing(Compiler(ARCH, num_threads=num, note=note)))
        member = stack.enter_context(store.queue().join("compile", slots=num))
        _serve(store.builds(), member, compiler, interrupt_handler)


def _serve(builds: Builds, member: Member, compiler: Compiler, interrupt_handler: InterruptHandler) -> None:
    """Until it is interrupted; what is under way then is compiled and stored."""
    num = compiler.num_threads
    under_way: set[Future[None]] = set()
    idle_s = IDLE_S
    member.tell("idle")
    with ThreadPoolExecutor(num, thread_name_prefix="build") as threads:
        while not interrupt_handler.is_requested:
            claimed = builds.claim(member, num - len(under_way)) if len(under_way) < num else {}
            under_way |= {
                threads.submit(_build, builds, compiler, key, task) for key, task in claimed.items()
            }
            if claimed:
                member.tell("compiling")
            idle_s = IDLE_S if claimed or under_way else min(1.2 * idle_s, MOST_IDLE_S)
            if under_way:
                done, under_way = wait(under_way, timeout=IDLE_S)
                for one in done:
                    one.result()
            else:
                time.sleep(idle_s)


def _build(builds: Builds, compiler: Compiler, key: str, task: dict[str, object]) -> None:
    """Compile one and store it. Raises EnvironmentProblem and StoreError."""
    builds.finish(key, made(compiler, key, task))


def made(compiler: Compiler, key: str, task: dict[str, object]) -> Build:
    """What comes of a task. One of another compiler, or that is damaged, is left to who asked."""
    job = CompileJob.from_dict(task)
    if job is None or job.key != key or job.version != compiler.version:
        return Build(None)
    try:
        return Build(compiler.made(job).packed())
    except TrialFailure as failure:
        is_certain = failure.outcome == Outcome.COMPILE_FAILED  # not that it took too long here
        return Build(None, failure.outcome, failure.reason) if is_certain else Build(None)


POLL_S = 0.2
COUNT_S = 2.0  # between two looks at how many compile workers there are
AHEAD = 2  # kernels that wait, for each that is compiled: no worker waits for the next question
LONGEST_S = 120.0  # for a kernel, before it is compiled here


class StoreHelpers:
    """Implements `compiler.Helpers`. One thread looks for what is done, of all that wait. Use it as a context
    manager: at its end nobody waits any more."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds
        self._waits: dict[str, Future[Build | None]] = {}
        self._lock = threading.Lock()
        self._slots, self._counted_s = 0, -COUNT_S
        self._is_closed = threading.Event()
        self._polling = threading.Thread(target=self._poll_on, name="builds", daemon=True)

    def __enter__(self) -> Self:
        self._polling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._polling.join()
        self._release_all()

    @property
    def num_slots(self) -> int:
        return self._slots

    def build(self, job: CompileJob) -> bytes | None:
        """A kernel from elsewhere; None where nobody is free to make it, or the worker was lost. Raises
        TrialFailure where it does not compile."""
        with self._lock:
            if self._is_closed.is_set() or len(self._waits) >= AHEAD * self._slots:
                return None
            made = self._waits.setdefault(job.key, Future())
        try:
            self._builds.ask(job.key, job.to_dict())
            build = made.result(LONGEST_S)
        except TimeoutError:
            return None
        finally:
            with self._lock:
                self._waits.pop(job.key, None)
        if build is not None and build.packed is None and build.outcome:
            raise TrialFailure(build.outcome, build.reason)
        return None if build is None else build.packed

    def _poll_on(self) -> None:
        while not self._is_closed.wait(POLL_S):
            with suppress(AutotuneError):  # the database is away: whoever waits compiles here in the end
                self._poll()

    def _poll(self) -> None:
        if time.monotonic() - self._counted_s >= COUNT_S:
            self._slots, self._counted_s = self._builds.num_slots(), time.monotonic()
        with self._lock:
            waits = dict(self._waits)
        if not waits:
            return
        for key, build in self._builds.found(waits).items():
            if not waits[key].done():  # whoever waits takes it out in a moment
                waits[key].set_result(build)
        if not self._slots:  # all compile workers were lost
            self._builds.forget(waits)
            self._release_all()

    def _release_all(self) -> None:
        with self._lock:
            waits, self._waits = self._waits, {}
        for one in waits.values():
            if not one.done():
                one.set_result(None)
