"""The ladder on a GPU: every rung is right there, and the climb is told and drawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.gpu import GpuTarget, instance
from autotune.gpu.protocol import Problem
from autotune.kernel import rungs, template
from autotune.kernel.rungs import ReferenceKernel

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCES = [step.kernel for step in rungs.STEPS if isinstance(step.kernel, ReferenceKernel)]
SHAPES = ["1", "32x32x32", "33x31x1", "130x70x65", "1x4096x300", "515x1x33", "64x96x0", "1025x770x514"]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def target():
    with GpuTarget("auto") as target:
        yield target


@pytest.mark.parametrize("reference", REFERENCES, ids=[r.entry for r in REFERENCES])
@pytest.mark.parametrize("shape", SHAPES)
def test_reference_kernels_are_right_on_every_shape(target, reference, shape):
    code = target.builder.build_source(template.source(rungs.REFERENCE_FILE), reference.entry, reference.spec)
    result = target.worker.check(target.problem(Gemm.parse(shape)), code)
    assert result.outcome is Outcome.OK, result.reason


@pytest.mark.parametrize("shape", ["512", "1000x516x264", "129x257x65"])
def test_every_step_that_is_legal_passes_verification(target, shape):
    gemm = Gemm.parse(shape)
    configs = [s.kernel for s in rungs.steps(gemm) if not isinstance(s.kernel, ReferenceKernel)]
    legal = [config for config in configs if not instance.rejection(config, target.limits, gemm)]
    codes = [target.builder.build(gemm, config) for config in legal]
    assert len(legal) >= 2
    result = target.worker.race(Problem(gemm, CachePolicy.COLD), codes, 3)
    assert [len(samples) for samples in result.samples_us] == [3] * len(codes)


def test_the_climb_is_told(tmp_path):
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    command = ("ladder", "--gpu", "0", "--shape", "1024", "--rounds", "5", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    facts = json.loads(done.stdout)
    rows = {row["name"]: row for row in facts["steps"]}
    assert set(rows) >= {step.name for step in rungs.STEPS}
    assert all(len(row["samples_us"]) == 5 for row in rows.values() if not row["reason"])
    assert all(row["time_us"] > 0.9 * facts["limit_us"] for row in rows.values() if row["time_us"])
