"""Which kernels a table is to hold: what won, its general twins, families of tiles, a default per layout."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..device import DeviceLimits
from ..errors import DispatchError
from ..gemm import LAYOUTS, Gemm
from ..kernel.config import Config
from ..kernel.launch import Variant
from ..kernel.rules import broken_rules
from .general import family_kernels, stand_in, twins
from .tuned import TunedResults

MAX_GENERAL = 8  # winners per layout that lend their tiles to shapes that were not tuned

# What a k-step is taken to cost more than that of the kernel whose figures stand in (unmeasured).
_OTHER_LAYOUT = 1.1
_DEFAULT = 1.5  # against the figures of thumb: vectors of 1, 64-bit leading dimensions


@dataclass(frozen=True)
class Wish:
    """A kernel that the table should have, and whose figures it takes if it was never timed itself."""

    config: Config
    layout: str
    is_wide: bool = False
    relative: Config | None = None
    relative_layout: str = ""
    handicap: float = 1.0
    is_required: bool = False

    @property
    def gemm(self) -> Gemm:
        """A stand-in of this layout, for rules and sizes that depend on the layout only."""
        return stand_in(self.layout)

    @property
    def variant(self) -> Variant:
        return Variant(self.layout[0] == "T", self.layout[1] == "T", self.is_wide)

    @property
    def id(self) -> str:
        """Short, readable, and the same in every export."""
        c = self.config
        digest = hashlib.sha256(f"{c.key}:{self.layout}:{self.is_wide}".encode()).hexdigest()
        split = f"-split{c.split_k}" if c.split_k > 1 else ""
        return f"{self.layout.lower()}-{c.bm}x{c.bn}x{c.bk}{split}-{digest[:8]}"


def all_wishes(results: TunedResults) -> list[Wish]:
    """Each kernel once, for results whose rankings are settled. Raises DispatchError where a GPU cannot run
    the default."""
    limits = results.limits
    wishes = [*_winners(results), *_general(results), *_families(limits), *defaults(limits)]
    unique = {wish.id: wish for wish in reversed(wishes)}  # of equal ones the first, which is required
    return list(unique.values())


def _winners(results: TunedResults) -> Iterator[Wish]:
    for shape in results.shapes:
        for point in shape.ranked:
            yield Wish(point.config, shape.gemm.layout, is_required=True)


def _general(results: TunedResults) -> Iterator[Wish]:
    """Twins of the most frequent winners that serve more shapes: edges predicated, vectors narrower,
    other splits of k. A layout without a tuned shape borrows the winners of all others."""
    by_layout = {layout: _most_frequent(results, (layout,)) for layout in LAYOUTS}
    everyone = _most_frequent(results, LAYOUTS)
    for layout, own in by_layout.items():
        for config, origin in own or everyone:
            for twin, handicap in twins(config, layout, results.limits):
                factor = handicap * (1 if origin == layout else _OTHER_LAYOUT)
                yield Wish(twin, layout, relative=config, relative_layout=origin, handicap=factor)


def _families(limits: DeviceLimits) -> Iterator[Wish]:
    """Kernels for every kind of shape, whatever was tuned."""
    for layout in LAYOUTS:
        for config, handicap in family_kernels(layout, limits):
            yield Wish(config, layout, handicap=handicap)


def _most_frequent(results: TunedResults, layouts: Sequence[str]) -> list[tuple[Config, str]]:
    """Winners of these layouts, those of most shapes first, each with the layout it won in."""
    won = Counter(
        (shape.ranked[0].config, shape.gemm.layout)
        for shape in results.shapes
        if shape.ranked and shape.gemm.layout in layouts
    )
    return [winner for winner, _ in won.most_common(MAX_GENERAL)]


def defaults(limits: DeviceLimits) -> list[Wish]:
    """A kernel per layout that serves any call: predicated, vectors of 1, 64-bit leading dimensions."""
    copy, stages = ("async", 3) if limits.has_async_copy else ("register", 2)
    config = Config(vec_a=1, vec_b=1, vec_c=1, copy_a=copy, copy_b=copy, stages=stages, min_blocks=1)
    for layout in LAYOUTS:
        broken = broken_rules(config, limits, stand_in(layout), kinds=("template", "device"))
        if broken:
            raise DispatchError(f"{limits.name} cannot run the default kernel: {broken[0].sentence}")
    return [Wish(config, x, is_wide=True, handicap=_DEFAULT, is_required=True) for x in LAYOUTS]
