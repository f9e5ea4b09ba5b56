"""What a team's GPUs do with nobody at them, on real cards: two GPUs against one, workers that are killed, a
program that meets a shape and is served by what a worker tuned meanwhile.

    python benchmarks/gpu_farm.py scale --gpu 0,1 --seconds 200 --out two.json     # then --gpu 0, one.json
    python benchmarks/gpu_farm.py compare one.json two.json --gpu 0
    python benchmarks/gpu_farm.py kills --gpu 0 --times 10 --searches 5
    python benchmarks/gpu_farm.py program --gpu 0 --table sgemm_dispatch --shape 1536x384x2304

`compare` races the winners of both on one card, since two of a model differ by a per cent. Two searches that
are alike differ, too: of four pairs of 515 to 540 s of this suite, one GPU each, 8 to 15 of 26 winners of the
second were slower with their whole interval, by up to 3.9 %, and 4 to 7 were faster
(studies/results/h200-vs-itself*.json). So a shape counts as worse where it is slower by more than nearly all
of these were, and the mean over the shapes is told.

`kills` waits for trials of each process before it kills it at a random moment, and fails where one had none.

`program` needs torch. It tunes by a worker with a key, behind a server, and tells when each step was done; a
graph that was captured under the old table is replayed after the exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from autotune import target_finder
from autotune.facts import stats
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.store import RequestState, Store, Wanted
from autotune.suite import read_suite
from autotune.target import Point, Target

SUITE = Path(__file__).resolve().parents[1] / "studies/suites/dev.toml"
DOUBLED = "SELECT count(*) FROM (SELECT 1 FROM trial GROUP BY study_id, config_id HAVING count(*) > 1)"
TRIALS = "SELECT study_id, config_id, time_us FROM trial"
CLAIMED = "SELECT count(*) FROM optuna_trial WHERE worker_id = (SELECT max(worker_id) FROM optuna_trial)"
LAST_STUDY = "SELECT study_id FROM trial ORDER BY id DESC LIMIT 1"
NUM_LOADS, NUM_ROUNDS = 3, 12  # of two winners: one load may make a kernel slower
EQUAL = 0.024  # 98 of 100 shapes of two searches that are alike differ by less
CONFIDENCE = 0.998  # that an interval holds: 26 shapes are 26 chances to be wrong
PORT = 8577


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env=os.environ | environment
    )


def rows(db: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query of this database returns."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(query).fetchall()


def count(db: Path, query: str) -> int:
    return int(rows(db, query)[0][0])


def kill(process: subprocess.Popen[str]) -> None:
    """It and all that it started."""
    found = [process.pid]
    for parent in found:
        with suppress(OSError):
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
            found += map(int, text.split())
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def output_of(*words: object) -> str:
    """What a command prints. It is killed where this is interrupted."""
    process = start(*words)
    try:
        return process.communicate()[0]
    finally:
        if process.poll() is None:
            kill(process)


def scale(options: argparse.Namespace) -> None:
    """Search the suite from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "a.db"
        words = ("--gpu", options.gpu, "--suite", options.suite, "--seconds", options.seconds, "--db", db)
        began_s = time.monotonic()
        text = output_of("search", *words, "--insist", "--json", "--quiet")
        facts = json.loads(text) | {"all_s": time.monotonic() - began_s, "doubled": count(db, DOUBLED)}
        facts |= {"stored": len(rows(db, TRIALS)), "cores": len(os.sched_getaffinity(0))}
    options.out.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    busy = facts["ledger"]["gpu_share"]
    new, stored = facts["num_new"], facts["stored"]
    print(
        f"--gpu {options.gpu}, {facts['cores']} cores: {new} new trials, {stored} stored, of these", end=" "
    )
    print(f"{facts['doubled']} doubled; {facts['all_s']:.0f} s in all, GPU busy {100 * (busy or 0):.0f} %")


