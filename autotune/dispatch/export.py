"""From the results of searches to an exported table: winners, tied sets, and kernels for what was not tuned.

    tuned shapes ─► one of the tied each ─► + their general twins ─► cubins ─► model ─► folder
    families of tiles ─► general kernels ─► + a default per layout ───┘

Takes plain data: `from_store.py` reads it from a database.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from .. import __version__, kernel
from ..config import Config
from ..device import DeviceLimits, Environment
from ..errors import DispatchError, TrialFailure
from ..gemm import LAYOUTS, Gemm
from ..launch import Variant, refusal
from ..resources import blocks_per_sm, launch_spec
from ..rules import broken_rules
from . import cover
from .fit import Sample, fit, guess, inherit
from .general import family_kernels, stand_in, twins
from .kriging import Kriging
from .model import has_work
from .package import write_folder
from .table import Entry, Kernel, ModelFigures, RankedKernel, Table

MAX_GENERAL = 8  # winners per layout that lend their tiles to shapes that were not tuned
MAX_TIED = 4  # kernels kept per shape: the one chosen, and tied ones that the table holds anyway

# What a k-step is taken to cost more than that of the kernel whose figures stand in (unmeasured).
_OTHER_LAYOUT = 1.1
_FAR = 0.25  # deviation of an inferred time: nothing like it was timed on that shape, and thumb says as much
_DEFAULT = 1.5  # against the figures of thumb: vectors of 1, 64-bit leading dimensions


@dataclass(frozen=True)
class TunedPoint:
    """One ranked config of a tuned shape. `is_tied`: it cannot be told apart from the best."""

    config: Config
    time_us: float
    is_tied: bool
    joules: float | None = None  # of one launch, where it was measured


@dataclass(frozen=True)
class TunedShape:
    """What a search found for one shape: `ranked` best first; `times` of all ok trials, for the model."""

    gemm: Gemm
    ranked: tuple[TunedPoint, ...]
    times: tuple[tuple[Config, float], ...] = ()
    cublas_us: float | None = None


@dataclass(frozen=True)
class TunedResults:
    """All results for one kind of GPU and one kernel source."""

    environment: Environment
    limits: DeviceLimits
    source_hash: str
    policy: str
    policy_version: int
    shapes: tuple[TunedShape, ...]


class CubinLike(Protocol):
    """What an export needs of a compiled kernel."""

    @property
    def code(self) -> bytes: ...
    @property
    def sha256(self) -> str: ...
    @property
    def registers(self) -> int: ...
    @property
    def spill_bytes(self) -> int: ...


class KernelCompiler(Protocol):
    """What an export needs of `compiler.Compiler`."""

    @property
    def arch(self) -> str: ...
    @property
    def version(self) -> str: ...
    def submit(self, config: Config, variant: Variant, /) -> Future[Any]: ...  # of a CubinLike


@dataclass(frozen=True)
class _Wish:
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


def export_table(
    results: TunedResults, folder: Path, compiler: KernelCompiler, *, created_at: datetime | None = None
) -> Path:
    """Write the importable folder for these results; returns it. A table that is there is replaced.

    Raises DispatchError if there is nothing to export, if the results are of another kernel source or
    GPU architecture than is compiled here, or if the folder holds something else than a table.
    """
    _check(results, compiler)
    limits = results.limits
    settled = settle(results)
    wishes = [*_winners(settled), *_general(settled), *_families(limits), *_defaults(limits)]
    unique = {wish.id: wish for wish in reversed(wishes)}  # of equal ones the first, which is required
    cubins = _compile(list(unique.values()), compiler)
    models = _Models(results, unique.values())
    kernels = [models.kernel(wish, cubins[name]) for name, wish in unique.items() if name in cubins]
    table = Table(
        made_by=f"autotune {__version__}",
        created_at=(created_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        source_hash=results.source_hash,
        compiler=compiler.version,
        policy=results.policy,
        policy_version=results.policy_version,
        environment=results.environment,
        limits=results.limits,
        kernels=tuple(sorted(kernels, key=lambda k: k.id)),
        defaults={wish.layout: wish.id for wish in _defaults(results.limits)},
        entries=tuple(map(_entry, settled.shapes)),
    )
    return write_folder(table, {cubin.sha256: cubin.code for cubin in cubins.values()}, folder)


def _check(results: TunedResults, compiler: KernelCompiler) -> None:
    if not any(shape.ranked for shape in results.shapes):
        raise DispatchError("no tuned shape to export; run `autotune search` first")
    if results.source_hash != kernel.source_hash():
        raise DispatchError(
            f"the results are of kernel source {results.source_hash[:12]}..., this is "
            f"{kernel.source_hash()[:12]}...; search again with this kernel, or export with the older one"
        )
    if compiler.arch != results.limits.arch:
        raise DispatchError(
            f"the results are for {results.limits.arch}, the compiler is for {compiler.arch}; pass one for it"
        )


def settle(results: TunedResults) -> TunedResults:
    """The same with each shape's ranking cut down to what a table takes: the kernel chosen among the tied
    (`cover.choose`), and behind it those that are tied with it and in the table for other shapes."""
    tied = {s.gemm: {_name(s.gemm, p): p for p in _tied(s)} for s in results.shapes}
    options = {
        gemm: [cover.Option(name, p.time_us, p.joules) for name, p in points.items()]
        for gemm, points in tied.items()
    }
    chosen = {gemm: option.kernel for gemm, option in cover.choose(options).items()}
    taken = set(chosen.values())

    def cut(shape: TunedShape) -> TunedShape:
        points = tied[shape.gemm]
        names = sorted((n for n in points if n in taken), key=lambda n: n != chosen[shape.gemm])
        return replace(shape, ranked=tuple(points[name] for name in names[:MAX_TIED]))

    return replace(results, shapes=tuple(map(cut, results.shapes)))


def _tied(shape: TunedShape) -> tuple[TunedPoint, ...]:
    """The winner and its tied rivals, best first."""
    return (*shape.ranked[:1], *(point for point in shape.ranked[1:] if point.is_tied))


def _name(gemm: Gemm, point: TunedPoint) -> cover.Kernel:
    """Equal for points that one kernel of a table serves."""
    return gemm.layout, point.config.key


def _entry(shape: TunedShape) -> Entry:
    layout = shape.gemm.layout
    ranked = tuple(RankedKernel(_Wish(p.config, layout).id, p.time_us, p.is_tied) for p in shape.ranked)
    return Entry(shape.gemm, shape.cublas_us, ranked)


# ------------------------------------------------------------------------------------------------
# Which kernels


def _winners(results: TunedResults) -> Iterator[_Wish]:
    for shape in results.shapes:
        for point in shape.ranked:
            yield _Wish(point.config, shape.gemm.layout, is_required=True)


def _general(results: TunedResults) -> Iterator[_Wish]:
    """Twins of the most frequent winners that serve more shapes: edges predicated, vectors narrower,
    other splits of k. A layout without a tuned shape borrows the winners of all others."""
    by_layout = {layout: _most_frequent(results, (layout,)) for layout in LAYOUTS}
    everyone = _most_frequent(results, LAYOUTS)
    for layout, own in by_layout.items():
        for config, origin in own or everyone:
            for twin, handicap in twins(config, layout, results.limits):
                factor = handicap * (1 if origin == layout else _OTHER_LAYOUT)
                yield _Wish(twin, layout, relative=config, relative_layout=origin, handicap=factor)


def _families(limits: DeviceLimits) -> Iterator[_Wish]:
    """Kernels for every kind of shape, whatever was tuned."""
    for layout in LAYOUTS:
        for config, handicap in family_kernels(layout, limits):
            yield _Wish(config, layout, handicap=handicap)


def _most_frequent(results: TunedResults, layouts: Sequence[str]) -> list[tuple[Config, str]]:
    """Winners of these layouts, those of most shapes first, each with the layout it won in."""
    won = Counter(
        (shape.ranked[0].config, shape.gemm.layout)
        for shape in results.shapes
        if shape.ranked and shape.gemm.layout in layouts
    )
    return [winner for winner, _ in won.most_common(MAX_GENERAL)]


def _defaults(limits: DeviceLimits) -> list[_Wish]:
    """A kernel per layout that serves any call: predicated, vectors of 1, 64-bit leading dimensions."""
    copy, stages = ("async", 3) if limits.has_async_copy else ("register", 2)
    config = Config(vec_a=1, vec_b=1, vec_c=1, copy_a=copy, copy_b=copy, stages=stages, min_blocks=1)
    for layout in LAYOUTS:
        broken = broken_rules(config, limits, stand_in(layout), kinds=("template", "device"))
        if broken:
            raise DispatchError(f"{limits.name} cannot run the default kernel: {broken[0].sentence}")
    return [_Wish(config, x, is_wide=True, handicap=_DEFAULT, is_required=True) for x in LAYOUTS]


# ------------------------------------------------------------------------------------------------
# What they are made of


def _compile(wishes: Sequence[_Wish], compiler: KernelCompiler) -> dict[str, CubinLike]:
    """Cubins by the id of the wish. A kernel that is not required and fails or spills is left out."""
    pending: dict[tuple[Config, Variant], Future[CubinLike]] = {}
    for wish in wishes:
        key = (wish.config.kernel, wish.variant)
        if key not in pending:
            pending[key] = compiler.submit(*key)
    cubins: dict[str, CubinLike] = {}
    for wish in wishes:
        try:
            cubin = pending[wish.config.kernel, wish.variant].result()
        except TrialFailure as failure:
            if wish.is_required:
                raise DispatchError(
                    f"kernel {wish.id} ({wish.config.key}) fails to compile: {failure}"
                ) from failure
            continue
        if wish.is_required or cubin.spill_bytes == 0:
            cubins[wish.id] = cubin
    return cubins


class _Models:
    """Fits the time model of each kernel to its times on all tuned shapes, or finds a relative's.

    On most it was never timed, but relatives were, and kriging.py tells what that makes it likely to take.
    """

    def __init__(self, results: TunedResults, wishes: Collection[_Wish]) -> None:
        self._limits = results.limits
        self._samples: dict[tuple[Config, str], list[Sample]] = {}
        for layout in LAYOUTS:
            configs = {w.config: None for w in wishes if w.layout == layout and not w.is_wide}
            configs |= {w.relative: None for w in wishes if w.relative and w.relative_layout == layout}
            for shape in results.shapes:
                if shape.gemm.layout == layout:
                    self._add(shape, list(configs))

    def _add(self, shape: TunedShape, configs: Sequence[Config]) -> None:
        """Times of these configs on a shape: measured in this split of k or another, or inferred."""
        times = _all_times(shape)
        if not times:
            return
        measured: dict[Config, list[Config]] = {}
        for config in times:
            measured.setdefault(config.kernel, []).append(config)
        inferred = Kriging(shape.gemm, times, self._limits).times(configs)
        for config, (time_us, deviation) in zip(configs, inferred, strict=True):
            samples = self._samples.setdefault((config, shape.gemm.layout), [])
            samples += [self._sample(c, shape.gemm, times[c]) for c in measured.get(config.kernel, ())]
            if config not in times and deviation < _FAR and self._serves(config, shape.gemm):
                samples.append(self._sample(config, shape.gemm, time_us, deviation))

    def _sample(self, config: Config, gemm: Gemm, time_us: float, deviation: float = 0.0) -> Sample:
        return Sample(launch_spec(config, gemm, self._limits), gemm, time_us, deviation)

    def _serves(self, config: Config, gemm: Gemm) -> bool:
        spec = launch_spec(config, gemm, self._limits)
        lds = (gemm.lda, gemm.ldb, gemm.ldc)
        return refusal(spec, gemm.m, gemm.n, gemm.k, lds) is None and has_work(spec, gemm.k)

    def kernel(self, wish: _Wish, cubin: CubinLike) -> Kernel:
        resident = max(1, int(blocks_per_sm(wish.config, self._limits, wish.gemm, cubin.registers)))
        return Kernel(
            id=wish.id,
            config=wish.config.to_dict(),
            spec=launch_spec(wish.config, wish.gemm, self._limits, is_wide=wish.is_wide),
            sha256=cubin.sha256,
            registers=cubin.registers,
            blocks_per_sm=resident,
            model=self._figures(wish, resident),
        )

    def _figures(self, wish: _Wish, resident: int) -> ModelFigures:
        own = None if wish.is_wide else self._samples.get((wish.config, wish.layout))
        if own:
            return fit(own, resident, self._limits)
        relative = wish.relative and self._samples.get((wish.relative, wish.relative_layout))
        if relative:
            return inherit(fit(relative, resident, self._limits), wish.handicap)
        return inherit(guess(launch_spec(wish.config, wish.gemm, self._limits), self._limits), wish.handicap)


def _all_times(shape: TunedShape) -> Mapping[Config, float]:
    """Every ok time of a shape; where a config was ranked, that later and closer look counts."""
    return dict(shape.times) | {point.config: point.time_us for point in shape.ranked}
