"""The model's counts of accesses, sectors, wavefronts and conflicts against Nsight Compute: five kernels, 2
%.

The kernels are in counted_launch.py; what each metric means, and how it should compare, in
benchmarks/counts_vs_ncu.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.files.errors import EnvironmentProblem

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))
import counted_launch
import counts_vs_ncu

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def ncu() -> Path:
    """Where it is, once it has measured something here: counters may be closed to users. What fails without
    ncu, too, is no reason to skip."""
    try:
        found = counts_vs_ncu.find_ncu()
        counts_vs_ncu.measure(found, 0)
        return found
    except EnvironmentProblem as reason:
        alone = subprocess.run(
            [sys.executable, counts_vs_ncu.DRIVER, "0"], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": str(counts_vs_ncu.REPOSITORY)},
        )  # fmt: skip
        assert alone.returncode == 0, alone.stderr
        pytest.skip(f"{reason}; counters need root or NVreg_RestrictProfilingToAdminUsers=0")


@pytest.mark.parametrize(
    "number", range(len(counted_launch.KERNELS)), ids=lambda n: counted_launch.KERNELS[n][1].name
)
def test_the_model_counts_what_ncu_measures(ncu: Path, number: int) -> None:
    name, counts, wide = counted_launch.counted(number)
    found = counts_vs_ncu.compare(name, counts, wide, counts_vs_ncu.measure(ncu, number))
    assert len(found) >= 8
    wrong = [c for c in found if not c.holds]
    assert not wrong, counts_vs_ncu.table(found)
