"""Batches on a real GPU: kernels that were compiled for them, cuBLAS, and loops, beside float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_table import each_kind_of_launch, export_winners, plain_config

from autotune.export.check import verify_table
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.runtime.dispatcher import Dispatcher

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

SQUARE, RAGGED, DEEP = Gemm(128, 64, 96, batch=6), Gemm(33, 65, 127, batch=9), Gemm(48, 40, 1024, batch=5)
SHARES = ("", "a", "b")


def variants(gemm: Gemm) -> Iterator[Gemm]:
    """In every layout, with each operand shared."""
    for layout in LAYOUTS:
        for shared in SHARES:
            yield replace(
                gemm,
                trans_a=layout[0] == "T",
                trans_b=layout[1] == "T",
                shares_a=shared == "a",
                shares_b=shared == "b",
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of launch has kernels for batches here."""
    plain = plain_config(device_limits(0), vec_b=1)
    winners = each_kind_of_launch(plain, *map(variants, (SQUARE, RAGGED, DEEP)))
    return export_winners(winners, tmp_path_factory.mktemp("batches") / "batches_table")


@pytest.fixture(params=[False, True], ids=["kernels", "cublas"])
def runtime(request: pytest.FixtureRequest, folder: Path) -> Dispatcher:
    return Dispatcher(folder, cublas=request.param)


def stack(torch: Any, num: int | None, rows: int, columns: int, ld: int = 0, gap: int = 0) -> Any:
    """Matrices with rows so many elements further apart, and so much between them; `num` None: one."""
    lead = columns + ld
    space = torch.randn((num or 1) * (rows * lead + gap), device="cuda")
    made = space.as_strided((num or 1, rows, columns), (rows * lead + gap, lead, 1))
    return made[0] if num is None else made


def operands(torch: Any, gemm: Gemm, ld: int = 0, gap: int = 0) -> tuple[Any, Any, Any]:
    of_a, of_b = (None if is_shared else gemm.batch for is_shared in (gemm.shares_a, gemm.shares_b))
    rows_a, columns_a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
    rows_b, columns_b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
    a, b = stack(torch, of_a, rows_a, columns_a, ld, gap), stack(torch, of_b, rows_b, columns_b, ld, gap)
    return a, b, stack(torch, gemm.batch, gemm.m, gemm.n, ld, gap)


def exact(gemm: Gemm, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    a, b = (x.double().mT if turns else x.double() for x, turns in ((a, gemm.trans_a), (b, gemm.trans_b)))
    return alpha * (a @ b) + (beta * c.double() if beta else 0)


def close(torch: Any, found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-3)


CASES = [
    *variants(SQUARE),
    *variants(RAGGED),
    *variants(DEEP),
    *(replace(DEEP, k=k) for k in (1040, 1056, 1072)),
]


@pytest.mark.parametrize("gemm", CASES, ids=str)
@pytest.mark.parametrize(("ld", "gap"), [(0, 0), (1, 3), (4, 8)], ids=["packed", "odd", "apart"])
@pytest.mark.parametrize("num", [None, 4, 40], ids=["tuned", "near", "far"])
def test_every_way_a_batch_lies(
    torch: Any, runtime: Dispatcher, gemm: Gemm, ld: int, gap: int, num: int
) -> None:
    gemm = replace(gemm, batch=num or gemm.batch)
    flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
    for alpha, beta in ((1.0, 0.0), (1.25, -0.5), (0.0, 2.0)):
        a, b, c = operands(torch, gemm, ld, gap)
        expected = exact(gemm, a, b, c, alpha, beta)
        if not beta:
            c.fill_(torch.nan)
        for _ in range(2):  # the second time by the core's fast path
            out = c.clone(memory_format=torch.preserve_format) if not (ld or gap) else c
            before = c.clone()
            runtime.sgemm(a, b, out, alpha=alpha, beta=beta, **flags)
            close(torch, out, expected)
            c.copy_(before)


def test_what_was_not_tuned_is_served(torch: Any, runtime: Dispatcher) -> None:
    for extents in ((1, 7, 5), (17, 1, 300), (70, 66, 35)):
        gemm = Gemm(*extents, batch=11)
        a, b, c = operands(torch, gemm)
        close(torch, runtime.sgemm(a, b), exact(gemm, a, b, c, 1.0, 0.0))
        close(torch, runtime.sgemm(a, b[0]), a.double() @ b[0].double())


def test_dimensions_broadcast_and_lie_permuted(torch: Any, runtime: Dispatcher) -> None:
    """As the heads of attention do, which lie behind the rows."""
    q = torch.randn(3, 20, 4, 16, device="cuda").permute(0, 2, 1, 3)
    k = torch.randn(3, 30, 4, 16, device="cuda").permute(0, 2, 1, 3)
    close(torch, runtime.sgemm(q, k, trans_b=True), q.double() @ k.double().mT)
    shared = torch.randn(4, 16, 24, device="cuda")
    close(torch, runtime.sgemm(q, shared), q.double() @ shared.double())
    assert runtime.sgemm(q[:0], shared).shape == (0, 4, 20, 24)


def test_streams_and_graphs(torch: Any, runtime: Dispatcher) -> None:
    """Four streams at once, and a graph on each beside eager calls: workspaces are apart."""
    gemms = [DEEP, replace(DEEP, k=1040), replace(DEEP, k=1072), replace(DEEP, k=77)]
    sets = [operands(torch, gemm) for gemm in gemms]
    expected = [exact(gemm, *one, 1.0, 0.0) for gemm, one in zip(gemms, sets, strict=True)]
    for a, b, c in sets:
        runtime.sgemm(a, b, c)
    torch.cuda.synchronize()
    graphs = []
    for a, b, c in sets:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            runtime.sgemm(a, b, c)
    streams = [torch.cuda.Stream() for _ in sets]
    for c in (c for *_, c in sets):
        c.fill_(torch.nan)
    torch.cuda.synchronize()
    others = [torch.empty_like(c) for *_, c in sets]
    for _ in range(20):
        for graph, stream, (a, b, _), other in zip(graphs, streams, sets, others, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                runtime.sgemm(a, b, other)
    torch.cuda.synchronize()
    for (*_, c), other, want in zip(sets, others, expected, strict=True):
        close(torch, c, want)
        close(torch, other, want)


def test_verify_runs_the_kernels_for_batches(folder: Path) -> None:
    found = [*verify_table(folder)]
    assert not [check for check in found if not check.is_ok]
    assert any(check.gemm.is_batched for check in found)


def test_products_of_batches_are_routed(torch: Any, folder: Path) -> None:
    """Nothing is known of cuBLAS in this table: all is left alone, told with reasons, and right."""
    routing = Dispatcher(folder).torch()
    a, b, c = operands(torch, SQUARE)
    with routing:
        for _ in range(2):
            close(torch, torch.bmm(a, b), a.double() @ b.double())
            close(torch, torch.baddbmm(c, a, b, beta=0.5), 0.5 * c.double() + a.double() @ b.double())
        with pytest.raises(RuntimeError):
            torch.bmm(a[:1], b)
    assert "left alone" in routing.report()
