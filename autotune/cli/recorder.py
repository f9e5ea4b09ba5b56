"""Which points a recorded space holds, and how they are timed on several problems, each compiled once.

Configs drawn at random are nearly all far from the optimum, and a space of them alone has no hill to climb.
So a sample of a space too large to time has three parts: what searches tried, the best of it first; relatives
of the best; and random configs. It is meant to look like a real space: many bad, some good, a few excellent.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from ..facts.gemm import Gemm
from ..facts.measurement import Measurement, Outcome
from ..gpu.gpu_target import GpuTarget
from ..kernel.config import Config
from ..kernel.feasible_set import FeasibleSet
from ..kernel.rules import broken_rules
from ..recording.recorded_space import Trials, with_compile_times
from ..search import study_of
from ..search.propose.candidates import Candidates
from ..store import Store, StudyRef
from ..target import Baseline, Point, point_key

TRIED_SHARE = 0.3  # of the sample, at most: what searches tried
KIN_SHARE = 0.2  # and at most: relatives of the best
NUM_PARENTS = 6  # best configs of each problem whose relatives are taken
MIXTURES = 300  # relatives that take several parameters from elsewhere
FAIR_SHARE = 2.0  # of the random part: at most so many times an equal share for one problem
_MOST_LISTED = 1 << 20  # points of a set that are shuffled as a list; from a larger one they are drawn


@dataclass(frozen=True)
class Source:
    """A problem of the recording: its feasible set, and what was tried in it, the fastest first."""

    gemm: Gemm
    space: FeasibleSet
    tried: Sequence[Point] = ()


def sample(
    sources: Sequence[Source], size: int, seed: int, allows: Callable[[Point], Collection[Gemm]]
) -> list[Point]:
    """At most `size` distinct points for all problems, fewer only where there are no more. `allows` tells on
    which problems a point may run. The same arguments give the same points in the same order: what was tried,
    relatives, random ones, problems taking turns in each."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, Point] = {}
    _take(chosen, (source.tried for source in sources), round(TRIED_SHARE * size))
    _take(chosen, (_kin(source, rng) for source in sources), len(chosen) + round(KIN_SHARE * size))
    _fill(chosen, sources, size, rng, allows)
    return list(chosen.values())


def whole(sources: Sequence[Source], seed: int) -> list[Point]:
    """Every point of every problem's set, each once, in an order that the seed decides."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, Point] = {}
    _take(chosen, (_shuffled(source.space, rng) for source in sources), sum(len(s.space) for s in sources))
    return list(chosen.values())


def _take(chosen: dict[str, Point], streams: Iterable[Iterable[Point]], size: int) -> None:
    """Take new points from the streams by turns until `size` are chosen."""
    for point in filter(None, chain.from_iterable(zip_longest(*streams))):
        if len(chosen) >= size:
            return
        chosen.setdefault(point_key(point), point)


def _kin(source: Source, rng: np.random.Generator) -> Iterator[Point]:
    """Points of the set that differ little from the best tried ones, shuffled."""
    numbers = [source.space.find(point) for point in source.tried]
    parents = np.array([n for n in numbers if n is not None][:NUM_PARENTS], dtype=np.int64)
    candidates = Candidates(source.space)
    near = candidates.neighbours(parents)
    mixed = candidates.mixtures(rng, parents, MIXTURES)
    for number in rng.permutation(np.union1d(near, mixed)):
        yield source.space.point(int(number))


def _fill(
    chosen: dict[str, Point],
    sources: Sequence[Source],
    size: int,
    rng: np.random.Generator,
    allows: Callable[[Point], Collection[Gemm]],
) -> None:
    """Random points until `size` are chosen, from the set of the problem that can run the fewest so far."""
    most = round(FAIR_SHARE * (size - len(chosen)) / len(sources)) if len(sources) > 1 else size
    streams = {source.gemm: _shuffled(source.space, rng) for source in sources}
    num_drawn = dict.fromkeys(streams, 0)
    num_allowed = dict.fromkeys(streams, 0)
    for gemm in chain.from_iterable(map(allows, chosen.values())):
        num_allowed[gemm] += 1
    while streams and len(chosen) < size:
        shape = min(streams, key=lambda gemm: num_allowed[gemm])
        point = next((one for one in streams[shape] if point_key(one) not in chosen), None)
        num_drawn[shape] += 1
        if point is None or num_drawn[shape] >= most:
            del streams[shape]
        if point is not None:
            chosen[point_key(point)] = point
            for gemm in allows(point):
                num_allowed[gemm] += 1


def _shuffled(space: FeasibleSet, rng: np.random.Generator) -> Iterator[Point]:
    """Points of a set in random order. From a large set they are drawn without end, some of them again."""
    if len(space) <= _MOST_LISTED:
        return (space.point(int(number)) for number in rng.permutation(len(space)))
    return (space.point(int(rng.integers(len(space)))) for _ in iter(int, 1))


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
