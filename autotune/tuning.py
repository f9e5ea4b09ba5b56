"""Tuning from Python, as from the command line: what `autotune.tune` does, and what it returns."""

from __future__ import annotations

import html
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, Unpack

from . import gpu as gpus
from . import target_finder as targets
from .drawn_shapes import DrawnSearch, batches_for, drawn_for
from .export import exporter
from .export.from_store import read_results
from .export.tuned import TunedResults
from .facts.accuracy_class import FP32_RANGE, STRICT
from .facts.accuracy_class import read as read_class
from .facts.device import KNOWN, DeviceLimits, Environment, describe_alias, limits_by_name, names_for
from .facts.distribution import drawn_calls
from .facts.frozen import picked
from .facts.gemm import FP32, Gemm
from .facts.keywords import ConditionKeywords, ExportKeywords, SearchKeywords, takes, with_defaults
from .facts.measurement import CachePolicy, read_policy
from .facts.named_shapes import ByShape, Shape, read_shape, read_shapes
from .facts.other_problem import is_external
from .files import words
from .files.errors import AutotuneError, DispatchError, EnvironmentProblem, NothingStale, UsageError
from .files.strict import hint
from .files.wheel_libraries import required
from .files.words import command, number, option, whole
from .gpu.driver import device_limits
from .kernel import launch
from .kernel.compiler import Compiler
from .kernel.config import Config
from .kernel.feasible_set import FeasibleSet, feasible_set
from .kernel.templates import (
    accuracy_of,
    has_kernels,
    is_autotune,
    is_current,
    searched_for,
    source_hash,
    source_of,
    values_of_class,
)
from .kernel.where import VALUES, Where
from .perf_model.cublas_model import NUM_BATCHES, NUM_TIMED
from .recording.replay import ReplayTarget
from .report.palette import LIGHT
from .runtime.table.gpu_models import GpuModel, load_models
from .runtime.table.table import Table
from .search import InterruptHandler, Options, SearchResult, ShapeResult, stale
from .search import tune as search
from .search.called import Gain, expected_us, gain_of, in_order, weights
from .search.cublas_times import time_cublas, with_bias
from .search.fill import Filled, OnFill, ignore_fill
from .search.part import Part
from .search.progress import Best, Event, OnEvent, ShapeStarted, TrialDone, ignore
from .search.propose.origins import FILL, TRANSFERRED
from .search.stale import Stale, compared, stale_shapes
from .search_policy import SearchPolicy, read_effort
from .shipped.starting_points import StartingPoints, on_tensor_cores
from .store import Store, TrialRecord, by_problem, shown
from .suite import MOST_CALLS
from .target import CellTarget, Target, point_key
from .target_finder import Note

T = TypeVar("T")
Callback = Callable[[Any, Any], None]  # with an optuna.Study and a FrozenTrial of it
_note = logging.getLogger("autotune").warning
_MAX_LISTED = 3  # shapes of a result, where it is shown
_CLOSE_S = 1.0  # to end the GPU's process, and to tell what was found
_LEAST_S = 1e-3  # of a search whose seconds cuBLAS took: it begins, and tells that the time is over


