"""`autotune search`: runs a search, draws its progress, tells what it found."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from .. import target_finder as targets
from .. import tuning
from ..facts.accuracy_class import STRICT
from ..facts.device import limits_by_name
from ..facts.frozen import picked
from ..facts.keywords import SearchKeywords, keywords_of
from ..facts.measurement import CachePolicy
from ..files.errors import EnvironmentProblem, NothingStale, UsageError
from ..files.words import counted, one_of
from ..kernel.resources import workspace_of
from ..kernel.templates import accuracy_of
from ..search import SearchResult, ShapeResult
from ..search.called import Gain
from ..search.fill import Filled
from ..search.progress import Best, Event, FinalDone, FinalStarted, ShapeStarted, Stopping, TrialDone
from ..search_policy import SearchPolicy, read_effort
from ..store import TrialRecord, shown, typed
from ..tuning import FoundOnGpus, Result
from . import common, console, search_ending
from .ctrl_c import SIGNALLED
from .event_lines import EventLines
from .facts_table import OF_PRODUCTS, facts_table
from .requests import SearchRequest

# What the live line leaves out where the terminal is too narrow. What is not named here goes last.
_LEAST_FIRST = ("failed", "rate", "trials", "shape", "cublas", "left", "limit")

_COLUMNS = {
    "shape": "shape", "best": "best_time_us", "of optimum": "share_of_optimum", "vs cuBLAS": "speedup",
    "of limit": "share_of_limit", "TFLOP/s": "tflops", "trials": "num_trials", "failed": "num_failed",
    "tied": "num_tied", "workspace": "workspace_bytes", "config": "best_config",
}  # fmt: skip
_WHY = {
    "trials": "all trials that were asked for are done",
    "seconds": "the time is over",
    "patience": "nothing better is likely",
    "exhausted": "every config was tried",
    "stopped": "a callback ended it",
    "interrupted": "interrupted; run the same command again to resume",
}


def run(request: SearchRequest, *, is_json: bool, is_quiet: bool) -> None:
    """Search, print the result. Without shapes, `replay:FILE` means all that FILE holds. Raises, after
    printing, UsageError where the seconds did not suffice for a trial of any shape, and EnvironmentProblem
    where no candidate of some shape ran."""
    common.accept(request.like)
    is_replay = request.gpu.startswith(targets.REPLAY)
    calls, is_counted, _, adding = common.read_requested(request.suites)
    listed = () if is_counted or request.num_drawn else calls
    gemms = common.read_shapes(request.shapes, listed, is_recorded=is_replay)
    if not (gemms or calls or is_replay or request.num_drawn or request.stale):
        raise common.no_shape()
    policy = _policy(request)
    asked_at = common.asked_at()
    with EventLines(request.events) as lines, console.Progress(is_quiet=is_quiet) as progress:
        printer = EventPrinter(progress, is_quiet=is_quiet)
        arguments = {
            **{name: getattr(request, name) for name in keywords_of(SearchKeywords) if name != "gpu"},
            "shapes": gemms,
            "policy": policy,
            "calls": calls if is_counted or request.num_drawn else {},
            "adding": adding if is_counted else {},
            "asked_at": asked_at,
        }

        def on_event(event: Event) -> None:
            printer(event)
            lines(event)

        telling: dict[str, Any] = {"on_event": on_event, "on_fill": printer.fill, "note": console.note}
        try:
            found = _found(request, arguments, telling)
        except NothingStale as nothing:
            lines.write("result", {"shapes": []})
            told = f"nothing is stale: {nothing}"
            _answer({"shapes": []}, lambda: told, request, is_json=is_json)
            return
        facts = [_facts(result, request, time.time() - asked_at) for result in found.results]
        document = facts[0] if len(facts) == 1 else {"gpus": facts}
        lines.write("result", document)
    suites = request.suites if is_counted else []

    def text() -> str:
        both = zip(found.results, facts, strict=True)
        return "\n".join(part for one, its in both for part in _parts(one, its, request.db, suites))

    _answer(document, text, request, is_json=is_json)
    _end(found)


def _answer(
    document: dict[str, Any], text: Callable[[], str], request: SearchRequest, *, is_json: bool
) -> None:
    if str(request.events) == "-":
        console.note(text())  # stdout has JSON lines alone: the last one says the same
    else:
        console.answer(document, text, is_json=is_json)


def _found(request: SearchRequest, arguments: dict[str, Any], telling: dict[str, Any]) -> FoundOnGpus:
    """Searches where `--gpu` and `--cluster` say. Raises what a search on one GPU does."""
    selected = targets.select(request.gpu) if request.cluster is None else []
    if len(selected) == 1:
        return FoundOnGpus((tuning.tune(**arguments, **telling, gpu=selected[0].selector),))
    from ..service import several_gpus  # here: a search on one GPU needs none of it

    if request.cluster is None:
        return several_gpus.tune(selected, arguments, **telling)
    from ..service import ray_cluster

    with ray_cluster.Cluster(request.cluster) as cluster:
        gpus = ray_cluster.cluster_gpus(request.gpu)
        return several_gpus.tune(gpus, arguments, **telling, start=cluster.start)


def _end(found: FoundOnGpus) -> None:
    """The exit code of all: a signal's, that of a GPU that was lost, or of a shape without a winner."""
    for result in found.results:
        if result.search.signal is not None:
            raise typer.Exit(SIGNALLED + result.search.signal)
    for error in found.errors.values():
        if not isinstance(error, NothingStale):
            raise error
    for result in found.results:
        _need_winners(result.search)


