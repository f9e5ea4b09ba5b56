"""Tables of one order of sums on a real GPU: the bits of a row, whatever is around it."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_table import export_winners

from autotune import reference
from autotune.export.check import verify_table
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.where import Where
from autotune.runtime.dispatcher import Dispatcher

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import same_logits
from same_logits import same

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

ORDERS = ("chain", "chunks:256")
NUM_SHAPES, NUM_KERNELS = 300, 6  # the latter of each layout, and of batches of each layout
DEEP = (5000, 40_000)  # so many chunks that groups of threads share out their loads, once and in rounds
MOST_SUMS = 64  # of a thread: more may spill, and a search would leave it out
BATCHES, LEADS = (1, 2, 7, 64), (0, 1, 4)  # products, and elements behind each row
EVERY = 10  # so many shapes apart the reference is computed: it takes long
CORNER = 4  # rows and columns of C that it computes


def extents(seed: int, num: int) -> list[tuple[int, int, int]]:
    drawn = random.Random(seed)
    return [(drawn.randint(1, 40), drawn.randint(1, 150), drawn.randint(1, 1100)) for _ in range(num)]


def winners(where: Where) -> dict[Gemm, Config]:
    """Kernels drawn from the feasible sets of shapes of each layout, single and in batches."""
    found, drawn = dict[Gemm, Config](), random.Random(47)
    shapes = [(32 * m, 32 * n, k) for m, n, k in extents(1, NUM_KERNELS)]
    gemms = [
        Gemm(*shape, layout[0] == "T", layout[1] == "T", batch)
        for layout, batch, shape in product(LAYOUTS, (1, 7), shapes)
    ]
    in_chunks = Where.parse("reduction=chunks")
    deep = [Gemm(32, 160, k) for k in DEEP] if where.order and where.order.chunk else []
    for gemm in (*gemms, *deep):
        space = feasible_set(device_limits(0), gemm, order=where.order)
        space = space.where(in_chunks, gemm) if gemm in deep else space
        points = (Config.from_dict(space.point(drawn.randrange(len(space)))) for _ in range(1000))
        found[gemm] = next(config for config in points if config.tm * config.tn <= MOST_SUMS)
    return found


@pytest.fixture(scope="module", params=ORDERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = Where.parse((), order=request.param)
    folder = tmp_path_factory.mktemp("bits") / f"bits_{request.param.replace(':', '_')}"
    return export_winners(winners(where), folder, where=where)


def laid_out(torch: Any, matrix: Any, num: int, transposed: bool, lead: int) -> Any:
    """So many copies of a matrix, each stored transposed or not, with so much behind each row."""
    stored = matrix.mT if transposed else matrix
    rows, columns = stored.shape
    space = torch.full((num, rows, columns + lead), torch.nan, device="cuda")
    space[..., :columns] = stored
    return space[..., :columns] if num > 1 else space[0, :, :columns]


def test_a_row_has_the_same_bits_in_every_product(torch: Any, folder: Path) -> None:
    """Every layout, leading dimension and batch; alone; and on the CPU."""
    table = Dispatcher(folder)
    for number, (m, n, k) in enumerate(extents(2, NUM_SHAPES)):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        expected = table.sgemm(a, b)
        for layout, lead, num in product(LAYOUTS, LEADS, BATCHES):
            flags = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T"}
            of_a = laid_out(torch, a, num, flags["trans_a"], lead)
            of_b = laid_out(torch, b, num, flags["trans_b"], lead)
            found = table.sgemm(of_a, of_b, **flags)
            every = expected if num == 1 else expected.expand(num, m, n)
            assert same(torch, found, every), (m, n, k, layout, lead, num)
        alone = torch.cat([table.sgemm(a[i : i + 1], b) for i in range(m)])
        assert same(torch, alone, expected), (m, n, k)
        if number % EVERY == 0:
            part = reference(a[:CORNER].cpu().numpy(), b[:, :CORNER].cpu().numpy(), table.table.order)
            assert np.array_equal(part, expected[:CORNER, :CORNER].cpu().numpy()), (m, n, k)


def test_kernels_of_winners_have_the_same_bits(torch: Any, folder: Path) -> None:
    """Those that were drawn serve their own shapes; the default kernel does not."""
    table = Dispatcher(folder)
    for entry in table.table.entries:
        gemm = entry.gemm
        pick = table.pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, batch=gemm.batch)
        assert (pick.how, pick.provider) == ("exact", "autotune")
        a, b = torch.randn(gemm.m, gemm.k, device="cuda"), torch.randn(gemm.k, gemm.n, device="cuda")
        flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
        of_a, of_b = (
            laid_out(torch, a, gemm.batch, gemm.trans_a, 0),
            laid_out(torch, b, gemm.batch, gemm.trans_b, 0),
        )
        found = table.sgemm(of_a, of_b, **flags).reshape(-1, gemm.m, gemm.n)
        rows = range(0, gemm.m, max(gemm.m // 5, 1))
        for i in rows:
            assert same(torch, found[-1, i : i + 1], table.sgemm(a[i : i + 1], b)), (
                pick.kernel_id,
                str(gemm),
            )


def test_a_captured_product_has_the_same_bits(torch: Any, folder: Path) -> None:
    table, a, b = Dispatcher(folder), torch.randn(33, 777, device="cuda"), torch.randn(777, 65, device="cuda")
    expected, out = table.sgemm(a, b), torch.empty(33, 65, device="cuda")
    table.sgemm(a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.sgemm(a, b, out)
    out.fill_(torch.nan)
    graph.replay()
    assert same(torch, out, expected)


def test_cublas_serves_where_settling_finds_the_bits_of_the_order(
    torch: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shapes that it splits, and others; what serves then has the bits of what served before."""
    shapes = [(256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (256, 256, 16384), (64, 2000, 700)]
    table, settled = Dispatcher(folder, cublas=False), Dispatcher(folder)
    providers = [pick.provider for pick in settled.settle(shapes)]
    for m, n, k in shapes:
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        for alpha in (1.0, 0.7):
            assert same(torch, settled.sgemm(a, b, alpha=alpha), table.sgemm(a, b, alpha=alpha)), (m, n, k)
    with capsys.disabled():
        print(f"\n{folder.name}: {dict(zip(shapes, providers, strict=True))}")
    if table.table.order == "chain":  # it splits k there, into chunks that may be those of another order
        assert providers[3] == "autotune"


def test_the_check_of_a_folder_proves_its_order(folder: Path) -> None:
    found = [*verify_table(folder)]
    assert found and not [check for check in found if not check.is_ok][:3]


# ------------------------------------------------------------------------------------------------
# A transformer whose products are routed


def test_a_sequence_has_the_same_logits_alone_and_in_any_batch(
    torch: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, x = same_logits.Transformer(torch, 256, 2, "cuda"), torch.randn(64, 48, 256, device="cuda")
    with torch.no_grad():
        own = {num: same_logits.differing(model, x, num) for num in (2, 7, 64)}
        with Dispatcher(folder).torch() as routing:
            routed = {num: same_logits.differing(model, x, num) for num in (2, 7, 64)}
    with capsys.disabled():
        print(f"\nwith cuBLAS differ: {own}; with {folder.name}: {routed}")
    assert not any(map(same_logits.are_products, routed.values())), (routed, routing.report())
