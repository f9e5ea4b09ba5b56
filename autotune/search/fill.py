"""Fills the matrix of kernels and shapes: a kernel that did well on one shape is timed on all others of its
layout.

It, its relatives that serve more shapes (kernel/relatives.py), and kernels that the caller knows are verified
once each, on a small ragged problem, and then only timed, with the numbers of splits that a table chooses
from (`Splits`). A kernel clearly slower than the best of a shape is launched once. Each time is a trial
(origin `fill`) of its shape: an export finds the matrix in the database, and the same call goes on where the
last one ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from types import MappingProxyType
from typing import TypeVar

from ..facts.device import DeviceLimits
from ..facts.distribution import LEADING
from ..facts.frozen import picked
from ..facts.gemm import LAYOUTS, Gemm
from ..facts.measurement import Measurement, Outcome
from ..facts.stats import Patience, median
from ..kernel.config import Config
from ..kernel.launch import has_work
from ..kernel.relatives import relatives, small_problem
from ..kernel.resources import launch_spec, residency
from ..kernel.rules import broken_rules
from ..kernel.where import ANY, Where
from ..perf_model.launches import Launches, Shapes
from ..perf_model.prediction import Splits
from ..search_policy import SearchPolicy
from ..store import Store, StudyRef
from ..target import Cell, CellTarget, CellTime, Point, point_key
from .propose.origins import FILL
from .shape import study_of

GAIN = Patience.gain  # from which on a search of the shape continues


T = TypeVar("T")
OnFill = Callable[[int, int, int], None]  # kernels that were timed, times, and kernels left at most


def ignore_fill(num_kernels: int, num_cells: int, num_left: int) -> None:
    """For nobody."""


@dataclass(frozen=True)
class _Row:
    """A kernel that was verified, and its times, which are under way."""

    verified: Measurement
    cells: list[tuple[Gemm, Config]]
    times: Future[tuple[CellTime, ...]]


@dataclass(frozen=True)
class Filled:
    """What one call did."""

    num_kernels: int  # that were verified and timed
    num_refused: int  # that failed where they were verified
    num_cells: int  # times that are new
    num_left: int  # kernels that are still to be verified and timed
    improved: tuple[Gemm, ...]  # shapes that another's kernel now serves best, largest gain first

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left to time."""
        return not self.num_left

    def then(self, later: Filled) -> Filled:
        """Both calls together. The kernels left, and the improved shapes, are the later call's."""
        return replace(
            later,
            num_kernels=self.num_kernels + later.num_kernels,
            num_refused=self.num_refused + later.num_refused,
            num_cells=self.num_cells + later.num_cells,
        )


