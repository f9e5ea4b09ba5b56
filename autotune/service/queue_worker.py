"""`autotune worker`: processes that serve the queue of a database, one for each GPU and one that compiles.

Each claims the request that promises most, tunes its shape, ends the request, and claims the next. Nothing
has to be told to a worker: the database is all it knows, and where it dies another goes on. This process
starts the others, restarts one that is lost, and passes signals on: the first SIGTERM (Slurm, Kubernetes,
systemd) or Ctrl-C lets each finish its candidate and give back its request, which uses up no try.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from .. import search, target_finder
from ..facts.device import KNOWN, names_for
from ..facts.measurement import CachePolicy
from ..files.errors import AutotuneError, DeviceLost, EnvironmentProblem, UsageError
from ..kernel.compiler import Helpers
from ..search import InterruptHandler, Options, SearchResult, StopReason
from ..search_policy import read_effort
from ..shipped.starting_points import StartingPoints
from ..store import Member, QueuedRequest, RequestState, Store
from ..target import Target
from ..target_finder import Note, Selected
from .child_process import ChildHandle, ChildProcess, Telling, reporting
from .compile_worker import StoreHelpers

IDLE_S = 1.0  # between two looks at an empty queue
MOST_SLACK = 4.0  # times the seconds of a request, and more,
SLACK_S = 120.0  # before a worker that lives counts as stuck
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # before a lost process starts again
END_S = 60.0  # after a signal, before a process is killed
_POLL_S = 0.2


@dataclass(frozen=True)
class QueueWork:
    """How workers tune. `seconds`: for each request, at most."""

    db: str
    seconds: float
    cache: CachePolicy
    max_error: float | None
    effort: str
    drains: bool = False  # end once nothing waits


def serve_gpu(parent: Telling, selector: str, work: QueueWork, helpers: Helpers | None = None) -> None:
    """The process of a GPU. `helpers`: who compiles besides, instead of compile workers."""
    with (
        reporting(parent) as note,
        InterruptHandler() as handler,
        Store.open(work.db) as store,
        ExitStack() as stack,
    ):
        store.tell_when_away(note)
        helpers = helpers or stack.enter_context(StoreHelpers(store.builds()))
        opened = target_finder.open_target(
            selector, work.cache, max_error=work.max_error, note=note, helpers=helpers
        )
        target = stack.enter_context(closing(opened))
        where = target.environment
        member = stack.enter_context(store.queue().join("gpu", where.gpu_name, where.gpu_uuid))
        GpuServer(target, store, member, work, note, handler).run()


class GpuServer:
    """Serves requests on one GPU until it is interrupted."""

    def __init__(
        self,
        target: Target,
        store: Store,
        member: Member,
        work: QueueWork,
        note: Note,
        interrupt_handler: InterruptHandler,
    ) -> None:
        self._target, self._store, self._member, self._work = target, store, member, work
        self._queue, self._note, self._interrupt_handler = store.queue(), note, interrupt_handler
        names = {*names_for(target.environment.gpu_name), target.limits.name}
        self._names = names | {short for short, limits in KNOWN.items() if limits.name in names}
        self._options = self._read_options()

    def _read_options(self) -> Options:
        effort = read_effort(self._work.effort)
        starts = StartingPoints(target_finder.matrices(), self._target.limits)
        return Options(
            seconds=self._work.seconds, policy=effort.policy, patience=effort.patience, starts=starts,
            insists=False,
        )  # fmt: skip

    def run(self) -> None:
        """Raises DeviceLost and StoreError."""
        most_s = MOST_SLACK * self._work.seconds + SLACK_S
        self._member.tell("idle")
        while not self._interrupt_handler.is_requested:
            claimed = self._queue.claim(self._member, self._names, most_s)
            if claimed is not None:
                self._serve(claimed)
            elif self._work.drains and not self._queue.has_open():
                return
            else:
                until_s = time.monotonic() + IDLE_S
                while time.monotonic() < until_s and not self._interrupt_handler.is_requested:
                    time.sleep(_POLL_S)

    def _serve(self, claimed: QueuedRequest) -> None:
        gemm = claimed.wanted.gemm
        self._member.tell(f"tuning {gemm}")
        run = self._store.begin_run(self._target.environment, [str(gemm)])
        try:
            gemm.need_output()
            options = replace(self._options, seed=claimed.id)
            found = search.tune(
                self._target, self._store, [gemm], options, interrupt_handler=self._interrupt_handler
            )
        except UsageError as error:
            self._report(claimed, self._queue.finish(claimed, RequestState.REFUSED, str(error)))
        except (EnvironmentProblem, DeviceLost) as error:
            self._report(claimed, self._queue.fail(claimed, str(error)))
            if isinstance(error, DeviceLost):
                raise
        else:
            self._store.end_run(run, found.num_new)
            self._report(claimed, self._end(claimed, found))
        self._member.tell("idle", is_done=not self._interrupt_handler.is_requested)

    def _end(self, claimed: QueuedRequest, found: SearchResult) -> bool:
        if found.reason is StopReason.INTERRUPTED:
            return self._queue.give_back(claimed)
        if not found.shapes:
            return self._queue.fail(claimed, "its seconds were over before it began; grant more by --seconds")
        (shape,) = found.shapes
        best = shape.verdict
        if best is None:
            return self._queue.fail(claimed, "no candidate ran; `autotune trials failures` tells why")
        environment = self._target.environment
        result = {
            "gpu": environment.gpu_name, "time_us": best.time_us, "cublas_us": best.cublas_us,
            "speedup": best.speedup, "num_trials": shape.num_trials, "study": shape.study.id,
        }  # fmt: skip
        return self._queue.finish(claimed, RequestState.TUNED, str(found.reason), result)

    def _report(self, claimed: QueuedRequest, is_autotune: bool) -> None:
        if not is_autotune:
            self._note(f"request {claimed.id} ({claimed.wanted.gemm}) was taken up by another meanwhile")


@dataclass
class _Served:
    """A process and how to start it again."""

    name: str
    start: Callable[[], ChildHandle]
    child: ChildHandle
    pause_s: float = FIRST_PAUSE_S
    begins_s: float = field(default_factory=time.monotonic)
    error: AutotuneError | None = None


def serve(
    selected: Sequence[Selected],
    num_compilers: int,
    work: QueueWork,
    note: Note,
    start: Callable[..., ChildHandle] | None = None,
    publishers: Sequence[Callable[[], ChildHandle]] = (),
) -> None:
    """Have these GPUs, and a process that compiles so many kernels at a time, serve the queue until a signal
    comes, or with `drains` until nothing waits. `publishers` start what publishes the results. Raises the
    error of a process that can never serve: UsageError, and what it lacked at its first start."""
    share = partial(ChildProcess.start, num_sharing=max(1, len(selected)), num_taken=num_compilers)
    start = start or share
    starts: list[tuple[str, Callable[[], ChildHandle]]]
    starts = [(one.selector, partial(start, serve_gpu, one.selector, work)) for one in selected]
    if num_compilers:
        from .compile_worker import serve_compiles

        starts.append(("compile", partial(ChildProcess.start, serve_compiles, num_compilers, work.db)))
    starts += [("tables", one) for one in publishers]
    with InterruptHandler() as interrupt_handler:
        _supervise([_Served(name, start, start()) for name, start in starts], interrupt_handler, note)


def _supervise(served: list[_Served], interrupt_handler: InterruptHandler, note: Note) -> None:
    killed_s = math.inf
    running = {one.child.pipe: one for one in served}
    waiting: list[_Served] = []
    try:
        while (running or waiting) and time.monotonic() < killed_s:
            if interrupt_handler.is_requested and killed_s == math.inf:
                killed_s, waiting = time.monotonic() + END_S, []
                for one in running.values():
                    one.child.signal(signal.SIGTERM)
            for one in [one for one in waiting if time.monotonic() >= one.begins_s]:
                waiting.remove(one)
                one.child, one.begins_s = one.start(), time.monotonic()
                running[one.child.pipe] = one
            for pipe in wait(list(running), timeout=_POLL_S):
                one = running[pipe]  # type: ignore[index]
                message = one.child.hear()
                if message is not None:
                    _take(one, message, note)
                    continue
                del running[one.child.pipe]
                if _restarts(one, note) and not interrupt_handler.is_requested:
                    waiting.append(one)
    finally:
        for one in served:
            one.child.signal(signal.SIGTERM)
        for one in served:
            one.child.end(min(END_S, max(0.0, killed_s - time.monotonic())))


def _take(one: _Served, message: tuple[str, list[Any]], note: Note) -> None:
    what, values = message
    if what == "note":
        note(f"{one.name}: {values[0]}")
    elif what == "error":
        one.error = values[0]
    else:
        one.pause_s = 0.0  # it ended in order


def _restarts(one: _Served, note: Note) -> bool:
    """Whether a process that has ended starts again, and when. Raises what no restart mends."""
    one.child.end(END_S)
    error, one.error = one.error, None
    if one.pause_s == 0.0:
        return False
    lived_s = time.monotonic() - one.begins_s
    is_first = one.pause_s == FIRST_PAUSE_S and lived_s < LONGEST_PAUSE_S
    if isinstance(error, UsageError) or (is_first and isinstance(error, EnvironmentProblem)):
        raise error
    one.pause_s = FIRST_PAUSE_S if lived_s > LONGEST_PAUSE_S else min(2 * one.pause_s, LONGEST_PAUSE_S)
    one.begins_s = time.monotonic() + one.pause_s
    why = str(error) if error else one.child.ending
    note(f"{one.name}: {why}; it starts again in {one.pause_s:.0f} s")
    return True
