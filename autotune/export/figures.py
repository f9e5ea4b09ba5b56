"""What each kernel of a table is taken to cost, from all times that searches have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..gemm import LAYOUTS, Gemm
from ..kernel.config import Config
from ..kernel.launch import refusal
from ..kernel.resources import blocks_per_sm, launch_spec
from ..models.fit import Sample, fit, guess, inherit
from ..models.time_model import ModelFigures
from ..runtime.table import Kernel, KernelRecord, launchable
from .cubins import CubinLike
from .kriging import Kriging
from .tuned import TunedResults, TunedShape
from .wishes import Wish

_FAR = 0.25  # deviation of an inferred time: nothing like it was timed on that shape, and thumb says as much


def _but_for_splits(config: Config) -> Config:
    """Equal for configs whose times one fit of the model explains: it knows splits, not how blocks walk."""
    return replace(config.kernel, raster=config.raster, group=config.group)


class Figures:
    """Fits the time model of each kernel to its times on all tuned shapes, or finds a relative's.

    On most it was never timed, but relatives were, and kriging.py tells what that makes it likely to take.
    """

    def __init__(self, results: TunedResults, wishes: Collection[Wish]) -> None:
        self._limits, self._source_hash = results.limits, results.source_hash
        self._samples: dict[tuple[Config, str], list[Sample]] = {}
        for layout in LAYOUTS:
            configs = {w.config: None for w in wishes if w.layout == layout and not w.is_wide}
            configs |= {w.relative: None for w in wishes if w.relative and w.relative_layout == layout}
            for shape in results.shapes:
                if shape.gemm.layout == layout:
                    self._add(shape, list(configs))

    def _add(self, shape: TunedShape, configs: Sequence[Config]) -> None:
        """Times of these configs on a shape: measured in this split of k or another, or inferred."""
        times = shape.all_times
        if not times:
            return
        measured: dict[Config, list[Config]] = {}
        for config in times:
            measured.setdefault(_but_for_splits(config), []).append(config)
        inferred = Kriging(shape.gemm, times, self._limits).times(configs)
        for config, (time_us, deviation) in zip(configs, inferred, strict=True):
            samples = self._samples.setdefault((config, shape.gemm.layout), [])
            timed = measured.get(_but_for_splits(config), ())
            samples += [self._sample(c, shape.gemm, times[c]) for c in timed]
            if config not in times and deviation < _FAR and self._serves(config, shape.gemm):
                samples.append(self._sample(config, shape.gemm, time_us, deviation))

    def _sample(self, config: Config, gemm: Gemm, time_us: float, deviation: float = 0.0) -> Sample:
        return Sample(launch_spec(config, gemm, self._limits), gemm, time_us, deviation)

    def _serves(self, config: Config, gemm: Gemm) -> bool:
        spec = launch_spec(config, gemm, self._limits)
        lds = (gemm.lda, gemm.ldb, gemm.ldc)
        has_work = spec.split_k * spec.bk <= max(gemm.k, spec.bk)
        return has_work and refusal(spec, gemm.m, gemm.n, gemm.k, lds) is None

    def kernel(self, wish: Wish, cubin: CubinLike) -> Kernel:
        resident = max(1, int(blocks_per_sm(wish.config, self._limits, wish.gemm, cubin.registers)))
        record = KernelRecord(
            id=wish.id,
            config=wish.config,
            variant=wish.variant,
            sha256=cubin.sha256,
            registers=cubin.registers,
            blocks_per_sm=resident,
            model=self._figures(wish, resident),
        )
        return launchable(record, self._limits, self._source_hash)

    def _figures(self, wish: Wish, resident: int) -> ModelFigures:
        own = None if wish.is_wide else self._samples.get((wish.config, wish.layout))
        if own:
            return fit(own, resident, self._limits)
        relative = wish.relative and self._samples.get((wish.relative, wish.relative_layout))
        if relative:
            return inherit(fit(relative, resident, self._limits), wish.handicap)
        return inherit(guess(launch_spec(wish.config, wish.gemm, self._limits), self._limits), wish.handicap)
