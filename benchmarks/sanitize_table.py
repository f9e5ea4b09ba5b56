"""compute-sanitizer over every kernel of an exported table.

    python benchmarks/sanitize_table.py FOLDER [--tuned] [--tool memcheck ...] [--jobs 4] [--out FILE]
    python benchmarks/sanitize_table.py --db autotune.db [...]      of what export-table would write

Each distinct cubin runs the small problems that the emulated tests run (tests/emulated/problems.py: ragged
in every extent, several tiles and waves, splits, k that is no multiple of a tile, stages that go round twice,
NaN and Inf, packed operands), in allocations that end with their last element, and its results are held
against float64. Under `initcheck` nothing was written to the workspace before. Kernels that share a cubin
count as one: problems bring splits of their own.

Kernels run many at a time under each tool. Where a run is not clean it is halved until the kernel is known:
an illegal access takes its process, and what would have come behind it, with it. Ends with exit code 1 if
anything was found, 3 if a tool does not work here (each is tried on a kernel that is known to be clean).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sanitizer import OPTIONS, SanitizerRun, find_tool, run

from autotune import tuning
from autotune.cli import console
from autotune.files.errors import AutotuneError, EnvironmentProblem
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import Kernel, Table, load

SHARD = 16  # kernels that run in one process: to start one under a tool takes seconds
CASES = {"memcheck": "all", "racecheck": "pipelined", "initcheck": "all", "synccheck": "pipelined"}
Run = Callable[[str, Sequence[str]], SanitizerRun]  # a tool over the driver script with these arguments


@dataclass(frozen=True)
class SanitizerFinding:
    """What a tool, or the check of results, has against a kernel."""

    tool: str
    kernel: str
    what: str


def main() -> None:
    try:
        sys.exit(_run(_arguments()))
    except AutotuneError as error:
        console.fail(error)
        sys.exit(error.exit_code)


def _run(args: argparse.Namespace) -> int:
    path = find_tool()
    tools = args.tool or list(OPTIONS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or _exported(args.db, Path(temporary) / "table")
        kernels = distinct(load(folder), is_tuned=args.tuned)
        code = load_cubins(folder, load(folder))
        tasks = [task(kernel, code[kernel.sha256], Path(temporary)) for kernel in kernels]
        console.note(f"{len(tasks)} cubins of {folder} under {', '.join(tools)}")
        findings = examine(tasks, tools, args.jobs, partial(run, path), Path(temporary))
    report = {"kernels": [t["id"] for t in tasks], "tools": tools, "findings": [vars(f) for f in findings]}
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.show(text(tasks, tools, findings))
    return int(bool(findings))


# ------------------------------------------------------------------------------------------------
# Which kernels


def _exported(db: str, folder: Path) -> Path:
    """What `export-table` writes of a database."""
    tuning.export_table(folder, db=db)
    return folder


def distinct(exported: Table, *, is_tuned: bool) -> list[Kernel]:
    """One kernel of each cubin; with `is_tuned` of those alone that were chosen for a tuned shape."""
    tuned = {ranked.kernel for entry in exported.entries for ranked in entry.ranked}
    chosen = [k for k in exported.kernels if not is_tuned or k.id in tuned]
    return list({kernel.sha256: kernel for kernel in reversed(chosen)}.values())[::-1]


def task(kernel: Kernel, code: bytes, scratch: Path) -> dict[str, Any]:
    """A kernel as the driver script reads it; its code is written to a file for that."""
    path = scratch / f"{kernel.sha256}.cubin"
    path.write_bytes(code)
    return {
        "id": kernel.id,
        "config": kernel.config.to_dict(),
        "variant": asdict(kernel.spec.variant),
        "cubin": str(path.resolve()),
    }


# ------------------------------------------------------------------------------------------------
# Which of them are not clean


def examine(
    tasks: Sequence[dict[str, Any]], tools: Sequence[str], jobs: int, run: Run, scratch: Path
) -> list[SanitizerFinding]:
    """All findings of all tools. Raises EnvironmentProblem where a tool does not work here."""
    with ThreadPoolExecutor(jobs) as pool:
        for tool, verdict in zip(tools, pool.map(lambda t: run(t, ("plant", "clean")), tools), strict=True):
            if not verdict.is_clean:
                raise EnvironmentProblem(f"{tool} does not work here: {verdict.finding}")
        shards = [tasks[at : at + SHARD] for at in range(0, len(tasks), SHARD)]
        parts = [(tool, shard) for tool in tools for shard in shards]
        waiting = [
            pool.submit(blame, tool, shard, run, scratch / f"tasks-{number}")
            for number, (tool, shard) in enumerate(parts)
        ]
        return [finding for found in waiting for finding in found.result()]


def blame(tool: str, tasks: Sequence[dict[str, Any]], run: Run, name: Path) -> list[SanitizerFinding]:
    """What is found in these kernels, each by itself; `name` begins the names of files for the driver."""
    path = name.with_name(f"{name.name}-{tasks[0]['id']}-{len(tasks)}.json")
    path.write_text(json.dumps(tasks), encoding="utf-8")
    verdict = run(tool, ("table", CASES[tool], str(path), "unwritten" if tool == "initcheck" else "marked"))
    if verdict.is_clean and not (missing := _not_proposed(verdict, tasks)):
        return []
    if len(tasks) == 1:
        what = "its problems did not run" if verdict.is_clean else _wrong(verdict) or verdict.finding
        return [SanitizerFinding(tool, tasks[0]["id"], what)]
    if verdict.is_clean:
        tasks = [t for t in tasks if t["id"] in missing]
    half = max(1, len(tasks) // 2)
    halves = [part for part in (tasks[:half], tasks[half:]) if part]
    return [finding for part in halves for finding in blame(tool, part, run, name)]


def _facts(verdict: SanitizerRun) -> dict[str, Any]:
    """What the driver script printed."""
    lines = [line for line in verdict.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {"launches": {}, "wrong": []}


def _not_proposed(verdict: SanitizerRun, tasks: Sequence[dict[str, Any]]) -> set[str]:
    """Kernels that the driver script does not say it launched: nothing is known of them."""
    launches = _facts(verdict)["launches"]
    return {task["id"] for task in tasks if not launches.get(task["id"])}


def _wrong(verdict: SanitizerRun) -> str:
    """The first wrong result, where the tool itself has nothing to say."""
    return next(iter(_facts(verdict)["wrong"]), "") if verdict.num_found == 0 else ""


# ------------------------------------------------------------------------------------------------
# Text


def text(tasks: Sequence[dict[str, Any]], tools: Sequence[str], findings: Sequence[SanitizerFinding]) -> str:
    """A line per kernel, a column per tool; below, what was found."""
    bad = {(f.kernel, f.tool) for f in findings}
    rows = [(t["id"], *("FOUND" if (t["id"], tool) in bad else "clean" for tool in tools)) for t in tasks]
    lines = [f"{f.kernel}: {f.tool}: {f.what}" for f in findings]
    num_bad = len({f.kernel for f in findings})
    end = f"{num_bad} of {len(tasks)} kernels are not clean" if findings else f"all {len(tasks)} are clean"
    return "\n".join([console.table(("kernel", *tools), rows), *lines, end])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a folder made by export-table")
    parser.add_argument("--db", help="a database, whose winners are exported first")
    parser.add_argument("--tuned", action="store_true", help="only kernels chosen for a tuned shape")
    parser.add_argument("--tool", action="append", choices=sorted(OPTIONS), help="repeatable; default: all")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--out", type=Path, help="JSON of what was found")
    args = parser.parse_args()
    if (args.folder is None) == (args.db is None):
        parser.error("name a folder or --db, one of them")
    return args


if __name__ == "__main__":
    main()
