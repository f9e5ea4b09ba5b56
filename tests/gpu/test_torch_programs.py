"""Programs of torch on a GPU: routed without a change, and torch.ops.autotune.sgemm."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_table import export_winners, plain_config

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.torch.torch_router import SWITCH
from autotune.runtime.torch.torch_routing import TorchRouting

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

ROUTED = ("mm", "addmm", "bmm", "baddbmm", "nn.functional.linear", "matmul")
LEFT_ALONE_K = 33  # products of this depth are taken to be cuBLAS's
WORSE = 1.5  # than torch's own, as errors against float64
STEPS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = plain_config(device_limits(0), vec_b=1)
    winners = {Gemm(512, 512, 512, layout[0] == "T", layout[1] == "T"): config for layout in LAYOUTS}
    return export_winners(winners, tmp_path_factory.mktemp("table") / "exported_for_torch")


@pytest.fixture
def all_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are taken to be faster than cuBLAS, but for products of one depth."""
    own = Chooser.pick

    def pick(self: Chooser, call: Call, *known: Any) -> Pick:
        cublas_us = 0.5 if call.gemm.k == LEFT_ALONE_K else 1e6
        return replace(own(self, call, *known), expected_us=1.0, cublas_us=cublas_us, provider="autotune")

    monkeypatch.setattr(Chooser, "pick", pick)


@pytest.fixture(params=["C++", "Python"])
def routing(
    request: pytest.FixtureRequest,
    folder: Path,
    torch: Any,
    all_win: None,
    monkeypatch: pytest.MonkeyPatch,
) -> TorchRouting:
    """With the router in C++, or Python's kernels alone."""
    monkeypatch.setenv(SWITCH, str(int(request.param == "C++")))
    made = Dispatcher(folder).torch()
    assert bool(made.no_router) == (request.param == "Python"), made.no_router
    return made


BY_DEFAULT = pytest.mark.parametrize("routing", ["C++"], indirect=True)