@dataclass(frozen=True)
class Result:
    """The result of a search, trials of earlier runs included. The same call continues where it ended."""

    search: SearchResult  # all of it, by shape
    environment: Environment  # the GPU, or the recording that stood in for it
    cache: CachePolicy  # of the trials: a recording has its own
    max_error: float | None  # times cuBLAS's, of what may win
    db: str
    where: Where  # that winners obey
    source_hash: str  # of the kernel whose instances were searched
    optimum_us: Mapping[Gemm, float]  # of recorded spaces: the time of their best point that obeys
    filled: Filled | None = None  # the times across shapes, if some were drawn
    gain: Gain | None = None  # for the calls of a program, if these were given and none were drawn
    taken_us: Mapping[Gemm, float] = field(default_factory=dict)  # of calls, as expected before
    adding_us: Mapping[Gemm, float] = field(default_factory=dict)  # of cuBLAS as torch has it add a bias

    @property
    def shapes(self) -> tuple[ShapeResult, ...]:
        """What is known of each shape that was begun."""
        return self.search.shapes

    @property
    def best(self) -> ByShape[Best | None]:
        """The kernel to use for each shape, its time and cuBLAS's in us; None if no candidate ran. A shape is
        named as in `tune`: `best[4096]`."""
        return ByShape({shape.gemm: shape.verdict for shape in self.shapes})

    @property
    def trials(self) -> ByShape[list[TrialRecord]]:
        """All trials of each shape, in the order of their numbers, from the database."""
        with Store.open_existing(self.db) as store:
            return ByShape({shape.gemm: store.trials(shape.study) for shape in self.shapes})

    def __repr__(self) -> str:
        message = [
            f"{gemm}: {best and best.description}" for gemm, best in list(self.best.items())[:_MAX_LISTED]
        ]
        rest = [f"{len(self.shapes) - _MAX_LISTED:,} more"] if len(self.shapes) > _MAX_LISTED else []
        return f"Result({'; '.join([self.environment.gpu_name, *message, *rest])})"

    def to_frame(self) -> Any:
        """All trials of all shapes as a pandas.DataFrame: a row for each, with its shape, its facts, and a
        column `config.NAME` for each parameter. Raises EnvironmentProblem without pandas."""
        with required("a data frame needs pandas", "pandas"):
            import pandas
        return pandas.DataFrame(
            [{"shape": str(gemm), **trial.flat()} for gemm, found in self.trials.items() for trial in found]
        )

    def plot(self) -> Any:
        """Draws the trials of each shape, the best so far and cuBLAS by matplotlib. Returns the axes, one for
        each shape. Raises EnvironmentProblem without matplotlib."""
        with required("a plot needs matplotlib", "matplotlib"):
            from matplotlib import pyplot
        size = {"ncols": len(self.shapes), "figsize": (5 * len(self.shapes), 4)}
        _, (axes,) = pyplot.subplots(**size, squeeze=False, layout="constrained")
        for axis, (gemm, trials) in zip(axes, self.trials.items(), strict=True):
            best = self.best[gemm]
            _draw_trials(axis, trials, best.cublas_us if best else None)
            axis.set(title=str(gemm), xlabel="trial", ylabel="us", yscale="log")
            axis.legend()
        return axes

    def _repr_html_(self) -> str:
        """The winners, as a notebook shows them."""
        names = ("shape", "best, us", "of cuBLAS", "of limit", "config")
        head = "".join(f"<th>{name}</th>" for name in names)
        cells = (map(html.escape, _cells(gemm, best)) for gemm, best in self.best.items())
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    @property
    def is_exportable(self) -> bool:
        """Whether the kernels are those of this autotune, or stood in for by a recording of them."""
        points = [best.point for best in self.best.values() if best is not None]
        is_recorded = self.environment.is_recorded and all(map(is_autotune, points))
        return is_recorded or is_current(self.source_hash)

    def export(self, folder: str | Path, *, note: Note = _note) -> Table:
        """Write the winners of these shapes as a folder that applications import (`Dispatcher`), and other
        kernels that obey the conditions of the search.

        Raises DispatchError if a shape has no winner, or the kernels are not autotune's.
        """
        gemms = [shape.gemm for shape in self.shapes]
        return export_table(
            folder,
            gemms,
            **picked(self, "db cache max_error"),
            where=str(self.where),
            max_workspace=self.where.max_workspace_mib,
            order=str(self.where.order) if self.where.order else None,
            accuracy=accuracy_of(self.source_hash),
            note=note,
        )


@dataclass(frozen=True)
class FoundOnGpus:
    """What a search on several GPUs came to: a result for each model, and the errors of GPUs that were lost,
    by their names."""

    results: tuple[Result, ...]
    errors: Mapping[str, AutotuneError] = field(default_factory=dict)


def _draw_trials(axis: Any, trials: Sequence[TrialRecord], cublas_us: float | None) -> None:
    timed = enumerate((trial.measurement.time_us for trial in trials), 1)
    times = {number: time_us for number, time_us in timed if time_us}
    color = LIGHT.series
    axis.plot(times.keys(), times.values(), ".", color=color["random"], label="a trial")
    best = [*itertools.accumulate(times.values(), min)]
    axis.step(times.keys(), best, where="post", color=color["ours"], label="best so far")
    if cublas_us:
        axis.axhline(cublas_us, color=color["cublas"], linestyle="--", label="cuBLAS")