def _parts(result: Result, facts: dict[str, Any], db: str, suites: Sequence[Path]) -> Iterator[str]:
    yield _text(facts, common.source_text(result.environment))
    if result.filled is not None:
        yield _filled_text(result.filled)
    if result.gain is not None:
        yield _gain_text(result.gain)
    if result.is_exportable and any(result.best.values()):
        named = "".join(f" --suite {shlex.quote(str(suite))}" for suite in suites)
        db, password = typed(db)
        accuracy = accuracy_of(result.source_hash)
        options = f"{named}{result.where.options}{'' if accuracy == STRICT else f' --accuracy {accuracy}'}"
        yield f"Next: autotune export-table --db {db}{options}{password}"


def _policy(request: SearchRequest) -> SearchPolicy:
    """Raises UsageError."""
    one_of("--seeds", request.seeds, ("shipped", "none"))
    base = read_effort(request.effort).policy
    policy = base if request.policy is None else SearchPolicy.read(request.policy, base)
    return policy if request.seeds == "shipped" else replace(policy, num_seeds=0)


def _filled_text(filled: Filled) -> str:
    num_left = counted(filled.num_left, "kernel is", "kernels are")
    ending = (
        "nothing is left to time; a larger --any finds more"
        if filled.is_complete
        else f"{num_left} left: run the same command again to resume"
    )
    improved = counted(len(filled.improved), "shape is", "shapes are")
    return (
        f"Across shapes: {counted(filled.num_kernels, 'kernel')}, {counted(filled.num_cells, 'new time')}, "
        f"{counted(filled.num_refused, 'kernel')} refused; {improved} now served best by a kernel that was "
        f"found on another; {ending}"
    )


def _gain_text(gain: Gain) -> str:
    """What the program gains."""
    took = console.seconds_text(gain.tuned_s)
    comparison = f"{took} by the kernels found"
    if gain.cublas_s is not None:
        more = console.seconds_text(abs(gain.cublas_s - gain.tuned_s))
        word = "less" if gain.cublas_s >= gain.tuned_s else "more"
        cublas = console.seconds_text(gain.cublas_s)
        comparison += f", {cublas} by cuBLAS: {console.ratio_text(gain.speedup)}, {more} {word}"
    calls = counted(gain.num_calls, "call of searched shapes takes", "calls of searched shapes take")
    text = f"The program's {calls} {comparison}"
    if gain.left_shapes:
        left = console.seconds_text(gain.left_s)
        calls = f"{counted(gain.left_calls, 'call')} of {counted(gain.left_shapes, 'shape')}"
        were = "was" if gain.left_calls == 1 else "were"
        text += f"; {calls}, {left} as expected, {were} not searched"
    return text


