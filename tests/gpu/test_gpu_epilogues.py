"""Bias and activation on a real GPU: kernels that were compiled with them, beside float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_table import each_kind_of_launch, export_winners, plain_config

from autotune.export.check import verify_table
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.gpu.driver import device_limits
from autotune.kernel.launch import ACTIVATED, EPILOGUES
from autotune.runtime.dispatcher import Dispatcher

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

SQUARE, RAGGED, DEEP = Gemm(128, 64, 96), Gemm(33, 65, 127), Gemm(48, 40, 1024)
BATCH = Gemm(33, 65, 127, batch=6)
ODD = ((1, 1, 1), (1, 77, 300), (77, 1, 300), (130, 67, 31), (70, 66, 0), (515, 259, 1031))
REQUESTED = [(has_bias, activation) for has_bias in (False, True) for activation in (None, *ACTIVATED)][1:]
SCALES = ((1.0, 0.0), (1.25, -0.5), (0.0, 2.0))


def layouts(gemm: Gemm) -> Iterator[Gemm]:
    for layout in LAYOUTS:
        yield replace(gemm, trans_a=layout[0] == "T", trans_b=layout[1] == "T")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of launch has kernels with every epilogue here; cuBLAS is said to be slower."""
    plain = plain_config(device_limits(0), vec_b=1)
    winners = each_kind_of_launch(plain, *map(layouts, (SQUARE, RAGGED, DEEP)))
    winners[BATCH] = replace(plain, vec_c=1)
    if device_limits(0).has_clusters:
        winners[replace(DEEP, k=1088)] = replace(plain, reduction="cluster", split_k=4)
    path = tmp_path_factory.mktemp("epilogues") / "epilogues_table"
    return export_winners(winners, path, epilogues=EPILOGUES, cublas_us=20.0)


@pytest.fixture
def runtime(folder: Path) -> Dispatcher:
    return Dispatcher(folder)


def operands(torch: Any, gemm: Gemm, apart: int = 0) -> tuple[Any, Any, Any, Any]:
    """A, B and C with rows so many elements further apart, and a bias."""
    stack = (gemm.batch,) if gemm.is_batched else ()

    def made(rows: int, columns: int) -> Any:
        return torch.randn(*stack, rows, columns + apart, device="cuda")[..., :columns]

    a = made(*((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)))
    b = made(*((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)))
    return a, b, made(gemm.m, gemm.n), torch.randn(gemm.n, device="cuda")


def activated(torch: Any, x: Any, activation: str | None) -> Any:
    if activation is None:
        return x
    if activation == "relu":
        return x.relu()
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(x, approximate=approximate)


def exact(
    torch: Any, gemm: Gemm, a: Any, b: Any, c: Any, scales: tuple[float, float], bias: Any, activation: Any
) -> Any:
    a, b = (x.double().mT if turns else x.double() for x, turns in ((a, gemm.trans_a), (b, gemm.trans_b)))
    found = scales[0] * (a @ b) + (scales[1] * c.double() if scales[1] else 0)
    return activated(torch, found if bias is None else found + bias.double(), activation)


def close(torch: Any, found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-3)


CASES = [
    *layouts(SQUARE),
    *layouts(RAGGED),
    *layouts(DEEP),
    *(replace(DEEP, k=k) for k in (1040, 1056, 1072, 1088)),
    BATCH,
    replace(BATCH, batch=40),  # by a launch for each product
    *(Gemm(*extents) for extents in ODD),
]


@pytest.mark.parametrize(("has_bias", "activation"), REQUESTED)
@pytest.mark.parametrize("gemm", CASES, ids=str)
def test_every_kind_of_launch(
    torch: Any, runtime: Dispatcher, gemm: Gemm, has_bias: bool, activation: Any
) -> None:
    flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
    for apart in (0, 1):
        for scales in SCALES:
            a, b, c, vector = operands(torch, gemm, apart)
            bias = vector if has_bias else None
            expected = exact(torch, gemm, a, b, c, scales, bias, activation)
            before = c.clone()
            for _ in range(2):  # the second time by the core's fast path
                c.copy_(before if scales[1] else torch.full_like(before, torch.nan))
                runtime.sgemm(
                    a, b, c, alpha=scales[0], beta=scales[1], **flags, bias=bias, activation=activation
                )
                close(torch, c, expected)
    new = runtime.sgemm(a, b, **flags, bias=bias, activation=activation)
    close(torch, new, exact(torch, gemm, a, b, c, (1.0, 0.0), bias, activation))