def compare(options: argparse.Namespace) -> None:
    """Two such searches, the second on more GPUs: the winners of each shape, timed in the same rounds."""
    one, two = (json.loads(path.read_text(encoding="utf-8")) for path in options.files)
    print(f"trials: {two['num_new'] / one['num_new']:.2f} times those of one")
    first, second = ({s["shape"]: s["best_config"] for s in facts["shapes"]} for facts in (one, two))
    found: dict[str, tuple[float, float, float]] = {}
    with closing(target_finder.open_target(options.gpu, CachePolicy.COLD, note=print)) as target:
        for shape in first.keys() & second.keys():
            low, middle, high = _race(target, Gemm.parse(shape), (first[shape], second[shape]))
            print(f"{shape}: {middle:.4f} of the time of one's winner [{low:.4f}, {high:.4f}]", flush=True)
            found[shape] = (low, middle, high)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    slower = sum(low > 1 for low, _, _ in found.values())
    faster = sum(high < 1 for _, _, high in found.values())
    worse = [shape for shape, (low, _, _) in found.items() if low > 1 + EQUAL]
    mean = statistics.geometric_mean(middle for _, middle, _ in found.values())
    print(f"of {len(found)} winners {slower} are slower, {faster} faster; {mean:.4f} of the time in the mean")
    print(f"{len(worse)} worse by more than searches that are alike differ ({EQUAL:.1%})", *worse)


def _race(target: Target, gemm: Gemm, points: Sequence[Point]) -> tuple[float, float, float]:
    """The second's time over the first's: the median of pairs, between the ends of its interval."""
    if points[0] == points[1]:
        return 1.0, 1.0, 1.0
    ratios: list[float] = []
    for _ in range(NUM_LOADS):
        samples_us = target.compare(gemm, points, NUM_ROUNDS).samples_us
        ratios += [second / first for first, second in zip(*samples_us, strict=True)]
    low, high = stats.median_interval(ratios, CONFIDENCE)
    return low, stats.median(ratios), high


def kills(options: argparse.Namespace) -> None:
    """A worker of the queue, and a search, killed again and again: no stored trial is lost, none doubled."""
    rng, suite = random.Random(0), read_suite(options.suite)
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "a.db"
        with Store.open(db) as store:
            store.queue().submit(Wanted(gemm, gain_us=1.0) for gemm in suite)
        worker = ("worker", "--gpu", options.gpu, "--db", db, "--seconds", "5", "--quiet")
        search = ("search", "--gpu", options.gpu, "--db", db, "--seconds", "60", "--shape", "1024", "--quiet")
        stored: set[tuple[Any, ...]] = set()
        for words in [worker] * options.times + [search] * options.searches:
            took_s = _killed_at_work(words, db, len(stored), rng.uniform(0, options.pause), options.longest)
            found, claimed = set(rows(db, TRIALS)), count(db, CLAIMED)
            lost, new = len(stored - found), len(found - stored)
            print(f"{words[0]} killed after {took_s:.1f} s: {new} new trials, {claimed} under way", end="; ")
            print(f"{lost} lost, {count(db, DOUBLED)} doubled", flush=True)
            assert new and not lost and not count(db, DOUBLED)
            stored = found
        with Store.open(db) as store:
            print("requests:", {state.value: number for state, number in store.queue().counts().items()})
            assert sum(store.queue().counts().values()) == len(suite)
        num_trials = count(db, f"SELECT count(*) FROM trial WHERE study_id = ({LAST_STUDY})") + 40
        more = ("--shape", "1024", "--trials", num_trials, "--json", "--quiet")
        text = output_of(*search[:5], *more)
        print(f"the same search goes on: {json.loads(text)['num_new']} new trials", end="; ")
        print(f"{len(stored - set(rows(db, TRIALS)))} lost, {count(db, DOUBLED)} doubled")


def _killed_at_work(
    words: Sequence[object], db: Path, num_known: int, pause_s: float, longest_s: float
) -> float:
    """Start a command, and kill it so long after its first trial was stored. Returns how long it lived."""
    began_s, process = time.monotonic(), start(*words)
    try:
        while len(rows(db, TRIALS)) == num_known:
            assert process.poll() is None, f"{words[0]} ended by itself: {process.returncode}"
            assert time.monotonic() < began_s + longest_s, f"{words[0]}: no trial in {longest_s:.0f} s"
            time.sleep(0.05)
        time.sleep(pause_s)
    finally:
        kill(process)
    return time.monotonic() - began_s


# ---- nobody's hands


