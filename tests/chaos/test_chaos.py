"""A hundred requests, workers of two models of GPU that replayed spaces stand in for, one that compiles,
PostgreSQL; and all that goes wrong: `make chaos`, in some five minutes, with a fixed seed."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cut_wire import CutWire
from postgresql_server import USER, missing_postgresql, running_server

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.store import RequestState, Store, Wanted

NUM_SHAPES = 50  # for each of two models
NUM_EACH = 12  # kills, suspensions, partitions, clock jumps
LONGEST_S = 780.0
MODELS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
HERE = Path(__file__).resolve().parent
OPEN = (RequestState.WAITING, RequestState.TUNING)

# What must never happen is written down by the database itself.
WATCHED = """
CREATE TABLE chaos_clock (offset_s double precision);
INSERT INTO chaos_clock VALUES (0);
CREATE TABLE chaos_log (what text, id integer);
CREATE FUNCTION log_request() RETURNS trigger AS $$ BEGIN
    IF OLD.ended_s IS NOT NULL THEN INSERT INTO chaos_log VALUES ('changed', NEW.id);
    ELSIF NEW.ended_s IS NOT NULL THEN INSERT INTO chaos_log VALUES ('ended', NEW.id); END IF;
    RETURN NEW; END $$ LANGUAGE plpgsql;
CREATE FUNCTION log_trial() RETURNS trigger AS $$ BEGIN
    INSERT INTO chaos_log VALUES ('lost', OLD.id); RETURN OLD; END $$ LANGUAGE plpgsql;
CREATE TRIGGER a AFTER UPDATE ON request FOR EACH ROW EXECUTE FUNCTION log_request();
CREATE TRIGGER b AFTER DELETE OR UPDATE OF study_id, config_id ON trial
    FOR EACH ROW EXECUTE FUNCTION log_trial();