def _need_winners(result: SearchResult) -> None:
    """Tells for which shapes there was no time, or none for a final. Raises UsageError if there was for none,
    EnvironmentProblem for one whose candidates all failed."""
    untried = [shape.gemm for shape in result.shapes if not shape.num_trials]
    without_best = [shape.gemm for shape in result.shapes if shape.best is None and shape.num_trials]
    if without_best:
        names = ", ".join(map(str, without_best))
        raise EnvironmentProblem(
            f"no candidate for {names} ran; see `autotune trials failures`, and `autotune doctor`"
        )
    if missed := [*untried, *result.not_started]:
        names = ", ".join(map(str, missed))
        text = f"the time was over before a trial of {names}; run the same command again, with more --seconds"
        if len(untried) == len(result.shapes):
            raise UsageError(text)
        console.note(text)
    if result.without_final:
        names = ", ".join(map(str, result.without_final))
        console.note(f"the time was over before the final of {names}: the best is told by trials alone")


# ----------------------------------------------------------------------------------------- progress


class EventPrinter:
    """Turns the events of a search into lines on stderr."""

    def __init__(self, progress: console.Progress, *, is_quiet: bool) -> None:
        self._progress = progress
        self._is_quiet = is_quiet
        self._is_filling = False

    def fill(self, num_kernels: int, num_cells: int, num_left: int) -> None:
        """Tells how far kernels are timed across shapes."""
        if not self._is_filling and not self._is_quiet:
            self._progress.close()
            console.note("timing kernels on all shapes of their layout")
        self._is_filling = True
        parts = (
            counted(num_kernels, "kernel"),
            counted(num_cells, "time"),
            f"at most {counted(num_left, 'kernel')} left",
        )
        self._progress.update(*parts)

    def __call__(self, event: Event) -> None:
        self._is_filling = False
        if isinstance(event, TrialDone):
            if self._progress.is_due:
                parts = _trial_parts(event)
                names = list(parts)
                least_first = [names.index(name) for name in _LEAST_FIRST if name in parts]
                self._progress.update(*parts.values(), least_first=least_first)
        elif not self._is_quiet:
            self._progress.close()
            console.note(_line(event))


def _line(event: ShapeStarted | Stopping | FinalStarted | FinalDone) -> str:
    match event:
        case ShapeStarted():
            known = f", {event.num_known:,} of them tried earlier" if event.num_known else ""
            cublas = f", cuBLAS {console.time_text(event.cublas_us)}" if event.cublas_us else ""
            limit = f", limit {console.time_text(event.limit_us)}" if event.limit_us else ""
            taken = f"; {event.taken_over.description}" if event.taken_over else ""
            unfit = f"; {event.num_unfit:,} enqueued cannot be tried here" if event.num_unfit else ""
            return f"{event.gemm}: {counted(event.num_points, 'config')}{known}{cublas}{limit}{taken}{unfit}"
        case Stopping():
            waiting = counted(event.num_waiting, "candidate is", "candidates are")
            return f"stopping ({_WHY[event.reason]}): {waiting} under way"
        case FinalStarted():
            return f"{event.gemm}: timing the best {event.num_finalists} again, interleaved"
        case FinalDone():
            tied = [f"{event.num_tied} tied"] if event.num_tied > 1 else []
            return f"{event.gemm}: " + ", ".join([*_best_parts("winner", event.best), *tied])


def _best_parts(word: str, best: Best) -> list[str]:
    """`best 2.65 ms`, `1.020x cuBLAS` where that is there, `80.1% of limit`."""
    cublas = [f"{console.ratio_text(best.speedup)} cuBLAS"] if best.speedup else []
    share = best.share_of_limit
    limit = [f"{console.ratio_text(share, '%')} of limit"] if share else []
    return [f"{word} {console.time_text(best.time_us)}", *cublas, *limit]


def _trial_parts(event: TrialDone) -> dict[str, str]:
    """`4096x4096x4096:NN`, `312 trials`, `10.4/s`, `41 failed`, `best 2.65 ms`, ..., each under a name."""
    parts = {
        "shape": str(event.gemm),
        "trials": counted(event.num_done, "trial"),
        "rate": f"{event.trials_per_s:.1f}/s",
        "failed": f"{event.num_failed:,} failed",
    }
    if event.best:
        best = event.best
        named = ["best", *(["cublas"] if best.speedup else []), *(["limit"] if best.share_of_limit else [])]
        parts |= dict(zip(named, _best_parts("best", best), strict=True))
    if event.left_s is not None:
        parts["left"] = f"{console.duration(event.left_s)} left"
    return parts


