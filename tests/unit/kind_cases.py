"""Folders with tables for two GPU models, and a driver with GPUs of both and of a third."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from table_cases import ENVIRONMENT, FakeDriver, code_of, make_kernel, make_spec, make_table, rank

from autotune.export.package import write_folder
from autotune.facts.gemm import Gemm
from autotune.runtime.table.table import Table

TUNED = Gemm(128, 128, 64)
H200, H100, OTHER = 0, 1, 2  # GPUs of `driver_of_kinds`


def table_for(gpu_name: str, kernel: str) -> Table:
    """Of one kernel and the defaults, whose cubins all such tables share."""
    made = make_table(make_kernel(kernel, make_spec(group=8)), entries=(rank(TUNED, kernel),))
    return replace(made, environment=replace(ENVIRONMENT, gpu_name=gpu_name))


FIRST, SECOND = table_for("NVIDIA H200", "of-h200"), table_for("NVIDIA H100", "of-h100")


def add(table: Table, folder: Path, *, with_c: bool = False) -> list[str]:
    """Add a table to a folder; what was told."""
    notes: list[str] = []
    code = {kernel.sha256: code_of(kernel) for kernel in table.kernels}
    write_folder(table, code, folder, notes.append, adds=True, with_c=with_c)
    return notes


def driver_of_kinds(*tables: Table) -> FakeDriver:
    known = replace(FIRST, kernels=tuple(kernel for table in tables for kernel in table.kernels))
    return FakeDriver(known, names=("NVIDIA H200", "NVIDIA H100", "NVIDIA T4"))
