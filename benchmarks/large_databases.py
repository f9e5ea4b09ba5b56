"""Every command and page on large databases: seconds by the clock and of processors, megabytes of memory.

    python benchmarks/large_databases.py FILE... [--server] [--no-merge] [--only NAME] [--out report.json.xz]

FILE: as `python tests/large_database.py FILE [SHAPES [TRIALS]]` writes them. With `--server` the commands
read its copy in a PostgreSQL server that is started for it. Nothing runs on a GPU: a search is continued with
one that is simulated (ask_cost.py), until it asks for its first trial. `coverage` reads 32 records of LARGE
call signatures each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ask_cost
import reports

from autotune.cli import console
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement
from autotune.search import Options, tune
from autotune.store import Store
from autotune.target import Point

ROOT = Path(__file__).resolve().parents[1]
MOST_S, MOST_MB = 10.0, 300.0
OTHER_MOST_S = {"coverage": 20.0, "merge": 60.0}
NUM_RECORDS, LARGE = 32, 5000  # of calls; call signatures in each
PAGES = ("/", "/api/version", "/api/overview", "/api/study/{study}", "/tiles/{study}/{trial}")
_MB = 1024.0  # KiB


def _ran(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """A command from end to end: exit code, seconds, and the most memory that one of its processes had."""
    started_s = time.perf_counter()
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    message = subprocess.run(["tail", "-n1", str(folder / "out")], capture_output=True, text=True, check=True)
    return {
        "exit_code": process.returncode,
        "seconds": round(time.perf_counter() - started_s, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "megabytes": round(used.ru_maxrss / _MB),
        **({"told": message.stdout} if process.returncode else {}),
    }


def _autotune(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *arguments]


def _commands(db: str, shape: str, trial: int, other: int, study: int) -> Iterator[tuple[str, list[str]]]:
    """By name; those that write come last, and `forget` after all."""
    for name in ("best", "history", "failures"):
        yield f"trials {name}", ["trials", name]
    yield "trials best --csv", ["trials", "best", "--csv"]
    yield "trials history --csv", ["trials", "history", "--csv"]
    yield "trials failures --shape", ["trials", "failures", "--shape", shape]
    yield "trials show", ["trials", "show", str(trial)]
    yield "trials diff", ["trials", "diff", str(trial), str(other)]
    yield "trials t1", ["trials", "t1", "--shape", shape, "--out", "t1.json"]
    yield "trials t4", ["trials", "t4", "--shape", shape, "--out", "t4.json"]
    yield "trials compare", ["trials", "compare", f"{db}", f"{db}"]
    yield "runs", ["runs"]
    yield "doctor", ["doctor"]
    yield "report", ["report"]
    yield "report --shape", ["report", "--shape", shape]
    yield "export-table", ["export-table", "--max-kernels", "0"]
    yield "export-table, for all shapes", ["export-table"]
    yield "trials forget (told)", ["trials", "forget", "--study", str(study)]
    yield "trials forget", ["trials", "forget", "--study", str(study), "--yes"]


def _with_db(arguments: list[str], db: str) -> list[str]:
    return _autotune(*arguments) if "compare" in arguments else _autotune(*arguments, "--db", db)


class _FirstAsk(Exception):
    pass


class _Waiting(ask_cost.SimulatedTarget):
    """A GPU under the conditions of a trial; what it is asked for first ends the search."""

    def __init__(self, db: str, trial: int) -> None:
        super().__init__("h200")
        with Store.open_existing(db) as store:
            found = store.find_trial(trial)
        assert found is not None
        ref, _ = found
        self.environment, self.source_hash, self.gemm = ref.environment, ref.source_hash, ref.gemm

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Any:
        raise _FirstAsk

    def measured(self, gemm: Gemm, point: Point) -> Measurement:
        raise _FirstAsk


def _resume(db: str, trial: int) -> None:
    """Continue the search that made a trial until it asks for another."""
    target = _Waiting(db, trial)
    with Store.open(db) as store:
        try:
            tune(target, store, [target.gemm], Options(seconds=3600))
        except _FirstAsk:
            return
    sys.exit("the search asked for nothing")


@contextmanager
def _viewed(db: str, folder: Path) -> Iterator[tuple[str, int]]:
    """The address of the pages, and the process that serves them."""
    command = _autotune("view", "--db", db, "--port", "0")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if b"http://" in line).decode()
        try:
            yield "http://" + line.partition("http://")[2].split()[0].rstrip("/"), process.pid
        finally:
            process.send_signal(signal.SIGINT)


def _pages(db: str, folder: Path, study: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each page as it is asked for first."""
    started_s = time.perf_counter()
    with _viewed(db, folder) as (address, pid):
        trial = 0
        for page in PAGES:
            with urllib.request.urlopen(address + page.format(study=study, trial=trial), timeout=300) as got:
                content = got.read()
            if page == "/api/overview":
                listed = json.loads(content)["studies"]
                study, trial = next((one["id"], one["best_trial"]) for one in listed if one["best_trial"])
            status = Path(f"/proc/{pid}/status").read_text()
            peak_kib = int(status.partition("VmHWM:")[2].split()[0])
            seconds = time.perf_counter() - started_s
            yield f"view {page}", {"seconds": round(seconds, 2), "megabytes": round(peak_kib / _MB)}
            started_s = time.perf_counter()


