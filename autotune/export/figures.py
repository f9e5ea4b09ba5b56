"""The model figures of each kernel of a table, from all known times of it; and what is known of cuBLAS: from
times of this GPU, or shipped times of one of its kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..facts.accuracy_class import CLASSES, STRICT
from ..facts.device import DeviceLimits
from ..facts.fitted import number, numbers
from ..facts.frozen import picked
from ..facts.gemm import LAYOUTS, TYPED_LAYOUTS, Gemm
from ..kernel.compiler import Cubin
from ..kernel.config import Config
from ..kernel.launch import PLAIN
from ..kernel.resources import launch_spec, residency
from ..kernel.templates import accuracy_of, searched_for, source_hash, tflops
from ..kernel.tensor_config import BF16X6, BK, BM, TensorConfig
from ..perf_model import cublas_model
from ..perf_model.fit import Sample, fit, fma_step_us, guess, learn
from ..perf_model.model_figures import Floats, ModelFigures
from ..recording.matrix import TimeMatrix
from ..runtime.table.table import CublasFigures, Kernel, KernelRecord, launchable
from .tuned import TunedResults
from .wishes import Wish

_DEFAULT = number("_DEFAULT")  # times the rule-of-thumb figures: the assumed cost of a step of a default
LEAST_TIMED = 6  # shapes from which the model was seen to predict others within a tenth
_FEW = number("_FEW")  # deviation of times of a kernel that was timed on one shape; half as much on two
# Of kernels on tensor cores: of a step, of each time more that sums leave them within it, of a flush of a
# tile of 128 x 128
_TENSOR_STEP_US, _TENSOR_PROMOTE_US, _TENSOR_FLUSH_US = numbers(
    "TENSOR_STEP_US TENSOR_PROMOTE_US TENSOR_FLUSH_US"
)
_TENSOR_FIXED_US, _TENSOR_ERROR = numbers("TENSOR_FIXED_US TENSOR_ERROR")
_TENSOR_BF16_US = number("TENSOR_BF16_US")  # more of a step whose floats are three parts
# The sums of splits are written and read while no tensor core computes
_TENSOR_SPLIT_EFFICIENCY = number("TENSOR_SPLIT_EFFICIENCY")

Samples = Mapping[str, Mapping[Config, Sequence[Sample]]]  # of each layout, by `Config.in_any_splits`
Places = dict[str, tuple[tuple[int, int, int], ...]]
Levels = dict[str, str]  # `Table.levels`


def kernels(
    results: TunedResults, wishes: Sequence[Wish], cubins: Mapping[str, Cubin], samples: Samples
) -> tuple[list[Kernel], Places, Levels]:
    """The kernels of a table (those wishes that have a cubin), and the shapes that they were timed on and the
    levels of these, by layout. Among kernels that differ only in their number of splits, one has a model;
    those for batches have none."""
    found: list[Kernel] = []
    places: Places = {}
    levels: Levels = {}
    for layout in LAYOUTS:
        there = [wish for wish in wishes if wish.layout == layout and wish.id in cubins]
        records = {wish.id: _record(wish, cubins[wish.id], results) for wish in there}
        timed = {w.config.in_any_splits: w for w in reversed(there) if not (w.is_wide or w.is_batched)}
        timed = {config: wish for config, wish in timed.items() if samples[layout].get(config)}
        if timed:
            known = [samples[layout][config] for config in timed]
            resident = [records[wish.id].blocks_per_sm for wish in timed.values()]
            figures, missed, places[layout] = learn(known, resident, results.limits)
            levels[layout] = weights_text(missed.level.weights)
            for wish, one, own, weights in zip(timed.values(), figures, known, missed.weights, strict=True):
                model = replace(one, relative_error=error_of(one, own))
                records[wish.id] = replace(records[wish.id], model=model, missed=weights_text(weights))
        found += [launchable(record, results.limits, results.source_hash) for record in records.values()]
    return found, places, levels


def on_tensor_cores(
    results: TunedResults, wishes: Sequence[Wish], cubins: Mapping[str, Cubin], source_hash: str
) -> list[Kernel]:
    """Kernels on tensor cores. One that was timed on LEAST_TIMED shapes of its layout or more has a model of
    its own; another one the figures that such kernels have; one for batches has none."""
    limits = results.limits
    rate = tflops(accuracy_of(results.source_hash), limits)
    fast = replace(limits, fma_tflops=rate)  # whose steps are shorter than FMAs allow
    known = {shape.gemm: shape.all_times for shape in results.shapes if not shape.gemm.is_batched}
    found: list[Kernel] = []
    for layout in TYPED_LAYOUTS:
        there = [wish for wish in wishes if wish.layout == layout]
        records = {
            wish.id: replace(_record(wish, cubins[wish.id], results), model=_guessed(wish, fast))
            for wish in there
        }
        times: dict[str, list[Sample]] = {}
        for wish in there:
            spec = launch_spec(wish.config, wish.gemm, limits)
            own = [
                Sample(spec, gemm, times_us[wish.config])
                for gemm, times_us in known.items()
                if gemm.layout == layout and wish.config in times_us
            ]
            if len(own) >= LEAST_TIMED and not wish.is_batched:
                times[wish.id] = own
        if times:
            fitted = fit(list(times.values()), [records[name].blocks_per_sm for name in times], fast)
            for (name, own), one in zip(times.items(), fitted, strict=True):
                model = replace(one, relative_error=error_of(one, own))
                records[name] = replace(records[name], model=model)
        found += [launchable(record, limits, source_hash) for record in records.values()]
    return found


def _guessed(wish: Wish, fast: DeviceLimits) -> ModelFigures | None:
    """Of a kernel on tensor cores that nobody timed: a step of k takes what a third of TF32's rate allows, a
    time whatever the tile is, and what leaving the tensor cores, and then the registers, takes. Nothing is
    known of kernels without warpgroups."""
    if wish.is_batched or not isinstance(wish.config, TensorConfig):
        return None
    config, spec = wish.config, launch_spec(wish.config, wish.gemm, fast)
    flushes = BK / config.flush_k * config.bn / BM if config.flush_k else 0.0
    step_us = fma_step_us(spec, fast) + _TENSOR_STEP_US + _TENSOR_FLUSH_US * flushes
    step_us += _TENSOR_PROMOTE_US * (BK / config.promote_k - 1) + _TENSOR_BF16_US * (config.scheme == BF16X6)
    found = replace(guess(spec, fast), fixed_us=_TENSOR_FIXED_US, round_us=0.0, step_us=step_us)
    efficiency = found.memory_efficiency if config.reduction == "none" else _TENSOR_SPLIT_EFFICIENCY
    return replace(found, memory_efficiency=efficiency, relative_error=_TENSOR_ERROR)


def with_epilogues(
    results: TunedResults, wishes: Sequence[Wish], cubins: Mapping[str, Cubin]
) -> list[Kernel]:
    """Kernels with an epilogue: they have no model, as nothing is picked among them."""
    of = {one: source_hash(searched_for(one, results.limits)) for one in CLASSES}
    of[STRICT] = results.source_hash
    records = [_record(wish, cubins[wish.id], results) for wish in wishes]
    return [launchable(record, results.limits, of[record.accuracy]) for record in records]


def weights_text(weights: Floats) -> str:
    """`KernelRecord.missed` of these weights."""
    return weights.astype("<f4").tobytes().hex()


def error_of(figures: ModelFigures, samples: Sequence[Sample]) -> float:
    """The relative error of one modelled time: its errors on the samples, and the uncertainty of so few."""
    return float(np.hypot(figures.relative_error, _FEW / len({sample.gemm for sample in samples})))


def _record(wish: Wish, cubin: Cubin, results: TunedResults) -> KernelRecord:
    limits = results.limits
    record = KernelRecord(
        **picked(wish, "id config variant"),
        **picked(cubin, "sha256 registers"),
        code_bytes=len(cubin.code),
        packed_bytes=None,  # known when it is written
        blocks_per_sm=residency(wish.config, limits, wish.gemm, cubin.registers),
        model=None,
        missed="",
    )
    if not wish.is_wide or wish.epilogue != PLAIN:
        return record
    default_speeds = guess(launch_spec(wish.config, wish.gemm, limits), limits)
    return replace(record, model=replace(default_speeds, step_us=_DEFAULT * default_speeds.step_us))


LEAST_TIMES = 100  # of cuBLAS on a layout, to learn from
MOST_TIMES = 1400  # each n-th of more: learning takes memory by the square of their number


class CublasTimes(NamedTuple):
    """Times on one layout, in us, and their version of cuBLAS."""

    version: str
    times_us: dict[Gemm, float]


def times_of_cublas(results: TunedResults, matrices: Sequence[TimeMatrix]) -> dict[str, CublasTimes]:
    """By layout, if enough shapes were timed: here, or else on a GPU of this model, under the same policy."""
    own = dict(results.cublas_us) | {s.gemm: s.cublas_us for s in results.shapes if s.cublas_us}
    sources: list[tuple[str, Mapping[Gemm, float]]] = [(results.environment.cublas_version, own)]
    for matrix in matrices:
        if matrix.limits.name == results.limits.name and matrix.facts["policy"] == results.policy:
            shipped = {gemm: time_us for gemm, time_us in matrix.cublas_us.items() if time_us is not None}
            sources.append((matrix.environment.cublas_version, shipped))
    return _by_layout(sources)


def times_as_it_adds(results: TunedResults) -> dict[str, CublasTimes]:
    """The same of cuBLAS as torch has it add a bias: no shipped times are of that."""
    return _by_layout([(results.environment.cublas_version, results.adding_us)])


def times_of_batches(results: TunedResults) -> dict[str, CublasTimes]:
    """The same of strided batches, whose products share nothing."""
    tuned = {s.gemm: s.cublas_us for s in results.shapes if s.cublas_us}
    own = {g: us for g, us in (tuned | dict(results.batched_us)).items() if not (g.shares_a or g.shares_b)}
    return _by_layout([(results.environment.cublas_version, own)], is_batched=True)


def _by_layout(
    sources: Iterable[tuple[str, Mapping[Gemm, float]]], *, is_batched: bool = False
) -> dict[str, CublasTimes]:
    """Of the first source that has enough of a layout."""
    found: dict[str, CublasTimes] = {}
    for layout in LAYOUTS:
        for version, times_us in sources:
            known = {
                gemm: time_us
                for gemm, time_us in times_us.items()
                if gemm.layout == layout and gemm.is_batched == is_batched
            }
            if layout not in found and len(known) >= LEAST_TIMES:
                spread = islice(known, 0, None, -(-len(known) // MOST_TIMES))
                found[layout] = CublasTimes(version, {gemm: known[gemm] for gemm in spread})
    return found


def known_of_cublas(times: Mapping[str, CublasTimes], limits: DeviceLimits) -> dict[str, CublasFigures]:
    """The part of these times that a table stores."""
    return {
        layout: figures_of(version, times_us, cublas_model.learn(times_us, limits))
        for layout, (version, times_us) in times.items()
    }


def figures_of(version: str, gemms: Iterable[Gemm], model: cublas_model.CublasModel) -> CublasFigures:
    """A model learned from times on these shapes."""
    extents = [(g.m, g.n, g.k, g.batch) if g.is_batched else (g.m, g.n, g.k) for g in gemms]
    places = np.array(extents, "<u4").tobytes().hex()
    weights = weights_text(model.missed.weights)
    return CublasFigures(version, places, weights, model.level, model.deviation, model.tile_apart)
