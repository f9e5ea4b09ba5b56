"""Candidates timed in the same rounds: the final with cuBLAS and energy, comparisons of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from ..facts.measurement import Discarded, Failure, Outcome
from ..files.errors import EnvironmentProblem
from . import protocol
from .candidate import Loader, WrongResult
from .guard import DriftReference, Guard, Guarded
from .memory import Enqueue, OperandSet, Workspace
from .nvml import Monitor
from .problem import PreparedProblem
from .timer import Timer

_CUBLAS = -1  # its number among those that are timed
Timed = tuple[Enqueue, float]  # what enqueues a launch, and about how long that takes, in us


def _discarded(
    guarded: Guarded[list[tuple[float, ...]]], timed: list[int], number: int
) -> tuple[Discarded, ...]:
    """One candidate's samples of the rounds that were repeated."""
    if number not in timed:
        return ()
    at = timed.index(number)
    return tuple(Discarded(times[at], marks) for times, marks in guarded.before)


class Races:
    """Times the kernels that `loader` loads, each with its own workspace: counters stay zero meanwhile."""

    def __init__(
        self, driver: Any, stream: Any, loader: Loader, clock: Timer, guard: Guard, monitor: Monitor
    ) -> None:
        self._driver, self._stream = driver, stream
        self._loader, self._timer, self._guard, self._monitor = loader, clock, guard, monitor

    @contextmanager
    def _workspaces(self, count: int) -> Iterator[list[Workspace]]:
        workspaces = [Workspace(self._driver, self._stream) for _ in range(count)]
        try:
            yield workspaces
        finally:
            for workspace in workspaces:
                workspace.free()

    def race(
        self,
        prepared: PreparedProblem,
        request: protocol.RunRace,
        failures: dict[int, Failure],
        cublas: Enqueue | None,
        level_us: float | None,
    ) -> protocol.RaceResult:
        """Time candidates interleaved, and cuBLAS, which takes about `level_us` when undisturbed. Raises
        WrongResult, after naming the candidate in `failures`: it may have written anywhere, so everything
        must be rebuilt. Candidates in `failures` take no part."""
        with self._workspaces(len(request.kernels)) as workspaces:
            timed = self._enter(prepared, request, workspaces, failures)
            sets = prepared.operands.sets
            if cublas is not None:
                timed[_CUBLAS] = (cublas, self._timer.time_once(partial(cublas, sets[0])))
            guarded = self._take(prepared, request, timed, level_us)
            state = self._timer.state  # of the rounds, not of the energy measurement that follows
            numbers = range(len(request.kernels))
            samples = dict(zip(timed, guarded.taken, strict=True))
            joules = [self._joules(timed.get(n), sets, samples.get(n, ()), request.energy_s) for n in numbers]
        return protocol.RaceResult(
            samples_us=tuple(samples.get(number, ()) for number in numbers),
            baseline_us=samples.get(_CUBLAS, ()),
            state=state,
            marks=guarded.marks,
            discarded=tuple(_discarded(guarded, [*timed], number) for number in numbers),
            joules=tuple(joules),
            failures=failures,
        )

    def _enter(
        self,
        prepared: PreparedProblem,
        request: protocol.RunRace,
        workspaces: Sequence[Workspace],
        failures: dict[int, Failure],
    ) -> dict[int, Timed]:
        """Load and verify the candidates that have not failed yet. Raises WrongResult, as `race` does."""
        timed: dict[int, Timed] = {}
        for number, (kernel, workspace) in enumerate(zip(request.kernels, workspaces, strict=True)):
            if number in failures:
                continue
            try:
                enqueue = self._loader.load(kernel, prepared.problem.gemm, workspace)
                timed[number] = (enqueue, self._loader.verify(prepared, enqueue, workspace)[0])
            except WrongResult as wrong:
                failures[number] = Failure(Outcome.WRONG_RESULT, str(wrong))
                raise
            except EnvironmentProblem as error:  # no memory for its workspace beside those of the others
                failures[number] = Failure(Outcome.OUT_OF_MEMORY, str(error))
        return timed

    def _take(
        self,
        prepared: PreparedProblem,
        request: protocol.RunRace,
        timed: Mapping[int, Timed],
        level_us: float | None,
    ) -> Guarded[list[tuple[float, ...]]]:
        """The rounds, repeated if something disturbs them; cuBLAS among them is the reference."""
        watch, last = self._timer, dict[int, tuple[float, ...]]()

        def take() -> list[tuple[float, ...]]:
            seed = request.problem.seed
            found = watch.race([*timed.values()], prepared.operands.sets, request.rounds, seed)
            last.update(zip(timed, found, strict=True))
            return found

        reference = None
        if _CUBLAS in timed and level_us is not None:
            reference = DriftReference(request.problem, lambda: median(last[_CUBLAS]), level_us, is_free=True)
        return self._guard.take(take, lambda: watch.state, reference)

    def _joules(
        self, one: Timed | None, sets: Sequence[OperandSet], samples_us: Sequence[float], seconds: float
    ) -> float | None:
        if one is None or not seconds:
            return None
        return self._timer.joules(one[0], sets, median(samples_us), seconds, self._monitor.energy_j)

    def compare_pair(
        self, prepared: PreparedProblem, request: protocol.RunComparison
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Time two candidates interleaved. Raises WrongResult if one is wrong now."""
        seed = request.problem.seed + request.shuffle
        with self._workspaces(len(request.kernels)) as workspaces:
            timed = []
            for kernel, workspace in zip(request.kernels, workspaces, strict=True):
                enqueue = self._loader.load(kernel, prepared.problem.gemm, workspace)
                timed.append((enqueue, self._loader.verify(prepared, enqueue, workspace)[0]))
            first, second = self._timer.race(timed, prepared.operands.sets, request.rounds, seed)
        return first, second
