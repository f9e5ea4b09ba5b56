"""Times points on several problems, each compiled once, and stores what came of them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import chain

from ..facts.gemm import Gemm
from ..facts.measurement import Measurement, Outcome
from ..gpu.gpu_target import GpuTarget
from ..kernel.config import Config
from ..kernel.rules import broken_rules
from ..recording.recorded_space import Trials, with_compile_times
from ..search import study_of
from ..store import Store, StudyRef
from ..target import Baseline, Point, point_key
from .recorded_points import Source

ORIGIN = "record"
# A launch above twice the cutoff, or a batch slightly above it, is all that is timed of a candidate (see
# gpu.timing): a space keeps the order of what is within twice the best, and of the rest how bad it is.
CUTOFF_FACTOR = 1.75  # times the best so far: the cutoff

OnTrial = Callable[[Gemm, Measurement], None]


class Recorder:
    """Times points on problems and stores what came of each."""

    def __init__(self, store: Store, target: GpuTarget, gemms: Sequence[Gemm]) -> None:
        self.store, self.target = store, target
        self.studies: dict[Gemm, StudyRef] = {gemm: study_of(store, target, gemm) for gemm in gemms}
        self.baselines: dict[Gemm, Baseline] = {}
        self.best_us: dict[Gemm, float] = {}
        self.keys: dict[Gemm, set[str]] = {}
        self._broken: dict[str, dict[Gemm, str]] = {}
        for gemm, study in self.studies.items():
            self.baselines[gemm] = target.baseline(gemm)  # before candidates: it says how long they may take
            times = store.times(study).values()
            self.best_us[gemm] = min(times, default=self.baselines[gemm].time_us or math.inf)
            self.keys[gemm] = store.keys(study)

    def rejections(self, point: Point) -> dict[Gemm, str]:
        """The problems that forbid a point, each with the rules that do."""
        key = point_key(point)
        if key not in self._broken:
            config, limits = Config.from_dict(point), self.target.limits
            broken = {g: ", ".join(r.id for r in broken_rules(config, limits, g)) for g in self.studies}
            self._broken[key] = {gemm: ids for gemm, ids in broken.items() if ids}
        return self._broken[key]

    def allows(self, point: Point) -> list[Gemm]:
        """The problems that a point may run on."""
        rejected = self.rejections(point)
        return [gemm for gemm in self.studies if gemm not in rejected]

    def missing(self, point: Point) -> list[Gemm]:
        """The problems on which a point is still to be timed."""
        key = point_key(point)
        return [gemm for gemm in self.allows(point) if key not in self.keys[gemm]]

    def source(self, gemm: Gemm) -> Source:
        """The set of a problem, and what searches tried of it, the fastest first and failures last: on this
        GPU and on others of its model, so that a database may come from another machine."""
        own = self.studies[gemm]
        tried = chain.from_iterable(map(self.store.trials, [own, *self.store.sibling_studies(own)]))
        trials = [trial for trial in tried if trial.origin != ORIGIN]
        trials.sort(key=lambda trial: trial.measurement.time_us or math.inf)
        points = {trial.key: trial.point for trial in trials}  # tried on several GPUs: at its fastest
        return Source(gemm, self.target.space(gemm), [p for p in points.values() if self.allows(p)])

    def measure(self, points: Sequence[Point], seconds: float | None, on_trial: OnTrial) -> None:
        """Time what is missing of the points, in their order, each on all problems at once, so that all wait
        for the same compile. Begins no other point after so many seconds."""
        waiting = deque(points)
        under_way: dict[Future[Measurement], tuple[int, Gemm, Point]] = {}
        num_started, started_s = 0, time.monotonic()
        while waiting or under_way:
            if seconds is not None and time.monotonic() - started_s >= seconds:
                waiting.clear()
            while waiting and len({number for number, _, _ in under_way.values()}) < self.target.capacity:
                point = waiting.popleft()
                num_started += 1
                for gemm in self.missing(point):
                    cutoff_us = CUTOFF_FACTOR * self.best_us[gemm]
                    finite_us = cutoff_us if math.isfinite(cutoff_us) else None
                    future = self.target.submit(gemm, point, finite_us)
                    under_way[future] = (num_started, gemm, point)
            if under_way:
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    _, gemm, point = under_way.pop(future)
                    self._keep(gemm, point, future.result())
                    on_trial(gemm, future.result())

    def _keep(self, gemm: Gemm, point: Point, found: Measurement) -> None:
        key = point_key(point)
        self.store.add_trial(self.studies[gemm], key, point, found, ORIGIN)
        self.keys[gemm].add(key)
        if found.time_us is not None:
            self.best_us[gemm] = min(self.best_us[gemm], found.time_us)

    def problems(self, points: Sequence[Point]) -> dict[Gemm, tuple[Baseline, Trials]]:
        """What came of points of which nothing is missing. One that a problem forbids is illegal there; one
        with a trial that cannot be read is left out everywhere."""
        known: dict[Gemm, dict[str, Measurement]] = {
            gemm: {trial.key: trial.measurement for trial in self.store.trials(study)}
            for gemm, study in self.studies.items()
        }
        whole = [p for p in points if all(point_key(p) in known[gemm] for gemm in self.allows(p))]

        def illegal(gemm: Gemm, point: Point) -> Measurement:
            return Measurement(Outcome.ILLEGAL, f"breaks {self.rejections(point)[gemm]}")

        trials = {
            gemm: [(p, known[gemm].get(point_key(p)) or illegal(gemm, p)) for p in whole]
            for gemm in self.studies
        }
        return {gemm: (self.baselines[gemm], timed) for gemm, timed in with_compile_times(trials).items()}
