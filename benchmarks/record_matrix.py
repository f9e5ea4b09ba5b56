"""Times many kernels on many shapes: what a portfolio and a model of times are made of, and judged on.

    python benchmarks/drawn_suite.py --seed 101 --num 40 --mixed > /tmp/columns.toml
    autotune search --gpu 0 --suite /tmp/columns.toml --seconds 240 --db any.db
    python benchmarks/record_matrix.py --suite /tmp/columns.toml --db any.db --out matrix.json.gz
        [--gpu 0] [--rows 500] [--seconds 300]

Columns are the shapes of the suite. Rows are kernels: by turns the fastest that the database has for each
column, and relatives of it that serve other shapes; then the families that every table holds. A kernel is
verified once, on a small problem; from then on it is only timed, in as many splits of k as give each SM one
block, two, four, and all that it holds. What is slower than twice the best of its column is launched once.
The same command goes on where it was.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median
from time import monotonic

import matrix
import reports
from matrix import CellRecord, Matrix, Row, RowFacts

from autotune.cli import common, console
from autotune.errors import UsageError
from autotune.export.general import family_kernels, twins
from autotune.gemm import Gemm
from autotune.gpu import GpuTarget
from autotune.kernel import resources
from autotune.kernel.config import PARAMETER, Config, lanes_k
from autotune.kernel.rules import broken_rules
from autotune.measurement import POLICY_VERSION, CachePolicy
from autotune.store import Store
from autotune.target import Cell

LEADERS = 12  # of a column, at most, and at most so many times slower than its best
AS_GOOD = 1.15
BLOCKS_PER_SM = (1, 2, 4)  # that splits of k are chosen for, and as many as are resident
CUTOFF = 2.0  # times the best of a column
KEEP_EVERY_S = 30.0
MAX_ERROR = 1.5  # times cuBLAS's, where a kernel is verified


# ------------------------------------------------------------------------------------------------
# Rows


def rows_from(store: Store, target: GpuTarget, columns: Sequence[Gemm]) -> dict[Row, str]:
    """Kernels worth a row, each with its origin, the most promising first: columns take turns."""
    limits, layouts = target.limits, dict.fromkeys(gemm.layout for gemm in columns)
    studies = {ref.gemm: ref for ref in store.latest_studies(target.environment, target.policy)}
    leaders, relatives = [], []
    for gemm in columns:
        best = store.best(studies[gemm], LEADERS) if gemm in studies else []
        times = [trial.measurement.time_us or math.inf for trial in best]
        close = [trial for trial, time_us in zip(best, times, strict=True) if time_us <= AS_GOOD * times[0]]
        configs = [Config.from_dict(trial.point) for trial in close]
        leaders.append([(_row(gemm.layout, config), str(gemm)) for config in configs])
        more = [twin for config in configs for twin, _ in twins(config, gemm.layout, limits)]
        relatives.append([(_row(gemm.layout, twin), str(gemm)) for twin in more])
    families = [[(_row(layout, c), "") for c, _ in family_kernels(layout, limits)] for layout in layouts]
    rows: dict[tuple[str, Config], tuple[Row, str]] = {}
    for row, origin in filter(None, chain.from_iterable(zip_longest(*leaders, *relatives, *families))):
        rows.setdefault((row.layout, row.config.kernel), (row, origin))
    return dict(rows.values())


def _row(layout: str, config: Config) -> Row:
    return Row(layout, replace(config, split_k=config.kernel.split_k))


def small_problem(row: Row, target: GpuTarget) -> Gemm | None:
    """A small problem that the row may run on, as ragged as it serves; None where there is none."""
    c, layout = row.config, row.layout
    for more in (1, 4, 0):
        m, n, k = 2 * c.bm + more, 2 * c.bn + more, 8 * c.bk * c.split_k + more
        gemm = Gemm(m, n, k, layout[0] == "T", layout[1] == "T")
        if not broken_rules(c, target.limits, gemm):
            return gemm
    return None


# ------------------------------------------------------------------------------------------------
# Cells


def splits(row: Row, gemm: Gemm, registers: int, target: GpuTarget) -> list[int]:
    """Numbers of splits worth a cell: legal, and such that each SM gets a whole number of blocks."""
    c = row.config
    if c.reduction in ("none", "cluster"):
        values = [c.split_k]
    else:
        tiles = resources.tiles(c, gemm)
        resident = int(resources.blocks_per_sm(c, target.limits, gemm, registers))
        step = c.bk * lanes_k(c)
        known = [
            v for v in PARAMETER["split_k"].values if isinstance(v, int) and v > 1 and v * step <= gemm.k
        ]
        per_sm = {min(blocks, resident) for blocks in (*BLOCKS_PER_SM, resident)}
        is_whole = c.reduction != "last_wave"  # which splits the tiles of the last wave alone
        wanted = [blocks * target.limits.num_sms / tiles if is_whole else 2.0 * blocks for blocks in per_sm]
        nearest = [min(known, key=lambda v: abs(math.log(v / want)), default=0) for want in wanted]
        values = sorted({value for value in nearest if value})
    return [v for v in values if not broken_rules(replace(c, split_k=v), target.limits, gemm)]


def fill(found: Matrix, row: Row, target: GpuTarget) -> int:
    """Time a row on all columns of its layout where it was not; returns how many cells that were."""
    best, registers = found.best_us(), found.known[row].registers
    wanted = [
        (gemm, split_k)
        for gemm in found.columns
        if gemm.layout == row.layout
        for split_k in splits(row, gemm, registers, target)
        if (row, gemm, split_k) not in found.cells
    ]
    cutoffs = {
        gemm: CUTOFF * min(best.get(gemm, math.inf), found.cublas_us[gemm] or math.inf) for gemm, _ in wanted
    }
    cells = [
        Cell(
            gemm,
            replace(row.config, split_k=split_k).to_dict(),
            cutoffs[gemm] if cutoffs[gemm] < math.inf else None,
        )
        for gemm, split_k in wanted
    ]
    for (gemm, split_k), timed in zip(wanted, target.fill(cells).result(), strict=True):
        if timed.samples_us:
            found.cells[row, gemm, split_k] = CellRecord(median(timed.samples_us), timed.is_cut_short)
    return len(cells)


def begin(out: Path, target: GpuTarget, columns: Sequence[Gemm]) -> Matrix:
    """The matrix in `out`, or an empty one, with all columns, and cuBLAS timed on each. Raises UsageError."""
    facts = {
        "source_hash": target.source_hash,
        "policy": target.policy.value,
        "policy_version": POLICY_VERSION,
    }
    found = matrix.read(out) if out.exists() else Matrix(target.limits, target.environment, facts)
    if found.facts != facts or found.environment.gpu_name != target.environment.gpu_name:
        raise UsageError(
            f"{out} was recorded of {found.environment.gpu_name} and {found.facts}; name another file"
        )
    new = [gemm for gemm in columns if gemm not in found.cublas_us]
    for gemm, timed in zip(new, target.fill([Cell(gemm, None) for gemm in new]).result(), strict=True):
        found.cublas_us[gemm] = median(timed.samples_us) if timed.samples_us else None
    return found


def _run(args: argparse.Namespace) -> None:
    columns = common.read_shapes((), args.suite)
    began_s = monotonic()
    with (
        closing(GpuTarget(args.gpu, policy=CachePolicy.COLD, max_error=MAX_ERROR)) as target,
        common.open_existing(args.db) as store,
        console.Progress(is_quiet=False) as progress,
    ):
        found = begin(args.out, target, columns)
        origins = rows_from(store, target, columns)
        wanted = list(dict.fromkeys([*found.rows, *origins]))[: args.rows]
        refused = _verify(found, {row: origins[row] for row in wanted if row not in found.known}, target)
        num_cells, kept_s = 0, monotonic()
        for number, row in enumerate(row for row in wanted if row in found.known):
            if monotonic() - began_s >= args.seconds:
                break
            num_cells += fill(found, row, target)
            progress.update(f"row {number + 1} of {len(found.known)}: {num_cells:,} cells timed")
            if monotonic() - kept_s >= KEEP_EVERY_S:
                matrix.write(args.out, found)
                kept_s = monotonic()
    num_bytes = matrix.write(args.out, found)
    console.show(
        f"{args.out}: {len(found.known)} rows, {len(found.columns)} columns, {len(found.cells):,} cells, "
        f"{num_bytes / 1e6:.2f} MB; {num_cells:,} new in {monotonic() - began_s:.0f} s"
    )
    for reason in sorted(set(refused)):
        console.show(f"  {refused.count(reason)} kernels refused: {reason}")


def _verify(found: Matrix, origins: Mapping[Row, str], target: GpuTarget) -> list[str]:
    """Compile and verify kernels, all cores compiling; those that are right join the matrix. Returns why
    others did not."""
    refused: list[str] = []
    problems = {row: gemm for row in origins if (gemm := small_problem(row, target))}
    futures = {row: target.submit(gemm, row.config.to_dict(), None) for row, gemm in problems.items()}
    for row, future in futures.items():
        measured = future.result()
        if measured.is_ok:
            found.known[row] = RowFacts(origins[row], measured.registers or 0, measured.spill_bytes or 0)
        else:
            refused.append(f"{measured.outcome}: {measured.reason}")
    return refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, required=True, help="columns: a file of shapes")
    parser.add_argument("--db", required=True, help="what searches of these shapes stored")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=300.0)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
