"""Captured products on a real GPU: their graph keeps the memory that they need, and nobody else has it."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_table import export_winners, plain_config

from autotune.facts.gemm import Gemm
from autotune.gpu.driver import device_limits
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PASSES, BLOCKS, LARGE = Gemm(64, 96, 2048), Gemm(96, 64, 2048), Gemm(256, 480, 2048)
ALLOCATES = 10  # CU_GRAPH_NODE_TYPE_MEM_ALLOC


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = plain_config(device_limits(0), vec_b=4)
    winners = {
        **dict.fromkeys((PASSES, LARGE), replace(plain, reduction="two_pass", split_k=8)),
        BLOCKS: replace(plain, reduction="last_block", split_k=8),
    }
    return export_winners(winners, tmp_path_factory.mktemp("captures") / "captures_table")


@pytest.fixture
def runtime(folder: Path) -> Dispatcher:
    return Dispatcher(folder, cublas=False)


class Captured:
    """Products of one shape, one after another, and the graph that makes them."""

    def __init__(self, torch: Any, runtime: Dispatcher, gemm: Gemm, seed: int = 0, num: int = 3) -> None:
        torch.manual_seed(seed)
        self.a, self.b = torch.randn(gemm.m, gemm.k), torch.randn(gemm.k, gemm.n)
        on_gpu, out = (self.a.cuda(), self.b.cuda()), torch.empty(gemm.m, gemm.n, device="cuda")
        self.out, self._held = out, on_gpu
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            for _ in range(num):
                runtime.sgemm(*on_gpu, out)
        self.graph.instantiate()

    def check(self, torch: Any) -> None:
        expected = (self.a.double() @ self.b.double()).float()
        torch.testing.assert_close(self.out.cpu(), expected, rtol=1e-4, atol=1e-3)

    def num_allocations(self) -> int:
        from cuda.bindings import driver

        graph = driver.CUgraph(self.graph.raw_cuda_graph())
        _, _, num = driver.cuGraphGetNodes(graph)
        _, nodes, _ = driver.cuGraphGetNodes(graph, num)
        return sum(int(driver.cuGraphNodeGetType(node)[1]) == ALLOCATES for node in nodes)


@pytest.mark.parametrize("gemm", [PASSES, BLOCKS], ids=str)
def test_a_graph_takes_no_memory_when_it_is_replayed(torch: Any, runtime: Dispatcher, gemm: Gemm) -> None:
    captured = Captured(torch, runtime, gemm)
    assert captured.num_allocations() == 0
    for _ in range(3):
        captured.out.fill_(float("nan"))
        captured.graph.replay()
        torch.cuda.synchronize()
        captured.check(torch)


def test_what_is_large_is_taken_by_nodes(torch: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CAPTURED_BYTES", 1)
    captured = Captured(torch, Dispatcher(folder, cublas=False), PASSES)
    assert captured.num_allocations() == 3
    captured.graph.replay()
    torch.cuda.synchronize()
    captured.check(torch)


def test_graphs_on_many_streams_share_nothing(torch: Any, runtime: Dispatcher) -> None:
    """Beside calls that are not captured, on streams that have memory of their own."""
    graphs = [Captured(torch, runtime, (PASSES, BLOCKS)[i % 2], seed=i, num=20) for i in range(8)]
    streams = [torch.cuda.Stream() for _ in graphs]
    eager = graphs[0]
    for _ in range(20):
        for captured, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                captured.out.fill_(float("nan"))
                captured.graph.replay()
        found = runtime.sgemm(*eager._held)
        torch.cuda.synchronize()
        for captured in graphs:
            captured.check(torch)
        torch.testing.assert_close(found, eager.out, rtol=1e-4, atol=1e-3)


def test_memory_of_graphs_that_ended_is_used_again(torch: Any, runtime: Dispatcher) -> None:
    """Each takes 4 MiB: if none were used again, the GPU's bound would leave nothing for the last."""
    assert core.PIECES_BYTES < 100 * core.CAPTURED_BYTES
    for seed in range(100):
        captured = Captured(torch, runtime, LARGE, seed, num=1)
        captured.graph.replay()
        torch.cuda.synchronize()
        captured.check(torch)
        assert captured.num_allocations() == 0
        del captured
        gc.collect()


def test_a_graph_that_ends_while_it_runs_keeps_its_memory(torch: Any, runtime: Dispatcher) -> None:
    """The driver holds what a graph holds until its launches have run."""
    stream = torch.cuda.Stream()
    for seed in range(20):
        old = Captured(torch, runtime, PASSES, seed, num=50)
        out, a, b = old.out, old.a, old.b
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            old.graph.replay()
        del old.graph
        new = Captured(torch, runtime, PASSES, 1000 + seed, num=50)
        new.graph.replay()
        torch.cuda.synchronize()
        new.check(torch)
        torch.testing.assert_close(out.cpu(), (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-3)
