"""`autotune record`: times the same configs on one problem or several, into a file to search without a GPU.

Each config is compiled once and timed on every problem that allows it. Trials are kept in a database, so a
recording that was interrupted goes on where it was, and what searches tried is part of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import target_finder as targets
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import Measurement, Outcome, read_policy
from ..files.errors import UsageError
from ..files.output_file import check_writable
from ..files.words import counted
from ..gpu.gpu_target import GpuTarget
from ..recording.recording_file import write_recording
from ..store import Store
from ..target import Baseline, Point, point_key
from . import common, console, on_gpus
from .facts_table import facts_table
from .recorder import Recorder, sample, whole
from .requests import RecordRequest

Measured = list[tuple[Point, Measurement]]
_COLUMNS = {
    "shape": "shape", "configs": "num_configs", "illegal here": "num_illegal", "failed": "num_failed",
    "cut short": "num_cut_short", "best": "best_time_us",
}  # fmt: skip
PARTS = 8  # of the configs, for each GPU: the last to end has few left
MOST_CONFIGS = 100_000  # a day and more of a GPU


class RecordProgress:
    """What the progress line tells."""

    def __init__(self, num_points: int, num_wanted: int, progress: console.Progress) -> None:
        self._num_points, self._num_wanted, self._progress = num_points, num_wanted, progress
        self._num_done = self._num_failed = 0
        self._started_s = time.monotonic()
        self._one_adds = threading.Lock()

    def add(self, gemm: Gemm, found: Measurement) -> None:
        with self._one_adds:
            self._num_done += 1
            self._num_failed += not found.is_ok
            rate = self._num_done / max(time.monotonic() - self._started_s, 1e-9)
            left = console.duration((self._num_wanted - self._num_done) / rate)
            self._progress.update(
                f"{counted(self._num_points, 'config')}: {self._num_done:,}/{self._num_wanted:,} trials, "
                f"{rate:.1f}/s, {self._num_failed:,} failed, {left} left, at {gemm}"
            )


def run(request: RecordRequest, *, is_json: bool, is_quiet: bool, clean: Callable[[str], str] = str) -> None:
    """Measure what is missing, then write the file with the configs that every problem has been through.
    `clean`: of what failed, the reason as the file is to tell it."""
    gemms = common.need_shapes(request.shapes, request.suites)
    check_writable(request.out)
    policy = read_policy(request.cache)
    db = request.db or str(request.out.with_name(f"{request.out.name}.db"))

    def opening(selector: str) -> GpuTarget:
        return targets.open_gpu(selector, policy, gemms, request.max_error, note=console.note)

    with (
        on_gpus.opened(request.gpu, opening) as models,
        Store.open(db) as store,
        store.bad_rows.reported(console.note),
    ):
        if len(models) > 1:
            raise UsageError(f"a recording is of one model, and here are {', '.join(models)}; name one")
        (gpus,) = models.values()
        target, recorders = gpus[0], [Recorder(store, gpu, gemms) for gpu in gpus]
        points = _choose(recorders[0], request)
        with console.Progress(is_quiet=is_quiet) as progress:
            _measure(recorders, points, request.seconds, progress)
        problems, num_left = _problems(recorders, points, clean)
        recorded_on = datetime.now(UTC).date().isoformat()
        num_bytes = write_recording(
            request.out,
            **picked(target, "limits environment source_hash"),
            policy=policy,
            recorded_on=recorded_on,
            problems=problems,
            compile_threads=target.builder.compiler.num_threads,
        )
    shapes = [_facts(gemm, [m for _, m in trials]) for gemm, (_, trials) in problems.items()]
    facts = {"file": str(request.out), "recorded_on": recorded_on, "num_left": num_left, "shapes": shapes}
    _tell(request.out, num_bytes, facts, is_json=is_json)


def _measure(
    recorders: Sequence[Recorder], points: Sequence[Point], seconds: float | None, progress: console.Progress
) -> None:
    """Time what no GPU has timed yet, a part of the points at a time on whichever is free."""
    left = [point for point in points if all(one.missing(point) for one in recorders)]
    size = len(left) if len(recorders) == 1 else -(-len(left) // (PARTS * len(recorders)))
    parts = [left[at : at + size] for at in range(0, len(left), max(1, size))]
    counts = RecordProgress(len(points), sum(len(recorders[0].missing(point)) for point in left), progress)
    until_s = None if seconds is None else time.monotonic() + seconds

    def measure(recorder: Recorder, part: Sequence[Point]) -> None:
        left_s = None if until_s is None else until_s - time.monotonic()
        recorder.measure(part, left_s, counts.add)

    on_gpus.on_any(recorders, parts, measure)


def _problems(
    recorders: Sequence[Recorder], points: Sequence[Point], clean: Callable[[str], str]
) -> tuple[dict[Gemm, tuple[Baseline, Measured]], int]:
    """What came of the points by problem, each by one of the GPUs, and how many have not been timed yet."""
    done = {point_key(p): at for at, one in enumerate(recorders) for p in points if not one.missing(p)}
    problems: dict[Gemm, tuple[Baseline, Measured]] = {}
    for at, one in enumerate(recorders):
        own = [point for point in points if done.get(point_key(point)) == at]
        for gemm, (baseline, trials) in one.problems(own).items():
            result = [(point, replace(m, reason=clean(m.reason))) for point, m in trials]
            problems.setdefault(gemm, (baseline, []))[1].extend(result)
    return problems, len(points) - len(done)


def _choose(recorder: Recorder, request: RecordRequest) -> list[Point]:
    """The points to record, in the order in which they are timed."""
    sources = [recorder.source(gemm) for gemm in recorder.studies]
    if request.configs is not None:
        return sample(sources, request.configs, request.seed, recorder.allows)
    size = sum(len(source.space) for source in sources)
    if size > MOST_CONFIGS:
        raise UsageError(f"{size:,} configs would take days; record a sample of them with --configs 3000")
    return whole(sources, request.seed)


def _facts(gemm: Gemm, measurements: list[Measurement]) -> dict[str, Any]:
    times = [m.time_us for m in measurements if m.time_us is not None]
    num_illegal = sum(m.outcome is Outcome.ILLEGAL for m in measurements)
    return {
        "shape": str(gemm),
        "num_configs": len(measurements) - num_illegal,
        "num_illegal": num_illegal,
        "num_failed": sum(not m.is_ok for m in measurements) - num_illegal,
        "num_cut_short": sum(m.is_cut_short for m in measurements),
        "best_time_us": min(times, default=None),
    }


def _tell(out: Path, num_bytes: int, facts: dict[str, Any], *, is_json: bool) -> None:
    console.answer(
        facts,
        lambda: (
            f"{out}: {num_bytes / 1e6:.1f} MB, search it with --gpu replay:{out}\n"
            f"{facts_table(facts['shapes'], _COLUMNS)}"
        ),
        is_json=is_json,
    )
    if facts["num_left"] and not is_json:
        left = counted(facts["num_left"], "config is", "configs are")
        console.note(f"{left} not timed yet and left out; run the same command again to resume")