def _cells(gemm: Gemm, best: Best | None) -> tuple[str, ...]:
    if best is None:
        return str(gemm), "-", "-", "-", "no candidate ran"
    speedup = f"{best.speedup:.3f}x" if best.speedup else "-"
    share = f"{best.share_of_limit:.1%}" if best.share_of_limit else "-"
    return str(gemm), f"{best.time_us:.2f}", speedup, share, point_key(best.point)


@takes(SearchKeywords)
def tune(
    shapes: Shape | Iterable[Shape] = (),
    *,
    calls: Mapping[Gemm, int] = MappingProxyType({}),
    adding: Mapping[Gemm, int] = MappingProxyType({}),
    policy: SearchPolicy | None = None,
    part: Part | None = None,
    on_event: OnEvent = ignore,
    on_fill: OnFill = ignore_fill,
    note: Note = _note,
    callbacks: Sequence[Callback] = (),
    asked_at: float | None = None,
    **keywords: Unpack[SearchKeywords],
) -> Result:
    """Search the best kernels for these shapes on a GPU, and keep every trial in a database. The same call
    with the same database goes on.

        shapes      one or several of 4096 (a square), "4096x128x4096:NT", (m, n, k) and Gemm; of a recording
                    also none, which means all that it holds; with `stale` those to choose among, or all
        calls       how often a program calls for which shape. With `num_drawn`, shapes are drawn from these,
                    batches left out. Without it, these are searched beside `shapes`: those whose calls take
                    most of the time come first and get more seconds, those that hardly matter are left out,
                    and `Result.gain` says what the program gains
        adding      how many of these calls have cuBLAS add a bias, as torch does: the gain is over that
        policy      the values that decide how a search proceeds (search_policy.py); None: those of `effort`
        part        where several processes divide the shapes: which are this one's (search/part.py)
        asked_at    when the seconds began, in seconds since 1970; None: now
        on_event    called from this thread with what search/progress.py describes, such as each trial
        on_fill     called with the numbers of kernels timed across shapes, of times, and of kernels left
        note        called with what a person should know; by default a warning is logged
        callbacks   called with the Optuna study of a shape and each of its trials once it is stored, as
                    `Study.optimize` calls them; `study.stop()`, as a terminator calls it, ends the search

    And options, as of `autotune search`:

        {keywords}

        >>> import autotune
        >>> result = autotune.tune(4096, gpu="auto", seconds=60, db="/tmp/tuned.db")
        >>> for gemm, best in result.best.items():
        ...     print(gemm, f"{best.speedup:.2f} times cuBLAS")
        >>> table = result.export("/tmp/sgemm_dispatch")

    Called from the main thread, the first Ctrl-C ends it early and returns what was found; the second raises
    KeyboardInterrupt. Raises UsageError, EnvironmentProblem, DeviceLost and StoreError; all that was measured
    until then is stored.
    """
    asked_at = time.time() if asked_at is None else asked_at
    if not isinstance(policy, SearchPolicy | None):
        raise UsageError(f"policy is {words.shown(policy)}; pass one as SearchPolicy(num_startup=30)")
    called = {"on_event": (on_event,), "on_fill": (on_fill,), "note": (note,), "callbacks": callbacks}
    for name, some in called.items():
        if not isinstance(some, Iterable) or not all(map(callable, some)):
            raise UsageError(f"{name} is or holds {words.shown(some)}, expected what can be called")
    given: SearchKeywords = with_defaults(SearchKeywords, keywords)
    accuracy, stale = given["accuracy"], given["stale"]
    named, conditions = read_shapes(shapes), _conditions(given)
    profile = read_effort(given["effort"])
    options = Options(
        sampler=given["sampler"], trials=given["trials"], seconds=given["seconds"], seed=given["seed"],
        where=conditions, policy=policy or profile.policy, patience=profile.patience, part=part,
    )  # fmt: skip
    num_drawn, calls = whole(option("num_drawn"), given["num_drawn"]), _counted(calls)
    typed = _of_one_type((*named, *calls), given["a_type"], accuracy, note)
    named = tuple(dict.fromkeys(typed[gemm] for gemm in named if gemm in typed))
    calls, adding = _typed(calls, typed), _typed(_counted(adding), typed)
    seed, db = options.seed, _path(given["db"])
    gemms = (*named, *(drawn_calls(num_drawn, seed, _single(calls)) if num_drawn else read_shapes(calls)))
    max_error = None if conditions.order else _no_less_than_0("max_error", given["max_error"])
    _check_class(accuracy, conditions, num_drawn)
    a_type = gemms[0].a_type if gemms else FP32
    if stale:
        Store.open_existing(db).close()
    selector, cache = targets.selector_of(given["gpu"]), read_policy(given["cache"])
    opened = targets.open_target(
        selector, cache, gemms, max_error, note=note, accuracy=accuracy, a_type=a_type,
        helpers=part.helpers if part else None,
    )  # fmt: skip
    _need_searchable(opened, named, num_drawn)  # else it is a recording, which has nothing to close
    with (
        closing(opened) as target,
        Store.open(db) as store,  # last: what is refused before leaves no empty database
        store.bad_rows.reported(note),
        InterruptHandler() as interrupt_handler,
    ):
        store.tell_when_away(note)
        _tell_alike(target.limits, store, note)
        recorded = target if isinstance(target, ReplayTarget) else None
        if recorded is None:  # other kernels may be recorded: their spaces check
            conditions.check(searched_for(accuracy, target.limits).values())
        listed = gemms or (recorded.gemms if recorded else ())
        kept = _stale(store, target, named) if stale else {}
        listed = tuple(kept) or listed
        name = store.begin_run(target.environment, list(map(str, listed)))
        as_named = replace(target.limits, name=names_for(target.limits.name)[-1])
        starts = StartingPoints(targets.matrices(), as_named)
        options = replace(
            options,
            starts=partial(starts, order=conditions.order)
            if accuracy == STRICT
            else partial(on_tensor_cores, accuracy=accuracy, limits=target.limits),
            insists=given["insists"] or recorded is None,
        )
        if options.seconds is not None and recorded is None:  # a recording has a clock of its own
            spent_s = time.time() - asked_at + _CLOSE_S
            options = replace(options, seconds=max(options.seconds - spent_s, _LEAST_S))
        if stale:
            options, num_drawn, calls = _of_stale(kept, options, note), 0, {}
        options = _after_cublas(target, store, (*listed, *calls), options, interrupt_handler)
        if callbacks:
            followed = _Followed(store, callbacks, on_event)
            on_event, options = followed, replace(options, should_stop=followed.should_stop)

        def run(gemms: Sequence[Gemm], options: Options) -> SearchResult:
            return search(target, store, gemms, options, on_event, interrupt_handler)

        def own(gemms: Sequence[Gemm]) -> Sequence[Gemm]:
            return part.begin(gemms, options.seconds is not None) if part and not stale else gemms

        filled, gain, taken_us, adding_us = None, None, {}, {}
        if num_drawn:
            cell_timer = _cell_timer(target)
            drawn = () if calls else drawn_for(num_drawn, seed, cell_timer.limits)
            options = replace(options, without_final=frozenset(drawn) - frozenset(gemms))
            started, lenders = frozenset(own((*gemms, *drawn))), (*gemms, *drawn) if part else ()
            search_drawn = DrawnSearch(
                cell_timer, store, options, starts, run, on_fill, interrupt_handler, lenders
            )
            found, filled = search_drawn.run(*([g for g in some if g in started] for some in (gemms, drawn)))
        elif calls:
            taken_us = expected_us(target, store, calls)
            due, new_weights = _due(calls, taken_us)
            found = run(own(tuple(dict.fromkeys((*due, *named)))), replace(options, weights=new_weights))
            adding_us = store.cublas_times(target.environment, target.policy, has_bias=True)
            gain = gain_of(found.shapes, calls, taken_us, adding, adding_us)
        else:
            found = run(own(listed), options)
        store.end_run(name, found.num_new)
        optimum_us = _optima(recorded, found.shapes, conditions) if recorded else {}
        measured = (target.environment, target.policy, max_error, db, conditions, target.source_hash)
        return Result(found, *measured, optimum_us, filled, gain, taken_us, adding_us)