class Filler:
    """Times the kernels that searches of these shapes found on all of them, and those that other GPUs of this
    kind found on `lenders`; before these the ones that ship, by layout. Only what obeys `where` is timed.
    Times are stored at once, and `on_fill` receives their number."""

    def __init__(
        self,
        target: CellTarget,
        store: Store,
        gemms: Sequence[Gemm],
        on_fill: OnFill = ignore_fill,
        shipped: Mapping[str, Sequence[Config]] = MappingProxyType({}),
        policy: SearchPolicy | None = None,
        where: Where = ANY,
        should_stop: Callable[[], bool] = lambda: False,
        lenders: Iterable[Gemm] = (),
    ) -> None:
        self._on_fill, self._shipped, self._policy = on_fill, shipped, policy or SearchPolicy()
        self._should_stop, self._lenders = should_stop, [gemm for gemm in lenders if gemm not in gemms]
        self._where = where
        self._target, self._store, self._limits = target, store, target.limits
        self._columns = {x: [gemm for gemm in gemms if gemm.layout == x] for x in LAYOUTS}
        self._studies: dict[Gemm, StudyRef] = {gemm: study_of(store, target, gemm) for gemm in gemms}
        self._tried = {gemm: self._keys(study) for gemm, study in self._studies.items()}
        self._best_us = {gemm: self._fastest_us(study) for gemm, study in self._studies.items()}
        cublas_us = {gemm: store.cublas_us(study) for gemm, study in self._studies.items()}
        self._cublas_us = {gemm: math.inf if us is None else us for gemm, us in cublas_us.items()}

    def _keys(self, study: StudyRef) -> set[str]:
        """Points that were tried on this GPU, or on another of its kind: an export uses both."""
        return {key for one in (*self._store.sibling_studies(study), study) for key in self._store.keys(one)}

    def _fastest_us(self, study: StudyRef) -> float:
        best = self._store.best(study, 1, self._target.max_error, where=self._where_on(study.gemm))
        return min((trial.measurement.time_us or math.inf for trial in best), default=math.inf)

    def run(self, until_s: float) -> Filled:
        """Until this time of the target's clock, until it should stop, or until nothing is left. What is
        under way then is timed and stored. Raises DeviceLost and StoreError."""
        num_kernels = num_refused = num_cells = 0
        searched_us, rows = dict(self._best_us), deque(self._rows())
        under_way: deque[_Row] = deque()
        for layout, config, verified in self._verified(rows, until_s):
            if verified.is_ok:
                num_kernels += 1
                under_way.append(self._begin(layout, config, verified))
            else:
                num_refused += 1
            if len(under_way) > 2:  # one is on the GPU and another waits, while the previous one is stored
                num_cells += self._keep(under_way.popleft())
            self._on_fill(num_kernels, num_cells, len(rows))
        if under_way:
            num_cells += sum(map(self._keep, under_way))
            self._on_fill(num_kernels, num_cells, len(rows))
        num_left = sum(self._small_problem(*row) is not None for row in rows)
        gains = {
            g: us / searched_us[g] for g, us in self._best_us.items() if us < (1 - GAIN) * searched_us[g]
        }
        improved = tuple(sorted(gains, key=gains.__getitem__))
        return Filled(num_kernels, num_refused, num_cells, num_left, improved)

    # ---- rows

    def _rows(self) -> Iterator[tuple[str, Config]]:
        """Kernels worth a row of each layout, the most promising first: layouts take turns."""
        studies = [*self._studies.values(), *self._lending()]
        best_kernels = [(study.gemm.layout, self._best_kernels(study)) for study in studies]
        own = {x: [configs for layout, configs in best_kernels if layout == x] for x in LAYOUTS}
        layouts = [x for x in LAYOUTS if self._columns[x]]
        queues, num_foreign = [], self._policy.num_foreign
        for x in layouts:
            foreign = [configs[:num_foreign] for y in layouts if y != x for configs in own[y]]
            queue = in_order(x, own[x], foreign, self._limits, self._shipped.get(x, ()))
            rows = map(self._where.in_least_splits, queue)
            queues.append([(x, row) for row in rows if row is not None])
        yield from _interleave(queues)

    def _lending(self) -> Iterator[StudyRef]:
        """Studies of shapes that other GPUs of this model search in this run."""
        for one in islice(self._studies.values(), 1):
            for gemm in self._lenders:
                yield from self._store.sibling_studies(replace(one, id=0, gemm=gemm))

    def _best_kernels(self, study: StudyRef) -> list[Config]:
        num, but_of = self._policy.num_leaders, (FILL,)  # these are rows already
        best = self._store.best(study, num, self._target.max_error, but_of, self._where_on(study.gemm))
        times = [trial.measurement.time_us or math.inf for trial in best]
        return [
            Config.from_dict(t.point) for t, us in zip(best, times, strict=True) if us <= LEADING * times[0]
        ]

    def _verified(
        self, rows: deque[tuple[str, Config]], until_s: float
    ) -> Iterator[tuple[str, Config, Measurement]]:
        """Rows with the results of their verification, in order. Those without time for it are left out."""
        waiting: deque[tuple[str, Config, Future[Measurement]]] = deque()
        while self._target.now() < until_s and not self._should_stop():
            while len(waiting) < 3 * self._target.capacity and rows:  # most of them wait for the GPU
                row = rows.popleft()
                if (gemm := self._small_problem(*row)) is not None:  # verified; what takes time is not timed
                    waiting.append((*row, self._target.submit(gemm, row[1].to_dict(), 1e-3)))
            if not waiting:
                return
            layout, config, future = waiting.popleft()
            yield layout, config, future.result()
        for layout, config, future in reversed(waiting):
            future.cancel()
            rows.appendleft((layout, config))

    def _small_problem(self, layout: str, config: Config) -> Gemm | None:
        """None where there is none, or nothing to time."""
        is_open = any(self._open(layout, config, gemm) for gemm in self._columns[layout])
        return small_problem(layout, config, self._limits) if is_open else None

    def _open(self, layout: str, config: Config, gemm: Gemm) -> bool:
        """Whether the kernel serves the shape and has no time there yet, with its least number of splits."""
        if point_key(config.to_dict()) in self._tried[gemm]:
            return False
        is_busy = has_work(launch_spec(config, gemm, self._limits), gemm.k)
        is_met = self._where_on(gemm).holds(config.to_dict())
        return is_busy and is_met and not broken_rules(config, self._limits, gemm)

    def _where_on(self, gemm: Gemm) -> Where:
        return self._where.on(gemm, self._limits)

    # ---- cells

    def _begin(self, layout: str, config: Config, verified: Measurement) -> _Row:
        """Have a kernel timed on all shapes of its layout on which it was not."""
        wanted = [
            (gemm, replace(config, split_k=split_k))
            for gemm in self._columns[layout]
            for split_k in self._splits(config, gemm, verified.registers)
        ]
        wanted = [(g, c) for g, c in wanted if point_key(c.to_dict()) not in self._tried[g]]
        cells = [
            Cell(g, c.to_dict(), None if math.isinf(us) else us)
            for g, c in wanted
            for us in [min(self._best_us[g], self._cublas_us[g])]
        ]
        return _Row(verified, wanted, self._target.fill(cells))

    def _keep(self, row: _Row) -> int:
        """Store the times of a kernel; returns how many there are."""
        found: dict[Gemm, dict[str, tuple[Point, Measurement]]] = {}
        for (gemm, config), timed in zip(row.cells, row.times.result(), strict=True):
            if timed.samples_us:
                point, measured = config.to_dict(), self._measurement(timed, row.verified)
                found.setdefault(gemm, {})[point_key(point)] = point, measured
        for gemm, trials in found.items():
            self._store.add_trials(self._studies[gemm], trials, FILL)
            self._tried[gemm] |= trials.keys()
            whole = [m.time_us for _, m in trials.values() if m.time_us is not None and not m.is_cut_short]
            self._best_us[gemm] = min([self._best_us[gemm], *whole])
        return sum(map(len, found.values()))

    def _measurement(self, timed: CellTime, verified: Measurement) -> Measurement:
        return Measurement(
            Outcome.OK,
            time_us=median(timed.samples_us),
            samples_us=timed.samples_us,
            is_cut_short=timed.is_cut_short,
            **picked(verified, "registers spill_bytes smem_bytes code_hash"),
        )

    def _splits(self, config: Config, gemm: Gemm, registers: int | None) -> list[int]:
        """Numbers of splits to time: legal, and among those that a table would choose from."""
        resident = residency(config, self._limits, gemm, registers)
        spec = launch_spec(config, gemm, self._limits)
        splits = Splits(Launches.of([spec], [resident]), self._limits.num_sms)
        values = sorted({int(v) for v in splits.choices(Shapes.of(gemm)).ravel()})
        busy = [v for v in values if has_work(replace(spec, split_k=v), gemm.k)]
        where, configs = self._where_on(gemm), [replace(config, split_k=v) for v in busy]
        matching = [c for c in configs if where.holds(c.to_dict())]
        return [c.split_k for c in matching if not broken_rules(c, self._limits, gemm)]


def in_order(
    layout: str,
    own: Sequence[Sequence[Config]],
    others: Sequence[Sequence[Config]],
    limits: DeviceLimits,
    shipped: Iterable[Config] = (),
) -> Iterator[Config]:
    """Kernels to time on the shapes of a layout, each once, with any number of splits. Those that ship come
    first. Then come alternately one that leads on a shape of this layout, or a relative of it, and one of
    another layout. Four kernels of each shape serve new ones at 0.86 of the best there is, and at 0.83 if
    relatives wait for all leaders (decision 0041)."""
    general = [[r for c in configs for r in relatives(c, layout, limits)] for configs in own]
    both = [list(_interleave(pair)) for pair in zip(own, general, strict=True)]
    foreign = [[r for c in configs for r in relatives(c, layout, limits)] for configs in others]
    seen: set[Config] = set()
    for config in chain(shipped, _interleave([list(_interleave(both)), list(_interleave(foreign))])):
        row = config.in_any_splits
        if row.kernel not in seen:
            seen.add(row.kernel)
            yield row


def _interleave(queues: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each, then the second of each, and so on."""
    return (item for item in chain.from_iterable(zip_longest(*queues)) if item is not None)
