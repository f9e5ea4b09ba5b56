"""A hundred requests to a server; workers of two models of GPU that replayed spaces stand in for, some of
them on a Ray cluster of three nodes in network namespaces; one that compiles; PostgreSQL; and all that goes
wrong: `make chaos`, five to fifteen minutes, with a fixed seed."""

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import short_leases  # noqa: F401  this process, too, goes by its clock
from cut_wire import CutWire
from network import RAY, Node, missing_namespaces, network
from postgresql_server import USER, missing_postgresql, running_server

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.compiler import CompileJob, compiler_version
from autotune.runtime.service.table_server import ServerCalls
from autotune.service import signing
from autotune.service.compile_worker import StoreHelpers
from autotune.service.signing import SigningKey
from autotune.store import RequestState, Store

NUM_SHAPES = 50  # for each of two models
NUM_EACH = 12  # kills, suspensions, partitions, clock jumps
PLACED_S, LONGEST_S = 240.0, 580.0  # until all workers are there; of all that goes wrong
MODELS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
HERE = Path(__file__).resolve().parent
PORT = 8579  # of the server
NUM_GPUS = 4  # two of them on the cluster
NUM_BUILDS = 20  # kernels that the compile worker is asked for
RESTART_S = 1.0

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
    path.write_bytes(gzip.compress(json.dumps(data).encode(), 1))
    return path


def shapes() -> list[Gemm]:
    return [Gemm(1024 + 256 * at, 1024, 1024) for at in range(NUM_SHAPES)]


class Service:
    """A process that is started again as systemd would, on its wire to the database. On a node, what is left
    of the one before ends first."""

    def __init__(self, command: list[str], wire: CutWire, log: Path, node: Node | None = None) -> None:
        self._injected = log.with_suffix("")
        self._injected.mkdir(exist_ok=True)
        (self._injected / "sitecustomize.py").write_text("import short_leases\n", encoding="ascii")
        self._command, self._log, self._node = command, log, node
        self._wires, self.is_node = [wire, *([node] if node else [])], node is not None
        self.start()

    def start(self) -> None:
        paths = (self._injected, HERE, HERE.parents[1], os.environ.get("PYTHONPATH", ""))
        environment = {
            **os.environ, **RAY, "AUTOTUNE_REPLAY_RATE": "40",
            "AUTOTUNE_CACHE": str(self._log.with_name("cache")), "PYTHONPATH": ":".join(map(str, paths)),
        }  # fmt: skip
        self._ended_s = 0.0
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

    def cut(self, *, breaks: bool) -> None:
        for wire in self._wires:
            wire.cut(breaks=breaks)

    def mend(self) -> None:
        for wire in self._wires:
            wire.mend()

    def keep_alive(self) -> None:
        if self.process.poll() is None:
            return
        self._ended_s = self._ended_s or time.monotonic()
        if time.monotonic() - self._ended_s < RESTART_S:
            return
        if self._node:
            self._node.kill_all()
        self.start()

    def end(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Chaos:
    """What goes wrong, one thing after another; each is mended after a while."""

    def __init__(self, services: list[Service], execute: Any, draw: random.Random) -> None:
        self._services, self._execute, self._draw = services, execute, draw
        self.done = Counter[str]()
        self._until: list[tuple[float, Any]] = []

    def mend(self, *, all_of_it: bool = False) -> None:
        due = [one for one in self._until if all_of_it or one[0] <= time.monotonic()]
        self._until = [one for one in self._until if one not in due]
        for _, mending in due:
            mending()

    def happen(self, what: str) -> None:
        service = self._draw.choice(self._services)
        getattr(self, what)(service)
        self.done[what] += 1

    def _mend_in(self, seconds: float, mending: Any) -> None:
        self._until.append((time.monotonic() + seconds, mending))

    def kill(self, service: Service) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._draw.choice(service.processes()), signal.SIGKILL)

    def suspend(self, service: Service) -> None:
        pid = self._draw.choice(service.processes())

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._mend_in(self._draw.uniform(1, 6), resume)

    def partition(self, service: Service) -> None:
        service.cut(breaks=self._draw.random() < 0.5)
        self._mend_in(self._draw.uniform(1, 6), service.mend)

    def jump(self, service: Service) -> None:
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
    pytest.importorskip("ray")
    if missing := missing_postgresql() or missing_namespaces():
        pytest.skip(missing)
    draw, key = random.Random(0), SigningKey.make(folder / "key")
    with running_server() as server, network(folder, 3) as nodes:
        url = server.new_database()
        place, name = url.rpartition("host=")[2], url.partition("?")[0].rpartition("/")[2]
        Store.open(url).close()
        with psycopg.connect(host=place, user=USER, dbname=name, autocommit=True) as admin:
            admin.execute(WATCHED)
            team = Team(folder, url)
            try:
                team.begin(nodes)
                _run(url, admin, team.services, draw)
                team.stop()
                _check(admin)
                _check_tables(url, key.public)
            except BaseException:
                for log in folder.glob("*.log"):
                    print(log.name, log.read_text("utf-8", "replace")[-3000:])
                raise
            finally:
                team.close()