def _typed(calls: Mapping[Gemm, int], typed: Mapping[Gemm, Gemm]) -> dict[Gemm, int]:
    """The calls of what is searched for each shape."""
    counts = Counter[Gemm]()
    for gemm, num in calls.items():
        counts.update({typed[gemm]: num} if gemm in typed else {})
    return dict(counts)


def _of_one_type(gemms: Sequence[Gemm], a_type: str, accuracy: str, note: Note) -> dict[Gemm, Gemm]:
    """What is searched for each shape. Where they name several types of A: in FP32, to which a call converts
    A, if kernels of the class read no other; else those of this type. Where they name none, they are of this
    type. Raises UsageError where no kernel of the class takes it."""
    types, reads_others = {one.a_type for one in gemms}, accuracy not in (STRICT, FP32_RANGE)
    if len(types) > 1:
        if not reads_others and a_type == FP32:
            return {one: replace(one, a_type=FP32) for one in gemms}
        kept = {one: one for one in gemms if one.a_type == a_type}
        if not kept:
            raise UsageError(f"no shape has an A of {a_type}: name {' or '.join(sorted(types))}")
        text = words.counted(len({*gemms}) - len(kept), "shape")
        note(
            f"left out: {text} with an A of another type than {a_type}; search these with {option('a_type')}"
        )
        return kept
    a_type = a_type if types <= {FP32} else types.pop()
    if a_type != FP32 and not reads_others:
        raise UsageError(
            f"{option('a_type')} {a_type} and {option('accuracy')} {accuracy}: {accuracy} kernels read FP32, "
            f"to which a call converts A before; search the shape in FP32, or with {option('accuracy')} fp32"
        )
    return {one: replace(one, a_type=a_type) for one in gemms}


