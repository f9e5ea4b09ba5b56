"""A program and a server: a shape that it met is tuned elsewhere, and served tuned without a restart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from service_cases import serving
from table_cases import FakeDriver, OnGpu, isolated, make_kernel, make_spec, make_table, rank, write_table

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.runtime.dispatcher import Dispatcher
from autotune.service.signing import SigningKey, signed_tables
from autotune.service.table_source import ServerTables
from autotune.store import RequestState, Store

MET = Gemm(70, 66, 35)
NAME = "NVIDIA H200"
FAST = make_kernel("tuned", make_spec(group=8))
BEFORE = make_table(make_kernel("other", make_spec()))
AFTER = replace(
    make_table(FAST, make_kernel("other", make_spec()), entries=(rank(MET, "tuned"),)),
    created_at="2026-11-22T00:00:00+00:00",
)
LATER = replace(AFTER, created_at="2026-11-23T00:00:00+00:00")
WAIT_S = 20.0


@dataclass
class Team:
    """A server with its database, a key, and a folder for exports."""

    url: str
    store: Store
    key: SigningKey
    folder: Path

    def publish(self, table: Any, key: SigningKey | None = None) -> str:
        """Its address."""
        folder = write_table(table, self.folder / f"sgemm_{len(list(self.folder.iterdir()))}")
        (new,) = signed_tables(folder, key or self.key, has_run=True)
        ServerTables(self.url, "").publish(new, "a worker")
        return new.address


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    isolated(monkeypatch, tmp_path)
    key = SigningKey.make(tmp_path / "team.key")
    (tmp_path / "exports").mkdir()
    with Store.open(tmp_path / "team.db") as store, serving(store, frozenset({key.public})) as url:
        monkeypatch.setenv("AUTOTUNE_SERVER", url)
        monkeypatch.setenv("AUTOTUNE_SERVER_KEY", key.public)
        monkeypatch.setenv("AUTOTUNE_SERVER_SECONDS", "0.05")
        yield Team(url, store, key, tmp_path / "exports")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Dispatcher]]:
    """Programs, which end with the test."""
    programs = []
    folder = write_table(BEFORE, tmp_path / "sgemm_before")

    def made(**options: Any) -> Dispatcher:
        programs.append(Dispatcher(folder, driver=FakeDriver(AFTER), **options))
        multiply(programs[-1])
        return programs[-1]

    yield made
    for program in programs:
        if program._client is not None:
            program._client.end()


def multiply(program: Dispatcher) -> str:
    """A product that is right; returns the kernel that was launched."""
    a, b = (np.random.default_rng(0).standard_normal(x, dtype=np.float32) for x in ((70, 35), (35, 66)))
    out = np.zeros((70, 66), np.float32)
    program.sgemm(OnGpu(a), OnGpu(b), OnGpu(out))
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
    assert isinstance(program._driver, FakeDriver)
    return program._driver.launches[-1].kernel_id


def until(is_so: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return found


def never(is_so: Callable[[], Any]) -> None:
    """In the time of some exchanges."""
    for _ in range(30):
        assert not is_so()
        time.sleep(0.01)


def work(team: Team) -> None:
    """A worker elsewhere: takes one request, has its result verified, signed and published."""
    queue = team.store.queue()
    with queue.join("gpu", NAME) as worker:
        claimed = until(lambda: queue.claim(worker, [NAME], 60.0))
        assert claimed.wanted.gemm == MET
        team.publish(AFTER)
        assert queue.finish(claimed, RequestState.TUNED)


def test_a_shape_that_a_program_met_is_served_tuned_without_a_restart(
    team: Team, begin: Callable[..., Dispatcher]
) -> None:
    worker = threading.Thread(target=work, args=(team,))
    worker.start()
    program = begin()
    assert multiply(program) != "tuned"
    until(lambda: multiply(program) == "tuned")
    worker.join()
    assert program.pick(70, 66, 35).how == "exact" and program.table == AFTER
    counts = program.counts()
    assert {one.kernel_id for one in counts} >= {"tuned"} and len(counts) > 1  # of both tables

    def hows() -> set[str]:
        return {one.how for one in team.store.artifacts().usage()}

    until(lambda: hows() >= {"modelled", "exact"})  # misses, then hits
    assert [one.state for one in team.store.queue().requests()] == [RequestState.TUNED]


def test_the_last_table_is_kept_and_serves_without_a_server(
    team: Team, begin: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    team.publish(AFTER)
    first = begin()
    until(lambda: multiply(first) == "tuned")
    monkeypatch.setenv("AUTOTUNE_SERVER", "http://127.0.0.1:9")  # nobody is there
    second = begin()
    until(lambda: multiply(second) == "tuned")
    kept = Path(os.environ["AUTOTUNE_CACHE"]) / "served"
    (folder,) = (path for path in kept.iterdir() if path.is_dir())
    (folder / "table.json").write_bytes((folder / "table.json").read_bytes().replace(b"tuned", b"tunee"))
    third = begin()
    never(lambda: multiply(third) == "tuned")


def test_nothing_unsigned_or_of_another_key_is_taken(
    team: Team, begin: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = team.publish(AFTER)
    monkeypatch.setenv("AUTOTUNE_SERVER_KEY", SigningKey.make(tmp_path / "other.key").public)
    others = begin()
    monkeypatch.setenv("AUTOTUNE_SERVER_KEY", "")
    without = begin()
    never(lambda: "tuned" in (multiply(others), multiply(without)))
    until(lambda: team.store.artifacts().usage())  # both tell all the same
    assert len(address) == 64


@pytest.mark.parametrize("why", ["deterministic", "torch", "choices", "order"])
def test_who_requested_for_the_same_bits_takes_none(
    why: str, team: Team, begin: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {}
    if why == "deterministic":
        options = {"deterministic": True}
    elif why == "choices":
        own = begin()
        own.export_choices(tmp_path / "choices.json")
        assert own._client is not None
        own._client.end()
        options = {"choices": tmp_path / "choices.json"}
    elif why == "torch":
        torch = SimpleNamespace(are_deterministic_algorithms_enabled=lambda: True)
        monkeypatch.setitem(sys.modules, "torch", torch)
    else:
        torch = SimpleNamespace(are_deterministic_algorithms_enabled=lambda: False)
        monkeypatch.setitem(sys.modules, "torch", torch)
        program = begin()
        team.publish(AFTER)
        until(lambda: multiply(program) == "tuned")
        return
    team.publish(AFTER)
    program = begin(**options)
    never(lambda: multiply(program) == "tuned")


def test_several_ranks_take_it_together_or_not_at_all(
    team: Team, begin: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    team.publish(AFTER)
    ranks = [begin(), begin()]
    for rank_ in ranks:
        assert rank_._client is not None
        until(lambda client=rank_._client: client._chosen())
    assert not any(multiply(one) == "tuned" for one in ranks)
    message: list[str] = []
    assert not ranks[0].take_update(lambda mine: [mine, ""])  # another has none yet
    assert not ranks[0].take_update()  # nobody can be asked
    assert not ranks[0].take_update(lambda mine: message.append(mine) or [mine, mine + "x"])
    assert all(one.take_update(lambda mine: [*message, mine]) for one in ranks)
    assert [multiply(one) for one in ranks] == ["tuned", "tuned"]
    assert not ranks[0].take_update(lambda mine: [mine, mine])  # nothing else is offered


def test_a_rollback_is_followed(team: Team, begin: Callable[..., Dispatcher]) -> None:
    first = team.publish(AFTER)
    program = begin()
    until(lambda: program.table == AFTER)
    second = team.publish(LATER)
    until(lambda: program.table == LATER)
    ServerTables(team.url, "").decide("rollback", second, "me")
    until(lambda: program.table == AFTER)
    assert multiply(program) == "tuned" and first != second


def test_a_folder_that_is_newer_is_not_exchanged(
    team: Team, tmp_path: Path, begin: Callable[..., Dispatcher]
) -> None:
    team.publish(replace(AFTER, created_at="2026-01-01T00:00:00+00:00"))
    program = begin()
    never(lambda: multiply(program) == "tuned")


def test_an_exchange_between_calls_of_many_threads(team: Team, begin: Callable[..., Dispatcher]) -> None:
    """Every product is right, and what was loaded stays loaded."""
    program = begin()
    faults: list[BaseException] = []
    is_over = threading.Event()

    def call() -> None:
        try:
            while not is_over.is_set():
                multiply(program)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for table in (AFTER, BEFORE, AFTER, BEFORE):
        other = begin()
        model = program.models[0]
        folder = write_table(table, team.folder / f"sgemm_t{len(list(team.folder.iterdir()))}")
        found = Dispatcher(folder).models[0]
        program.exchange({model.gpu_model: (found.table, found._code)})
        other._client and other._client.end()
        time.sleep(0.02)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not faults and len(program._former) >= 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AUTOTUNE_SERVER", "no url"),
        ("AUTOTUNE_SERVER", "ftp://x"),
        ("AUTOTUNE_SERVER", "http://127.0.0.1:99999"),
        ("AUTOTUNE_SERVER_KEY", "nonsense"),
        ("AUTOTUNE_SERVER_SECONDS", "soon"),
        ("AUTOTUNE_SERVER_TOKEN", "line\nbreak"),
        ("AUTOTUNE_CACHE", "/proc/nowhere"),
    ],
)
def test_whatever_is_amiss_a_call_does_not_mind(
    name: str, value: str, team: Team, begin: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    program = begin()
    for _ in range(10):
        multiply(program)
        time.sleep(0.02)


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "inf", "soon"])
def test_a_period_without_an_end_or_a_pause_ends_the_exchange_with_a_word(
    seconds: str, team: Team, begin: Callable[..., Dispatcher], monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setenv("AUTOTUNE_SERVER_SECONDS", seconds)
    program = begin()
    until(lambda: program._client is not None and not program._client._thread.is_alive())
    assert "no server is told: " in caplog.text and multiply(program)


def test_a_server_that_hangs_holds_up_neither_calls_nor_the_end(tmp_path: Path) -> None:
    """In a process of its own, which forks, too."""
    write_table(BEFORE, tmp_path / "sgemm_before")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "sgemm_before")],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "AUTOTUNE_CACHE": str(tmp_path / "cache")},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.split() == ["child", "0", "served"]


PROGRAM = """
import os, socket, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(16)  # takes connections, and never answers
os.environ["AUTOTUNE_SERVER"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
listener.detach()  # it stays open
os.environ["AUTOTUNE_SERVER_SECONDS"] = "0.01"
import numpy as np
from autotune.runtime.dispatcher import Dispatcher
from table_cases import FakeDriver, OnGpu
from test_program_client import BEFORE, multiply
program = Dispatcher(sys.argv[1], driver=FakeDriver(BEFORE))
multiply(program)
time.sleep(0.2)
child = os.fork()
if not child:
    print("child", flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
began = time.monotonic()
for _ in range(100):
    multiply(program)
assert time.monotonic() - began < 5
print("served")
"""


def test_the_runtime_knows_no_server_unless_one_is_named(tmp_path: Path) -> None:
    program = Dispatcher(write_table(BEFORE, tmp_path / "sgemm_before"), driver=FakeDriver(BEFORE))
    multiply(program)
    assert program._client is None and not program.take_update()
    with pytest.raises(DispatchError, match="may be exchanged"):
        Dispatcher(tmp_path / "sgemm_before", deterministic=True).exchange({})