class Team:
    """All services, each on a wire of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._place = folder, url.rpartition("host=")[2]
        self.services, self._wires = list[Service](), list[CutWire]()
        self._url = url.replace(f"host={self._place}", "host={}")

    def begin(self, nodes: list[Node]) -> None:
        key, address = str(self._folder / "key"), f"http://127.0.0.1:{PORT}"
        first, second = (f"replay:{recording_of(self._folder, model)}" for model in MODELS)
        brief = ["--seconds", "4", "--effort", "quick"]
        publishing = [*brief, "--key", key, "--max-kernels", "0"]
        self._start("serve", ["serve", "--port", str(PORT), "--trust", f"{key}.pub"])
        self._start("first", ["worker", "--gpu", first, *publishing, "--server", address])
        self._start("second", ["worker", "--gpu", second, *publishing])
        self._start("compile", ["worker", "--compile", "1"])
        for node in nodes:
            self._add(node.name, node.ray(), self._wire(node.own), node)
        placing = ["worker", "--cluster", nodes[0].head, "--gpu", f"{first}:1,{second}:1", *brief]
        command = nodes[0].within(self._autotune(placing, nodes[0].at))
        self._add("placing", command, self._wires[-len(nodes)])  # on the head

    def _autotune(self, words: list[str], own: Path) -> list[str]:
        return [sys.executable, "-m", "autotune", *words, "--db", self._url.format(own)]

    def _start(self, name: str, words: list[str]) -> None:
        (own := self._folder / f"of-{name}").mkdir()
        self._add(name, self._autotune(words, own), self._wire(own))

    def _wire(self, own: Path) -> CutWire:
        self._wires.append(CutWire(own, Path(self._place)))
        return self._wires[-1]

    def _add(self, name: str, command: list[str], wire: CutWire, node: Node | None = None) -> None:
        self.services.append(Service(command, wire, self._folder / f"{name}.log", node))

    def stop(self) -> None:
        """In order: all but the nodes, whose worker goes first."""
        ended = [one for one in reversed(self.services) if not one.is_node]
        for one in ended:
            one.process.send_signal(signal.SIGTERM)
        for one in ended:
            one.process.wait(90)

    def close(self) -> None:
        for one in self.services:
            one.end()
        for wire in self._wires:
            wire.close()


def _ask(store: Store, draw: random.Random) -> bool:
    """Ask the server for ten shapes that nobody asked for yet; whether there were any."""
    known = {(one.wanted.gemm, one.wanted.gpu) for one in store.queue().requests()}
    for model in MODELS:
        shapes_left = [gemm for gemm in shapes() if (gemm, model) not in known][:10]
        if shapes_left:
            wanted = [{"shape": str(gemm), "calls": draw.randint(1, 9)} for gemm in shapes_left]
            with suppress(DispatchError):  # it is down, or its answer was lost
                calls = ServerCalls(f"http://127.0.0.1:{PORT}")
                calls.post("requests", content={"gpu_name": model, "shapes": wanted})
            return True
    return False


def _run(url: str, admin: Any, services: list[Service], draw: random.Random) -> None:
    chaos = Chaos(services, admin.execute, draw)
    events = [what for what in ("kill", "suspend", "partition", "jump") for _ in range(NUM_EACH)]
    draw.shuffle(events)
    with Store.open(url) as store, StoreHelpers(store.builds()) as helpers, ThreadPoolExecutor(1) as thread:
        queue, started_s, is_asking = store.queue(), time.monotonic(), True
        while sum(one.kind == "gpu" and one.is_alive for one in queue.workers()) < NUM_GPUS:
            assert time.monotonic() - started_s < PLACED_S, "not all workers came"
            time.sleep(1)
            for one in services:
                one.keep_alive()
        built, started_s = thread.submit(_build, helpers), time.monotonic()
        while events or is_asking or queue.has_open():
            assert time.monotonic() - started_s < LONGEST_S, (queue.counts(), chaos.done)
            is_asking = is_asking and _ask(store, draw)
            if events:
                chaos.happen(events.pop())
            else:
                chaos.mend(all_of_it=True)
            time.sleep(draw.uniform(0.5, 3.0))
            chaos.mend()
            for one in services:
                one.keep_alive()
        chaos.mend(all_of_it=True)
        counts, ended = queue.counts(), queue.requests()
        by_host = Counter((one.worker.partition("/")[0], one.state.value) for one in ended)
    print(f"{time.monotonic() - started_s:.0f} s", dict(chaos.done), dict(counts))
    print(
        f"requests ended on {dict(by_host)}; a compile worker made {built.result()} of {NUM_BUILDS} kernels"
    )
    assert counts[RequestState.TUNED] >= NUM_SHAPES, "most are tuned in spite of it"
    assert sum(counts.values()) == 2 * NUM_SHAPES and built.result() > 0


def _build(helpers: StoreHelpers) -> int:
    """Ask for kernels, one after another, all the while; returns how many were compiled elsewhere."""
    options = ("-arch=sm_90", "-std=c++17", "-default-device", "--no-cache", "--ptxas-options=-v")
    found = 0
    for at in range(NUM_BUILDS):
        time.sleep(3.0)
        text = f'extern "C" __global__ void f(float *x) {{ x[0] = {at}.0f; }}'
        job = CompileJob(compiler_version(), "f", options, text, "", "sm_90")
        found += helpers.build(job) is not None
    return found


def _check(admin: Any) -> None:
    log = admin.execute("SELECT what, id FROM chaos_log").fetchall()
    ended = Counter(number for what, number in log if what == "ended")
    assert len(ended) == 2 * NUM_SHAPES and set(ended.values()) == {1}, "each request ends exactly once"
    assert not [one for one in log if one[0] == "changed"], "none changes after that"
    assert not [one for one in log if one[0] == "lost"], "no stored trial is lost"
    doubled = "SELECT 1 FROM trial GROUP BY study_id, config_id HAVING count(*) > 1"
    assert admin.execute(doubled).fetchall() == []
    time.sleep(3)  # longer than a lease
    held = "SELECT 1 FROM optuna_trial JOIN worker ON worker.id = worker_id WHERE expires_s > "
    held += "extract(epoch FROM clock_timestamp()) + (SELECT offset_s FROM chaos_clock)"
    assert admin.execute(held).fetchall() == [], "nobody is at anything for ever"


def _check_tables(url: str, key: str) -> None:
    with Store.open(url) as store:
        tables = store.artifacts()
        files = [tables.files(one.address) for one in tables.all()]
    found = [signing.received(one, frozenset({key})) for one in files if one]
    most = max((one.facts["num_shapes"] for one in found), default=0)
    print(f"{len(found)} tables were published, of {most} shapes at most")
    assert {one.channel.gpu_name for one in found} == set(MODELS), "each model has tables, all of them whole"