"""


def recording_of(folder: Path, model: str) -> Path:
    """The shipped space as one of this model, with many shapes."""
    data = json.loads(gzip.decompress(targets.default_recording().read_bytes()))
    (square,) = [one for one in data["problems"] if one["gemm"] == "1024x1024x1024:NN"]
    data["problems"] = [square | {"gemm": f"{gemm}"} for gemm in shapes()]
    data["environment"]["gpu_name"] = data["limits"]["name"] = model
    path = folder / f"{model.replace(' ', '-')}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


def shapes() -> list[Gemm]:
    return [Gemm(1024 + 256 * at, 1024, 1024) for at in range(NUM_SHAPES)]


class Worker:
    """`autotune worker`, started again as systemd would."""

    def __init__(self, options: list[str], wire: CutWire, url: str, log: Path) -> None:
        self._injected = log.with_suffix("")
        self._injected.mkdir(exist_ok=True)
        (self._injected / "sitecustomize.py").write_text("import short_leases\n", encoding="ascii")
        self._command = [sys.executable, "-m", "autotune", "worker", "--db", url, *options]
        self.wire, self._log = wire, log
        self.start()

    def start(self) -> None:
        paths = (self._injected, HERE, HERE.parents[1], os.environ.get("PYTHONPATH", ""))
        environment = {
            **os.environ, "AUTOTUNE_REPLAY_RATE": "40", "PYTHONPATH": ":".join(map(str, paths)),
        }  # fmt: skip
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)

    def processes(self) -> list[int]:
        """This one and those that it started, as far as they are alive."""
        found = [self.process.pid]
        for parent in found:
            with suppress(OSError):
                text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
                found += map(int, text.split())
        return found

    def keep_alive(self) -> None:
        if self.process.poll() is not None:
            self.start()


class Chaos:
    """What goes wrong, one thing after another; each is mended after a while."""

    def __init__(self, workers: list[Worker], execute: Any, draw: random.Random) -> None:
        self._workers, self._execute, self._draw = workers, execute, draw
        self.done = Counter[str]()
        self._until: list[tuple[float, Any]] = []

    def mend(self, *, all_of_it: bool = False) -> None:
        due = [one for one in self._until if all_of_it or one[0] <= time.monotonic()]
        self._until = [one for one in self._until if one not in due]
        for _, mending in due:
            mending()

    def happen(self, what: str) -> None:
        worker = self._draw.choice(self._workers)
        getattr(self, what)(worker)
        self.done[what] += 1

    def _mend_in(self, seconds: float, mending: Any) -> None:
        self._until.append((time.monotonic() + seconds, mending))

    def kill(self, worker: Worker) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._draw.choice(worker.processes()), signal.SIGKILL)

    def suspend(self, worker: Worker) -> None:
        pid = self._draw.choice(worker.processes())

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._mend_in(self._draw.uniform(1, 6), resume)

    def partition(self, worker: Worker) -> None:
        worker.wire.cut(breaks=self._draw.random() < 0.5)
        self._mend_in(self._draw.uniform(1, 6), worker.wire.mend)

    def jump(self, worker: Worker) -> None:
        offset_s = self._draw.choice((-86_400, -30, -3, 3, 30, 86_400))
        self._execute("UPDATE chaos_clock SET offset_s = offset_s + %s", (offset_s,))


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # short: sockets lie in it
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(900)
def test_every_request_ends_once_whatever_happens(folder: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    if missing := missing_postgresql():
        pytest.skip(missing)
    draw = random.Random(0)
    with running_server() as server:
        url = server.new_database()
        place = Path(url.rpartition("host=")[2])
        name = url.partition("?")[0].rpartition("/")[2]
        Store.open(url).close()
        with psycopg.connect(host=str(place), user=USER, dbname=name, autocommit=True) as admin:
            admin.execute(WATCHED)
            workers = []
            gpus = [recording_of(folder, model) for model in MODELS]
            for at, options in enumerate(
                [*(["--gpu", f"replay:{gpu}"] for gpu in (*gpus, gpus[0])), ["--compile", "1"]]
            ):
                (own := folder / str(at)).mkdir()
                wired = url.replace(f"host={place}", f"host={own}")
                options = [*options, "--seconds", "4", "--effort", "quick"]
                workers.append(Worker(options, CutWire(own, place), wired, folder / f"{at}.log"))
            try:
                _run(url, admin, workers, draw)
                _stop(workers)
                _check(admin)
            except BaseException:
                for log in folder.glob("*.log"):
                    print(log.name, log.read_text("utf-8", "replace")[-3000:])
                raise
            finally:
                for worker in workers:
                    for pid in worker.processes():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    worker.process.wait()
                    worker.wire.close()


def _run(url: str, admin: Any, workers: list[Worker], draw: random.Random) -> None:
    chaos = Chaos(workers, admin.execute, draw)
    events = [what for what in ("kill", "suspend", "partition", "jump") for _ in range(NUM_EACH)]
    draw.shuffle(events)
    started_s = time.monotonic()
    with Store.open(url) as store:
        queue = store.queue()
        wanted = [Wanted(gemm, model, draw.randint(1, 9), 1.0) for gemm in shapes() for model in MODELS]
        queue.submit(wanted)
        while events or any(queue.counts()[state] for state in OPEN):
            assert time.monotonic() - started_s < LONGEST_S, (queue.counts(), chaos.done)
            if events:
                chaos.happen(events.pop())
            else:
                chaos.mend(all_of_it=True)
            time.sleep(draw.uniform(0.5, 3.0))
            chaos.mend()
            for worker in workers:
                worker.keep_alive()
        chaos.mend(all_of_it=True)
        counts = queue.counts()
    print(f"{time.monotonic() - started_s:.0f} s", dict(chaos.done), dict(counts))
    assert counts[RequestState.TUNED] >= NUM_SHAPES, "most are tuned in spite of it"
    assert sum(counts.values()) == 2 * NUM_SHAPES


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
    for worker in workers:
        worker.process.wait(90)


def _check(admin: Any) -> None:
    log = admin.execute("SELECT what, id FROM chaos_log").fetchall()
    ended = Counter(number for what, number in log if what == "ended")
    assert len(ended) == 2 * NUM_SHAPES and set(ended.values()) == {1}, "each request ends exactly once"
    assert not [one for one in log if one[0] == "changed"], "none changes after that"
    assert not [one for one in log if one[0] == "lost"], "no stored trial is lost"
    doubled = "SELECT 1 FROM trial GROUP BY study_id, config_id HAVING count(*) > 1"
    assert admin.execute(doubled).fetchall() == []
    time.sleep(3)  # longer than a lease
    held = "SELECT scope FROM lease JOIN worker ON worker.id = lease.worker_id WHERE expires_s > "
    held += "extract(epoch FROM clock_timestamp()) + (SELECT offset_s FROM chaos_clock)"
    assert admin.execute(held).fetchall() == [], "no lease is held for ever"