def test_what_does_not_fit_is_refused(torch: Any, runtime: Dispatcher) -> None:
    a, b, c, bias = operands(torch, SQUARE)
    for wrong, message in (
        (bias[:-1], "bias has 63 elements"),
        (bias[None], "bias has 2 dimensions"),
        (bias.double(), "bias has dtype"),
        (bias.cpu(), "bias is on cpu"),
        (torch.randn(128, device="cuda")[::2], "2 floats apart"),
        (c[3], "overlaps an input"),
    ):
        with pytest.raises(DispatchError, match=message):
            runtime.sgemm(a, b, c, bias=wrong)


def test_streams_and_graphs(torch: Any, runtime: Dispatcher) -> None:
    """Each in a graph on a stream of its own, beside eager calls; a bias that changes is read at the
    replay."""
    gemms = [DEEP, replace(DEEP, k=1040), replace(DEEP, k=1072), replace(DEEP, k=77)]
    sets = [operands(torch, gemm) for gemm in gemms]
    call: Any = {"activation": "gelu"}
    for a, b, c, bias in sets:
        runtime.sgemm(a, b, c, bias=bias, **call)
    torch.cuda.synchronize()
    graphs = []
    for a, b, c, bias in sets:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            runtime.sgemm(a, b, c, bias=bias, **call)
    for _, _, c, bias in sets:
        c.fill_(torch.nan)
        bias.mul_(-2.0)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sets]
    others = [torch.empty_like(c) for _, _, c, _ in sets]
    for _ in range(20):
        for graph, stream, (a, b, _, bias), other in zip(graphs, streams, sets, others, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                runtime.sgemm(a, b, other, bias=bias, **call)
    torch.cuda.synchronize()
    for gemm, (a, b, c, bias), other in zip(gemms, sets, others, strict=True):
        want = exact(torch, gemm, a, b, c, (1.0, 0.0), bias, "gelu")
        close(torch, c, want)
        close(torch, other, want)


def test_arrays_of_the_host(torch: Any, runtime: Dispatcher) -> None:
    gemm = Gemm(70, 66, 40)
    a, b, c, bias = (x.cpu() for x in operands(torch, gemm))
    found = runtime.sgemm(a.numpy(), b.numpy(), bias=bias.numpy(), activation="gelu_tanh")
    close(torch, torch.from_numpy(found), exact(torch, gemm, a, b, c, (1.0, 0.0), bias, "gelu_tanh"))


def test_verify_runs_the_kernels_with_epilogues(folder: Path) -> None:
    found = [*verify_table(folder, is_checked=lambda kernel: not kernel.is_plain)]
    assert not [check for check in found if not check.is_ok]
    assert len({check.kernel_id for check in found}) > 100


def test_linear_is_routed_with_its_bias(torch: Any, folder: Path) -> None:
    """Forward and backward, beside float64; the vector is added by the kernel."""
    routing = Dispatcher(folder).torch()
    layer = torch.nn.Linear(SQUARE.k, SQUARE.n, device="cuda")
    wide = torch.nn.Linear(SQUARE.k, SQUARE.n, device="cuda", dtype=torch.float64)
    wide.load_state_dict(layer.state_dict())
    x = torch.randn(SQUARE.m, SQUARE.k, device="cuda", requires_grad=True)
    exact_x = x.detach().double().requires_grad_()
    with routing:
        for _ in range(3):
            found, expected = layer(x), wide(exact_x)
            close(torch, found, expected)
            grad = torch.randn_like(found)
            found.backward(grad)
            expected.backward(grad.double())
    close(torch, x.grad, exact_x.grad)
    close(torch, layer.bias.grad, wide.bias.grad)
    served = [kind for kind in routing.kinds() if kind.has_bias and not kind.reason]
    assert sum(kind.num_calls for kind in served) == 3, routing.report()


def test_addmm_is_routed_whatever_is_added(torch: Any, folder: Path) -> None:
    routing = Dispatcher(folder).torch()
    a, b, c, bias = operands(torch, SQUARE)
    product = a.double() @ b.double()
    with routing:
        for _ in range(2):
            close(torch, torch.addmm(bias, a, b), product + bias.double())
            close(torch, torch.addmm(bias, a, b, alpha=0.5), 0.5 * product + bias.double())
            close(torch, torch.addmm(bias, a, b, beta=2.0), product + 2 * bias.double())
            close(torch, torch.addmm(c[:, :1], a, b), product + c[:, :1].double())
            close(torch, torch.addmm(c, a, b), product + c.double())
            out = torch.empty_like(c)
            close(torch, torch.addmm(bias, a, b, out=out), product + bias.double())
    served = [kind for kind in routing.kinds() if not kind.reason]
    assert sum(kind.num_calls for kind in served) == 12, routing.report()