def _check_class(accuracy: str, conditions: Where, num_drawn: int) -> None:
    """Raises UsageError for no class, and for what only strict kernels have."""
    read_class(accuracy)
    if accuracy != STRICT and (conditions.order or num_drawn):
        other = option("order") if conditions.order else option("num_drawn")
        raise UsageError(
            f"{option('accuracy')} {accuracy} and {other}: only strict kernels have that; leave out one"
        )


def _tell_alike(limits: DeviceLimits, store: Store, note: Note) -> None:
    """Raises UsageError if a GPU is accepted as one that runs other code, or that nobody knows."""
    own, name = limits.name, names_for(limits.name)[-1]
    other = limits_by_name(name)
    if other is None and name != own:
        measured = {one.gpu_name for one in store.environments()}
        if name not in measured:
            known = tuple(dict.fromkeys([*KNOWN, *sorted(measured)]))
            raise UsageError(
                f"no GPU {name!r} is known that {own} could be accepted as ({hint(name, known)})"
            )
    if other is not None and other.compute_capability != limits.compute_capability:
        kinds = f"{own} is {limits.arch} and {other.name} {other.arch}"
        raise UsageError(f"{kinds}: it cannot be accepted as that")
    if text := describe_alias(own):
        note(text)


def _stale(store: Store, target: Target, named: Sequence[Gemm]) -> dict[Gemm, Stale]:
    """Raises NothingStale if no time is stale."""
    found = stale_shapes(store, target)
    kept = {gemm: one for gemm, one in found.items() if not named or gemm in named}
    if not kept:
        raise NothingStale("no shape with a final was measured under anything else than what is here")
    return {gemm: compared(store, target, one) for gemm, one in kept.items()}


def _of_stale(kept: Mapping[Gemm, Stale], options: Options, note: Note) -> Options:
    """The same for the finalists of these shapes alone."""
    for gemm, one in kept.items():
        note(f"{gemm}: {one.description}")
    num = max(len(one.finalists) for one in kept.values())
    policy = replace(options.policy, num_loans=0, num_seeds=num)
    of_stale = replace(options, policy=policy, trials=num, same_code_share=0.0)
    return replace(of_stale, starts=lambda gemm: list(kept[gemm].finalists))


def _optima(recorded: ReplayTarget, shapes: Iterable[ShapeResult], where: Where) -> dict[Gemm, float]:
    gemms = [shape.gemm for shape in shapes if shape.best or not where]
    return {gemm: recorded.optimum(gemm, where.on(gemm, recorded.limits))[1] for gemm in gemms}


