"""The reference kernels of the ladder on the host: every trap that the template is put to, and mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from covering_instances import Instance, instance
from emulator import Builder, EmulatedFault, LaunchProblem, run
from problems import problems
from product_check import WrongProduct, check

from autotune.kernel import rungs, template
from autotune.kernel.rungs import ReferenceKernel

REFERENCES = [step.kernel for step in rungs.STEPS if isinstance(step.kernel, ReferenceKernel)]
# Lends its block tile, which decides extents and grid, to the problems.
LENDER = {"bm": 32, "bn": 32, "bk": 32, "wm": 16, "wn": 32, "tm": 4, "tn": 4, "stages": 1, "bursts": 1}
MUTANTS = [
    ("sgemm_naive", "if (row >= m || column >= n) return;", "if (row > m || column >= n) return;"),
    ("sgemm_coalesced", "if (row >= m || column >= n) return;", "if (row >= m) return;"),
    ("sgemm_coalesced", "beta == 0 ? alpha * sum : ", ""),
    ("sgemm_naive", "alpha == 0 ? 0 : k", "k"),
    ("sgemm_shared", "barrier();  // RAW", "//"),
    ("sgemm_shared", "barrier();  // WAR", "//"),
    ("sgemm_shared", "row < m && tx < depth - from", "tx < depth - from"),
    ("sgemm_shared", "row < m && tx < depth - from", "row < m"),
    ("sgemm_shared", "ty < depth - from && column < n", "column < n"),
]


def _problems(reference: ReferenceKernel) -> list[LaunchProblem]:
    lender: Instance = instance("NN", **LENDER, vec_a=1, vec_b=1, vec_c=1, copy_a="register")
    spec = reference.spec
    assert (spec.bm, spec.bn) == (lender.config.bm, lender.config.bn)
    return [replace(p, threads=spec.threads, smem_bytes=spec.smem_bytes) for p in problems(lender)]


def _run(builder: Builder, source: Path, reference: ReferenceKernel) -> None:
    tasks = _problems(reference)
    executable = builder.submit(source, {"sgemm": reference.entry}).result()
    for task, result in zip(tasks, run(executable, tasks), strict=True):
        check(task, result)


@pytest.mark.parametrize("reference", REFERENCES, ids=[r.entry for r in REFERENCES])
def test_a_reference_kernel_is_right_on_every_case(builder: Builder, reference: ReferenceKernel) -> None:
    _run(builder, template.kernel_dir() / rungs.REFERENCE_FILE, reference)


@pytest.mark.every(3)
@pytest.mark.parametrize(("entry", "old", "new"), MUTANTS)
def test_a_fault_in_a_reference_kernel_shows(
    builder: Builder, tmp_path: Path, entry: str, old: str, new: str
) -> None:
    text = (template.kernel_dir() / rungs.REFERENCE_FILE).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "primitives.cuh").write_text((template.kernel_dir() / "primitives.cuh").read_text())
    mutant = tmp_path / rungs.REFERENCE_FILE
    mutant.write_text(text.replace(old, new), encoding="utf-8")
    (reference,) = (r for r in REFERENCES if r.entry == entry)
    with pytest.raises((EmulatedFault, WrongProduct)):
        _run(builder, mutant, reference)
