"""Writes the times of a database as a matrix of kernels and shapes: what ships with autotune.

    autotune search --gpu 0 --any 80 --seconds 600 --db any.db
    python benchmarks/write_matrix.py --db any.db --out studies/matrices/h200
    python benchmarks/write_matrix.py --onto studies/matrices --db more.db --db again.db --out ...

One file for each layout, of the GPU that was measured last. Rows are kernels that were timed on enough
shapes to serve others (export/portfolio.py); the origin of a row is the shape whose search found it. Columns
without cells are shapes that cuBLAS alone was timed on: those of the first source that has any, as one has
enough. Batches are left out. Of each layout --most rows are kept: those that an
export would choose first.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import astuple, replace
from itertools import chain
from pathlib import Path

import reports

from autotune import target_finder as targets
from autotune.cli import common, console
from autotune.export.portfolio import LEAST_SHAPES, TimedCandidates, candidates, choose, regrets
from autotune.facts.device import DeviceLimits, limits_by_name
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.facts.measurement import LATENT_US, CachePolicy
from autotune.files.errors import UsageError
from autotune.files.output_file import write_file
from autotune.kernel.config import Config
from autotune.recording import matrix
from autotune.recording.matrix import CellRecord, MatrixRow, RowFacts, TimeMatrix
from autotune.search.propose import origins
from autotune.store import Store, TrialRecord

DIGITS = 4  # of a time, significant: a sample is no sharper
MOST_ROWS = 256  # four times what a table takes of a layout: on another GPU others come first


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
        "measured_on": max(store.studies(), key=lambda one: one.updated_at).updated_at.date().isoformat(),
    }
    found = TimeMatrix(limits, studies[-1].environment, identity)
    found.cublas_us.update(store.cublas_times(studies[-1].environment, policy))
    first: dict[MatrixRow, int] = {}
    facts: dict[MatrixRow, RowFacts] = {}
    timed: dict[MatrixRow, set[Gemm]] = {}
    for study in studies:
        baseline = store.baseline(study)
        found.cublas_us[study.gemm] = baseline.time_us if baseline else None
        for trial in chain.from_iterable(map(store.trials, (*store.sibling_studies(study), study))):
            row = _row(study.gemm, trial)
            measured = trial.measurement
            if row is None or measured.time_us is None:
                continue
            if measured.is_cut_short and measured.time_us < LATENT_US:
                continue
            is_found = trial.origin not in origins.TRANSFERRED
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


def of_layout(found: TimeMatrix, layout: str) -> TimeMatrix:
    """Its rows and columns of one layout."""
    return replace(
        found,
        cublas_us={gemm: us for gemm, us in found.cublas_us.items() if gemm.layout == layout},
        known={row: facts for row, facts in found.known.items() if row.layout == layout},
        cells={key: cell for key, cell in found.cells.items() if key[0].layout == layout},
    )


def onto(known: TimeMatrix, more: TimeMatrix) -> None:
    """Add what another search found on a GPU of the kind; what is known already stays. Raises UsageError for
    times of another kernel, policy or GPU."""
    if (known.facts, known.limits) != (more.facts, more.limits):
        raise UsageError(
            f"a matrix of {more.facts} and {more.limits.name} cannot be put onto one of {known.facts}"
        )
    timed = {gemm for _, gemm, _ in more.cells}
    has_others = known.columns != list(dict.fromkeys(gemm for _, gemm, _ in known.cells))
    for gemm, cublas_us in more.cublas_us.items():
        if gemm in timed or not has_others:
            known.cublas_us.setdefault(gemm, cublas_us)
    known.known |= {row: facts for row, facts in more.known.items() if row not in known.known}
    known.cells |= {key: cell for key, cell in more.cells.items() if key not in known.cells}


def keep_best(found: TimeMatrix, most: int) -> TimeMatrix:
    """A matrix of one layout with at most so many of its rows, those that an export would choose first."""
    if len(found.known) <= most:
        return found
    (layout,) = {row.layout for row in found.known}
    kernels = candidates(layout, (), [found], found.limits)
    chosen = choose(*regrets(TimedCandidates.of(layout, kernels, found.limits), {}), most, least_gain=0.0)
    configs = {kernels[at].config for at in chosen}
    known = {row: facts for row, facts in found.known.items() if row.config in configs}
    cells = {key: cell for key, cell in found.cells.items() if key[0] in known}
    return replace(found, known=known, cells=cells)


def write(path: Path, found: TimeMatrix) -> int:
    """Write the file; returns its size in bytes."""
    rows, columns = found.rows, found.columns
    row_at, column_at = ({key: i for i, key in enumerate(keys)} for keys in (rows, columns))
    names = list(Config().to_dict())
    data = {
        "format": matrix.FORMAT,
        "version": matrix.VERSION,
        "environment": found.environment.to_dict(),
        "limits": found.limits.to_dict(),
        **found.facts,
        "parameters": names,
        "rows": [
            [row.layout, *astuple(found.known[row]), [row.config.to_dict()[name] for name in names]]
            for row in rows
        ],
        "columns": [[str(gemm), _short(found.cublas_us[gemm])] for gemm in columns],
        "cells": sorted(
            [row_at[row], column_at[gemm], split_k, _short(cell.time_us), int(cell.is_cut_short)]
            for (row, gemm, split_k), cell in found.cells.items()
        ),
    }
    content = gzip.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return len(content)


def _row(gemm: Gemm, trial: TrialRecord) -> MatrixRow | None:
    """The kernel of a trial that ran; None for one that failed."""
    if not trial.measurement.is_ok:
        return None
    return MatrixRow(gemm.layout, Config.from_dict(trial.point).in_any_splits)


def _facts(gemm: Gemm, trial: TrialRecord) -> RowFacts:
    measured = trial.measurement
    return RowFacts(str(gemm), measured.registers or 0, measured.spill_bytes or 0)


def _short(time_us: float | None) -> float | None:
    return None if time_us is None else float(f"{time_us:.{DIGITS}g}")


def _run(args: argparse.Namespace) -> None:
    limits = limits_by_name(args.gpu) or targets.limits_here(args.gpu, note=console.note)
    sources = []
    for db in args.db:
        with common.open_existing(db) as store:
            sources.append(read(store, limits))
    for layout in LAYOUTS:
        parts = [of_layout(source, layout) for source in sources]
        path = args.out.with_name(f"{args.out.name}-{layout.lower()}.json.gz")
        if args.onto is not None:
            parts.insert(0, matrix.read(args.onto / path.name))
        found, *others = parts
        for other in others:
            onto(found, other)
        if not found.known:
            console.note(f"{layout}: no kernel was timed on {LEAST_SHAPES} shapes")
        found = keep_best(found, args.most)
        num_bytes = write(path, found)
        console.show(
            f"{path}: {len(found.known):,} rows, {len(found.columns):,} columns, {len(found.cells):,} cells, "
            f"{num_bytes / 1e6:.2f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", action="append", required=True, help="of one search; may be given again")
    parser.add_argument(
        "--onto", type=Path, help="a folder of matrices whose times are kept, by the same names"
    )
    parser.add_argument("--out", type=Path, required=True, help="what the names of its files begin with")
    parser.add_argument("--most", type=int, default=MOST_ROWS, help="rows of a layout that are kept")
    parser.add_argument("--gpu", default="auto", help="whose limits: one that is here, or a known kind")
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
