"""A database as large as pages have to bear: 26 shapes and 20,000 trials.

Their times are those of recorded kernels, stretched to what other shapes might take; so they scatter and fail
as those of a search do. None of it was measured: it fills pages.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Discarded, GpuState, Measurement, Outcome
from autotune.kernel.config import Config
from autotune.recording import recording_file
from autotune.recording.recorded_space import Recording
from autotune.store import FinalEntry, Store, StudyRef
from autotune.store.models import TrialRow, utc_now
from autotune.suite import read_suite
from autotune.target import Baseline

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "studies/recorded/h200.json.gz"
ORIGINS = ("neighbour", "bandit", "carried", "reuse", "mixture", "polish", "random", "drawn")
NUM_FINALISTS, NUM_ROUNDS = 8, 24
TRIALS_PER_S = 45.0
CHUNK = 10  # trials of one shape and origin that are stored together


@dataclass(frozen=True)
class ShapeTrials:
    """What one shape's search comes to."""

    study: StudyRef
    trials: list[tuple[Config, Measurement]]
    cublas: Baseline


def write(path: Path, num_shapes: int = 26, num_trials: int = 20_000) -> None:
    """Fill a new database with so many shapes and trials, as one search of some minutes."""
    recording = recording_file.from_json(recording_file.load_json(RECORDED), RECORDED)
    gemms = list(read_suite(ROOT / "studies/suites/dev.toml"))[:num_shapes]
    rng = random.Random(0)
    with Store.open(path) as store:
        ends = [num_trials * i // num_shapes for i in range(num_shapes + 1)]
        shapes = [
            _shape(store, recording, gemm, number, ends[number + 1] - ends[number], rng)
            for number, gemm in enumerate(gemms)
        ]
        _store(store, shapes, rng)
        for shape in shapes:
            _final(store, shape, rng)
        _spread_over_time(store)


def _shape(
    store: Store, recording: Recording, gemm: Gemm, number: int, size: int, rng: random.Random
) -> ShapeTrials:
    environment = replace(recording.environment, recorded_on="")
    study = store.study(environment, "0" * 64, "nvrtc 13.0", gemm, CachePolicy.COLD)
    like, problem = list(recording.problems.items())[number % len(recording.problems)]
    scale = (gemm.flops / like.flops) ** 0.8
    tried = [row for row, m in enumerate(problem.measurements) if m.outcome is not Outcome.ILLEGAL]
    rows = rng.sample(tried, min(size, len(tried)))
    noise = {row: rng.gauss(0, 0.5) for row in rows}
    rows.sort(key=lambda row: noise[row] - math.log(problem.measurements[row].time_us or 1e3))  # it improves
    trials = []
    for row in rows:
        codes = zip(recording.names, recording.values, problem.codes[row], strict=True)
        config = Config.from_dict({name: values[code] for name, values, code in codes})
        trials.append((config, _scaled(problem.measurements[row], scale, rng)))
    cublas_us = (problem.baseline.time_us or 1.0) * scale
    return ShapeTrials(study, trials, Baseline(cublas_us, tuple(_samples(cublas_us, rng))))


def _scaled(m: Measurement, scale: float, rng: random.Random) -> Measurement:
    power_w = rng.uniform(350, 690)
    marks = ("sw_power_cap",) if power_w > 680 else ("drift",) if rng.random() < 0.004 else ()
    state = GpuState(int(1980 - power_w / 4), 2619, power_w, int(40 + power_w / 20), marks[:1])
    discarded = (Discarded((1.0,), ("drift",)),) if rng.random() < 0.01 else ()
    return replace(
        m,
        time_us=m.time_us and m.time_us * scale,
        samples_us=tuple(sample * scale for sample in m.samples_us),
        error_over_cublas=rng.uniform(0.6, 1.6) if m.is_ok else None,
        compile_s=rng.expovariate(2), verify_s=0.002, measure_s=rng.uniform(0.005, 0.02),
        state=state, marks=marks if m.is_ok else (), discarded=discarded,
    )  # fmt: skip


def _samples(time_us: float, rng: random.Random) -> Iterator[float]:
    return (time_us * rng.gauss(1, 0.002) for _ in range(NUM_ROUNDS))


def _store(store: Store, shapes: list[ShapeTrials], rng: random.Random) -> None:
    """A few trials of one shape after a few of another, as a search has them."""
    chunks = [
        (number, shape.study, chunk)
        for shape in shapes
        for number, chunk in enumerate(_in_chunks(shape.trials))
    ]
    for number, study, chunk in sorted(chunks, key=lambda chunk: (chunk[0], rng.random())):
        origin = rng.choice(ORIGINS) if number else "seed"
        store.add_trials(study, {config.key: (config.to_dict(), m) for config, m in chunk}, origin)


def _in_chunks(trials: list[tuple[Config, Measurement]]) -> list[list[tuple[Config, Measurement]]]:
    return [trials[at : at + CHUNK] for at in range(0, len(trials), CHUNK)]


def _final(store: Store, shape: ShapeTrials, rng: random.Random) -> None:
    ok = [(m.time_us, config) for config, m in shape.trials if m.time_us]
    ranked = sorted(ok, key=lambda pair: pair[0])[:NUM_FINALISTS]
    entries = []
    for rank, (time_us, config) in enumerate(ranked, 1):
        samples = tuple(_samples(time_us, rng))
        median_us = sorted(samples)[NUM_ROUNDS // 2]
        entries.append(
            FinalEntry(config.key, config.to_dict(), rank, rank < 4, median_us, samples, joules=0.01)
        )
    store.set_final(shape.study, entries, shape.cublas)


def _spread_over_time(store: Store) -> None:
    """Trials were stored in no time: now they are those of a search of some minutes."""
    rng = random.Random(1)
    with Session(store._database.engine) as session, session.begin():
        ids = list(session.scalars(select(TrialRow.id).order_by(TrialRow.id)))
        started = utc_now() - timedelta(seconds=len(ids) / TRIALS_PER_S)
        seconds = sorted(rng.uniform(0, len(ids) / TRIALS_PER_S) for _ in ids)
        moved = [
            {"id": trial, "created_at": started + timedelta(seconds=s)}
            for trial, s in zip(ids, seconds, strict=True)
        ]
        session.execute(update(TrialRow), moved)
