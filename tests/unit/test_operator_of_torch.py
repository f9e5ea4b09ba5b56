"""torch.ops.autotune.sgemm by torch itself, on the host: its derivatives and batches under every transform of
torch.func; tests/gpu has the GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_torch import HostTorch
from table_cases import FakeDriver, make_kernel, make_spec, make_table, rank, write_table
from test_tensor_calls import normal

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.launch import Variant
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.torch import torch_op

torch = pytest.importorskip("torch")
make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
FlopCounterMode = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
TORCH_S_OWN = "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
pytestmark = [
    pytest.mark.filterwarnings(*TORCH_S_OWN),
    pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a GPU: tests/gpu"),
]
func, forward = torch.func, torch.autograd.forward_ad


@pytest.fixture(scope="module", autouse=True)
def host() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_op, "_KEY", "CPU")
        HostTorch(patch, lambda x: x, is_compiled=False)
        yield


@pytest.fixture(scope="module")
def driver() -> FakeDriver:
    kernels, entries = [make_kernel(name, make_spec(name)) for name in LAYOUTS], []
    for name in LAYOUTS:
        flags = name[0] == "T", name[1] == "T"
        kernels.append(make_kernel(f"{name}s", make_spec(variant=Variant(*flags, is_batched=True)), None))
        one = Gemm(6, 4, 5, *flags, batch=3)
        of_one = one, replace(one, shares_a=True), replace(one, shares_b=True)
        entries += [rank(gemm, f"{name}s") for gemm in of_one]
    return FakeDriver(make_table(*kernels, entries=tuple(entries)))


@pytest.fixture(scope="module")
def runtime(host: None, driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Dispatcher:
    folder = write_table(driver.table, tmp_path_factory.mktemp("t") / "t")
    return Dispatcher(folder, driver=driver, cublas=False)


@pytest.fixture(params=["sgemm", "traced"])
def op(request: pytest.FixtureRequest, runtime: Dispatcher, driver: FakeDriver) -> Any:
    found = runtime.torch_op()
    driver.launches.clear()
    name = str(found).rpartition(".")[2]
    traced = getattr(torch.ops.autotune, name.replace("sgemm", "sgemm_with_gradients"))
    return found if request.param == "sgemm" else traced


def tensor(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(normal(*shape, seed=seed))


A, B, C = (6, 5), (5, 4), (6, 4)
T, S = tensor(*A, seed=2), tensor(*B, seed=3)  # tangents


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jvp": lambda f: func.jvp(f, (tensor(*A), tensor(*B)), (T, S)),
    "jvp of one": lambda f: func.jvp(lambda a: f(a, S), (T,), (tensor(*A),)),
    "vjp": lambda f: func.vjp(f, tensor(*A), tensor(*B))[1](tensor(*C)),
    "jacfwd": lambda f: func.jacfwd(f, argnums=(0, 1))(tensor(*A), tensor(*B)),
    "jacrev": lambda f: func.jacrev(f, argnums=(0, 1))(tensor(*A), tensor(*B)),
    "grad": lambda f: func.grad(lambda a: f(a, S).square().sum())(T),
    "hessian": lambda f: func.hessian(lambda a: f(a, S).square().sum())(T),
    "grad of grad": lambda f: func.grad(lambda a: func.grad(lambda b: f(a, b).square().sum())(S).sum())(T),
    "grads of samples": lambda f: func.vmap(func.grad(lambda a, b: f(a, b).square().sum()), (0, None))(
        tensor(3, *A), S
    ),
    "vmap of jvp": lambda f: func.vmap(lambda t: func.jvp(lambda a: f(a, S), (T,), (t,)))(tensor(3, *A)),
    "functionalize": lambda f: func.functionalize(f)(T, S),
    "functionalize of one": lambda f: func.functionalize(lambda a: f(a, S))(T),
    "linearize": lambda f: func.linearize(lambda a: f(a, S), T)[1](tensor(*A)),
}


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_func_take_it(op: Any, name: str, is_transposed: bool) -> None:
    def ours(a: Any, b: Any) -> Any:
        return op(a.mT, b.mT, alpha=0.5, trans_a=True, trans_b=True) if is_transposed else op(a, b, alpha=0.5)

    for _ in range(2):  # call signatures that are new, and known ones
        close(TRANSFORMS[name](ours), TRANSFORMS[name](lambda a, b: 0.5 * (a @ b)))


def test_many_products_are_one_launch(op: Any, driver: FakeDriver) -> None:
    """Of operands that lie anyhow, or that all share."""
    a, b, c = tensor(6, 3, 5), tensor(3, 5, 4), tensor(3, 5, 6).mT
    for x, y, dims in ((a, b, (1, 0)), (a, b[0], (1, None)), (a[:, 0], b, (None, 0)), (c, b, (0, -3))):
        for _ in range(2):
            driver.launches.clear()
            close(func.vmap(op, dims)(x, y), func.vmap(torch.matmul, dims)(x, y))
            assert len(driver.launches) == 1


def test_gradients_that_autograd_computes_at_once_are_one_launch(op: Any, driver: FakeDriver) -> None:
    """By its older vmap, which may be nested, too."""
    for _ in range(2):
        a = tensor(*A).requires_grad_()
        found, grads = op(a, S), tensor(3, *C)
        driver.launches.clear()
        close(torch.autograd.grad(found, a, grads, is_grads_batched=True)[0], grads @ S.mT)
        assert len(driver.launches) == 1
    for strategy in ("forward-mode", "reverse-mode"):
        options = {"vectorize": True, "strategy": strategy}
        found = torch.autograd.functional.jacobian(lambda a: op(a, S), T, **options)
        close(found, func.jacfwd(lambda a: a @ S)(T))
    vmap, a, b = torch._vmap_internals._vmap, tensor(3, *A), tensor(2, *B)
    nested = vmap(lambda x: vmap(lambda y: op(x, y) + op(x, S) + op(T, y))(b))(a)
    close(nested, a[:, None] @ b + (a @ S)[:, None] + T @ b)


def test_a_batch_of_batches_is_aligned_with_its_partner(op: Any) -> None:
    a, b = tensor(3, 2, *A), tensor(3, *B)
    close(func.vmap(op)(a, b), func.vmap(torch.matmul)(a, b))
    with pytest.raises(DispatchError, match="fewer than 2"):
        func.vmap(op, (0, None))(tensor(*A), S)  # products of vectors


def test_dual_tensors_keep_their_tangents(op: Any) -> None:
    a = tensor(*A).requires_grad_()
    for _ in range(2):
        with forward.dual_level():
            dual = forward.make_dual(a, T)
            primal, tangent = forward.unpack_dual(op(dual, S))
            close((primal, tangent), (a @ S, T @ S))
            both = forward.unpack_dual(op(dual, forward.make_dual(S, S))).tangent
            close(both, T @ S + a @ S)
            close(torch.autograd.grad(both.sum(), a)[0], torch.ones(C) @ S.T)  # of a derivative
            assert forward.unpack_dual(op(T, S)).tangent is None
            with torch.no_grad():
                close(forward.unpack_dual(op(dual, S)).tangent, T @ S)


def test_a_derivative_costs_what_it_needs(op: Any, driver: FakeDriver) -> None:
    """No products with zeros."""
    func.jvp(lambda a: op(a, S), (T,), (T,))
    assert len(driver.launches) == 2
    driver.launches.clear()
    op(tensor(*A).requires_grad_(), S).sum().backward()
    assert len(driver.launches) == 2


def test_each_dispatcher_has_an_operator(runtime: Dispatcher, driver: FakeDriver, tmp_path: Path) -> None:
    """So has a table that was loaded again."""
    first, other = runtime.torch_op(), FakeDriver(driver.table)
    again = Dispatcher(write_table(driver.table, tmp_path / "t"), driver=other, cublas=False)
    second = again.torch_op()
    assert (runtime.torch_op(), again.torch_op()) == (first, second) and str(first) != str(second)
    for op, served in ((first, driver), (second, other), (first, driver)):
        num_launches = len(served.launches)
        a = tensor(*A).requires_grad_()
        op(a, S).sum().backward()
        close(a.grad, torch.ones(C) @ S.T)
        assert len(served.launches) == num_launches + 2


def test_modes_of_torch_see_it(op: Any) -> None:
    """A trace would hold the result of one call."""
    traced = make_fx(lambda a, b: op(a, b) + 1)(T, S)
    assert any("sgemm_with_gradients" in str(node.target) for node in traced.graph.nodes)
    close(traced(2 * T, S), 2 * T @ S + 1)
    with FlopCounterMode(display=False) as counter:
        op(T, S)
    assert not counter.get_total_flops()  # nor does it fail


def test_a_trace_that_would_lose_a_product_is_refused(runtime: Dispatcher) -> None:
    """Of a kind that is new or known."""
    for b in (*[tensor(5, 7)] * 2, S):
        with pytest.raises(DispatchError, match="no part; call the operator of"):
            make_fx(lambda a, b: runtime.sgemm(a, b) + 1)(T, b)
        with pytest.raises(DispatchError, match="no part; call the operator of"):
            torch.jit.trace(lambda a, b: runtime.sgemm(a, b) + 1, (T, b))
        runtime.sgemm(T, b)
        with FlopCounterMode(display=False):
            close(runtime.sgemm(T, b), T @ b)


def test_it_is_one_of_torch_s(op: Any) -> None:
    operands = tensor(*A).requires_grad_(), tensor(*B).requires_grad_()
    if importlib.util.find_spec("expecttest"):  # which torch's checks need
        torch.library.opcheck(op, operands, {"alpha": 0.5})
    compiled = torch.compile(lambda a, b: op(op(a, b), b.mT), fullgraph=True, backend="aot_eager")
    compiled(*operands).sum().backward()
    expected = [x.detach().clone().requires_grad_() for x in operands]
    (expected[0] @ expected[1] @ expected[1].mT).sum().backward()
    close([x.grad for x in operands], [x.grad for x in expected])


def test_what_cannot_be_multiplied_is_refused_when_it_is_traced(op: Any) -> None:
    """By what stands for the kernel then."""
    a, b = torch.empty(A, device="meta"), torch.empty(B, device="meta")
    assert op(a, b).shape == C and op(b, a, trans_a=True, trans_b=True).shape == (4, 6)
    rejected = (a, a, "inner extents"), (a.half(), b, "a has dtype"), (a, b.double(), "b has dtype")
    for x, y, match in rejected:
        with pytest.raises(DispatchError, match=match):
            op(x, y)
    with pytest.raises(DispatchError, match="inner extents"):
        make_fx(lambda a, b: op(a, b), tracing_mode="symbolic")(tensor(2, 3), tensor(4, 5))


def test_the_dispatcher_refuses_what_it_would_lose(runtime: Dispatcher, driver: FakeDriver) -> None:
    def rejected(*arguments: Any, match: str) -> Any:
        with pytest.raises(DispatchError, match=f"{match}.*torch_op"):
            runtime.sgemm(*arguments)
        return arguments[0].sum()

    runtime.sgemm(T, S)
    driver.launches.clear()
    with forward.dual_level():
        dual = forward.make_dual(S, S)
        rejected(T, dual, match="b has a tangent")
        rejected(T, S, forward.make_dual(tensor(*C), tensor(*C)), match="out has a tangent")
        assert not driver.launches
        close(runtime.sgemm(T, forward.unpack_dual(dual).primal.detach()), T @ S)
    driver.launches.clear()
    func.jvp(lambda a: rejected(a, S, match="a has a tangent"), (T,), (T,))
    func.grad(lambda a: rejected(a, S, match="no gradient"))(T)
    func.vmap(lambda a: rejected(a, S, match="no memory of its own"))(tensor(3, *A))
    assert not driver.launches


def test_a_nested_tensor_is_refused(runtime: Dispatcher, driver: FakeDriver) -> None:
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([T, T], layout=layout)
        with pytest.raises(DispatchError, match="a is a nested tensor; pass"):
            runtime.sgemm(nested, S)
