"""A small recorded space: what commands search, time and export where there is no GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.kernel import template
from autotune.kernel.config import Config
from autotune.kernel.rules import broken_rules
from autotune.recording.recorded_space import Trials
from autotune.recording.recording_file import write_recording
from autotune.target import Baseline

RECORDED_ON = "2026-11-21"
ENVIRONMENT = Environment("NVIDIA H200", "GPU-0", (9, 0), "580.1", "13.0", "13.4", "13.1", RECORDED_ON)
SQUARE, FLAT = Gemm(512, 512, 512), Gemm(16, 512, 4096)
CUBLAS_US = 13.0


def points(gemm: Gemm) -> list[Config]:
    """48 configs that are legal for a problem, in a fixed order."""
    orders = ("row", "row_snake", "col_snake", "zigzag", "pair_snake")
    choices = product((8, 16), (2, 3, 4), orders, (1, 2))
    configs = [
        replace(Config(), bk=bk, unroll_k=bk, stages=stages, order=order, frag_buffers=buffers, min_blocks=2)
        for bk, stages, order, buffers in choices
    ]
    assert not any(broken_rules(config, KNOWN["h200"], gemm) for config in configs)
    return configs[:48]


def measured(number: int) -> Measurement:
    """Made-up times with one clear best, 12.5 us, and every seventh config a failure."""
    if number % 7 == 3:
        return Measurement(Outcome.SPILLED, "96 bytes spilled to local memory", compile_s=0.5)
    time_us = 12.5 + 0.25 * ((number - 20) ** 2 % 47)
    samples = tuple(round(time_us * (1 + 0.001 * (i % 3)), 4) for i in range(12))
    return Measurement(
        Outcome.OK, time_us=samples[1], samples_us=samples, compile_s=0.5, verify_s=0.01, measure_s=0.02
    )


def trials_of(configs: Iterable[Config]) -> Trials:
    """What came of each, as `measured` makes it up."""
    return [(config.to_dict(), measured(number)) for number, config in enumerate(configs)]


def write(
    path: Path,
    problems: Mapping[Gemm, Trials],
    *,
    without_cublas: Collection[Gemm] = (),
    source_hash: str | None = None,
) -> Path:
    """A recording of these trials on an H200, of this kernel or another one; returns its path."""
    cublas = Baseline(CUBLAS_US, (CUBLAS_US,) * 9)
    write_recording(
        path,
        limits=KNOWN["h200"],
        environment=replace(ENVIRONMENT, recorded_on=""),
        policy=CachePolicy.COLD,
        source_hash=source_hash or template.source_hash(),
        recorded_on=RECORDED_ON,
        problems={
            gemm: (Baseline(None) if gemm in without_cublas else cublas, trials)
            for gemm, trials in problems.items()
        },
    )
    return path


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two problems over the same 48 configs."""
    path = tmp_path_factory.mktemp("recording") / "h200.json.gz"
    return write(path, {gemm: trials_of(points(gemm)) for gemm in (SQUARE, FLAT)})
