"""The counts of the model of `autotune explain` beside those of Nsight Compute on this GPU.

    python benchmarks/counts_vs_ncu.py [--out FILE]

Five kernels are launched under ncu, each once, on problems of a few waves (tests/gpu/counted_launch.py).
autotune/tiles/ncu_metrics.py says what each of ncu's metrics means, which value of the model it corresponds
to, and whether it should be equal, within 2 %, or at least as large: ncu counts instructions that a predicate
disables, the model does not. Ends with exit code 1 if one differs, 3 without ncu or if it may not read the
GPU's counters (they need root, or the driver's NVreg_RestrictProfilingToAdminUsers=0).
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.cli import console
from autotune.files.errors import AutotuneError, EnvironmentProblem
from autotune.tiles.ncu_metrics import KERNEL, METRICS, Counts, NcuMetric

REPOSITORY = Path(__file__).resolve().parents[1]
DRIVER = REPOSITORY / "tests/gpu/counted_launch.py"
MOST_S = 280.0
INSTALLED = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute")

# By number: the name of a kernel, what the model counts, and which operands are copied 16 bytes at a time.
Counted = Callable[[int], tuple[str, Counts, tuple[str, ...]]]


@dataclass(frozen=True)
class Compared:
    """One metric of one kernel."""

    kernel: str
    metric: NcuMetric
    measured: float
    expected: int
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.metric.holds(self.measured, self.expected, self.tolerance)


def find_ncu() -> Path:
    """On the PATH, or where the toolkit is installed. Raises EnvironmentProblem."""
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    for place in map(Path, INSTALLED):
        found = [place] if place.is_file() else sorted(place.glob("*/ncu"))
        if found:
            return found[-1]
    raise EnvironmentProblem("ncu is not installed; install NVIDIA Nsight Compute, or add it to PATH")


def measure(ncu: Path, number: int) -> dict[str, float]:
    """Metrics of the launch of sgemm of this number. Raises EnvironmentProblem where ncu cannot measure."""
    options = ["--csv", "--kernel-name", KERNEL, "--launch-count", "1", "--cache-control", "all"]
    requested = ["--metrics", ",".join(metric.name for metric in METRICS)]
    modules = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [ncu, *options, *requested, sys.executable, DRIVER, str(number)],
        env=os.environ | {"PYTHONPATH": modules},
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    found = read_metrics(done.stdout)
    if done.returncode or not found:
        tail = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise EnvironmentProblem(f"ncu measured nothing (exit {done.returncode}): {' '.join(tail)}")
    return found


def read_metrics(text: str) -> dict[str, float]:
    """Values by metric, from what `ncu --csv` writes between lines of its own."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    values = {}
    for row in csv.DictReader(lines):
        number = (row.get("Metric Value") or "").replace(",", "")
        try:
            values[row["Metric Name"]] = float(number)
        except ValueError:
            continue  # n/a: this GPU has no such counter
    return values


def compare(name: str, counts: Counts, wide: Iterable[str], measured: Mapping[str, float]) -> list[Compared]:
    """Every metric that this GPU has, beside the model."""
    return [
        Compared(
            name, metric, measured[metric.name], metric.expected(counts, wide), metric.tolerance(counts, wide)
        )
        for metric in METRICS
        if metric.name in measured
    ]


def table(found: Iterable[Compared]) -> str:
    """What was compared, to be read."""
    rows = [
        (c.kernel, c.metric.name, f"{c.measured:,.0f}", f"{c.expected:,}", c.metric.relation, _verdict(c))
        for c in found
    ]
    heads = ("kernel", "metric", "measured", "model", "should be", "is")
    return console.table(heads, rows, right=(2, 3))


def _verdict(found: Compared) -> str:
    return "yes" if found.holds else "NO"


def run(counted: Counted, num_kernels: int) -> list[Compared]:
    """All kernels, by the number of each."""
    ncu, found = find_ncu(), []
    for number in range(num_kernels):
        name, counts, wide = counted(number)
        found += compare(name, counts, wide, measure(ncu, number))
    return found


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--out", type=Path, help="write what was compared as JSON")
    args = parser.parse_args()
    sys.path.insert(0, str(DRIVER.parent))
    counted_launch = importlib.import_module(DRIVER.stem)
    try:
        found = run(counted_launch.counted, len(counted_launch.KERNELS))
    except AutotuneError as error:
        console.fail(error)
        sys.exit(error.exit_code)
    console.show(table(found))
    if args.out:
        facts = [
            {"kernel": c.kernel, "metric": c.metric.name, "measured": c.measured, "model": c.expected,
             "relation": c.metric.relation, "holds": c.holds}
            for c in found
        ]  # fmt: skip
        args.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(c.holds for c in found) else 1)


if __name__ == "__main__":
    main()
