"""Cells of many kernels and problems, timed without being verified, on the GPU."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.kernel.config import Config
from autotune.target import Cell

pytestmark = pytest.mark.gpu

CONFIG = Config(copy_a="register", copy_b="register", stages=2, min_blocks=1, vec_a=1, vec_b=1, vec_c=1)
SPLIT = replace(CONFIG, reduction="two_pass", split_k=4)
GEMMS = tuple(map(Gemm.parse, ("1x77x300", "512", "1025x770x514:TN", "300x200x5000:NT", "64x64x256b9")))


@pytest.mark.alone  # a launch of 30 us took 2.7 times as long beside nineteen processes that took turns
def test_cells_take_about_what_trials_take():
    """Twice as long would be another kernel, or other memory."""
    with GpuTarget("auto") as target:
        cells = [Cell(gemm, config.to_dict()) for gemm in GEMMS for config in (CONFIG, SPLIT)]
        cells += [Cell(gemm, None) for gemm in GEMMS]
        times = target.fill(cells).result()
        for cell, timed in zip(cells, times, strict=True):
            assert len(timed.samples_us) > 1 and not timed.is_cut_short, (cell, timed)
            if cell.point is not None:
                trial = target.submit(cell.gemm, cell.point, None).result()
                assert trial.outcome is Outcome.OK, trial.reason
                assert 0.5 < median(timed.samples_us) / trial.time_us < 2, (cell, timed, trial)


def test_what_is_clearly_too_slow_is_launched_once():
    with GpuTarget("auto") as target:
        [timed] = target.fill([Cell(Gemm(2048, 2048, 2048), CONFIG.to_dict(), 10.0)]).result()
        assert timed.is_cut_short and len(timed.samples_us) == 1
