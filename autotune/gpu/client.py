"""The coordinator's side of the GPU worker: starts it, asks it, watches the clock, replaces it.

If a candidate kills or hangs the worker, only that candidate fails: the worker's process group is killed, and
the next request starts a new worker and prepares the problem again. The client is used from one thread at a
time; that thread must outlive the worker, which Linux kills with it (PR_SET_PDEATHSIG).

A request may be sent ahead, while the worker is on the one before, so that it need not wait for the next when
it has answered (decision 0105):

    coordinator   send 1, 2 ── hear of 1, send 3 ─────── hear of 2, send 4 ──
    worker            1: verify, time ── 2: verify, time ── 3 ...

The worker answers in order. If it dies, the oldest request without an answer is to blame, and one that was
sent behind it is asked again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ..facts.measurement import Failure, Outcome
from ..files.errors import AutotuneError, DeviceLost, EnvironmentProblem
from ..files.shortage import WorkerProcess
from ..files.words import counted
from ..kernel.launch import LaunchSpec
from ..target import CellTime
from . import protocol
from .protocol import KernelCode, Problem
from .timing import TRIAL_DEADLINE_S
from .turns import Turns

A = TypeVar("A", bound=protocol.Answer)

START_DEADLINE_S = 120.0  # the first context on a cold machine takes seconds
PREPARE_DEADLINE_S = 300.0
SHUTDOWN_DEADLINE_S = 2.0
KILL_DEADLINE_S = 60.0  # the driver tears a hung context down before the process is gone
MAX_DEATHS = 5  # in a row, without one answer between
MOST_SENT = 2  # requests without an answer: the one that the worker is on, and the next

WORKER_COMMAND = (sys.executable, "-m", "autotune.gpu.worker")


class WorkerGone(AutotuneError):
    """The worker died or sent nonsense while answering."""


class WorkerLate(AutotuneError):
    """The worker did not answer in time and was killed."""


class WorkerClient:
    """One GPU worker, replaced as often as needed.

    `command` starts a worker; the number of its end of the pipe and this process's id are appended. `turns`
    keeps other processes off the GPU while the worker answers; waiting for a turn does not count against a
    candidate."""

    def __init__(
        self,
        start: protocol.Start,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        max_deaths: int = MAX_DEATHS,
        turns: Turns | None = None,
    ) -> None:
        self._start_request = start
        self._turns = turns
        self._command = tuple(command)
        self._max_deaths = max_deaths
        self._num_deaths = 0  # in a row
        self._last_death = ""
        self._process: WorkerProcess | None = None
        self._sent: deque[tuple[protocol.Request, float]] = deque()  # without an answer, and their deadlines
        self._peers = frozenset[int]()  # of the turn that these have
        self._is_cut = False  # the pipe, within a message that it was too late for
        self._prepared: dict[Problem, protocol.Prepared] = {}  # what the worker holds
        self._crash_failures: dict[tuple[str, str, LaunchSpec], Failure] = {}  # never run again
        self.ready: protocol.Ready | None = None
        self.prepared_s = 0.0  # that workers took to prepare problems, in all

    def start(self) -> protocol.Ready:
        """Make sure that a worker is ready. Raises EnvironmentProblem, DeviceLost."""
        if self._process is not None and self._process.exit_code is not None:
            self._discard(WorkerGone(self._process.last_words or "it ended while idle"))
        while self._process is None or self.ready is None:
            if self._num_deaths >= self._max_deaths:
                raise DeviceLost(
                    f"the GPU worker died {counted(self._num_deaths, 'time')} in a row, at last: "
                    f"{self._last_death}; "
                    "check the GPU with nvidia-smi and dmesg, then ask again to resume"
                )
            try:
                self._spawn()
                self.ready = self._ask(self._start_request, START_DEADLINE_S, protocol.Ready)
            except (WorkerGone, WorkerLate):
                continue
        return self.ready

    def prepare(self, problem: Problem) -> protocol.Prepared:
        """Prepare this problem's operands and reference on the GPU. Raises EnvironmentProblem, DeviceLost."""
        self.start()
        while problem not in self._prepared:
            self.start()
            try:
                answer = self._ask(protocol.Prepare(problem), PREPARE_DEADLINE_S, protocol.Prepared)
            except (WorkerGone, WorkerLate):
                continue
            self.prepared_s += answer.seconds
            held = {other: known for other, known in self._prepared.items() if other in answer.held}
            self._prepared = held | {problem: answer}
        return self._prepared[problem]

    def send_ahead(self, request: protocol.RunTrial | protocol.RunComparison, deadline_s: float) -> bool:
        """Send a request before it is waited for, by `trial` or `compare_pair` with this very one and as the
        next. Returns whether it was sent: not where the worker or the problem is not ready, where a kernel
        killed a worker before, or where another process waits for the GPU."""
        is_ready = self.ready is not None and request.problem in self._prepared
        if not is_ready or len(self._sent) >= MOST_SENT or any(map(self._rejection, request.kernels)):
            return False
        if self._sent and self._turns and self._turns.is_wanted:
            return False
        try:
            self._send(request, deadline_s)
        except Exception:  # the worker is gone: whoever waits for it finds that
            self._end_turn()
            return False
        return True

    def trial(self, request: protocol.RunTrial, deadline_s: float) -> protocol.TrialResult:
        """Verify and time one candidate; its effect on the worker is part of the result. One that killed a
        worker before, on any problem, is not run. Raises EnvironmentProblem and DeviceLost, neither of which
        is the candidate's fault."""
        if not self._is_next(request):
            if (rejected := self._rejection(request.kernel)) is not None:
                return protocol.TrialResult(rejected.outcome, rejected.reason)
            self.prepare(request.problem)
        try:
            most_s = self._with_rebuilding(request.problem, deadline_s)
            result = self._ask(request, most_s, protocol.TrialResult)
        except WorkerGone as error:
            result = protocol.TrialResult(Outcome.FAULTED, f"the GPU worker died: {error}", is_last=True)
        except WorkerLate:
            reason = f"no answer after {deadline_s:.1f} s: the kernel hangs; the worker was killed"
            result = protocol.TrialResult(Outcome.TIMED_OUT, reason, is_last=True)
        if result.is_last:
            self._crash_failures[_identity(request.kernel)] = Failure(result.outcome, result.reason)
        if result.outcome is Outcome.WRONG_RESULT:
            self._prepared = {}  # it may have written anywhere: the worker rebuilds everything
        return result

    def race(self, request: protocol.RunRace, deadline_s: float) -> protocol.RaceResult:
        """Time candidates and cuBLAS interleaved. If one of them kills the worker, although it ran before,
        each is run alone to find it. It is left out, and named in `failures`. Raises EnvironmentProblem, and
        DeviceLost if two workers die and no candidate alone is the cause."""
        for _ in range(2):
            fit = tuple(kernel for kernel in request.kernels if _identity(kernel) not in self._crash_failures)
            if not fit:
                return self._spread(protocol.RaceResult(()), request.kernels)
            self.prepare(request.problem)
            try:
                result = self._ask(replace(request, kernels=fit), deadline_s, protocol.RaceResult)
                if result.failures:
                    self._prepared = {}  # as after a trial
                return self._spread(result, request.kernels)
            except (WorkerGone, WorkerLate):
                self._find_crash(request.problem, fit, deadline_s)
        raise DeviceLost(f"comparing {len(request.kernels)} kernels failed twice: {self._last_death}")

    def compare_pair(
        self, request: protocol.RunComparison, deadline_s: float
    ) -> protocol.ComparisonResult | None:
        """Time two candidates interleaved; None if they kill the worker. Raises EnvironmentProblem, and
        DeviceLost if no new worker starts."""
        if not self._is_next(request):
            if any(_identity(kernel) in self._crash_failures for kernel in request.kernels):
                return None
            self.prepare(request.problem)
        try:
            most_s = self._with_rebuilding(request.problem, deadline_s)
            result = self._ask(request, most_s, protocol.ComparisonResult)
            if not all(result.samples_us):
                self._prepared = {}  # as after a trial
            return result
        except (WorkerGone, WorkerLate):
            self._find_crash(request.problem, request.kernels, deadline_s)
            return None

    def _is_next(self, request: protocol.Request) -> bool:
        """Whether this request was sent ahead, and its answer is the next."""
        return bool(self._sent) and self._sent[0][0] is request

    def _with_rebuilding(self, problem: Problem, deadline_s: float) -> float:
        """Behind a wrong result, the worker prepares a problem again for what was sent ahead."""
        return deadline_s if problem in self._prepared else deadline_s + PREPARE_DEADLINE_S

    def cells(self, request: protocol.RunCells, deadline_s: float) -> tuple[CellTime, ...]:
        """Time cells, one after another, each request within `deadline_s`. One that kills the worker has that
        as its reason, and its kernel is not run again. Raises EnvironmentProblem, DeviceLost."""
        if not request.cells:
            return ()
        rejected = [kernel and self._rejection(kernel) for _, kernel, *_ in request.cells]
        if any(rejected):
            fit = tuple(cell for cell, why in zip(request.cells, rejected, strict=True) if not why)
            times = iter(self.cells(replace(request, cells=fit), deadline_s))
            return tuple(CellTime((), reason=why.reason) if why else next(times) for why in rejected)
        self.start()
        self._prepared = {}  # the worker frees them for the pool
        try:
            result = self._ask(request, deadline_s, protocol.CellsResult)
        except (WorkerGone, WorkerLate) as error:
            if len(request.cells) > 1:  # any of them: halves tell which
                half = len(request.cells) // 2
                parts = (request.cells[:half], request.cells[half:])
                first, second = (self.cells(replace(request, cells=part), deadline_s) for part in parts)
                return first + second
            result = protocol.CellsResult((), f"the GPU worker died: {error}", is_last=True)
        done = len(result.times)
        if done == len(request.cells):
            return result.times
        _, culprit, *_ = request.cells[done]
        if culprit is not None:
            self._crash_failures[_identity(culprit)] = Failure(Outcome.FAULTED, result.reason)
        left = replace(request, cells=request.cells[done + 1 :])
        return (*result.times, CellTime((), reason=result.reason), *self.cells(left, deadline_s))

    def _rejection(self, kernel: KernelCode) -> Failure | None:
        """Why a kernel is not run, if it killed a worker before."""
        known = self._crash_failures.get(_identity(kernel))
        return known and replace(known, reason=f"not run, it brought a worker down: {known.reason}")

    def _find_crash(self, problem: Problem, kernels: Sequence[KernelCode], deadline_s: float) -> None:
        """Run each alone: one that kills the worker now is recorded as the cause."""
        each_s = min(deadline_s, TRIAL_DEADLINE_S + deadline_s / len(kernels))
        for kernel in kernels:
            self.trial(protocol.RunTrial(problem, kernel, None), each_s)

    def _spread(self, result: protocol.RaceResult, kernels: Sequence[KernelCode]) -> protocol.RaceResult:
        """The result of a race of some kernels, spread over all of them: those left out have no samples."""
        failed = {
            i: f for i, k in enumerate(kernels) if (f := self._crash_failures.get(_identity(k))) is not None
        }
        if not failed:
            return result
        ran = [i for i in range(len(kernels)) if i not in failed]
        samples = dict(zip(ran, result.samples_us, strict=True))
        discarded = dict(zip(ran, result.discarded, strict=False))
        joules = dict(zip(ran, result.joules, strict=False))
        numbers = range(len(kernels))
        return replace(
            result,
            samples_us=tuple(samples.get(i, ()) for i in numbers),
            discarded=tuple(discarded.get(i, ()) for i in numbers),
            joules=tuple(joules.get(i) for i in numbers),
            failures=failed | {ran[i]: failure for i, failure in result.failures.items()},
        )

    def renew(self) -> protocol.Ready:
        """End the worker and start a fresh one. Raises EnvironmentProblem, DeviceLost."""
        self._end()
        return self.start()

    def close(self) -> None:
        """End the worker. The client may not be used afterwards."""
        self._end()
        if self._turns is not None:
            self._turns.close()

    def _end(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._process.limit(SHUTDOWN_DEADLINE_S)
                self._process.connection.send(protocol.Shutdown())
        self._kill(grace_s=SHUTDOWN_DEADLINE_S)

    # ---------------------------------------------------------------------------- the process

    def _spawn(self) -> None:
        """Raises EnvironmentProblem."""
        self._kill()
        self._is_cut = False
        what = "the GPU's worker cannot be started"
        self._process = WorkerProcess(what, self._command, str(os.getpid()))

    def _ask(self, request: protocol.Request, deadline_s: float, expected: type[A]) -> A:
        """Send, unless it was sent ahead, and wait. Raises WorkerGone, WorkerLate (the worker is dead then),
        EnvironmentProblem."""
        answer = self._exchange(request, deadline_s)
        if self._turns and isinstance(answer, protocol.Ready):
            self._turns.set_worker_pid(answer.nvml_pid)
        self._end_turn()
        if isinstance(answer, protocol.Failed):
            if answer.kind == "environment":
                raise EnvironmentProblem(answer.message)
            raise self._discard(WorkerGone(answer.message))
        if not isinstance(answer, expected):
            raise self._discard(WorkerGone(f"it answered {type(answer).__name__}, not {expected.__name__}"))
        if getattr(answer, "is_last", False):
            self._discard(WorkerGone(getattr(answer, "reason", "")))
        elif not isinstance(answer, protocol.Ready | protocol.Prepared):  # a candidate survived
            self._num_deaths = 0
        return answer

    def _exchange(self, request: protocol.Request, deadline_s: float) -> object:
        process = self._process
        if process is None:
            raise self._discard(WorkerGone("it is not running"))
        try:
            if not self._is_next(request):
                self._send(request, deadline_s)
            process.limit(deadline_s)
            answer = process.connection.recv()
        except Exception as error:  # EOF, reset, or bytes that are not an answer: the worker is unusable
            if self._is_cut or isinstance(error, BlockingIOError):
                raise self._discard(WorkerLate(f"no answer within {deadline_s:.1f} s")) from error
            raise self._discard(WorkerGone(process.last_words or f"it {_describe(error)}")) from error
        self._sent.popleft()
        return answer

    def _send(self, request: protocol.Request, deadline_s: float) -> None:
        """Send a request, the first one in a turn, which `_end_turn` ends. A large one waits until the worker
        has read those before. Raises OSError where the worker is gone, or still on these after their time."""
        process = self._process
        assert process is not None
        if not self._sent:
            self._peers = self._turns.begin() if self._turns else frozenset()
        sent: protocol.Request = request
        if isinstance(request, protocol.RunTrial | protocol.RunRace | protocol.RunCells):
            sent = replace(request, peers=self._peers)
        process.limit(deadline_s + sum(before_s for _, before_s in self._sent))
        try:
            process.connection.send(sent)
        except BlockingIOError:
            self._is_cut = True
            process.cut()
            raise
        self._sent.append((request, deadline_s))

    def _end_turn(self) -> None:
        """Let others have the GPU, if the worker has nothing to do."""
        if self._turns and not self._sent:
            self._turns.end()

    def _discard(self, reason: AutotuneError) -> AutotuneError:
        """Kill what is left of the worker and count the death."""
        self._kill()
        self._num_deaths += 1
        self._last_death = str(reason)
        return reason

    def _kill(self, grace_s: float = 0.0) -> None:
        """End the process group, then its turn. Raises DeviceLost if the driver does not release it."""
        self._prepared, self.ready = {}, None
        self._sent.clear()
        process, self._process = self._process, None
        try:
            if process is not None:
                process.end(grace_s, KILL_DEADLINE_S)
        except subprocess.TimeoutExpired:
            number = process and process.pid
            raise DeviceLost(
                f"GPU worker {number} cannot be killed: the driver hangs; the GPU needs a reset"
            ) from None
        finally:
            self._end_turn()


def _identity(kernel: KernelCode) -> tuple[str, str, LaunchSpec]:
    return kernel.sha256, kernel.entry, kernel.spec


def _describe(error: Exception) -> str:
    if isinstance(error, EOFError | OSError):
        return "closed the pipe"
    return f"sent what is no answer ({type(error).__name__})"