def outcome(torch: Any, op: Callable[..., Any], sample: Any, dtype: Any = None) -> list[Any]:
    """The result and the gradients, of a sample in another dtype where one is named."""

    def own(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        made = x.detach() if dtype is None else x.detach().to(dtype)
        return made.requires_grad_(x.requires_grad)

    arguments = [own(sample.input), *map(own, sample.args)]
    options = {name: own(x) for name, x in sample.kwargs.items()}
    result = op(*arguments, **options)
    leaves = [x for x in (*arguments, *options.values()) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not result.requires_grad:
        return [result]
    grads = torch.autograd.grad(result.sum() + (result * result).sum(), leaves, allow_unused=True)
    return [result.detach(), *(grad for grad in grads if grad is not None)]


def errors(found: list[Any], exact: list[Any]) -> list[float]:
    return [float((x.double() - e).norm()) for x, e in zip(found, exact, strict=True)]


@pytest.mark.parametrize("name", ROUTED)
def test_torch_s_own_samples(torch: Any, routing: TorchRouting, name: str) -> None:
    pytest.importorskip("expecttest", reason="torch's samples need expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name == name and not op.variant_test_name)
    for sample in op.sample_inputs("cuda", torch.float32, requires_grad=True):
        exact, own = outcome(torch, op, sample, torch.float64), outcome(torch, op, sample)
        with routing:
            found = outcome(torch, op, sample)
        for x, y in zip(own, found, strict=True):
            assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
        scales = [float(e.norm()) for e in exact]
        for mine, its, scale in zip(errors(found, exact), errors(own, exact), scales, strict=True):
            assert mine <= WORSE * its + 1e-6 * scale, f"{name} {sample}"
    if name not in ("bmm", "baddbmm"):
        assert any(not kind.reason for kind in routing.kinds())


@pytest.mark.parametrize("name", ["mm", "addmm"])
def test_what_is_wrong_is_told_by_torch(torch: Any, routing: TorchRouting, name: str) -> None:
    a, b = torch.ones(3, 4, device="cuda"), torch.ones(3, 4, device="cuda")
    call = (lambda: torch.mm(a, b)) if name == "mm" else (lambda: torch.addmm(a, a, b))
    with routing, pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        call()


def test_other_dtypes_tf32_and_the_host_are_left_alone(torch: Any, routing: TorchRouting) -> None:
    a = torch.randn(64, 64, device="cuda")
    with routing:
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            torch.mm(a.to(dtype), a.to(dtype))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.mm(a, a).dtype is torch.bfloat16
        torch.mm(a.cpu(), a.cpu())
        torch.set_float32_matmul_precision("high")
        try:
            torch.mm(a, a)
        finally:
            torch.set_float32_matmul_precision("highest")
        assert not routing.kinds()
        torch.mm(a, a)
    assert [kind.num_calls for kind in routing.kinds()] == [1]
    assert "4 x another dtype" in routing.report() and "1 x the program allows TF32" in routing.report()


@BY_DEFAULT
def test_what_is_known_as_left_alone_does_not_come_to_python(
    torch: Any, routing: TorchRouting, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (
        torch.randn(*shape, device="cuda") for shape in ((64, LEFT_ALONE_K), (LEFT_ALONE_K, 96), (96,))
    )
    many, out = torch.randn(5, 64, LEFT_ALONE_K, device="cuda"), torch.empty(64, 96, device="cuda")

    def multiply() -> list[Any]:
        return [
            torch.mm(a, b), torch.mm(a, b, out=out).clone(), torch.addmm(c, a, b),
            torch.nn.functional.linear(a, b.T, c), torch.addmm(out, a, b, beta=0.5, alpha=2),
            torch.addmm(c, a, b, out=out).clone(), torch.bmm(many, many.mT), torch.mm(a.half(), b.half()),
            torch.baddbmm(torch.zeros(64, device="cuda"), many, many.mT),
        ]  # fmt: skip

    expected = multiply()
    with routing:
        multiply()
        monkeypatch.setattr(routing, "_is_open", lambda *_: pytest.fail("Python was asked"))
        for own, found in zip(expected, multiply(), strict=True):
            assert torch.equal(own, found)  # by the same kernels of torch
    assert all(kind.reason for kind in routing.kinds())
    assert sum(kind.num_calls for kind in routing.kinds()) == 2 * (len(expected) - 1)


def test_graphs_and_streams(torch: Any, routing: TorchRouting) -> None:
    a, b, c = (torch.randn(300, 300, device="cuda") for _ in range(3))
    expected = c.double() + a.double() @ b.double()
    with routing:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.addmm(c, a, b)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = torch.addmm(c, a, b)
        found.zero_()
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    (kind,) = routing.kinds()
    assert kind.num_calls == 2 and not kind.reason


class Transformer:
    """A small one of FP32, built by the same numbers wherever it is built."""

    def __init__(self, torch: Any, dtype: Any, wrap: Callable[[Any], Any]) -> None:
        nn = torch.nn
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, dtype=torch.float32)
        self.torch, self.dtype = torch, dtype
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(97, 128), encoder, nn.Linear(128, 97)).cuda().to(dtype)
        self.step = wrap(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def losses(self) -> list[float]:
        torch, found = self.torch, []
        draw = torch.Generator().manual_seed(1)
        for number in range(STEPS):
            batch, length = 2 + number % 3, 16 + 8 * (number % 4)
            first = torch.randint(0, 97, (batch, 1), generator=draw)
            tokens = ((first + 3 * torch.arange(length + 1)) % 97).cuda()  # there is something to learn
            scores = self.step(tokens[:, :-1]).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            found.append(float(loss.detach()))
        return found


@BY_DEFAULT
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_a_transformer_trains_as_it_does_without(torch: Any, routing: TorchRouting, way: str) -> None:
    def wrap(model: Any) -> Any:
        return torch.compile(model, dynamic=True) if way == "compiled" else model

    exact = Transformer(torch, torch.float64, lambda model: model).losses()
    own = Transformer(torch, torch.float32, wrap).losses()
    if way == "compiled":
        torch._dynamo.reset()
    with routing:
        found = Transformer(torch, torch.float32, wrap).losses()
    assert math.isfinite(sum(found)) and found[-1] < found[0]
    off, off_own = (math.dist(losses, exact) for losses in (found, own))
    assert off <= WORSE * off_own + 1e-5, f"{off:.3g} from float64, torch {off_own:.3g}"
    assert sum(kind.num_calls for kind in routing.kinds() if not kind.reason) > 10 * STEPS


TRAINING = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
x = torch.randn(512, 512, device="cuda")
for _ in range(6000):
    net.zero_grad()
    net(x).sum().backward()
print("trained")
"""


def test_a_program_is_run_routed(folder: Path, torch: Any, tmp_path: Path) -> None:
    program = "import torch\na = torch.ones(512, 512, device='cuda')\nprint(float((a @ a)[0, 0]))\n"
    done = run(folder, tmp_path, program)
    assert done.stdout == "512.0\n" and "products served" in done.stderr


STARTING = """
import multiprocessing
import torch
def work():
    a = torch.ones(512, 512, device="cuda")
    print(float((a @ a)[0, 0]), flush=True)
if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        one = multiprocessing.get_context(method).Process(target=work)
        one.start()
        one.join()
        assert not one.exitcode
"""


def test_processes_that_a_program_starts_are_routed(folder: Path, torch: Any, tmp_path: Path) -> None:
    done = run(folder, tmp_path, STARTING)
    assert done.stdout == 3 * "512.0\n"
    message = [line for line in done.stderr.splitlines() if "products served" in line]
    assert len(message) == 3 and all(line.startswith("process ") for line in message), done.stderr


def test_what_a_program_gains_is_measured(folder: Path, torch: Any, tmp_path: Path) -> None:
    """Products of its backward pass are made by another thread."""
    done = run(folder, tmp_path, TRAINING, "--compare")
    assert done.stdout == "trained\n"
    assert "measured: " in done.stderr and "a step of 5 products" in done.stderr, done.stderr


def run(folder: Path, place: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = place / "program.py"
    path.write_text(program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder.parent), *sys.path])}
    command = [sys.executable, "-m", folder.name, *options, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done
