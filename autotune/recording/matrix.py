"""A matrix of kernels and shapes: the time of each kernel on each shape that it may serve, and cuBLAS's.

Rows are kernels (config and layout; splits, raster and group are arguments), columns are shapes. A file is
gzip-compressed JSON, one object:

    format, version      "autotune-matrix", 1
    environment, limits, source_hash, policy, policy_version, measured_on (a day; older files lack it)
    parameters           names of a config's values, in the order of `rows`
    rows                 [layout, origin, registers, spill_bytes, [value, ...]] of each kernel
    columns              [shape, cublas_us] of each shape; cublas_us is null where cuBLAS is absent
    cells                [row, column, split_k, time_us, is_cut_short]: the latter if it is clearly too slow

Equal matrices give equal bytes.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import Gemm
from ..files import strict
from ..kernel.config import Config

FORMAT, VERSION = "autotune-matrix", 1


@dataclass(frozen=True)
class MatrixRow:
    """A kernel of one layout: its config without what is an argument, but for raster and group."""

    layout: str
    config: Config


@dataclass(frozen=True)
class RowFacts:
    """What ptxas said of a kernel, and the column whose search found it or a relative; "": a family's."""

    origin: str
    registers: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)  # a hundred thousand of them are held
class CellRecord:
    """What a row took on a column in so many splits of k."""

    time_us: float
    is_cut_short: bool = False


Cells = dict[tuple[Gemm, int], CellRecord]


@dataclass
class TimeMatrix:
    """Cells by row, column and number of splits. `facts` says what they were measured on, and how."""

    limits: DeviceLimits
    environment: Environment
    facts: dict[str, Any]
    cublas_us: dict[Gemm, float | None] = field(default_factory=dict)
    known: dict[MatrixRow, RowFacts] = field(default_factory=dict)
    cells: dict[tuple[MatrixRow, Gemm, int], CellRecord] = field(default_factory=dict)

    @property
    def rows(self) -> list[MatrixRow]:
        return list(self.known)

    @property
    def columns(self) -> list[Gemm]:
        return list(self.cublas_us)

    def by_row(self) -> dict[MatrixRow, Cells]:
        """The cells of each row by column and number of splits."""
        found: dict[MatrixRow, Cells] = {row: {} for row in self.known}
        for (row, gemm, split_k), cell in self.cells.items():
            found[row][gemm, split_k] = cell
        return found

    def best_us(self) -> dict[Gemm, float]:
        """The least time of any row on each column that has one."""
        best: dict[Gemm, float] = {}
        for (_, gemm, _), cell in self.cells.items():
            if not cell.is_cut_short:
                best[gemm] = min(best.get(gemm, cell.time_us), cell.time_us)
        return best


def read(path: Path) -> TimeMatrix:
    """The matrix in a file that benchmarks/write_matrix.py wrote."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    strict.check_version(data["version"], VERSION)
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        raise ValueError(f"{path} holds {data['format']} {data['version']}, not {FORMAT} {VERSION}")
    identity = {name: data[name] for name in ("source_hash", "policy", "policy_version")}
    limits, environment = DeviceLimits.from_dict(data["limits"]), Environment.from_dict(data["environment"])
    identity |= {name: data[name] for name in ("measured_on",) if name in data}
    matrix = TimeMatrix(limits, environment, identity)
    matrix.cublas_us = {Gemm.parse(shape): time_us for shape, time_us in data["columns"]}
    for layout, *facts, values in data["rows"]:
        config = Config.from_dict(dict(zip(data["parameters"], values, strict=True)))
        matrix.known[MatrixRow(layout, config)] = RowFacts(*facts)
    rows, columns = matrix.rows, matrix.columns
    for row, column, split_k, time_us, is_cut_short in data["cells"]:
        matrix.cells[rows[row], columns[column], split_k] = CellRecord(time_us, bool(is_cut_short))
    return matrix
