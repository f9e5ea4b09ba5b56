"""Blocks that share out chunks, and hand sums on, on a real GPU: the bits of the reference, call after call,
in graphs, and where two streams fill the GPU, so that blocks wait for others that came long before."""

from __future__ import annotations

import random
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_table import export_winners

from autotune import reference
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.launch import plan
from autotune.kernel.resources import launch_spec
from autotune.kernel.where import Where
from autotune.runtime.dispatcher import Dispatcher

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

ORDER = "chunks:512"
SHAPES = (  # m, n, k, products
    (130, 100, 40_001, 1), (257, 511, 8192, 1), (1000, 1700, 1601, 1), (33, 4000, 2049, 1),
    (2048, 64, 4100, 1), (65, 96, 6000, 7), (700, 70, 1999, 3), (17, 2050, 3001, 3),
)  # fmt: skip
MOST_SUMS = 64  # of a thread: more may spill
REPEATS = 50
ROWS, COLUMNS = 13, 7  # apart the reference is computed: it takes long


def winners() -> dict[Gemm, Config]:
    """Kernels whose blocks share out the chunks of their shape, drawn from the feasible set of each."""
    limits, found, drawn = device_limits(0), dict[Gemm, Config](), random.Random(104)
    where = Where.parse((), order=ORDER)
    for (m, n, k, num), layout in zip(SHAPES, cycle(LAYOUTS), strict=False):
        gemm = Gemm(m, n, k, layout[0] == "T", layout[1] == "T", num)
        space = feasible_set(limits, gemm, order=where.order).where(Where.parse("reduction=chunks"), gemm)
        points = (Config.from_dict(space.point(drawn.randrange(len(space)))) for _ in range(3000))
        found[gemm] = next(
            one
            for one in points
            if one.tm * one.tn <= MOST_SUMS
            and plan(launch_spec(one, gemm, limits), m, n, k, gemm.strides).size[1] == 1
        )
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Dispatcher:
    folder: Path = tmp_path_factory.mktemp("shares") / "shares_table"
    return Dispatcher(export_winners(winners(), folder, where=Where.parse((), order=ORDER)), cublas=False)


class Product:
    """Random operands of a shape, their product by the table, and the reference of a part of it."""

    def __init__(self, torch: Any, table: Dispatcher, gemm: Gemm) -> None:
        self._table, self.gemm = table, gemm
        self._flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
        batch = (gemm.batch,) if gemm.batch > 1 else ()
        a, b = torch.randn(*batch, gemm.m, gemm.k), torch.randn(*batch, gemm.k, gemm.n)
        self._reference = reference(a[..., ::ROWS, :].numpy(), b[..., ::COLUMNS].numpy(), ORDER)
        stored = (a.mT if gemm.trans_a else a), (b.mT if gemm.trans_b else b)
        self._a, self._b = (x.contiguous().cuda() for x in stored)
        self.out = torch.empty(*batch, gemm.m, gemm.n, device="cuda")

    def enqueue(self) -> None:
        self._table.sgemm(self._a, self._b, self.out, **self._flags)

    def check(self) -> None:
        found = self.out[..., ::ROWS, ::COLUMNS].cpu().numpy()
        assert np.array_equal(found, self._reference), str(self.gemm)


@pytest.fixture
def products(torch: Any, table: Dispatcher) -> list[Product]:
    torch.manual_seed(0)
    return [Product(torch, table, entry.gemm) for entry in table.table.entries]


def test_shared_chunks_have_the_bits_of_the_reference_every_time(
    torch: Any, table: Dispatcher, products: list[Product]
) -> None:
    kernels = {kernel.id: kernel for kernel in table.table.kernels}
    for one in products:
        g = one.gemm
        pick = table.pick(g.m, g.n, g.k, g.trans_a, g.trans_b, batch=g.batch)
        grid = plan(kernels[pick.kernel_id].spec, g.m, g.n, g.k, g.strides)
        assert pick.how == "exact"
        assert grid.size[1] == 1 < grid.split_k
        one.enqueue()
        one.check()
        first = one.out.clone()
        for _ in range(REPEATS):
            one.out.fill_(torch.nan)
            one.enqueue()
            assert torch.equal(one.out, first), str(g)


def test_shared_chunks_of_a_graph_have_the_bits_of_the_reference(torch: Any, products: list[Product]) -> None:
    for one in products:
        one.enqueue()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in products:
            one.enqueue()
    for _ in range(REPEATS):
        for one in products:
            one.out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        for one in products:
            one.check()


def test_shared_chunks_of_two_streams_at_once_have_the_bits_of_the_reference(
    torch: Any, table: Dispatcher, products: list[Product]
) -> None:
    """Neither has the GPU for itself: not all blocks of a launch are resident together."""
    others = [Product(torch, table, one.gemm) for one in reversed(products)]
    sides = [(torch.cuda.Stream(), side) for side in (products, others)]
    torch.cuda.synchronize()
    for _ in range(REPEATS):
        for pair in zip(*(side for _, side in sides), strict=True):
            for (stream, _), one in zip(sides, pair, strict=True):
                with torch.cuda.stream(stream):
                    one.out.fill_(torch.nan)
                    one.enqueue()
    torch.cuda.synchronize()
    for one in (*products, *others):
        one.check()