# ------------------------------------------------------------------------------------------- result


def _facts(result: Result, request: SearchRequest, wall_s: float) -> dict[str, Any]:
    found, trials, filled = result.search, result.trials, result.filled
    shapes = [_shape_facts(shape, trials[shape.gemm]) for shape in result.shapes]
    for shape, its in zip(result.shapes, shapes, strict=True):
        if shape.gemm in result.optimum_us:
            its["optimum_time_us"] = result.optimum_us[shape.gemm]
    return {
        **common.measured_on(result.environment),
        "policy": result.cache,
        **common.conditions(result.where),
        "sampler": request.sampler,
        "seed": request.seed,
        "db": shown(request.db),
        "stopped": found.reason,
        "num_new": found.num_new,
        "elapsed_s": found.elapsed_s,
        "wall_s": wall_s,
        "trials_per_s": found.num_new / found.elapsed_s if found.elapsed_s > 0 else 0.0,
        "ledger": found.ledger.to_dict(),
        "not_begun": [str(gemm) for gemm in found.not_started],
        "without_final": [str(gemm) for gemm in found.without_final],
        "filled": filled
        and {**asdict(filled), "improved": [*map(str, filled.improved)], "is_complete": filled.is_complete},
        "gain": asdict(result.gain) | {"speedup": result.gain.speedup} if result.gain else None,
        "shapes": shapes,
        **(shapes[0] if len(shapes) == 1 else {}),
    }


def _shape_facts(shape: ShapeResult, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    best, limits = shape.verdict, limits_by_name(shape.study.environment.gpu_name)
    time_us = best.time_us if best else None
    return {
        "shape": str(shape.gemm),
        "best_time_us": time_us,
        "best_config": dict(best.point) if best else None,
        "workspace_bytes": workspace_of(best.point, shape.gemm, limits) if best else None,
        **common.speeds(shape.gemm, time_us, best.cublas_us if best else shape.cublas_us, shape.limit_us),
        **picked(shape, "num_trials num_failed"),
        "num_tied": len(shape.final.tied) if shape.final else None,
        "tied": [entry.key for entry in shape.final.tied] if shape.final else [],
        "faster_trial": shape.excluded.id if shape.excluded else None,
        "taken_over": asdict(shape.taken_over) if shape.taken_over else None,
        **search_ending.disturbance_facts(trials, shape.final),
    }


def _text(facts: dict[str, Any], measured_on: str) -> str:
    is_recorded = facts["is_recorded"]
    seconds, here = round(facts["elapsed_s"]), console.duration(facts["wall_s"])
    took = f"{counted(seconds, 'simulated second')} ({here} here, " if is_recorded else f"{seconds} s ("
    trials = counted(facts["num_new"], "new trial")
    head = (
        f"{measured_on}, {CachePolicy(facts['policy'])} operands: {trials} in {took}"
        f"{facts['trials_per_s']:.1f}/s); {_WHY[facts['stopped']]}"
    )
    if not facts["shapes"]:
        return f"{head}; no shape was begun"
    rows = [
        {**s, "share_of_optimum": common.share(s.get("optimum_time_us"), s["best_time_us"])}
        for s in facts["shapes"]
    ]
    columns = {name: fact for name, fact in _COLUMNS.items() if is_recorded or name != "of optimum"}
    body = facts_table(rows, columns, OF_PRODUCTS)
    seconds = "" if is_recorded else search_ending.ledger_text(facts["ledger"])
    faster = [f"trial {s['faster_trial']} of {s['shape']}" for s in facts["shapes"] if s["faster_trial"]]
    excluded = f"Known to be faster, but not allowed by the conditions: {', '.join(faster)}" if faster else ""
    disturbances = search_ending.disturbance_text(facts["shapes"], is_recorded=is_recorded)
    return "\n".join(filter(None, (head, body, excluded, seconds, disturbances)))
