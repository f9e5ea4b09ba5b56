"""Writes the times of a database as a matrix of kernels and shapes: what ships with autotune.

    autotune search --gpu 0 --any 80 --seconds 600 --db any.db
    python benchmarks/write_matrix.py --db any.db --out studies/matrices/h200

One file for each layout, of the GPU that was measured last. Rows are kernels that were timed on enough
shapes to serve others (export/portfolio.py); the origin of a row is the shape whose search found it. Columns
without cells are shapes that cuBLAS alone was timed on. Batches are left out.
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

import reports

from autotune import targets
from autotune.cli import common, console
from autotune.device import DeviceLimits
from autotune.errors import UsageError
from autotune.export.portfolio import LEAST_SHAPES
from autotune.gemm import LAYOUTS, Gemm
from autotune.kernel.config import Config
from autotune.measurement import LATENT_US, CachePolicy
from autotune.recording import matrix
from autotune.recording.matrix import CellRecord, MatrixRow, RowFacts, TimeMatrix
from autotune.search.propose import origins
from autotune.store import Store, TrialRecord


def read(store: Store, limits: DeviceLimits, policy: CachePolicy = CachePolicy.COLD) -> TimeMatrix:
    """The matrix in a database. Raises UsageError where there is none."""
    environments = store.environments()
    if not environments:
        raise UsageError("the database holds no kernel that ran; run `autotune search --any` first")
    studies = [study for study in store.latest_studies(environments[0], policy) if not study.gemm.is_batched]
    if not studies:
        raise UsageError(f"the database holds no product timed with {policy} operands; search first")
    identity = {
        "source_hash": studies[-1].source_hash,
        "policy": studies[-1].policy.value,
        "policy_version": studies[-1].policy_version,
    }
    found = TimeMatrix(limits, studies[-1].environment, identity)
    found.cublas_us.update(store.cublas_times(studies[-1].environment, policy))
    first: dict[MatrixRow, int] = {}
    facts: dict[MatrixRow, RowFacts] = {}
    timed: dict[MatrixRow, set[Gemm]] = {}
    for study in studies:
        baseline = store.baseline(study)
        found.cublas_us[study.gemm] = baseline.time_us if baseline else None
        for trial in chain.from_iterable(map(store.trials, store.with_twins(study))):
            row = _row(study.gemm, trial)
            measured = trial.measurement
            if row is None or measured.time_us is None:
                continue
            if measured.is_cut_short and measured.time_us < LATENT_US:
                continue
            is_found = trial.origin not in origins.FOUND_ELSEWHERE
            if (is_found and trial.id < first.get(row, trial.id + 1)) or row not in facts:
                first[row] = trial.id
                facts[row] = _facts(study.gemm, trial)
            timed.setdefault(row, set()).add(study.gemm)
            split_k = Config.from_dict(trial.point).split_k
            cell = CellRecord(measured.time_us, measured.is_cut_short)
            found.cells[row, study.gemm, split_k] = cell
    found.known = {row: facts[row] for row, gemms in timed.items() if len(gemms) >= LEAST_SHAPES}
    found.cells = {key: cell for key, cell in found.cells.items() if key[0] in found.known}
    return found


def _row(gemm: Gemm, trial: TrialRecord) -> MatrixRow | None:
    """The kernel of a trial that ran; None for one that failed."""
    if not trial.measurement.is_ok:
        return None
    return MatrixRow(gemm.layout, Config.from_dict(trial.point).in_any_splits)


def _facts(gemm: Gemm, trial: TrialRecord) -> RowFacts:
    measured = trial.measurement
    return RowFacts(str(gemm), measured.registers or 0, measured.spill_bytes or 0)


def _run(args: argparse.Namespace) -> None:
    limits = targets.limits_here(args.gpu, note=console.note)
    with common.open_existing(args.db) as store:
        found = read(store, limits)
    if not found.known:
        raise UsageError(f"no kernel was timed on {LEAST_SHAPES} shapes; run `autotune search --any` first")
    for layout in LAYOUTS:
        part = found.of_layout(layout)
        path = args.out.with_name(f"{args.out.name}-{layout.lower()}.json.gz")
        num_bytes = matrix.write(path, part)
        console.show(
            f"{path}: {len(part.known):,} rows, {len(part.columns):,} columns, {len(part.cells):,} cells, "
            f"{num_bytes / 1e6:.2f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", required=True)
    parser.add_argument("--out", type=Path, required=True, help="what the names of its files begin with")
    parser.add_argument("--gpu", default="auto", help="whose limits the matrix is of: one that is here")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