def program(options: argparse.Namespace) -> None:
    """Server, worker, and this process as the program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db, key = folder / "a.db", folder / "team.key"
        start("tables", "key", key).communicate()
        work = ("--seconds", options.seconds, "--max-kernels", options.max_kernels, "--key", key)
        services = [
            start("serve", "--db", db, "--port", PORT, "--trust", f"{key}.pub", "--json"),
            start("worker", "--gpu", options.gpu, "--db", db, *work),
        ]
        os.environ |= {
            "AUTOTUNE_SERVER": f"http://127.0.0.1:{PORT}", "AUTOTUNE_SERVER_KEY": f"{key}.pub",
            "AUTOTUNE_SERVER_SECONDS": "1", "AUTOTUNE_CACHE": str(folder / "cache"),
        }  # fmt: skip
        try:
            _meet(options, db)
        finally:
            for one in services:
                one.send_signal(signal.SIGTERM)
            for one in services:
                one.communicate(timeout=60)


def _meet(options: argparse.Namespace, db: Path) -> None:
    """Call for the shape until it is served tuned. Raises AssertionError for a wrong result."""
    import torch

    from autotune.runtime.dispatcher import Dispatcher

    gemm = Gemm.parse(options.shape)
    served = Dispatcher(options.table)
    a = torch.randn(gemm.m, gemm.k, device="cuda")
    b = torch.randn(gemm.k, gemm.n, device="cuda")
    right = (a.double() @ b.double()).float()

    def check(what: str, found: Any) -> None:
        error = ((found - right).abs().max() / right.abs().max()).item()
        assert error < 1e-4, f"{what}: wrong by {error}"

    before = served.pick(gemm.m, gemm.n, gemm.k)
    print(f"before: {before.how}, {before.provider}, {before.kernel_id}")
    served.prepare([(gemm.m, gemm.n, gemm.k)])
    out, graph = torch.empty_like(right), torch.cuda.CUDAGraph()
    served.sgemm(a, b, out)
    with torch.cuda.graph(graph):
        served.sgemm(a, b, out)
    began_s, seen = time.monotonic(), dict[str, float]()
    with Store.open(db) as store:
        while "taken" not in seen and time.monotonic() - began_s < options.longest:
            check("a call", served.sgemm(a, b))
            steps: dict[str, Callable[[], bool]] = {
                "requested": lambda: bool(store.queue().requests()),
                "tuned": lambda: store.queue().counts()[RequestState.TUNED] > 0,
                "published": lambda: bool(store.artifacts().all()),
                "taken": lambda: served.pick(gemm.m, gemm.n, gemm.k).how == "exact",
            }
            for what, is_done in steps.items():
                if what not in seen and is_done():
                    seen[what] = time.monotonic() - began_s
                    print(f"{what} after {seen[what]:.1f} s", flush=True)
            time.sleep(0.1)
        for one in store.queue().requests():
            print(f"request {one.wanted.gemm}: {one.state}, {one.reason}, {dict(one.result)}")
    assert "taken" in seen, "the table never came"
    after = served.pick(gemm.m, gemm.n, gemm.k)
    print(f"after: {after.how}, {after.provider}, {after.kernel_id}")
    check("a call by the new table", served.sgemm(a, b))
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check("a graph that was captured under the old table", out)
    print("the graph of the old table is right after the exchange")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for work in (scale, compare, kills, program):
        one = commands.add_parser(work.__name__)
        one.set_defaults(work=work)
        one.add_argument("--gpu", default="0")
        if work is compare:
            one.add_argument("files", type=Path, nargs=2)
            one.add_argument("--out", type=Path, help="a file for the ratios, JSON")
            continue
        one.add_argument("--suite", type=Path, default=SUITE)
        one.add_argument("--seconds", type=float, default=20.0)
        one.add_argument("--out", type=Path, default=Path("scale.json"))
        one.add_argument("--times", type=int, default=10)
        one.add_argument("--searches", type=int, default=5)
        one.add_argument("--pause", type=float, default=1.5, help="seconds until a kill, at most")
        one.add_argument("--table", default="sgemm_dispatch")
        one.add_argument("--shape", default="1536x384x2304")
        one.add_argument("--max-kernels", type=int, default=16)
        one.add_argument("--longest", type=float, default=180.0)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