def _after_cublas(
    target: Target,
    store: Store,
    gemms: Iterable[Gemm],
    options: Options,
    interrupt_handler: InterruptHandler,
) -> Options:
    """The same with the seconds that are left once cuBLAS was timed on drawn shapes and batches, and, as it
    adds a bias, on these: by these times a table knows which calls to leave to it. A recording has none, and
    with a limit on trials only, only these are wanted."""
    if not isinstance(target, CellTarget) or (options.trials is not None and options.seconds is None):
        return options
    drawn = drawn_for(NUM_TIMED, options.seed, target.limits)
    time_some = partial(time_cublas, target, store, should_stop=interrupt_handler.should_stop)
    seconds = math.inf if options.seconds is None else options.seconds
    share_s, until_s = options.policy.cublas_share * seconds, target.now() + seconds
    time_some(drawn, target.now() + share_s)
    time_some(with_bias(drawn), target.now() + share_s, first=with_bias(gemms), has_bias=True)
    batches = batches_for(NUM_BATCHES, options.seed, target.limits)
    time_some(batches, target.now() + share_s, is_batched=True)
    left_s = max(until_s - target.now(), _LEAST_S)
    return options if options.seconds is None else replace(options, seconds=left_s)


def _due(calls: Mapping[Gemm, int], taken_us: Mapping[Gemm, float]) -> tuple[list[Gemm], dict[Gemm, float]]:
    """The shapes to search for a program, in this order, and their weights."""
    taken = {gemm: count * taken_us[gemm] for gemm, count in (calls or {}).items()}
    due = in_order(taken)
    return due, weights({gemm: taken[gemm] for gemm in due})


def _single(calls: Mapping[Gemm, int]) -> dict[Gemm, int]:
    """Those that are not batches. Raises UsageError if none is left, or if the C of one has no elements."""
    single = {gemm: count for gemm, count in calls.items() if not gemm.is_batched}
    if calls and not single:
        raise UsageError(
            "all calls are of batches, which are searched without drawn shapes; count single products, too"
        )
    for gemm in single:
        gemm.need_output()
    return single


def _need_searchable(target: Target, named: Iterable[Gemm], num_drawn: int) -> None:
    """Raises UsageError if a recording lacks a named shape, or shapes are to be drawn for it. Of calls it
    lacks perhaps none is searched."""
    if num_drawn:
        _cell_timer(target)
    if isinstance(target, ReplayTarget):
        for gemm in named:
            target.baseline(gemm)


def _cell_timer(target: Target) -> CellTarget:
    """Raises UsageError if kernels cannot be timed across shapes."""
    if not isinstance(target, CellTarget):
        raise UsageError(
            f"shapes are drawn ({option('num_drawn')}) for a GPU, and this is a recording; name a recorded "
            "shape instead, or run it on a machine with a GPU"
        )
    return target


class _Followed:
    """Calls callbacks of Optuna's kind for each trial of a search, after `on_event`."""

    def __init__(self, store: Store, callbacks: Sequence[Callback], on_event: OnEvent) -> None:
        from .store import optuna_storage  # here: a search without callbacks does not wait for Optuna

        self._make, self._storage = optuna_storage.FollowedStudy, optuna_storage.OptunaStorage(store)
        self._callbacks, self._on_event = callbacks, on_event
        self._studies: dict[Gemm, Any] = {}
        self._over = threading.Event()
        self.should_stop = self._over.is_set

    def __call__(self, event: Event) -> None:
        self._on_event(event)
        if isinstance(event, ShapeStarted):
            self._studies[event.gemm] = self._make(self._storage, event.study, self._over.set)
        elif isinstance(event, TrialDone):
            study = self._studies[event.gemm]
            for callback in self._callbacks:
                callback(study, self._storage.trial_of(study.study_name, event.key))


