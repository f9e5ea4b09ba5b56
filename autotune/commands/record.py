"""`autotune record`: times a space, or a random subset of it, into a file that stands in for the GPU.

Trials are kept in a database until the end, so a recording that was interrupted goes on where it was.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import console
from ..gemm import Gemm
from ..gpu.target import GpuTarget
from ..measurement import Measurement
from ..recording import write_recording
from ..search import point_key, study_of
from ..space import FeasibleSet
from ..store import Store, StudyRef
from . import common, targets

ORIGIN = "record"


@dataclass(frozen=True)
class Request:
    """The options of `record`."""

    out: Path
    gpu: str
    shapes: Sequence[str]
    suite: Path | None
    configs: int | None
    seed: int
    policy: str
    db: str | None


@dataclass
class _Tally:
    """What the progress line tells."""

    num_wanted: int
    num_done: int = 0
    num_failed: int = 0
    num_resumed: int = 0
    best_us: float | None = None
    began_s: float = field(default_factory=time.monotonic)

    def add(self, found: Measurement) -> None:
        self.num_done += 1
        if found.time_us is None:
            self.num_failed += 1
        elif self.best_us is None or found.time_us < self.best_us:
            self.best_us = found.time_us

    def line(self, gemm: Gemm) -> str:
        rate = self.num_done / max(time.monotonic() - self.began_s, 1e-9)
        num_left = self.num_wanted - self.num_resumed - self.num_done
        return (
            f"{gemm}: {self.num_resumed + self.num_done:,}/{self.num_wanted:,} configs, {rate:.1f}/s, "
            f"{self.num_failed:,} failed, best {console.time_text(self.best_us)}, "
            f"{console.duration(num_left / rate) if rate else '?'} left"
        )


def run(request: Request, *, is_json: bool, is_quiet: bool) -> None:
    """Measure what is missing, then write the file with every trial of these studies."""
    gemms = common.need_shapes(request.shapes, request.suite)
    policy = common.read_policy(request.policy)
    db = request.db or str(request.out.with_name(f"{request.out.name}.db"))
    with closing(targets.open_gpu(request.gpu, policy)) as target, Store.open(db) as store:
        studies = {gemm: study_of(store, target, gemm) for gemm in gemms}
        for gemm, study in studies.items():
            with console.Progress(is_quiet=is_quiet) as progress:
                _measure(store, study, target, _subset(target.space(gemm), request), progress)
        problems = {
            gemm: (target.baseline(gemm), [(t.point, t.measurement) for t in store.trials(study)])
            for gemm, study in studies.items()
        }
        recorded_on = datetime.now(UTC).date().isoformat()
        write_recording(
            request.out,
            limits=target.limits,
            environment=target.environment,
            policy=policy,
            source_hash=target.source_hash,
            recorded_on=recorded_on,
            problems=problems,
        )
    facts = {gemm: _facts([m for _, m in trials]) for gemm, (_, trials) in problems.items()}
    _tell(request.out, facts, recorded_on, is_json=is_json)


def _subset(space: FeasibleSet, request: Request) -> Iterator[dict[str, Any]]:
    """The points to time, in an order that the seed decides: all, or so many of them."""
    num_points = min(len(space), request.configs or len(space))
    chosen = random.Random(request.seed).sample(range(len(space)), num_points)
    return (space.point(number) for number in chosen)


def _measure(
    store: Store,
    study: StudyRef,
    target: GpuTarget,
    points: Iterator[dict[str, Any]],
    progress: console.Progress,
) -> None:
    """Keep the target busy with the points that the study does not hold yet; store each answer."""
    known = store.keys(study)
    wanted = list(points)
    missing = [point for point in wanted if point_key(point) not in known]
    tally = _Tally(len(wanted), num_resumed=len(wanted) - len(missing))
    pending: dict[Future[Measurement], dict[str, Any]] = {}
    target.baseline(study.gemm)  # before candidates: it says how long they may take
    while missing or pending:
        while missing and len(pending) < target.capacity:
            point = missing.pop()
            pending[target.submit(study.gemm, point, None)] = point
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            point = pending.pop(future)
            found = future.result()
            store.add_trial(study, point_key(point), point, found, ORIGIN)
            tally.add(found)
        progress.update(tally.line(study.gemm))


def _facts(measurements: list[Measurement]) -> dict[str, Any]:
    times = [m.time_us for m in measurements if m.time_us is not None]
    return {
        "num_configs": len(measurements),
        "num_failed": sum(not m.is_ok for m in measurements),
        "best_time_us": min(times, default=None),
    }


def _tell(out: Path, facts: dict[Gemm, dict[str, Any]], recorded_on: str, *, is_json: bool) -> None:
    if is_json:
        shapes = [{"shape": str(gemm), **fact} for gemm, fact in facts.items()]
        console.show_json({"file": str(out), "recorded_on": recorded_on, "shapes": shapes})
        return
    console.show(f"{out}: {out.stat().st_size / 1e6:.1f} MB, search it with --gpu replay:{out}")
    rows = [
        (str(gemm), f["num_configs"], f["num_failed"], console.time_text(f["best_time_us"]))
        for gemm, f in facts.items()
    ]
    console.show(console.table(("shape", "configs", "failed", "best"), rows, right=(1, 2, 3)))
