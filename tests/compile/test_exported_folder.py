"""A folder exported with the real compiler: cubins are code for the GPU, and the folder imports alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from exports import EXPORTS

from autotune import target_finder as targets
from autotune.export.exporter import export_table
from autotune.export.tuned import TunedPoint, TunedResults, TunedShape
from autotune.facts.device import Environment, known_limits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import load

PLAIN = Config(copy_a="register", copy_b="register", stages=2, min_blocks=1)
WINNERS = (
    (Gemm(512, 512, 512), Config.from_dict({**PLAIN.to_dict(), "edges": "exact"})),
    (
        Gemm(128, 128, 4096, True),
        Config.from_dict({**PLAIN.to_dict(), "reduction": "two_pass", "split_k": 8}),
    ),
)


pytestmark = EXPORTS
MAX_KERNELS = 8  # as in tests/cli/test_table.py, so that they are compiled once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    limits = known_limits("h200")
    environment = Environment(limits.name, "GPU-0", limits.compute_capability, "580", "13.0", "13.4", "")
    shapes = tuple(TunedShape(gemm, (TunedPoint(config, 9.0, True),)) for gemm, config in WINNERS)
    results = TunedResults(environment, limits, template.source_hash(), "cold", 1, shapes)
    out = tmp_path_factory.mktemp("h200") / "exported"
    with closing(Compiler(limits.arch)) as compiler:
        yield export_table(results, out, compiler, matrices=targets.matrices(), max_kernels=MAX_KERNELS)


def test_cubins_hold_the_kernels_that_launches_name(folder: Path) -> None:
    table = load(folder)
    codes = load_cubins(folder, table)
    assert {k.layout for k in table.kernels} == set(LAYOUTS)
    for record in table.kernels:
        code = codes[record.sha256]
        assert code.startswith(b"\x7fELF")
        assert b"\0sgemm\0" in code
        assert record.spec.reduction != "two_pass" or b"\0sgemm_reduce\0" in code
        assert 16 <= record.registers <= 255
    split = next(k for k in table.kernels if k.id == table.entries[1].ranked[0].kernel)
    assert (split.spec.reduction, split.spec.split_k) == ("two_pass", 8)


def test_hardly_a_general_kernel_is_lost_to_spills(folder: Path) -> None:
    table = load(folder)
    num_general = len(table.kernels) - len(table.entries) - len(table.defaults)
    assert num_general >= 0.9 * MAX_KERNELS


def test_the_folder_imports_without_autotune(folder: Path) -> None:
    code = "import exported; print(exported.pick(513, 511, 77, True).how)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(folder.parent)!r})\n{code}"],
        env={"PATH": ""}, cwd=folder.parent, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "modelled\n"), done.stderr
