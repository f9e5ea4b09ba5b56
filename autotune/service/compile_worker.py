"""`autotune worker --compile N`: compiles kernels for GPU workers elsewhere, N at a time. Needs no GPU."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing

from ..facts.measurement import Outcome
from ..files.errors import AutotuneError, TrialFailure
from ..kernel.compiler import CompileJob, Compiler
from ..search import InterruptHandler
from ..store import Build, Builds, Member, Store
from .child_process import Parent

ARCH = "sm_90"  # any will do: each job names its own
IDLE_S = 0.2  # between two looks, where there is nothing to do
MOST_IDLE_S = 2.0  # after a while


def serve_compiles(parent: Parent, num: int, db: str) -> None:
    """The process that compiles."""

    def note(text: str) -> None:
        parent.tell("note", text)

    try:
        with InterruptHandler() as interrupt_handler, Store.open(db) as store, ExitStack() as stack:
            store.tell_when_away(note)
            compiler = stack.enter_context(closing(Compiler(ARCH, num_threads=num, note=note)))
            member = stack.enter_context(store.queue().join("compile", slots=num))
            _serve(store.builds(), member, compiler, interrupt_handler)
        parent.tell("done")
    except AutotuneError as error:
        parent.tell("error", error)


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