def _records(folder: Path) -> Path:
    """Records of 32 processes of a program that calls for very many shapes."""
    rng, calls = random.Random(1), folder / "calls.json"
    records = Path(f"{calls}.d")
    records.mkdir()
    for number in range(NUM_RECORDS):
        extents = [[rng.randrange(1, 4096) for _ in range(3)] for _ in range(LARGE)]
        listed = [{"m": m, "n": n, "k": k, "count": rng.randrange(1, 999)} for m, n, k in extents]
        (records / f"{number}.json").write_text(json.dumps({"version": 2, "shape": listed}))
    return calls


def _measure(db: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All of one database. What changes it comes last."""
    with Store.open_existing(db) as store:
        held = store.studies()
        largest = max(held, key=lambda one: one.num_trials).study
        (best,), (other,) = store.best(largest), [one for _, one in store.latest([largest], 1)]
    found: dict[str, Any] = {"num_trials": sum(one.num_trials for one in held), "num_shapes": len(held)}

    def keep(name: str, measured: dict[str, Any]) -> None:
        found[name] = measured
        most_s = OTHER_MOST_S.get(name.partition(" ")[0], MOST_S)
        seconds, megabytes, message = measured["seconds"], measured["megabytes"], measured.get("told", "")
        verdict = "" if seconds <= most_s and megabytes <= MOST_MB and not message else "above "
        figures = f"{seconds:8.2f} s {measured.get('cpu_s', 0):8.2f} s {megabytes:6.0f} MB"
        console.show(f"{name:<30}{figures} {verdict}{message}")

    steps = list(_commands(db, str(largest.gemm), best.id, other.id, largest.id))
    resume = [sys.executable, __file__, "--resume", str(best.id), db]
    for name, command in [("search, until it asks", resume), *((n, _with_db(c, db)) for n, c in steps)]:
        if name == "trials forget" and args.only in "view":
            for page, measured in _pages(db, folder, largest.id):
                keep(page, measured)
        if args.only in name:
            keep(name, _ran(command, folder))
    if args.only in "coverage" and (folder / "sgemm_dispatch").exists():
        keep("coverage", _ran(_autotune("coverage", str(_records(folder)), "sgemm_dispatch"), folder))
    return found


def _copied(file: Path, folder: Path) -> str:
    """The file itself is left as it is."""
    return str(shutil.copy(file, folder / file.name))


def _run(args: argparse.Namespace) -> None:
    if args.resume:
        _resume(str(args.files[0]), args.resume)
        return
    report: dict[str, Any] = {
        "benchmark": "large_databases", "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_cores": os.cpu_count(), "databases": {},
    }  # fmt: skip
    with ExitStack() as stack:
        new_url = stack.enter_context(_server()).new_database if args.server else None
        for file in args.files:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            target = new_url() if new_url else str(folder / "merged.db")
            console.show(f"\n{file}")
            merge = _autotune("trials", "merge", str(file.resolve()), "--db", target)
            is_merged = bool(new_url) or (args.only in "merge" and not args.no_merge)
            merged = _ran(merge, folder) if is_merged else {}
            console.show(f"merge: {merged}")
            found = _measure(target if new_url else _copied(file, folder), folder, args)
            report["databases"][file.name] = {**found, "merge": merged}
            reports.keep(args.out, report)


def _server() -> Any:
    sys.path.insert(0, str(ROOT / "tests"))
    return importlib.import_module("postgresql_server").running_server()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--server", action="store_true", help="copied into a PostgreSQL server")
    parser.add_argument("--no-merge", action="store_true", help="not into a new database of SQLite")
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--resume", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()
