"""A search for shapes that nobody named: they are drawn and searched, and the kernels found are timed on all
of them.

    what ships ─► fill ─► search ─► fill ─► finals of named shapes, again

All on one clock; `SearchPolicy` divides the seconds. From the times an export chooses kernels for any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .export.portfolio import portfolio
from .facts.device import DeviceLimits
from .facts.distribution import SHIPPED_SEEDS, drawn_batches, drawn_suite
from .facts.fitted import MAX_KERNELS
from .facts.gemm import LAYOUTS, Gemm
from .kernel.config import Config
from .kernel.relatives import fitted, summed_in_blocks
from .search import InterruptHandler, Options, SearchResult, StopReason
from .search.fill import Filled, Filler, OnFill
from .shipped.starting_points import StartingPoints
from .store import Store
from .target import CellTarget

Search = Callable[[Sequence[Gemm], Options], SearchResult]


def drawn_for(num: int, seed: int, limits: DeviceLimits) -> tuple[Gemm, ...]:
    """This many shapes for this GPU, other than those of the shipped matrices."""
    return drawn_suite(num, SHIPPED_SEEDS + seed, limits.fma_tflops, limits.bandwidth_gbs)


def batches_for(num: int, seed: int, limits: DeviceLimits) -> tuple[Gemm, ...]:
    """This many strided batches for this GPU."""
    return drawn_batches(num, SHIPPED_SEEDS + seed, limits.fma_tflops, limits.bandwidth_gbs)


@dataclass(frozen=True)
class DrawnSearch:
    """One run. `search` searches shapes; `options` are those of the whole run; `starts` has the shipped
    kernels; `on_fill` receives the numbers of kernels and times as they are stored. All stages heed
    `interrupt_handler`, which the caller entered."""

    target: CellTarget
    store: Store
    options: Options
    starts: StartingPoints
    search: Search
    on_fill: OnFill
    interrupt_handler: InterruptHandler
    lenders: Sequence[Gemm] = ()  # shapes of this run that other processes search

    def run(self, named: Sequence[Gemm], drawn: Sequence[Gemm]) -> tuple[SearchResult, Filled]:
        """Search shapes that were named, and others, which have no final. Raises what `search` and `fill`
        do."""
        until_s = self._until_s(1.0)
        options, gemms = self.options, tuple(dict.fromkeys((*named, *drawn)))
        filled = self._fill(gemms, self._until_s(options.policy.probe_share), self._shipped())
        seconds = None if options.seconds is None else options.policy.search_share * options.seconds
        without_final = options.without_final | (frozenset(drawn) - frozenset(named))
        found = self.search(gemms, replace(options, seconds=seconds, without_final=without_final))
        if found.reason is StopReason.INTERRUPTED:
            return found, filled
        started = [shape.gemm for shape in found.shapes]
        share = options.policy.fill_share if named else 1.0
        filled = filled.then(self._fill(started, min(until_s, self._until_s(share))))
        found = self._with_new_finals(found, [g for g in filled.improved if g in set(named)], until_s)
        if self.interrupt_handler.is_requested:
            found = replace(found, reason=StopReason.INTERRUPTED, signal=self.interrupt_handler.number)
        return found, filled

    @property
    def _limits(self) -> DeviceLimits:
        return self.target.limits

    def _until_s(self, share: float) -> float:
        """The time on the target's clock at which this share of the seconds, from now on, is over."""
        seconds = self.options.seconds
        return math.inf if seconds is None else self.target.now() + share * seconds

    def _shipped(self) -> dict[str, list[Config]]:
        """Kernels that serve most shapes by the shipped matrices, by layout, followed by the same with sums
        as short as a deep k may need."""
        limits, most = self._limits, MAX_KERNELS // len(LAYOUTS)
        found = {x: portfolio(x, self.starts.kernels(x), limits, most) for x in LAYOUTS}
        return {x: [*kernels, *_in_blocks(kernels, x, limits)] for x, kernels in found.items()}

    def _fill(
        self, gemms: Sequence[Gemm], until_s: float, shipped: dict[str, list[Config]] | None = None
    ) -> Filled:
        columns = [gemm for gemm in gemms if not gemm.is_batched]
        how = (shipped or {}, self.options.policy, self.options.where, self.interrupt_handler.should_stop)
        return Filler(self.target, self.store, columns, self.on_fill, *how, self.lenders).run(until_s)

    def _with_new_finals(self, found: SearchResult, due: Sequence[Gemm], until_s: float) -> SearchResult:
        """The same with new finals of these shapes, whose best kernels were found on others: as many as there
        is time for."""
        left_s = until_s - self.target.now()
        if not due or left_s <= 0 or self.interrupt_handler.is_requested:
            return found
        seconds = None if math.isinf(left_s) else left_s
        rerun = self.search(due, replace(self.options, trials=1, seconds=seconds))  # they have had theirs
        newer = {shape.gemm: shape for shape in rerun.shapes}
        return replace(found, shapes=tuple(newer.get(shape.gemm, shape) for shape in found.shapes))


def _in_blocks(kernels: Iterable[Config], layout: str, limits: DeviceLimits) -> Iterator[Config]:
    for kernel in kernels:
        in_blocks = summed_in_blocks(kernel)
        if in_blocks is not None and (legal := fitted(in_blocks, layout, limits)) is not None:
            yield legal
