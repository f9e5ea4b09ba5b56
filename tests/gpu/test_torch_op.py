"""torch.ops.autotune.sgemm on the GPU; tests/unit/test_operator_of_torch.py has more of its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from made_table import export_winners, plain_config

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.runtime.dispatcher import Dispatcher

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

BATCH = Gemm(20, 24, 16, batch=3)
BATCHES = [BATCH, replace(BATCH, shares_a=True), replace(BATCH, shares_b=True)]


@pytest.fixture(scope="module")
def op(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    config = plain_config(device_limits(0), vec_b=1)
    single_launches = [Gemm(512, 512, 512, layout[0] == "T", layout[1] == "T") for layout in LAYOUTS]
    path = tmp_path_factory.mktemp("table") / "exported_for_the_operator"
    return Dispatcher(export_winners(dict.fromkeys((*single_launches, *BATCHES), config), path)).torch_op()


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_the_operator_is_one_of_torch_s(torch: Any, op: Any, trans_a: bool, trans_b: bool) -> None:
    pytest.importorskip("expecttest", reason="torch's checks need expecttest")
    a = torch.randn(*((70, 90) if trans_a else (90, 70)), device="cuda", requires_grad=True)
    b = torch.randn(*((50, 70) if trans_b else (70, 50)), device="cuda", requires_grad=True)
    options = {"alpha": 0.5, "trans_a": trans_a, "trans_b": trans_b}
    of_a, of_b = (x.detach().double().requires_grad_() for x in (a, b))
    exact = 0.5 * (of_a.T if trans_a else of_a) @ (of_b.T if trans_b else of_b)
    exact.square().sum().backward()
    for _ in range(2):
        a.grad = b.grad = None
        found = op(a, b, **options)
        found.square().sum().backward()
        for x, y in ((found, exact), (a.grad, of_a.grad), (b.grad, of_b.grad)):
            torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-3)
    op(a, b, **options).sum().backward()  # a gradient that is expanded
    for one in (op, torch.ops.autotune.sgemm_with_gradients):
        torch.library.opcheck(one, (a, b), options)


def test_the_operator_compiles_into_one_graph(torch: Any, op: Any) -> None:
    @torch.compile(fullgraph=True)
    def twice(a: Any, b: Any) -> Any:
        return torch.relu(torch.ops.autotune.sgemm(torch.ops.autotune.sgemm(a, b), b))

    a = torch.randn(100, 64, device="cuda", requires_grad=True)
    b = torch.randn(64, 64, device="cuda", requires_grad=True)
    found = twice(a, b)
    found.sum().backward()
    grads = a.grad.clone(), b.grad.clone()
    of_a, of_b = (x.detach().double().requires_grad_() for x in (a, b))
    exact = torch.relu(of_a @ of_b @ of_b)
    exact.sum().backward()
    for x, y in ((found, exact), (grads[0], of_a.grad), (grads[1], of_b.grad)):
        torch.testing.assert_close(x.double(), y, rtol=1e-3, atol=1e-2)


def test_the_operator_takes_batches(torch: Any, op: Any) -> None:
    def close(found: Any, expected: Any) -> None:
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-3)

    for shapes in (((3, 20, 16), (3, 16, 24)), ((3, 20, 16), (16, 24)), ((20, 16), (3, 16, 24))):
        a, b = (torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes)
        exact_a, exact_b = (x.detach().double().requires_grad_() for x in (a, b))
        found, expected = op(a, b), exact_a @ exact_b
        close(found, expected)
        grad = torch.randn_like(found)
        found.backward(grad)
        expected.backward(grad.double())
        close(a.grad, exact_a.grad)
        close(b.grad, exact_b.grad)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": lambda func, f, a, b: func.jvp(f, (a, b), (a + 1, b + 1)),
    "jacfwd": lambda func, f, a, b: func.jacfwd(f, argnums=(0, 1))(a, b),
    "jacrev": lambda func, f, a, b: func.jacrev(f, argnums=(0, 1))(a, b),
    "hessian": lambda func, f, a, b: func.hessian(lambda x: f(x, b).square().sum())(a),
    "grads of samples": lambda func, f, a, b: func.vmap(func.grad(lambda x, y: f(x, y).square().sum()))(
        a.repeat(3, 1, 1), b.repeat(3, 1, 1)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_operator_takes_transforms_of_torch_func(torch: Any, op: Any, name: str) -> None:
    a, b = torch.randn(6, 5, device="cuda"), torch.randn(5, 4, device="cuda")
    exact = TRANSFORMS[name](torch.func, torch.matmul, a.double(), b.double())
    for _ in range(2):
        found = TRANSFORMS[name](torch.func, op, a, b)
        found = torch.utils._pytree.tree_map(lambda x: x.double(), found)
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-3)


def test_dual_tensors_keep_their_tangents(torch: Any, op: Any) -> None:
    a, b, tangent = (torch.randn(64, 64, device="cuda") for _ in range(3))
    forward = torch.autograd.forward_ad
    for _ in range(2):
        with forward.dual_level():
            found = forward.unpack_dual(op(forward.make_dual(a, tangent), b)).tangent
            exact = tangent.double() @ b.double()
            torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-3)
