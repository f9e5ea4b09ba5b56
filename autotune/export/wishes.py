"""The kernels of a table: winners, a portfolio for untuned shapes, a default per layout; and their code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any

from ..facts.device import DeviceLimits
from ..facts.gemm import LAYOUTS, Gemm, type_of
from ..files.errors import DispatchError, TrialFailure
from ..kernel.compiler import Compiler, Cubin
from ..kernel.config import Config
from ..kernel.launch import BIAS, PLAIN, Epilogue, Variant
from ..kernel.relatives import example
from ..kernel.rules import broken_rules
from ..kernel.scaled_config import AnyConfig
from ..kernel.summation_order import CHAIN, SummationOrder
from ..kernel.tensor_config import BF16X6, TF32X3, TensorConfig
from .package import packed
from .tuned import TunedResults

# Layouts in which programs add a bias: torch stores the weights of a layer transposed, others do not
OF_LAYERS = ("NN", "NT")
_TENSOR_TILES = (TensorConfig(group=16), TensorConfig(bn=64, loaders=1, stages=4, ahead=4))
_TENSOR_SUMS = ((TF32X3, 0), (TF32X3, 1024), (BF16X6, 1024), (BF16X6, 256))  # scheme, flush_k


@dataclass(frozen=True)
class Wish:
    """A kernel that the table should have."""

    config: Any  # of one of the templates (kernel/templates.py)
    layout: str
    is_wide: bool = False
    is_required: bool = False
    is_batched: bool = False
    epilogue: Epilogue = PLAIN

    @property
    def gemm(self) -> Gemm:
        """A stand-in of this layout, for rules and sizes that depend on the layout only."""
        return example(self.layout)

    @property
    def variant(self) -> Variant:
        transposed = self.layout[0] == "T", self.layout[1] == "T"
        of = type_of(self.layout)
        return Variant(*transposed, self.is_wide, self.is_batched, self.epilogue, of)

    @property
    def id(self) -> str:
        """Short, readable, and the same in every export."""
        c = self.config
        batched = ":batched" if self.is_batched else ""
        digest = hashlib.sha256(f"{c.key}:{self.layout}:{self.is_wide}{batched}".encode()).hexdigest()
        tile = f"{c.bm}x{c.bn}x{c.bk}"
        if not isinstance(c, Config):
            tile = f"tensor-{tile}"
        elif c.split_k > 1:
            tile += f"-split{c.split_k}"
        layout = self.layout.lower().replace(":", "-")
        plain = f"{layout}-{tile}{'-batched' if self.is_batched else ''}-{digest[:8]}"
        return plain if self.epilogue == PLAIN else f"{plain}-{self.epilogue}"


Chosen = Mapping[str, Sequence[Config]]  # by layout
OnCompiled = Callable[[int, int], None]  # kernels that are done, and all


def all_wishes(
    results: TunedResults, portfolio: Chosen, for_batches: Chosen, order: SummationOrder | None
) -> list[Wish]:
    """Each kernel once, winners first, for results whose rankings are settled. Raises DispatchError where a
    GPU cannot run the default."""
    winners = list(winners_of(results))
    # these serve other shapes, too
    required = {(wish.layout, wish.config.in_any_splits) for wish in winners if not wish.is_batched}
    more = [
        Wish(config, layout)
        for layout, configs in portfolio.items()
        for config in configs
        if (layout, config) not in required
    ]
    batched = [Wish(one, x, is_batched=True) for x, configs in for_batches.items() for one in configs]
    wishes = [*winners, *more, *defaults(results.limits, order), *batched]
    unique = {wish.id: wish for wish in reversed(wishes)}  # of equal ones the first, which is required
    return list(reversed(unique.values()))


def winners_of(results: TunedResults) -> Iterator[Wish]:
    """Of shapes whose rankings are settled."""
    for shape in results.shapes:
        for point in shape.ranked:
            is_batched = shape.gemm.is_batched
            yield Wish(point.config, shape.gemm.layout, is_required=True, is_batched=is_batched)


def defaults(limits: DeviceLimits, order: SummationOrder | None) -> list[Wish]:
    """A kernel per layout that serves any call: predicated, vectors of 1, 64-bit leading dimensions. It sums
    in this order, or else in a chain."""
    copy, stages = ("async", 3) if limits.has_async_copy else ("register", 2)
    config = Config(vec_a=1, vec_b=1, vec_c=1, copy_a=copy, copy_b=copy, stages=stages, min_blocks=1)
    config = replace(config, flush_k=(order or CHAIN).chunk)
    for layout in LAYOUTS:
        broken = broken_rules(config, limits, example(layout), kinds=("template", "device"))
        if broken:
            raise DispatchError(f"{limits.name} cannot run the default kernel: {broken[0].sentence}")
    return [Wish(config, x, is_wide=True, is_required=True) for x in LAYOUTS]


def on_tensor_cores() -> list[Wish]:
    """Kernels on tensor cores for shapes that nobody tuned: of each layout and tile those that were fast
    (decision 0093), from the way of summing that takes the least time to the one that errs least, in any
    splits of k or in none; and those that pack operands without aligned rows."""
    return [
        Wish(config, layout)
        for layout in LAYOUTS
        for tile, (scheme, flush_k) in product(_TENSOR_TILES, _TENSOR_SUMS)
        for plain in (replace(tile, scheme=scheme, flush_k=flush_k),)
        for config in (
            plain,
            replace(plain, reduction="two_pass", split_k=2),
            replace(plain, pack_a=1, pack_b=1, vec_c=1),
        )
    ]


def with_epilogues(
    wishes: Sequence[Wish], epilogues: Sequence[Epilogue], called: Mapping[Gemm, Iterable[Epilogue]]
) -> list[Wish]:
    """Each kernel again with each epilogue; those that layers of programs call with a bias; and those of
    the layouts in which a program calls for epilogues, with these: single products may serve a batch, too.
    All are required: a table has an epilogue for every kernel of these that it may pick. Kernels that read an
    A of two-byte elements have none: for a call with one it is converted."""
    wishes = [wish for wish in wishes if wish.layout in LAYOUTS]
    requested = dict.fromkeys(replace(wish, epilogue=one) for one in epilogues for wish in wishes)
    for gemm, some in called.items():
        may_serve = [w for w in wishes if w.layout == gemm.layout and w.is_batched <= gemm.is_batched]
        requested |= dict.fromkeys(replace(wish, epilogue=one) for one in some for wish in may_serve)
    linear = (wish for wish in wishes if wish.layout in OF_LAYERS and not wish.is_batched)
    requested |= dict.fromkeys(replace(wish, epilogue=BIAS) for wish in linear)
    return [replace(wish, is_required=True) for wish in requested]


class Compiling:
    """Kernels that are compiled in other processes, those first that were asked for first."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._pending: dict[tuple[AnyConfig, Variant], Future[Cubin]] = {}

    def begin(self, wishes: Iterable[Wish]) -> None:
        """Does not wait."""
        for wish in wishes:
            key = (wish.config.kernel, wish.variant)
            if key not in self._pending:
                self._pending[key] = self._compiler.submit(*key)

    def wait(self, wishes: Sequence[Wish], on_compiled: OnCompiled) -> dict[str, Cubin]:
        """Cubins by the id of the wish. A kernel that is not required and fails or spills is left out."""
        self.begin(wishes)
        cubins: dict[str, Cubin] = {}
        for number, wish in enumerate(wishes):
            on_compiled(number, len(wishes))
            try:
                cubin = self._pending[wish.config.kernel, wish.variant].result()
            except TrialFailure as failure:
                if wish.is_required:
                    raise DispatchError(
                        f"kernel {wish.id} ({wish.config.key}) fails to compile: {failure}"
                    ) from failure
                continue
            if wish.is_required or cubin.spill_bytes == 0:
                cubins[wish.id] = cubin
        on_compiled(len(wishes), len(wishes))
        return cubins


def within(wishes: Sequence[Wish], cubins: Mapping[str, Cubin], max_bytes: float) -> list[Wish]:
    """The wishes whose cubins exist. Packed, those that are not required take at most this many bytes: first
    comes the first of each layout, then the second of each, until one would exceed the limit. A cubin that
    an earlier kernel needs anyway does not count."""
    there = [wish for wish in wishes if wish.id in cubins]
    kept = {cubins[wish.id].sha256 for wish in there if wish.is_required}
    layouts = [[w for w in there if w.layout == x and not w.is_required] for x in LAYOUTS]
    num_bytes = 0
    for wish in (wish for turn in zip_longest(*layouts) for wish in turn if wish):
        cubin = cubins[wish.id]
        num_bytes += 0 if cubin.sha256 in kept else len(packed(cubin.code))
        if num_bytes > max_bytes:
            break
        kept.add(cubin.sha256)
    return [wish for wish in there if cubins[wish.id].sha256 in kept]
