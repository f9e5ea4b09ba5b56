"""How a service answers 1,000 programs that ask for tables, and 10,000 requests a minute: `autotune serve` in
a process of its own, programs as connections of this one.

    python benchmarks/service_load.py --seconds 60 --out load.json.xz

Each program asks for its table every ten seconds, as the runtime does, and each request is a message of how
four shapes were served, on a connection of its own. Requests begin when they are due, whatever became of
others (an open loop), so that a slow answer delays no other. Written are all times, the server's memory each
second, its CPU time, and the load of the machine before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import lzma
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BARS = {"p99_ms": 250.0, "num_failed": 0}
PERIOD_S = 10.0  # of a program's questions
CURRENT = "/api/tables/current?gpu_name=NVIDIA%20H200&compute_capability=9.0&driver=580.1&cublas=13.1"
TIMEOUT_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000, help="a minute")
    parser.add_argument("--out", type=Path, default=None)
    shown = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "team.db") as (process, address):
        found = asyncio.run(run(process.pid, address, shown.seconds, shown.programs, shown.requests))
        started_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait()
        found["shutdown_s"] = time.monotonic() - started_s
    found["machine"] = {"num_cores": os.cpu_count(), "load_before": load}
    print(
        json.dumps(
            {name: value for name, value in found.items() if name not in ("took_ms", "rss_mb")}, indent=1
        )
    )
    if shown.out is not None:
        shown.out.write_bytes(lzma.compress(json.dumps(found).encode()))
    is_met = all(found["all"][name] <= most for name, most in BARS.items())
    sys.exit(0 if is_met else 1)


@contextlib.contextmanager
def serving(db: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process, and its host and port."""
    command = [
        sys.executable,
        "-m",
        "autotune",
        "serve",
        "--db",
        str(db),
        "--port",
        "0",
        "--json",
        "--rate",
        "100000",
    ]
    with (db.parent / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout
        lines = "".join(iter(process.stdout.readline, "}\n")) + "}"
        yield process, urlsplit(json.loads(lines)["address"]).netloc
    finally:
        process.kill()
        process.wait()


async def run(pid: int, address: str, seconds: float, num_programs: int, per_minute: int) -> dict[str, Any]:
    """All that is asked in so many seconds, and what came of it."""
    host, _, port = address.partition(":")
    took: dict[str, list[float]] = {"current": [], "served": []}
    failed: list[str] = []
    draw = random.Random(0)
    turns = [turn * PERIOD_S for turn in range(int(seconds / PERIOD_S) + 1)]
    due = [(draw.uniform(0, PERIOD_S) + at_s, "current") for at_s in turns for _ in range(num_programs)]
    due += [(draw.uniform(0, seconds), "served") for _ in range(int(per_minute * seconds / 60))]
    due = sorted(one for one in due if one[0] < seconds)
    bodies = [message(draw) for _ in range(200)]
    rss_mb: list[float] = []
    is_over = asyncio.Event()
    watching = asyncio.create_task(watch(pid, rss_mb, is_over))
    cpu_s, started_s = cpu_of(pid), time.monotonic()
    requested = []
    for at_s, what in due:
        await asyncio.sleep(max(0.0, started_s + at_s - time.monotonic()))
        body = draw.choice(bodies) if what == "served" else b""
        requested.append(asyncio.create_task(ask(host, int(port), body, took[what], failed)))
    await asyncio.gather(*requested)
    is_over.set()
    await watching
    both = took["current"] + took["served"]
    return {
        "seconds": time.monotonic() - started_s,
        "all": figures(both, failed),
        **{what: figures(found, []) for what, found in took.items()},
        "failures": sorted(set(failed))[:10],
        "server_cpu_ms_per_request": 1e3 * (cpu_of(pid) - cpu_s) / max(1, len(both)),
        "most_rss_mb": max(rss_mb),
        "first_rss_mb": rss_mb[0],
        "took_ms": {what: [round(one, 2) for one in found] for what, found in took.items()},
        "rss_mb": rss_mb,
    }


def message(draw: random.Random) -> bytes:
    """How a program tells of four of a thousand shapes."""

    def extent() -> int:
        return 64 * draw.randint(1, 10)

    shapes = [
        {
            "m": extent(), "n": extent(), "k": extent(), "layout": "NN", "batch": 1, "shared": "", "lds": [],
            "calls": draw.randint(1, 1000), "how": draw.choice(["exact", "modelled"]),
            "provider": "autotune", "expected_us": 20.0, "cublas_us": 30.0,
        }
        for _ in range(4)
    ]  # fmt: skip
    shown = {"gpu_name": "NVIDIA H200", "compute_capability": [9, 0], "table": "", "shapes": shapes}
    return json.dumps(shown | {"measured": {"pairs": 0, "saved_us": 0.0}}).encode()


async def ask(host: str, port: int, body: bytes, took: list[float], failed: list[str]) -> None:
    """One request on a connection of its own."""
    started_s = time.monotonic()
    head = f"POST /api/served HTTP/1.1\r\nContent-Length: {len(body)}" if body else f"GET {CURRENT} HTTP/1.1"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"{head}\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode() + body)
            answer = await reader.read()
            writer.close()
        status = answer[9:12].decode()
        if status not in ("202", "404", "200"):  # 404: nothing was published
            failed.append(status or "no answer")
    except (OSError, TimeoutError) as error:
        failed.append(type(error).__name__)
    took.append(1e3 * (time.monotonic() - started_s))


async def watch(pid: int, rss_mb: list[float], is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        rss_mb.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_over.wait(), 1.0)


def cpu_of(pid: int) -> float:
    """Seconds, of the system and of the user."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(took_ms: list[float], failed: list[str]) -> dict[str, float]:
    cuts = statistics.quantiles(took_ms, n=1000)
    return {
        "num": len(took_ms), "num_failed": len(failed), "p50_ms": cuts[499], "p99_ms": cuts[989],
        "p999_ms": cuts[998], "max_ms": max(took_ms),
    }  # fmt: skip


if __name__ == "__main__":
    main()
