"""Errors beside cuBLAS's on the GPU: blocked summation lowers them, a limit on them is held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Outcome
from autotune.gpu import GpuTarget
from autotune.kernel.config import Config
from autotune.kernel.rules import broken_rules

pytestmark = pytest.mark.gpu

LONG = Gemm(512, 512, 8192)
PLAIN = Config(bm=64, bn=64, bk=8, wm=32, wn=32, tm=8, tn=4, unroll_k=8, copy_a="register", copy_b="register",
               vec_a=4, stages=2, bursts=1, min_blocks=1)  # fmt: skip


def _measured(target, config):
    assert broken_rules(config, target.limits, LONG) == ()
    return target.submit(LONG, config.to_dict(), None).result(120)


def test_blocks_lower_the_error():
    """One chain of 8192 terms against blocks of 512: about four times the error."""
    with GpuTarget("auto") as target:
        chain, blocks = (_measured(target, replace(PLAIN, flush_k=flush_k)) for flush_k in (0, 512))
        assert (chain.outcome, blocks.outcome) == (Outcome.OK, Outcome.OK), (chain.reason, blocks.reason)
        if target.environment.cublas_version:
            assert 2.5 < chain.error_over_cublas / blocks.error_over_cublas < 6
        else:
            assert chain.error_over_cublas is None


def test_beyond_the_limit_nothing_is_timed():
    with GpuTarget("auto", max_error=0.01) as target:
        if not target.environment.cublas_version:
            pytest.skip("no cuBLAS here: nothing to hold errors against")
        result = _measured(target, PLAIN)
    assert (result.outcome, result.samples_us, result.time_us) == (Outcome.INACCURATE, (), None)
    assert result.error_over_cublas > 0.01
    assert "times cuBLAS's; the limit is 0.01 times" in result.reason
