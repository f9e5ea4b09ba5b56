"""A graph keeps the memory of launches that were captured into it, until it ends; what is large, or refused,
it takes and gives back at each replay."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from table_cases import FakeDriver, OnGpu, make_kernel, make_spec, make_table, rank

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core

STREAM, OTHER = 77, 78
TWO, LAST, WIDE = Gemm(64, 64, 256), Gemm(64, 64, 512), Gemm(640, 640, 256)
ENTRIES = {"two": [TWO, WIDE], "last": [LAST]}
KERNELS = {
    "two": make_spec(reduction="two_pass", split_k=4),
    "last": make_spec(reduction="last_block", split_k=8),
}


def _table() -> object:
    kernels = [make_kernel(name, spec) for name, spec in KERNELS.items()]
    entries = [rank(gemm, name) for name, gemms in ENTRIES.items() for gemm in gemms]
    return make_table(*kernels, entries=tuple(entries))


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(_table(), capturing=frozenset({STREAM, OTHER}))


def multiply(runtime: Dispatcher, gemm: Gemm, stream: int = STREAM) -> None:
    rng = np.random.default_rng(gemm.k)
    a, b = (
        rng.standard_normal((gemm.m, gemm.k), np.float32),
        rng.standard_normal((gemm.k, gemm.n), np.float32),
    )
    c = np.zeros((gemm.m, gemm.n), np.float32)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=stream)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def taken(driver: FakeDriver) -> list[tuple[int, int]]:
    """Addresses and sizes of what graphs keep."""
    return [entry[1:] for entry in driver.of("allocate_now")]


@pytest.mark.parametrize("gemm", [TWO, LAST], ids=str)
def test_launches_of_a_graph_take_memory_once(runtime: Dispatcher, driver: FakeDriver, gemm: Gemm) -> None:
    for _ in range(5):
        multiply(runtime, gemm)
    assert len(taken(driver)) == len(driver.memory) == 1
    assert not driver.of("allocate") and not driver.of("free")
    assert len(driver.of("zero")) == (5 if gemm == LAST else 0)  # of counters, before each


def test_streams_and_graphs_share_nothing_until_a_graph_ends(runtime: Dispatcher, driver: FakeDriver) -> None:
    multiply(runtime, TWO)
    multiply(runtime, TWO, OTHER)
    driver.graph = 2
    multiply(runtime, TWO)
    first, second, third = taken(driver)
    assert len({first, second, third}) == 3
    driver.end_graph(1)
    driver.graph = 3
    multiply(runtime, TWO)
    multiply(runtime, TWO, OTHER)
    assert len(taken(driver)) == 3  # what the first graph had


def test_what_an_eager_launch_has_is_no_graphs(runtime: Dispatcher, driver: FakeDriver) -> None:
    for _ in range(2 * core.LAUNCHES_TO_STAY):
        multiply(runtime, TWO, stream=5)
    multiply(runtime, TWO)
    pieces = {entry[1] for entry in driver.of("allocate")}
    assert taken(driver)[0][0] not in pieces


def test_a_larger_launch_of_a_graph_takes_more(runtime: Dispatcher, driver: FakeDriver) -> None:
    multiply(runtime, TWO)
    multiply(runtime, LAST)  # eight parts instead of four
    multiply(runtime, TWO)
    sizes = [num_bytes for _, num_bytes in taken(driver)]
    assert len(sizes) == 2 and sizes[0] < sizes[1]


def test_what_is_large_is_taken_at_each_replay(runtime: Dispatcher, driver: FakeDriver) -> None:
    assert 4 * 4 * WIDE.m * WIDE.n > core.CAPTURED_BYTES
    multiply(runtime, WIDE)
    assert not taken(driver) and not driver.memory
    assert len(driver.of("allocate")) == len(driver.of("free")) == 1


def test_what_graphs_keep_is_bounded(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply(Dispatcher(folder, driver=driver), TWO)
    size = taken(driver)[0][1]
    monkeypatch.setattr(core, "PIECES_BYTES", 3 * size)
    runtime = Dispatcher(folder, driver=driver)
    for graph in range(2, 7):
        driver.graph = graph
        multiply(runtime, TWO)
    assert len(taken(driver)) == 1 + 3
    assert len(driver.of("allocate")) == len(driver.of("free")) == 2
    driver.end_graph(2)
    driver.graph = 8
    multiply(runtime, TWO)
    assert len(driver.of("allocate")) == 2


@pytest.mark.parametrize("call", ["allocate_now", "make_user_object", "retain_user_object"])
def test_where_a_graph_cannot_keep_memory_it_takes_it_at_each_replay(
    runtime: Dispatcher, driver: FakeDriver, call: str
) -> None:
    driver.rejections = frozenset({call})
    for _ in range(3):
        multiply(runtime, TWO)
    assert len(driver.of("allocate")) == len(driver.of("free")) == 3
    driver.rejections = frozenset()
    multiply(runtime, TWO)
    assert len(taken(driver)) == 1  # what could not be kept before is used now
    assert len(driver.of("allocate")) == 3


def test_a_failed_launch_leaves_memory_to_the_next(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.launch_error = 1
    with pytest.raises(DispatchError):
        multiply(runtime, TWO)
    driver.launch_error = 0
    multiply(runtime, TWO)
    assert len(taken(driver)) == 1


def test_a_graph_may_end_when_its_dispatcher_is_gone(folder: Path, driver: FakeDriver) -> None:
    runtime = Dispatcher(folder, driver=driver)
    multiply(runtime, TWO)
    driver.graph = 2
    multiply(runtime, TWO)
    driver.end_graph(2)
    del runtime
    gc.collect()
    driver.end_graph(1)


class Captures(RuleBasedStateMachine):
    """Captures begin and end in any order, launches of any size in between."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.driver = FakeDriver(_table(), capturing=frozenset({STREAM, OTHER}))
        self.runtime = Dispatcher(self.folder, driver=self.driver)
        self.graphs = {1}
        self.held: dict[tuple[int, int], set[int]] = {}  # addresses of each graph and stream

    @rule(gemm=st.sampled_from([TWO, LAST]), stream=st.sampled_from([STREAM, OTHER]))
    def launch(self, gemm: Gemm, stream: int) -> None:
        multiply(self.runtime, gemm, stream)
        self.held.setdefault((self.driver.graph, stream), set()).add(self.driver.workspaces[-1])

    @rule()
    def begin(self) -> None:
        self.driver.graph = max(self.graphs) + 1
        self.graphs.add(self.driver.graph)

    @precondition(lambda self: len(self.graphs) > 1)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        graph = data.draw(st.sampled_from(sorted(self.graphs - {self.driver.graph})))
        self.graphs.remove(graph)
        self.driver.end_graph(graph)
        self.held = {key: found for key, found in self.held.items() if key[0] != graph}

    @invariant()
    def no_memory_is_of_two(self) -> None:
        held = sorted(address for found in self.held.values() for address in found)
        assert all(a < b for a, b in pairwise(held))


def test_no_memory_is_of_two_graphs(folder: Path) -> None:
    Captures.folder = folder
    run_state_machine_as_test(Captures, settings=settings(max_examples=40, stateful_step_count=20))