@takes(ExportKeywords)
def export_table(
    folder: str | Path,
    shapes: Shape | Iterable[Shape] = (),
    *,
    gpu_name: str = "",
    calls: Mapping[Gemm, int] = MappingProxyType({}),
    called: Mapping[Gemm, Iterable[str]] = MappingProxyType({}),
    with_c: bool = False,
    note: Note = _note,
    on_step: Callable[[str], Any] = lambda step: None,
    on_compiled: Callable[[int, int], Any] = lambda done, total: None,
    **keywords: Unpack[ExportKeywords],
) -> Table:
    """Write the winners of the GPU that was measured last as a folder that applications import. Returns the
    table of this GPU model.

        folder          where; what an earlier export wrote there is replaced
        shapes          the tuned shapes to write, as `tune` takes them; none: all
        gpu_name        the GPU model's name in full; "": the one that was measured last
        calls           how often a program calls for which shape, tuned or not: kernels for shapes that were
                        not tuned are chosen for these as much as for all others
        called          names of epilogues that a program's calls for a shape ask for: the kernels of its
                        layout come with these, too
        with_c          whether sources for programs in C and C++ are written, into the folder `c`
        note            called with what a person should know; by default a warning is logged
        on_step         called with what is done next
        on_compiled     called with how many of how many kernels are compiled

    And options, as of `autotune export-table`:

        {keywords}

    Raises DispatchError where there is nothing to export, StoreError, EnvironmentProblem, UsageError.
    """
    given: ExportKeywords = with_defaults(ExportKeywords, keywords)
    accuracy = given["accuracy"]
    calls, db = _counted(calls), _path(given["db"])
    requested = {read_shape(gemm): launch.named(names) for gemm, names in _by_shape("called", called)}
    on_step(f"reading the results of {shown(db)}")
    for gemm in calls:
        gemm.need_output()
    max_kernels = whole(option("max_kernels"), given["max_kernels"])
    max_megabytes = number(option("max_megabytes"), given["max_megabytes"], most=math.inf)
    gemms, conditions = read_shapes(shapes), _conditions(given)
    added = launch.named(given["epilogues"])
    _check_class(accuracy, conditions, 0)
    conditions.check(values_of_class(accuracy) | VALUES)
    max_error = None if conditions.order else _no_less_than_0("max_error", given["max_error"])
    with Store.open_existing(db) as store, store.bad_rows.reported(note):
        studies = store.measured_studies(max_error)
        environments = list(dict.fromkeys(study.environment for study in studies))
        if gpu_name:
            environments = [one for one in environments if one.gpu_name == gpu_name]
        if not environments:
            store.bad_rows.refuse()
            refs = [one.study for one in store.studies()]
            named = ", ".join(str(ref.gemm) for ref in refs if is_external(ref.source_hash))
            of = f" on {gpu_name}" if gpu_name else ""
            what = f"no kernel that ran{of}" + (f", but other tools' ({named})" if named else "")
            if max_error is not None and not named and store.environments():
                what += f" within {option('max_error')} {max_error:g}"
            raise DispatchError(f"{shown(db)} holds {what}; run {command('search')} first")
        latest, limits = environments[0], _limits(environments[0])
        read = read_policy(given["cache"])
        reading: Callable[..., TunedResults] = partial(
            read_results, store, latest, limits, studies, policy=read, max_error=max_error, drawn_origin=FILL,
            foreign_origins=TRANSFERRED,
        )  # fmt: skip
        tensor, wider = None, {}
        if accuracy != STRICT:
            wider = by_problem(studies, latest, read, accuracy)
            tensor = _of_wider(reading, latest, limits, gemms, conditions, accuracy, bool(wider), note)
        conditions = conditions.within(VALUES)
        is_limited = bool(conditions) and not gemms
        known = by_problem(studies, latest, read)
        also = {shape.gemm for shape in tensor.shapes} if tensor else set()
        wanted = [gemm for gemm in gemms if gemm in known or gemm not in also]
        if tensor is not None and also and not (wanted if gemms else known):
            results = replace(tensor, shapes=(), source_hash=source_hash(Config))
        else:
            results = reading(gemms=wanted or None, where=conditions)
        measured = known if is_limited else {}
    missing = sorted(measured.keys() - {shape.gemm for shape in results.shapes})
    if missing:
        note(f"left out, as no result obeys {conditions.description}: {', '.join(map(str, missing))}")
    newest = (ones[0] for found in (known, wider) for ones in found.values())
    exported = (study for study in newest if not gemms or study.gemm in gemms)
    if changed := stale.outdated(exported, targets.installed_here):
        note(stale.describe_outdated(changed))
    results = replace(results, power_limit_w=_power_limit_w(results.environment))
    with closing(Compiler(limits.arch, note=note)) as compiler:
        exporter.export_table(
            results,
            Path(folder),
            compiler,
            tensor=tensor,
            matrices=targets.matrices(),
            where=conditions,
            max_kernels=max_kernels,
            max_megabytes=max_megabytes,
            calls=calls,
            epilogues=added,
            called=requested,
            with_c=with_c,
            adds=given["adds"],
            note=note,
            on_step=on_step,
            on_compiled=on_compiled,
        )
    others = {e.gpu_name for e in environments} - {latest.gpu_name}
    if others:
        names = ", ".join(sorted(others))
        note(f"{shown(db)} also holds trials of {names}; the newest were exported")
    here = GpuModel.of(latest.gpu_name, latest.compute_capability)
    return next(table for _, table in load_models(Path(folder)) if GpuModel.of_table(table) == here)


