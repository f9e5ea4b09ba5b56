"""One search on several GPUs: an asking process for each, on one database and one kernel cache.

    this process ─┬─ process of GPU 0: tuning.tune ── worker of GPU 0     (as where there is one)
      (shapes,    ├─ process of GPU 1 ...
       progress)  └─ ...

GPUs of one model divide the shapes (search/part.py); each model searches all of them. The processes meet in
the database: configs are leased, what one has tried the others know. Here shapes are given out, progress is
added up, signals are passed on. Where a GPU is lost, the others take what it had. Where this process dies,
the others end in order.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from multiprocessing.connection import wait
from typing import Any

from .. import tuning
from ..facts.gemm import Gemm
from ..files.errors import AutotuneError, DeviceLost, NothingStale
from ..kernel.compiler import Helpers
from ..search import InterruptHandler, SearchResult, ShapeResult
from ..search.called import gain_of
from ..search.fill import Filled
from ..search.part import Dispenser, Part
from ..search.progress import Event, Ledger, OnEvent, Stopping, StopReason, TrialDone
from ..target_finder import Note, Selected
from ..tuning import FoundOnGpus, Result
from .child_process import ChildHandle, ChildProcess, Parent

_POLL_S = 0.2  # how soon a signal is passed on
Start = Callable[..., ChildHandle]  # as ChildProcess.start
_LONGEST_END_S = 30.0  # after the second signal, before a process is killed


def _run_one(
    parent: Parent, selector: str, arguments: Mapping[str, Any], helpers: Helpers | None = None
) -> None:
    """The process of one GPU."""
    part = Part(
        begin=lambda listed, by_clock: parent.ask("begin", list(listed), by_clock),
        more=lambda num_open: parent.ask("more", num_open),
        helpers=helpers,
    )

    def tell(event: Event) -> None:
        parent.tell("event", event)

    try:
        found = tuning.tune(
            **arguments,
            gpu=selector,
            part=part,
            on_event=tell,
            on_fill=lambda *numbers: parent.tell("filled", numbers),
            note=lambda text: parent.tell("note", text),
        )
        parent.tell("result", found)
    except AutotuneError as error:
        parent.tell("error", error)
    except KeyboardInterrupt:
        parent.tell("error", DeviceLost("interrupted before it ended"))


@dataclass(eq=False)
class _Gpu:
    """The process of one GPU, as it is seen here."""

    selected: Selected
    number: int  # among those of its model
    child: ChildHandle
    result: Result | None = None
    error: AutotuneError | None = None
    last: TrialDone | None = None
    filled: tuple[int, int, int] = (0, 0, 0)

    @property
    def name(self) -> str:
        return self.selected.selector


class SeveralGpus:
    """One search. Use `tune`."""

    def __init__(
        self, selected: Sequence[Selected], arguments: Mapping[str, Any], on_event: OnEvent,
        on_fill: Callable[[int, int, int], None], note: Note, start: Start | None = None,
    ) -> None:  # fmt: skip
        start = start or partial(ChildProcess.start, num_sharing=len(selected))
        self._arguments, self._on_event, self._on_fill, self._note = arguments, on_event, on_fill, note
        self._noted: set[str] = set()
        models = [one.model for one in selected]
        self._dispensers = {model: Dispenser(models.count(model)) for model in models}
        self._gpus = [
            _Gpu(one, models[:at].count(one.model), start(_run_one, one.selector, arguments))
            for at, one in enumerate(selected)
        ]

    def run(self, interrupt_handler: InterruptHandler) -> FoundOnGpus:
        """Until every process has ended. A signal is passed on once, the next one ends them at once."""
        try:
            self._attend(interrupt_handler)
        except KeyboardInterrupt:
            self._signal(signal.SIGTERM)
            raise
        finally:
            for gpu in self._gpus:
                gpu.child.end(_LONGEST_END_S)
        signalled = interrupt_handler.number
        by_model: dict[str, list[Result]] = {}
        for gpu in self._gpus:
            if gpu.result:
                by_model.setdefault(gpu.selected.model, []).append(gpu.result)
        results = [_merged(some, self._arguments, signalled) for some in by_model.values()]
        return FoundOnGpus(tuple(results), {gpu.name: gpu.error for gpu in self._gpus if gpu.error})

    def _attend(self, interrupt_handler: InterruptHandler) -> None:
        is_told, open_gpus = False, {gpu.child.pipe: gpu for gpu in self._gpus}
        while open_gpus:
            if interrupt_handler.is_requested and not is_told:
                is_told = True
                self._signal(signal.SIGTERM)
            for pipe in wait(list(open_gpus), timeout=_POLL_S):
                gpu = open_gpus[pipe]  # type: ignore[index]
                if not self._hear(gpu):
                    del open_gpus[gpu.child.pipe]
                    self._close(gpu, is_told=is_told)

    def _signal(self, number: int) -> None:
        for gpu in self._gpus:
            gpu.child.signal(number)

    def _hear(self, gpu: _Gpu) -> bool:
        """Take one message of a process; False once there are no more."""
        message = gpu.child.hear()
        if message is None:
            return False
        what, values = message
        dispenser = self._dispensers[gpu.selected.model]
        match what:
            case "begin" | "more":
                gpu.child.answer(getattr(dispenser, what)(gpu.number, *values))
            case "event":
                self._tell(gpu, *values)
            case "filled":
                (gpu.filled,) = values
                self._on_fill(*map(sum, zip(*(one.filled for one in self._gpus), strict=True)))
            case "note":
                (text,) = values
                if text not in self._noted:
                    self._noted.add(text)
                    self._note(text)
            case _:
                setattr(gpu, what, values[0])  # its result, or error
        return True

    def _close(self, gpu: _Gpu, *, is_told: bool) -> None:
        """`is_told`: a signal was passed on, which ends a process at once that has not begun its search."""
        gpu.child.end(_LONGEST_END_S)
        if gpu.result is None and not (is_told and gpu.error is None):
            gpu.error = gpu.error or DeviceLost(
                f"{gpu.child.ending}; what was measured is stored, run the same command again to resume"
            )
            self._dispensers[gpu.selected.model].lose(gpu.number)
            self._note(f"GPU {gpu.name}: {gpu.error}")

    def _tell(self, gpu: _Gpu, event: Event) -> None:
        """Pass an event on, its numbers added up over all GPUs."""
        if isinstance(event, TrialDone):
            gpu.last = event
            last = [one.last for one in self._gpus if one.last]
            left = [one.left_s for one in last if one.left_s is not None]
            event = replace(
                event,
                num_done=sum(one.num_done for one in last),
                num_failed=sum(one.num_failed for one in last),
                trials_per_s=sum(one.trials_per_s for one in last),
                left_s=max(left, default=None),
            )
        if not isinstance(event, Stopping) or event.reason.is_at_once:
            self._on_event(event)


def _merged(results: Sequence[Result], arguments: Mapping[str, Any], signalled: int | None) -> Result:
    """Results of GPUs of one model as one: of a shape that several searched, the fastest winner."""
    found = [result.search for result in results]
    shapes: dict[Gemm, ShapeResult] = {}
    for shape in (shape for one in found for shape in one.shapes):
        shapes[shape.gemm] = _better(shapes.get(shape.gemm), shape)
    left = dict.fromkeys(gemm for one in found for gemm in one.not_started if gemm not in shapes)
    reasons = [one.reason for one in found]
    interrupted = StopReason.INTERRUPTED in reasons
    search = SearchResult(
        shapes=tuple(shapes.values()),
        not_started=tuple(left),
        reason=StopReason.INTERRUPTED if interrupted else reasons[0],
        num_new=sum(one.num_new for one in found),
        elapsed_s=max(one.elapsed_s for one in found),
        # Seconds of all: a share of them is the mean of the GPUs'
        ledger=Ledger(**{f.name: sum(getattr(one.ledger, f.name) for one in found) for f in fields(Ledger)}),
        signal=signalled if interrupted else None,
        without_final=tuple(gemm for one in found for gemm in one.without_final),
    )
    calls, adding, taken_us = arguments.get("calls") or {}, arguments.get("adding") or {}, results[0].taken_us
    adding_us = {gemm: us for result in results for gemm, us in result.adding_us.items()}
    filled = [result.filled for result in results if result.filled]
    return replace(
        results[0],
        search=search,
        optimum_us={gemm: us for result in results for gemm, us in result.optimum_us.items()},
        gain=gain_of(search.shapes, calls, taken_us, adding, adding_us) if taken_us else None,
        adding_us=adding_us,
        filled=reduce(Filled.then, filled) if filled else None,
    )


def _better(one: ShapeResult | None, other: ShapeResult) -> ShapeResult:
    """The result with the faster winner; trials of both count, once where they are of one study."""
    if one is None:
        return other
    times = [found.verdict.time_us if found.verdict else float("inf") for found in (one, other)]
    better = one if times[0] <= times[1] else other
    is_shared = one.study.id == other.study.id
    num_trials = max(one.num_trials, other.num_trials) if is_shared else one.num_trials + other.num_trials
    num_failed = max(one.num_failed, other.num_failed) if is_shared else one.num_failed + other.num_failed
    return replace(better, num_new=one.num_new + other.num_new, num_trials=num_trials, num_failed=num_failed)


def tune(
    selected: Sequence[Selected],
    arguments: Mapping[str, Any],
    *,
    on_event: OnEvent,
    on_fill: Callable[[int, int, int], None],
    note: Note,
    start: Start | None = None,
) -> FoundOnGpus:
    """As `tuning.tune` with these arguments, on several GPUs, in processes here, or what else `start` starts.
    Errors of one end none of the others; the error of all is raised. Ctrl-C as there."""
    with InterruptHandler() as interrupt_handler:
        found = SeveralGpus(selected, arguments, on_event, on_fill, note, start).run(interrupt_handler)
    if not found.results and not found.errors:  # a signal came before any had begun
        signal.raise_signal(interrupt_handler.number or signal.SIGINT)
    if not found.results:
        raise min(found.errors.values(), key=lambda error: isinstance(error, NothingStale))
    return found