def _of_wider(
    reading: Callable[..., TunedResults],
    environment: Environment,
    limits: DeviceLimits,
    gemms: Sequence[Gemm],
    conditions: Where,
    accuracy: str,
    searched: bool,
    note: Note,
) -> TunedResults:
    """The results of kernels of a wider class, for those of the shapes that have any: none where nothing was
    searched for it, or where a GPU has no such kernels: strict ones serve."""
    none = TunedResults(environment, limits, source_of(accuracy, limits=limits), "", 0, ())
    if not has_kernels(accuracy, limits):
        note(f"{limits.name} runs strict kernels alone: they serve calls for accuracy {accuracy}, too")
        return none
    if not searched:
        note(f"no shape was searched for accuracy {accuracy}: tensor kernels serve where that is surely kept")
        return none
    found = reading(where=conditions.within(searched_for(accuracy, limits).parameters), accuracy=accuracy)
    return replace(found, shapes=tuple(s for s in found.shapes if not gemms or s.gemm in gemms))


@takes(ConditionKeywords)
def space(
    shape: Shape, gpu: str | int | None = "auto", *, note: Note = _note, **keywords: Unpack[ConditionKeywords]
) -> FeasibleSet:
    """The configs worth a trial for a shape, on a GPU of this machine or on a known model (`rtx-4090`); those
    that obey conditions on parameters and on their workspace:

        {keywords}

        >>> import autotune
        >>> configs = autotune.space(4096, "rtx-4090")
        >>> config = autotune.Config.from_dict(configs.point(0))

    Raises UsageError, EnvironmentProblem.
    """
    (gemm,), conditions = read_shapes([shape]), _conditions(with_defaults(ConditionKeywords, keywords))
    limits = targets.limits_named(targets.selector_of(gpu), note=note)
    found = feasible_set(limits, gemm, order=conditions.order)
    return found.where(conditions.on(gemm, limits), gemm)


def _conditions(given: ConditionKeywords) -> Where:
    return Where.parse(given["where"], given["max_workspace"], given["order"])


def _counted(calls: Mapping[Gemm, int]) -> dict[Gemm, int]:
    """Raises UsageError."""
    name = option("calls")
    return {
        read_shape(shape): whole(name, count, 1, MOST_CALLS) for shape, count in _by_shape("calls", calls)
    }


def _by_shape(name: str, value: Mapping[Gemm, T]) -> ItemsView[Gemm, T]:
    """The items of a mapping. Raises UsageError."""
    if not isinstance(value or {}, Mapping):
        raise UsageError(f"{option(name)} is {words.shown(value)}, expected a dict by shape")
    return (value or {}).items()


def _path(db: str | Path) -> str:
    """Raises UsageError."""
    if not isinstance(db, str | Path):
        raise UsageError(f"{option('db')} is {db!r:.60}; name a file of SQLite, or a URL of PostgreSQL")
    return str(db)


def _no_less_than_0(name: str, value: float | None) -> float | None:
    """Raises UsageError."""
    return None if value is None else number(option(name), value)


def _limits(environment: Environment) -> DeviceLimits:
    """Limits of the GPU model that was measured: read from one that is here, else known by name."""
    known = limits_by_name(environment.gpu_name)
    if environment.is_recorded and known is not None:
        return known
    try:
        here = [g for g in gpus.list_gpus() if g.name == environment.gpu_name]
    except EnvironmentProblem:
        here = []
    if here:
        return device_limits(here[0].index)
    if known is None:
        raise EnvironmentProblem(
            f"the limits of {environment.gpu_name} are not known here; export where it is"
        )
    return known


def _power_limit_w(environment: Environment) -> float | None:
    """The power limit of the measured GPU, if it is in this machine."""
    if environment.is_recorded:
        return None
    from .gpu.nvml import Monitor

    return Monitor(environment.gpu_uuid).power_limit_w()
